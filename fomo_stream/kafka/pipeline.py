"""From a record that was read to an output that can be committed: decode, micro-batch, score, send.

A `PartitionTask` holds all state of one input partition. The `Pipeline` moves records through the tasks, those of a
partition in order. It knows no consumer and no clock: the caller passes the time and decides when to commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition

from fomo_stream.errors import DamagedStateError, RecordError, SchemaError
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.feedback.labelling import Labelling
from fomo_stream.kafka.group.patience import FEW
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.outputs import Outputs, dead_letter_reason
from fomo_stream.kafka.partition import PartitionTask, Pending
from fomo_stream.kafka.record import Record
from fomo_stream.kafka.restore import to_output
from fomo_stream.kafka.scorer import Finished, Scorer, check_schema
from fomo_stream.kafka.state.position import Restored, unusable_state_error
from fomo_stream.kafka.topics.watch import TopicsSeen
from fomo_stream.logs import kv
from fomo_stream.records.inference import TooManyFeaturesError, infer_schema
from fomo_stream.records.json_codec import decode_strictly
from fomo_stream.records.schema import Schema, shown
from fomo_stream.settings.service import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.model.zero_shot import ZeroShotModel

log = logging.getLogger(__name__)

LEFT_OUT_SHOWN = 50  # log lines about fields that are no features


class Pipeline:
    """Receives records; sends outputs, dead letters and changes of state; knows the position of each partition.

    executor: encodes contexts. partitions: returns the current partition counts by topic; a record keeps its partition
    if input and output have equally many.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: ZeroShotModel,
        delivery: Delivery,
        executor: Executor,
        partitions: Callable[[], Mapping[str, int]],
        observer: Observer | None = None,
    ) -> None:
        self.tasks: dict[int, PartitionTask] = {}
        self.scorer: Scorer | None = None  # from `begin` on
        self._settings = settings
        self._model = model
        self._delivery = delivery
        self._executor = executor
        self._observer = observer or Observer()
        self._outputs = Outputs(settings, delivery, partitions, self._observer)
        self._labelling = Labelling(settings, delivery)
        self._finished: list[Finished] = []  # records that were finished since the last commit began
        self._staged: list[Finished] = []  # and those in the last commit

    @property
    def schema(self) -> Schema | None:
        """The features that are scored; None while they are not known."""
        return None if self.scorer is None else self.scorer.schema

    # --- partitions ---------------------------------------------------------------------------------------

    def add(self, number: int, topic_ids: Mapping[str, str]) -> PartitionTask:
        """Begin a partition, which waits to be restored. If it was here before, its state is forgotten."""
        former = self.tasks.get(number)
        self.tasks[number] = task = PartitionTask(number, self._settings, topic_ids)
        task.former = former.detector if former is not None else None
        return task

    def activate(self, task: PartitionTask, restored: Restored) -> None:
        """Continue a partition from its restored state. Raises StateError when that state cannot be used."""
        try:
            task.activate(restored)
        except DamagedStateError as error:
            raise unusable_state_error(self._settings.state_topic, task.number, error) from None
        if self.scorer is not None:
            self.scorer.equip(task)

    def drop(self, number: int) -> None:
        """Forget a partition."""
        self.tasks.pop(number, None)

    # --- commits ------------------------------------------------------------------------------------------

    def stage(self, seen: TopicsSeen) -> list[TopicPartition]:
        """Send the changes of the state of every partition; returns the offsets to commit, of existing topics."""
        offsets = []
        self._staged, self._finished = self._finished, []
        for task in self.tasks.values():
            changes = task.changes()
            for name, value in changes.items():
                self._delivery.send(to_output(self._settings.state_topic, task.number, name, value))
            if task.is_active:
                self._labelling.delete_old_effects(task, seen.first_offsets.get(task.number, 0))
            uncommitted = list(self._uncommitted(task, seen.partitions))
            if changes and not uncommitted and task.position is not None:
                # Labels took effect, but no offset moved. The broker refuses a former owner of the partition only where
                # the transaction has an offset of it.
                uncommitted.append(TopicPartition(self._settings.topic, task.number, task.position))
            offsets += uncommitted
        return offsets

    def committed(self, offsets: Iterable[TopicPartition], began: float, now: float, clock: float) -> None:
        """The staged changes are committed, with these offsets.

        began, now: when the commit began and ended, seconds, monotonic; clock: the time now, seconds since 1970.
        """
        for offset in offsets:
            if (task := self.tasks.get(offset.partition)) is not None:
                of_labels = offset.topic == self._settings.feedback
                (task.labels if of_labels else task).committed = offset.offset
        ages = [clock - timestamp / 1000 for _, timestamp in self._staged if timestamp is not None]
        self._observer.committed([now - polled_at for polled_at, _ in self._staged], ages, now - began)

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """By partition of the input that is active: the offset that the group has committed, as far as known."""
        topic, tasks = self._settings.topic, self.tasks.values()
        known = ((task.number, task.committed) for task in tasks if task.is_active)
        return {TopicPartition(topic, number): offset for number, offset in known if offset is not None}

    def _uncommitted(self, task: PartitionTask, topics: Mapping[str, object]) -> Iterator[TopicPartition]:
        found = [(self._settings.topic, task.position, task.committed)]
        if self._settings.feedback is not None:
            found.append((self._settings.feedback, task.labels.committable, task.labels.committed))
        for topic, offset, committed in found:
            # Commit the input offset only with its outputs, or they would be written twice; if the topic is gone, both
            # fail.
            if offset is not None and offset != committed and (topic == self._settings.topic or topic in topics):
                yield TopicPartition(topic, task.number, offset)

    def aborted(self, topic_ids: Mapping[str, str]) -> list[PartitionTask]:
        """Forget everything since the last commit: every partition begins again and waits to be restored."""
        self._observer.aborted()
        self._finished.clear()
        return [self.add(number, topic_ids) for number in list(self.tasks)]

    # --- the schema ---------------------------------------------------------------------------------------

    def begin(self, schema: Schema) -> None:
        """Score records with `schema` from now on, beginning with those that waited for it."""
        parts = (self._executor, self._outputs, self._labelling, self._observer)
        self.scorer = Scorer(self._settings, self._model, schema, *parts)
        log.info(kv("schema", features=shown(schema.features), count=len(schema.features)))

    def check(self, schema: Schema) -> None:
        """See `check_schema`."""
        check_schema(self._settings, self._model, schema)

    def infer(self) -> Schema | None:
        """A schema from the records that wait; None if they have no features: then they become dead letters.

        The sample keeps the records of each partition together, so that a counter in a partition is recognised.
        """
        sample = [item.fields for task in self.tasks.values() for item in task.batch.items if item.error is None]
        try:
            schema, left_out = infer_schema(sample, self._settings.result_field, self._settings.categorical)
        except SchemaError as error:
            log.error(kv("schema_not_inferred", reason=error))
            reason = "too_many_features" if isinstance(error, TooManyFeaturesError) else "no_features"
            for task in self.tasks.values():
                for item in task.batch.take():
                    self._outputs.dead_letter(item.record, *dead_letter_reason(item.error, reason, str(error)))
                    task.position = item.record.offset + 1
            return None
        for name, reason in list(left_out.items())[:LEFT_OUT_SHOWN]:
            log.info(kv("feature_left_out", name=shown([name]), reason=reason))
        if len(sample) < FEW:
            effect = "fields that none of these has are never scored; if there are any, name all with --features"
            log.warning(kv("schema_of_few_records", records=len(sample), effect=effect))
        return schema

    # --- records ------------------------------------------------------------------------------------------

    def receive(self, record: Record, now: float) -> None:
        """Take one record; it is scored when its micro-batch is full or old enough."""
        task = self.tasks.get(record.partition)
        if task is None or not task.is_active or record.offset <= task.received:
            return  # the partition was given up, or began again, after the fetch
        task.received = record.offset
        try:
            fields, is_strict = decode_strictly(record.value, self._settings.max_record_bytes)
            item = Pending(record, fields, now, None, is_strict)
        except RecordError as error:
            item = Pending(record, {}, now, error)
        if task.batch.add(item, now) and self.scorer is not None:
            self._score(task, self.scorer)

    def receive_label(self, record: Record, exists: Callable[[int, int], bool]) -> None:
        """Take one record of the feedback topic; its label takes effect after the labelled record was scored.

        exists: whether the input has a record at (partition, offset).
        """
        task = self.tasks.get(record.partition)
        if task is None or not task.is_active or not task.labels.open(record.offset):
            return
        try:
            self._labelling.receive(task.labels, task.position, record, exists)
        except RecordError as error:
            self._outputs.dead_letter(record, error.reason, str(error), error)
            task.labels.close(record.offset)

    def score_due(self, now: float) -> None:
        """Score every micro-batch that is full or old enough, and apply the labels about scored records.

        A micro-batch whose next generation is not built yet waits.
        """
        if self.scorer is not None:
            for task in self.tasks.values():
                if task.is_active and task.batch.is_due(now):
                    self._score(task, self.scorer)
                else:
                    self.scorer.apply_labels(task)

    def finish(self, numbers: Iterable[int]) -> None:
        """Score the records that were read of these partitions.

        Records whose generation is not built are left; the next owner reads them again.
        """
        if self.scorer is not None:
            for number in numbers:
                if number in self.tasks and self.tasks[number].is_active:
                    self._score(self.tasks[number], self.scorer)

    def _score(self, task: PartitionTask, scorer: Scorer) -> None:
        self._finished += scorer.score(task)
