"""When labels took effect, so that a detector without interruptions can score the same records and labels again.

As a program it is `fomo-stream` with a `SettingsRecorder`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

from fomo_stream.cli.main import program
from fomo_stream.kafka import service
from fomo_stream.kafka.delivery.base import Delivery, Output
from fomo_stream.kafka.member import GroupMember
from fomo_stream.kafka.observer import Observation, Observer, Observers
from fomo_stream.model.architecture import Model
from fomo_stream.partition.labels import DueLabels
from fomo_stream.partition.rules import Rules
from fomo_stream.settings.service_settings import ServiceSettings

KEY, SETTINGS_KEY = b"effect/", b"in-force/"


class EffectRecorder(Observer):
    """Notes each batch of labels that takes effect in the state topic, as part of the commit that makes it last.

    delivery: returns that of the instance.
    """

    def __init__(self, settings: ServiceSettings, delivery: Callable[[], Delivery]) -> None:
        self._topic = settings.state_topic
        self._delivery = delivery

    def labelled(self, partition: int, due: DueLabels) -> None:
        content = {"input_offset": due.takes_effect, "labels": due.labels}
        self._note(KEY + b"%d/%d" % (due.takes_effect, due.labels[0][0]), content, partition)

    def _note(self, key: bytes, content: dict[str, Any], partition: int) -> None:
        self._delivery().send(Output(self._topic, key, json.dumps(content).encode(), [], partition))


class SettingsRecorder(EffectRecorder):
    """Also notes the alert rate and the rules of a partition, from the record on with which they first counted.

    member: returns the instance.
    """

    def __init__(self, settings: ServiceSettings, delivery: Callable[[], Delivery], member: Callable[[], GroupMember]):
        super().__init__(settings, delivery)
        self._member, self._noted = member, dict[int, tuple[float, Rules]]()

    def restored(self, seconds: float) -> None:
        self._noted.clear()

    def labelled(self, partition: int, due: DueLabels) -> None:
        self._note_settings(partition, due.takes_effect)
        super().labelled(partition, due)

    def scored(self, observation: Observation) -> None:
        if observation.results:
            self._note_settings(observation.partition, observation.results[0]["offset"])

    def _note_settings(self, partition: int, offset: int) -> None:
        member = self._member()
        rate, rules = member.settings.alert_rate, member.pipeline.partitions[partition].rules.now
        if self._noted.get(partition) != (rate, rules):
            self._noted[partition] = rate, rules
            content = {"input_offset": offset, "alert_rate": rate, "rules": rules.plain()}
            self._note(SETTINGS_KEY + b"%d" % offset, content, partition)


def effects_in(entries: Iterable[tuple[bytes | None, bytes | None]]) -> list[dict[str, Any]]:
    """What was noted among the keys and values of records of the state topic.

    Before the record at `input_offset` was scored, `labels` took effect, each of them with its own offset, the offset
    of its record, and whether that is an outlier.
    """
    return [json.loads(value or b"") for key, value in entries if (key or b"").startswith(KEY)]


def settings_in(entries: Iterable[tuple[bytes | None, bytes | None]]) -> dict[int, tuple[float, Rules]]:
    """The alert rates and rules that were noted among records of the state topic, by the first offset that had them."""
    noted = [json.loads(value or b"") for key, value in entries if (key or b"").startswith(SETTINGS_KEY)]
    return {note["input_offset"]: (note["alert_rate"], Rules.of_plain(note["rules"], {})) for note in noted}


class RecordingService(service.Service):
    """A service with an `EffectRecorder`."""

    def __init__(self, settings: ServiceSettings, model: Model | None = None, observer: Observer | None = None) -> None:
        super().__init__(settings, model, Observers([observer or Observer(), self._recorder(settings)]))

    def _recorder(self, settings: ServiceSettings) -> Observer:
        return EffectRecorder(settings, self._delivery)

    def _member(self) -> GroupMember:
        assert self.member is not None
        return self.member

    def _delivery(self) -> Delivery:
        return self._member().delivery


class SettingsRecordingService(RecordingService):
    """A service with a `SettingsRecorder`."""

    def _recorder(self, settings: ServiceSettings) -> Observer:
        return SettingsRecorder(settings, self._delivery, self._member)


if __name__ == "__main__":
    with patch.object(service, "Service", SettingsRecordingService):
        program()
