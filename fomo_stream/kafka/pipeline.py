"""What happens to a record between being read and being committed: decode, micro-batch, score, send.

One `PartitionTask` holds all state of one input partition; the `Pipeline` moves records through them, each partition's
in order. It knows no consumer, and decides nothing by the clock: `service` says when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np
from confluent_kafka import TopicPartition

from fomo_stream.detector.config import LEAST_CONTEXT
from fomo_stream.detector.detector import Detector
from fomo_stream.errors import DamagedStateError, RecordError, SchemaError, StateError
from fomo_stream.kafka.batching import FEW
from fomo_stream.kafka.clients import Record
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.feedback.labelling import Labelling
from fomo_stream.kafka.observer import Observation
from fomo_stream.kafka.outputs import Outputs
from fomo_stream.kafka.partition import PartitionTask, Pending
from fomo_stream.kafka.position import Restored, unusable
from fomo_stream.kafka.state_topic import to_output
from fomo_stream.kafka.topic_watch import TopicsSeen
from fomo_stream.logs import kv
from fomo_stream.ops.progress import Progress
from fomo_stream.records.files import read_rows
from fomo_stream.records.inference import TooManyFeaturesError, infer_schema
from fomo_stream.records.json_codec import decode, result_of
from fomo_stream.records.rows import RowReader
from fomo_stream.records.schema import Schema, shown
from fomo_stream.settings.service import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.model.zero_shot import ZeroShotModel

log = logging.getLogger(__name__)

LEFT_OUT_SHOWN = 50  # log lines about fields that are no features


class Pipeline:
    """Takes records in, sends outputs, dead letters and changes of state out, and knows how far each partition is.

    partitions: current partition counts by topic, to keep a record's partition where input and output match.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: ZeroShotModel,
        delivery: Delivery,
        executor: Executor,
        partitions: Callable[[], Mapping[str, int]],
        observer: Callable[[Observation], None] | None = None,
    ) -> None:
        self.tasks: dict[int, PartitionTask] = {}
        self.schema: Schema | None = None
        self.progress = Progress()
        self._settings = settings
        self._model = model
        self._delivery = delivery
        self._executor = executor
        self._observer = observer
        self._outputs = Outputs(settings, delivery, partitions, self.progress)
        self._labelling = Labelling(settings, delivery)
        self._sent_at: list[float] = []  # when the records since the last commit began were polled
        self._staged_at: list[float] = []  # and those of the last commit

    # --- partitions ---------------------------------------------------------------------------------------

    def add(self, number: int, topic_ids: Mapping[str, str]) -> PartitionTask:
        """Begin a partition, which waits to be restored. Its former state, if there is one, is forgotten."""
        former = self.tasks.get(number)
        self.tasks[number] = task = PartitionTask(number, self._settings, topic_ids)
        task.former = former.detector if former is not None else None
        return task

    def activate(self, task: PartitionTask, restored: Restored) -> None:
        """Go on with a partition as restored. Raises StateError when its state is not to be used as it is."""
        try:
            task.activate(restored)
        except DamagedStateError as error:
            raise unusable(self._settings.state_topic, task.number, error) from None
        if self.schema is not None:
            self._equip(task, self.schema)

    def drop(self, number: int) -> None:
        """Forget a partition."""
        self.tasks.pop(number, None)

    def _equip(self, task: PartitionTask, schema: Schema) -> tuple[Detector, RowReader]:
        """Its detector and reader. Raises StateError, saying what to do, when its state does not fit."""
        try:
            return task.equip(self._prototype, schema)
        except StateError as error:
            topic = self._settings.state_topic
            if self._settings.delivery == "exactly-once" or not isinstance(error, DamagedStateError):
                raise unusable(topic, task.number, error) from None
            # Without transactions a crash may leave half of what was to be written together.
            place = {"topic": topic, "partition": task.number}
            log.warning(kv("state_damaged", **place, reason=error, effect="warming up again"))
            task.start_anew()
            return task.equip(self._prototype, schema)

    # --- commits ------------------------------------------------------------------------------------------

    def stage(self, seen: TopicsSeen) -> list[TopicPartition]:
        """Send what has changed in the state of every partition; returns the offsets to commit, of existing topics."""
        offsets = []
        self._staged_at, self._sent_at = self._sent_at, []
        for task in self.tasks.values():
            for name, value in task.changes().items():
                self._delivery.send(to_output(self._settings.state_topic, task.number, name, value))
            if task.is_active:
                self._labelling.delete_old_effects(task, seen.first_offsets.get(task.number, 0))
            offsets += list(self._uncommitted(task, seen.partitions))
        return offsets

    def committed(self, offsets: Iterable[TopicPartition], now: float) -> None:
        """What was staged is committed, with these offsets."""
        for offset in offsets:
            if (task := self.tasks.get(offset.partition)) is not None:
                of_labels = offset.topic == self._settings.feedback
                (task.labels if of_labels else task).committed = offset.offset
        self.progress.commits += 1
        self.progress.seconds.extend(now - at for at in self._staged_at)

    def _uncommitted(self, task: PartitionTask, topics: Mapping[str, object]) -> Iterator[TopicPartition]:
        found = [(self._settings.topic, task.position, task.committed)]
        if self._settings.feedback is not None:
            found.append((self._settings.feedback, task.labels.committable, task.labels.committed))
        for topic, offset, committed in found:
            # The input's offset goes with the outputs always: else they would come twice. If it is gone, both fail.
            if offset is not None and offset != committed and (topic == self._settings.topic or topic in topics):
                yield TopicPartition(topic, task.number, offset)

    def aborted(self, topic_ids: Mapping[str, str]) -> list[PartitionTask]:
        """Nothing since the last commit counts: begin every partition again, as it was then."""
        self.progress.aborts += 1
        self._sent_at.clear()
        return [self.add(number, topic_ids) for number in list(self.tasks)]

    # --- the schema ---------------------------------------------------------------------------------------

    def begin(self, schema: Schema) -> None:
        """From now on records are scored with `schema`; what has waited for it comes first."""
        reader = RowReader(schema, self._settings.lags)
        # A seed context is the same for every partition, so it is encoded once.
        self._prototype = Detector(
            self._model,
            reader.width,
            self._settings.detector_config(),
            executor=self._executor,
            categorical=reader.categorical,
        )
        rows = _read_seed(self._settings, schema)
        if rows is not None:
            self._prototype.seed_context(reader.past.rows(rows))
        self.schema = schema
        log.info(kv("schema", features=shown(schema.features), count=len(schema.features)))

    def check(self, schema: Schema) -> None:
        """See `check_schema`."""
        check_schema(self._settings, self._model, schema)

    def infer(self) -> Schema | None:
        """A schema from the records that wait; None when they have no features: they are dead letters.

        They are taken one partition after the other, so that a counter of each partition is seen to count.
        """
        sample = [item.fields for task in self.tasks.values() for item in task.batch.items if item.error is None]
        try:
            schema, left_out = infer_schema(sample, self._settings.result_field, self._settings.categorical)
        except SchemaError as error:
            log.error(kv("schema_not_inferred", reason=error))
            reason = "too_many_features" if isinstance(error, TooManyFeaturesError) else "no_features"
            for task in self.tasks.values():
                for item in task.batch.take():
                    self._outputs.dead_letter(item.record, *_why(item.error, reason, str(error)))
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
            return  # given up, or begun again, since it was fetched
        task.received = record.offset
        try:
            item = Pending(record, decode(record.value, self._settings.max_record_bytes), now)
        except RecordError as error:
            item = Pending(record, {}, now, error)
        if task.batch.add(item, now) and self.schema is not None:
            self._score(task, self.schema)

    def receive_label(self, record: Record, exists: Callable[[int, int], bool]) -> None:
        """Take one record of the feedback topic; it takes effect once the record that it is about is scored.

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
        """Score every micro-batch whose time has come, and apply the labels on what was scored.

        A micro-batch whose next generation is not built yet has to wait.
        """
        if self.schema is not None:
            for task in self.tasks.values():
                if task.is_active and task.batch.is_due(now):
                    self._score(task, self.schema)
                else:
                    self._apply_labels(task)

    def finish(self, numbers: Iterable[int]) -> None:
        """Score what was read of these partitions; not what would have to wait: it is read again."""
        if self.schema is not None:
            for number in numbers:
                if number in self.tasks and self.tasks[number].is_active:
                    self._score(self.tasks[number], self.schema)

    def _score(self, task: PartitionTask, schema: Schema) -> None:
        """Score what waits, in micro-batches, up to where a generation would have to be waited for."""
        detector, reader = self._equip(task, schema)
        config = detector.config
        self._apply_labels(task)
        while waiting := len(task.batch):
            # No micro-batch both brings a generation about and needs it.
            room = config.lag if detector.generation else detector.room
            n = min(waiting, self._settings.batch_size, room)
            if not detector.is_ready(n):
                return
            self._score_batch(task, detector, reader, task.batch.take(n))
            self._apply_labels(task)

    def _apply_labels(self, task: PartitionTask) -> None:
        self.progress.labels += self._labelling.apply(task)

    def _score_batch(self, task: PartitionTask, detector: Detector, reader: RowReader, pending: list[Pending]) -> None:
        """Score consecutive records of a partition and send one output for each, in their order."""
        sound = [item for item in pending if item.error is None]
        again = [item for item in sound if item.record.offset < task.learned_until]
        results: dict[int, dict[str, Any]] = {}  # by offset
        for items, learn in ((again, False), (sound[len(again) :], True)):
            results |= self._results(task, detector, reader, items, learn)
        for item in pending:
            if (result := results.get(item.record.offset)) is not None:
                self._outputs.scored(item.record, item.fields, result)
            else:
                self._outputs.dead_letter(item.record, *_why(item.error, "no_features", _NO_FEATURES))
            self._sent_at.append(item.polled_at)
        task.position = pending[-1].record.offset + 1
        self._announce_regime(task, list(results.values()))
        self._observe(task, detector, [item for item in sound if item.record.offset in results], list(results.values()))

    def _results(
        self, task: PartitionTask, detector: Detector, reader: RowReader, items: list[Pending], learn: bool
    ) -> dict[int, dict[str, Any]]:
        """Results of the records that have features, by offset. learn: they were not learned before."""
        fields, keys = [item.fields for item in items], [item.record.key for item in items]
        rows, has_features, missing = reader.read(fields, keys, learn)
        usable = [item for item, has in zip(items, has_features, strict=True) if has]
        if not usable:
            return {}
        if learn:
            for number, item in enumerate(usable, detector.records):
                task.index.add(number, item.record.offset, item.record.key)
        scored = detector.process(rows) if learn else detector.score_rows(rows)
        lacking = missing[has_features].tolist()
        self.progress.missing += sum(lacking)
        return {
            item.record.offset: result_of(scored, i, self._model.name, _source(item.record), lacking[i])
            for i, item in enumerate(usable)
        }

    def _announce_regime(self, task: PartitionTask, results: list[dict[str, Any]]) -> None:
        for result in results:
            if result["regime"] > max(task.regime, 1):  # the first is no change
                self.progress.regimes += 1
                place = {"topic": self._settings.topic, "partition": task.number, "offset": result["offset"]}
                log.warning(kv("regime", **place, regime=result["regime"], effect="a lasting shift is the new normal"))
            task.regime = result["regime"]

    def _observe(
        self, task: PartitionTask, detector: Detector, items: list[Pending], results: list[dict[str, Any]]
    ) -> None:
        outliers = [(item.fields, result) for item, result in zip(items, results, strict=True) if result["outlier"]]
        self.progress.records += len(items)
        self.progress.outliers += len(outliers)
        if self._observer is not None:
            self._observer(
                Observation(
                    self._settings.topic,
                    task.number,
                    len(items),
                    detector.context_rows,
                    detector.generation,
                    outliers,
                )
            )


def check_schema(settings: ServiceSettings, model: ZeroShotModel, schema: Schema) -> None:
    """Raise SchemaError when the model cannot take as many features, or the seed context has none of them."""
    RowReader(schema, settings.lags).past.check(model.config.raw_features, model.name)
    _read_seed(settings, schema)


def _read_seed(settings: ServiceSettings, schema: Schema) -> np.ndarray | None:
    path = settings.seed_context
    if path is None:
        return None
    rows = read_rows(path, schema)
    if len(rows) < LEAST_CONTEXT:
        raise SchemaError(f"--seed-context {path} has {len(rows)} usable rows; at least {LEAST_CONTEXT} are needed")
    return rows


_NO_FEATURES = "the record has no value of any feature; check the names given by --features"


def _why(error: RecordError | None, reason: str, message: str) -> tuple[str, str, RecordError | None]:
    """Why a record is a dead letter: what decoding said of it, else `reason` and `message`."""
    return (error.reason, str(error), error) if error is not None else (reason, message, None)


def _source(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
