"""What happens to labels: read, applied to the detector, and their effect recorded.

Each batch of labels that takes effect is recorded in the group's state topic, in the partition of the same number
(`effects`): key `feedback/<feedback topic>/<partition>/<input offset>/<offset of its first label>`, value
`{"input_offset": 8130, "labels": [[41, 7302, true], ...]}`. That is: before the record at input offset 8130 was scored,
the label at offset 41 of the feedback topic said that the record at input offset 7302 is an outlier. So a replay can
repeat it, for as long as the input keeps the record at 8130; then the entry is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import orjson

from fomo_stream.errors import RecordError
from fomo_stream.kafka.clients import Record
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.delivery.output import Output
from fomo_stream.kafka.feedback.effects import Effect
from fomo_stream.kafka.feedback.labels import BAD_FEEDBACK, LabelQueue, Verdicts, parse_label
from fomo_stream.kafka.partition import PartitionTask
from fomo_stream.logs import Throttle, kv
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)

LOG_EVERY_S = 1.0  # a line about each batch of labels, but at level info at most so often for a partition


class Labelling:
    """Takes labels in and has detectors follow them."""

    def __init__(self, settings: ServiceSettings, delivery: Delivery) -> None:
        self._settings = settings
        self._delivery = delivery
        self._throttle = Throttle(LOG_EVERY_S)

    def receive(
        self, queue: LabelQueue, position: int | None, record: Record, exists: Callable[[int, int], bool]
    ) -> None:
        """Queue the label that a record of the feedback topic holds. Raises RecordError when it is of no use.

        position: records of the input before this offset are behind; exists: whether the input has a record at
        (partition, offset), asked only of those that are not behind.
        """
        settings = self._settings
        label = parse_label(
            record.value, record.key, record.partition, settings.topic, settings.result_field, settings.max_record_bytes
        )
        is_ahead = label.offset is not None and (position is None or label.offset >= position)
        if label.offset is not None and is_ahead and not exists(record.partition, label.offset):
            where = f"{settings.topic}[{record.partition}]@{label.offset}"
            raise RecordError(BAD_FEEDBACK, f"there is no record {where} yet; a label comes after what it is about")
        queue.add(record.offset, label)

    def apply(self, task: PartitionTask) -> int:
        """Have a partition's detector take the labels that are due; returns how many were about remembered records."""
        if task.detector is None:
            return 0
        verdicts = task.labels.take_due(task.index, task.position)
        if verdicts is None:
            return 0
        outlier = np.array([label[2] for label in verdicts.labels], dtype=bool)
        news = task.detector.feedback(np.array(verdicts.numbers, dtype=np.int64), outlier)
        line = kv(
            "feedback",
            topic=self._settings.feedback,
            partition=task.number,
            labels=len(verdicts.labels) + verdicts.too_late,
            news=news,
            too_late=verdicts.too_late,
            takes_effect=verdicts.takes_effect,
        )
        log.log(logging.DEBUG if self._throttle.allow(str(task.number)) is None else logging.INFO, line)
        if verdicts.labels:
            self._record(task, verdicts)
        return len(verdicts.labels)

    def _record(self, task: PartitionTask, verdicts: Verdicts) -> None:
        effect = Effect.of(self._settings.feedback or "", task.number, verdicts.takes_effect, verdicts.labels[0][0])
        value = orjson.dumps({"input_offset": verdicts.takes_effect, "labels": verdicts.labels})
        self._delivery.send(Output(self._settings.state_topic, effect.key, value, [], task.number))
        task.effects.add(effect)

    def forget(self, task: PartitionTask, first: int) -> None:
        """Delete entries about labels that took effect before record `first`, the first one that the input keeps."""
        for key in task.effects.take(first):
            self._delivery.send(Output(self._settings.state_topic, key, None, [], task.number))
