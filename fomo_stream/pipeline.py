"""What happens to a record between being read and being acknowledged: decode, micro-batch, score, send.

One `PartitionTask` holds all state of one input partition; the `Pipeline` moves records through them. It
knows no consumer, and decides nothing by the clock: `service` says when.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fomo_stream.batching import FEW, MicroBatch, OffsetTracker
from fomo_stream.broker import Record
from fomo_stream.dead_letters import DeadLetters
from fomo_stream.detector import LEAST_CONTEXT, Detector
from fomo_stream.errors import ConfigError, RecordError, SchemaError
from fomo_stream.feedback import LabelQueue, RecordIndex
from fomo_stream.labelling import Labelling
from fomo_stream.logs import kv
from fomo_stream.outbox import Outbox, Output
from fomo_stream.records import decode, encode, infer_schema, read_rows, result_of
from fomo_stream.schema import RowReader, Schema, TooManyFeaturesError, shown
from fomo_stream.settings import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.model import ZeroShotModel

log = logging.getLogger(__name__)

LEFT_OUT_SHOWN = 50  # log lines about fields that are no features


class Pending(NamedTuple):
    """A decoded record that waits to be scored."""

    record: Record
    fields: dict[str, Any]
    polled_at: float  # seconds, monotonic


@dataclass
class PartitionTask:
    """The state of one input partition in this instance. It is in memory only: a restart warms up again."""

    number: int
    batch: MicroBatch[Pending]
    index: RecordIndex  # what labels can be about
    labels: LabelQueue = field(default_factory=LabelQueue)
    tracker: OffsetTracker = field(default_factory=OffsetTracker)
    committed: int | None = None  # the offset that the group has committed last
    detector: Detector | None = None  # from the first batch on
    reader: RowReader | None = None  # likewise
    regime: int = 0  # that the last record was scored in


@dataclass(frozen=True)
class Observation:
    """What a live display needs to know after each micro-batch."""

    topic: str
    partition: int
    n_records: int
    context_rows: int
    generation: int
    outliers: list[tuple[dict[str, Any], dict[str, Any]]]  # (record, result) of each outlier


@dataclass
class Progress:
    """What was done since the last look."""

    records: int = 0
    dead_letters: int = 0
    outliers: int = 0
    missing: int = 0  # values that scored records lack
    labels: int = 0  # labels about records that were still remembered
    regimes: int = 0  # shifts that became the new normal
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))  # from poll to acknowledgement


class Pipeline:
    """Takes records in, sends outputs and dead letters out, and tracks per partition what is finished.

    partitions: current partition counts by topic, to keep a record's partition where input and output match.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: ZeroShotModel,
        outbox: Outbox,
        executor: Executor,
        partitions: Callable[[], Mapping[str, int]],
        observer: Callable[[Observation], None] | None = None,
    ) -> None:
        self.tasks: dict[int, PartitionTask] = {}
        self.schema: Schema | None = None
        self.progress = Progress()
        self._settings = settings
        self._model = model
        self._outbox = outbox
        self._executor = executor
        self._partitions = partitions
        self._observer = observer
        self._dead_letters = DeadLetters(settings.dead_letters, outbox, self._partition_of)
        self._labelling = Labelling(settings, outbox, self._partition_of)

    # --- partitions ---------------------------------------------------------------------------------------

    def add(self, number: int) -> None:
        """Begin a partition with nothing learned."""
        batch = MicroBatch[Pending](self._settings.batch_size, self._settings.batch_age_ms / 1000)
        self.tasks[number] = PartitionTask(number, batch, RecordIndex(self._settings.detector_config().feedback_memory))

    def drop(self, number: int) -> None:
        """Forget a partition; outputs under way are delivered, but count for nothing any more."""
        self.tasks.pop(number, None)

    # --- the schema ---------------------------------------------------------------------------------------

    def begin(self, schema: Schema) -> None:
        """From now on records are scored with `schema`; what has waited for it comes first.

        Raises ConfigError when the flags name other categorical fields.
        """
        named = self._settings.categorical
        if named and set(named) != schema.categorical:
            raise ConfigError(
                f"--categorical {shown(named)} differs from the categorical fields of group {self._settings.group} "
                f"({shown(sorted(schema.categorical)) or 'none'}); leave the flag out to use those, or choose another "
                "--group"
            )
        reader = RowReader(schema, self._settings.lags)
        # A seed context is the same for every partition, so it is encoded once.
        self._prototype = Detector(
            self._model,
            reader.width,
            self._settings.detector_config(),
            executor=self._executor,
            categorical=reader.categorical,
        )
        rows = self._read_seed(schema)
        if rows is not None:
            self._prototype.seed_context(reader.past.rows(rows))
        self.schema = schema
        log.info(kv("schema", features=shown(schema.features), count=len(schema.features)))

    def check(self, schema: Schema) -> None:
        """Raise SchemaError when the model cannot take as many features, or the seed context has none of them."""
        RowReader(schema, self._settings.lags).past.check(self._model.config.raw_features, self._model.name)
        self._read_seed(schema)

    def _read_seed(self, schema: Schema) -> np.ndarray | None:
        path = self._settings.seed_context
        if path is None:
            return None
        rows = read_rows(path, schema)
        if len(rows) < LEAST_CONTEXT:
            raise SchemaError(f"--seed-context {path} has {len(rows)} usable rows; at least {LEAST_CONTEXT} are needed")
        return rows

    def infer(self) -> Schema | None:
        """A schema from the records that wait; None when they have no features: they are dead letters.

        They are taken one partition after the other, so that a counter of each partition is seen to count.
        """
        sample = [item.fields for task in self.tasks.values() for item in task.batch.items]
        try:
            schema, left_out = infer_schema(sample, self._settings.result_field, self._settings.categorical)
        except SchemaError as error:
            log.error(kv("schema_not_inferred", reason=error))
            reason = "too_many_features" if isinstance(error, TooManyFeaturesError) else "no_features"
            for task in self.tasks.values():
                for item in task.batch.take():
                    self._dead_letter(task.tracker.close, item.record, reason, str(error))
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
        if task is None:  # given up since it was fetched
            return
        task.tracker.open(record.offset)
        try:
            fields = decode(record.value, self._settings.max_record_bytes)
        except RecordError as error:
            self._dead_letter(task.tracker.close, record, error.reason, str(error))
            return
        if task.batch.add(Pending(record, fields, now), now) and self.schema is not None:
            self._score(task, self.schema)

    def receive_label(self, record: Record, exists: Callable[[int, int], bool]) -> None:
        """Take one record of the feedback topic; it takes effect once the record that it is about is scored.

        exists: whether the input has a record at (partition, offset).
        """
        task = self.tasks.get(record.partition)
        if task is None:  # given up since it was fetched
            return
        task.labels.open(record.offset)
        try:
            self._labelling.receive(task.labels, task.index, record, exists)
        except RecordError as error:
            self._dead_letter(task.labels.close, record, error.reason, str(error))

    def score_due(self, now: float) -> None:
        """Score every micro-batch whose time has come, and heed the labels on what was scored.

        A micro-batch whose next generation is not built yet has to wait.
        """
        if self.schema is not None:
            for task in self.tasks.values():
                if task.batch.is_due(now):
                    self._score(task, self.schema)
                else:
                    self._heed(task)

    def finish(self, numbers: Iterable[int]) -> None:
        """Score everything that was read of these partitions; before there is a schema, nothing can be."""
        if self.schema is not None:
            for number in numbers:
                if number in self.tasks:
                    self._score(self.tasks[number], self.schema, patient=True)

    def _score(self, task: PartitionTask, schema: Schema, patient: bool = False) -> None:
        """Score what waits, in micro-batches. Unless `patient`, stop where a generation would have to be waited for."""
        if task.detector is None or task.reader is None:
            task.detector, task.reader = self._prototype.copy(), RowReader(schema, self._settings.lags)
        detector = task.detector
        config = detector.config
        self._heed(task)
        while waiting := len(task.batch):
            # No micro-batch both brings a generation about and needs it.
            room = config.lag if detector.generation else detector.room
            n = min(waiting, self._settings.batch_size, room)
            if not patient and not detector.is_ready(n):
                return
            self._score_batch(task, detector, task.reader, task.batch.take(n))
            self._heed(task)

    def _heed(self, task: PartitionTask) -> None:
        if task.detector is not None:
            self.progress.labels += self._labelling.heed(task.number, task.labels, task.index, task.detector)

    def _score_batch(self, task: PartitionTask, detector: Detector, reader: RowReader, pending: list[Pending]) -> None:
        rows, has_features, missing = reader.read(
            [item.fields for item in pending], [item.record.key for item in pending]
        )
        for item, usable in zip(pending, has_features, strict=True):
            if not usable:
                message = "the record has no value of any feature; check the names given by --features"
                self._dead_letter(task.tracker.close, item.record, "no_features", message)
        items = [item for item, usable in zip(pending, has_features, strict=True) if usable]
        for number, item in enumerate(items, detector.records):
            task.index.add(number, item.record.offset, item.record.key)
        task.index.position = pending[-1].record.offset + 1
        if not items:
            return
        scored = detector.process(rows)
        lacking = missing[has_features].tolist()
        self.progress.missing += sum(lacking)
        results = [
            result_of(scored, i, self._model.name, _source(item.record), lacking[i]) for i, item in enumerate(items)
        ]
        for item, result in zip(items, results, strict=True):
            self._send(task, item, result)
        self._announce_regime(task, results)
        self._observe(task, detector, items, results)

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

    # --- outputs ------------------------------------------------------------------------------------------

    def _send(self, task: PartitionTask, item: Pending, result: dict[str, Any]) -> None:
        record = item.record
        try:
            value = encode(item.fields, result, self._settings.result_field, self._settings.scores_only)
        except (ValueError, TypeError, RecursionError) as error:
            self._dead_letter(task.tracker.close, record, "not_encodable", f"the scored record is no JSON: {error}")
            return
        self._outbox.send(
            Output(
                self._settings.out,
                record.key,
                value,
                record.headers,
                partial(self._sent, task, item),
                self._partition_of(self._settings.out, record.partition, record.key),
                record.timestamp_or_now,
            )
        )

    def _sent(self, task: PartitionTask, item: Pending, refusal: str | None) -> None:
        if refusal is not None:
            message = f"topic {self._settings.out} refuses it: {refusal}"
            self._dead_letter(task.tracker.close, item.record, "output_refused", message)
            return
        task.tracker.close(item.record.offset)
        self.progress.seconds.append(monotonic() - item.polled_at)

    def _dead_letter(self, close: Callable[[int], None], record: Record, reason: str, message: str) -> None:
        """The record is finished, and its offset closed, once its dead letter is there."""
        self.progress.dead_letters += 1
        self._dead_letters.send(record, reason, message, partial(close, record.offset))

    def _partition_of(self, topic: str, partition: int, key: bytes | None) -> int:
        """The partition to write to: the source's own where the counts match, else -1: by key.

        What has no key keeps to the others of its partition, and so in order.
        """
        counts = self._partitions()
        count = counts.get(topic, 0)
        if count == counts.get(self._settings.topic, 0):
            return partition
        return partition % count if count and key is None else -1


def _source(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
