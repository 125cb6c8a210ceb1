"""When labels took effect, so that a detector without interruptions can score the same records and labels again.

As a program it is `fomo-stream` with an `EffectRecorder`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

from fomo_stream.cli.main import program
from fomo_stream.kafka import service
from fomo_stream.kafka.delivery.base import Delivery, Output
from fomo_stream.kafka.observer import Observer, Observers
from fomo_stream.model.architecture import Model
from fomo_stream.partition.labels import DueLabels
from fomo_stream.settings.service_settings import ServiceSettings

KEY = b"effect/"


class EffectRecorder(Observer):
    """Notes each batch of labels that takes effect in the state topic, as part of the commit that makes it last.

    delivery: returns that of the instance.
    """

    def __init__(self, settings: ServiceSettings, delivery: Callable[[], Delivery]) -> None:
        self._topic = settings.state_topic
        self._delivery = delivery

    def labelled(self, partition: int, due: DueLabels) -> None:
        value = json.dumps({"input_offset": due.takes_effect, "labels": due.labels}).encode()
        key = KEY + b"%d/%d" % (due.takes_effect, due.labels[0][0])
        self._delivery().send(Output(self._topic, key, value, [], partition))


def effects_in(entries: Iterable[tuple[bytes | None, bytes | None]]) -> list[dict[str, Any]]:
    """What was noted among the keys and values of records of the state topic.

    Before the record at `input_offset` was scored, `labels` took effect, each of them with its own offset, the offset
    of its record, and whether that is an outlier.
    """
    return [json.loads(value or b"") for key, value in entries if (key or b"").startswith(KEY)]


class RecordingService(service.Service):
    """A service with an `EffectRecorder`."""

    def __init__(self, settings: ServiceSettings, model: Model | None = None, observer: Observer | None = None) -> None:
        recorder = EffectRecorder(settings, self._delivery)
        super().__init__(settings, model, Observers([observer or Observer(), recorder]))

    def _delivery(self) -> Delivery:
        assert self.member is not None
        return self.member.delivery


if __name__ == "__main__":
    with patch.object(service, "Service", RecordingService):
        program()
