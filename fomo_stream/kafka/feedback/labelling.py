"""Reads labels, applies them to the detector, and records their effect.

Each batch of labels that takes effect is recorded in the group's state topic, in the partition of the same number
(`effects`): key `feedback/<feedback topic>/<partition>/<input offset>/<offset of its first label>`, value
`{"input_offset": 8130, "labels": [[41, 7302, true], ...]}`. This entry says: before the record at input offset 8130 was
scored, the label at offset 41 of the feedback topic called the record at input offset 7302 an outlier. So a replay can
repeat it. When the input no longer retains the record at 8130, the entry is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import orjson

from fomo_stream.errors import RecordError
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.delivery.output import Output
from fomo_stream.kafka.feedback.effects import Effect
from fomo_stream.kafka.feedback.labels import BAD_FEEDBACK, DueLabels, LabelQueue, parse_label
from fomo_stream.kafka.partition import PartitionTask
from fomo_stream.kafka.record import Record
from fomo_stream.logs import Throttle, kv
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)

LOG_EVERY_S = 1.0  # each batch of labels gets a log line, at level info at most one per partition in this time


class Labelling:
    """Reads labels and applies them to detectors."""

    def __init__(self, settings: ServiceSettings, delivery: Delivery) -> None:
        self._settings = settings
        self._delivery = delivery
        self._throttle = Throttle(LOG_EVERY_S)

    def receive(
        self, queue: LabelQueue, position: int | None, record: Record, exists: Callable[[int, int], bool]
    ) -> None:
        """Queue the label in a record of the feedback topic. Raises RecordError if it is not a valid label.

        position: input records before this offset were scored or skipped. exists: whether the input has a record at
        (partition, offset); called only for offsets from `position` on.
        """
        settings = self._settings
        label = parse_label(
            record.value, record.key, record.partition, settings.topic, settings.result_field, settings.max_record_bytes
        )
        is_ahead = label.offset is not None and (position is None or label.offset >= position)
        if label.offset is not None and is_ahead and not exists(record.partition, label.offset):
            where = f"{settings.topic}[{record.partition}]@{label.offset}"
            raise RecordError(BAD_FEEDBACK, f"there is no record {where} yet; a label must come after its record")
        queue.add(record.offset, label)

    def apply(self, task: PartitionTask) -> int:
        """Apply the due labels of a partition; returns how many were about remembered records."""
        if task.detector is None:
            return 0
        verdicts = task.labels.take_due(task.index, task.position)
        if verdicts is None:
            return 0
        outlier = np.array([label[2] for label in verdicts.labels], dtype=bool)
        new_verdicts = task.detector.feedback(np.array(verdicts.numbers, dtype=np.int64), outlier)
        line = kv(
            "feedback",
            topic=self._settings.feedback,
            partition=task.number,
            labels=len(verdicts.labels) + verdicts.too_late,
            new_verdicts=new_verdicts,
            too_late=verdicts.too_late,
            takes_effect=verdicts.takes_effect,
        )
        log.log(logging.DEBUG if self._throttle.allow(str(task.number)) is None else logging.INFO, line)
        if verdicts.labels:
            self._record(task, verdicts)
        return len(verdicts.labels)

    def _record(self, task: PartitionTask, verdicts: DueLabels) -> None:
        effect = Effect.of(self._settings.feedback or "", task.number, verdicts.takes_effect, verdicts.labels[0][0])
        value = orjson.dumps({"input_offset": verdicts.takes_effect, "labels": verdicts.labels})
        self._delivery.send(Output(self._settings.state_topic, effect.key, value, [], task.number))
        task.effects.add(effect)

    def delete_old_effects(self, task: PartitionTask, first: int) -> None:
        """Delete the entries of labels that took effect before offset `first`, the first one that the input retains."""
        for key in task.effects.remove_before(first):
            self._delivery.send(Output(self._settings.state_topic, key, None, [], task.number))
