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
from fomo_stream.detector import LEAST_CONTEXT, Detector
from fomo_stream.errors import BrokerError, RecordError, SchemaError
from fomo_stream.logs import Throttle, kv
from fomo_stream.outbox import Outbox, Output
from fomo_stream.records import decode, encode, infer_schema, read_rows, result_of
from fomo_stream.schema import Schema, TooManyFeaturesError, shown
from fomo_stream.settings import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.model import ZeroShotModel

log = logging.getLogger(__name__)

LEFT_OUT_SHOWN = 50  # log lines about fields that are no features

# A dead letter that is too large for its topic is cut to this, then to nothing but its headers.
TRUNCATED_BYTES = (512 << 10, 0)


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
    tracker: OffsetTracker = field(default_factory=OffsetTracker)
    committed: int | None = None  # the offset that the group has committed last
    detector: Detector | None = None  # from the first batch on


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
        self._throttle = Throttle()

    # --- partitions ---------------------------------------------------------------------------------------

    def add(self, number: int) -> None:
        """Begin a partition with nothing learned."""
        batch = MicroBatch[Pending](self._settings.batch_size, self._settings.batch_age_ms / 1000)
        self.tasks[number] = PartitionTask(number, batch)

    def drop(self, number: int) -> None:
        """Forget a partition; outputs under way are delivered, but count for nothing any more."""
        self.tasks.pop(number, None)

    # --- the schema ---------------------------------------------------------------------------------------

    def begin(self, schema: Schema) -> None:
        """From now on records are scored with `schema`; what has waited for it comes first."""
        config = self._settings.detector_config()
        # A seed context is the same for every partition, so it is encoded once.
        self._prototype = Detector(self._model, len(schema.features), config, executor=self._executor)
        rows = self._read_seed(schema)
        if rows is not None:
            self._prototype.seed_context(rows)
        self.schema = schema
        log.info(kv("schema", features=shown(schema.features), count=len(schema.features)))

    def check(self, schema: Schema) -> None:
        """Raise SchemaError when the model cannot take as many features, or the seed context has none of them."""
        limit, found = self._model.config.raw_features, len(schema.features)
        if limit and found > limit:
            raise SchemaError(
                f"model {self._model.name} takes up to {limit} features, {self._settings.topic} has {found}; "
                "name the ones to use with --features"
            )
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
            schema, left_out = infer_schema(sample, self._settings.result_field)
        except SchemaError as error:
            log.error(kv("schema_not_inferred", reason=error))
            reason = "too_many_features" if isinstance(error, TooManyFeaturesError) else "no_features"
            for task in self.tasks.values():
                for item in task.batch.take():
                    self._dead_letter(task, item.record, reason, str(error))
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
            self._dead_letter(task, record, error.reason, str(error))
            return
        if task.batch.add(Pending(record, fields, now), now) and self.schema is not None:
            self._score(task, self.schema)

    def score_due(self, now: float) -> None:
        """Score every micro-batch whose time has come; one whose next generation is not built yet has to wait."""
        if self.schema is not None:
            for task in self.tasks.values():
                if task.batch.is_due(now):
                    self._score(task, self.schema)

    def finish(self, numbers: Iterable[int]) -> None:
        """Score everything that was read of these partitions; before there is a schema, nothing can be."""
        if self.schema is not None:
            for number in numbers:
                if number in self.tasks:
                    self._score(self.tasks[number], self.schema, patient=True)

    def _score(self, task: PartitionTask, schema: Schema, patient: bool = False) -> None:
        """Score what waits, in micro-batches. Unless `patient`, stop where a generation would have to be waited for."""
        if task.detector is None:
            task.detector = self._prototype.copy()
        detector = task.detector
        config = detector.config
        while waiting := len(task.batch):
            # No micro-batch both brings a generation about and needs it.
            room = config.lag if detector.generation else config.min_context - detector.context_rows
            n = min(waiting, self._settings.batch_size, room)
            if not patient and not detector.is_ready(n):
                return
            self._score_batch(task, detector, schema, task.batch.take(n))

    def _score_batch(self, task: PartitionTask, detector: Detector, schema: Schema, pending: list[Pending]) -> None:
        rows = schema.rows([item.fields for item in pending])
        has_features = ~np.isnan(rows).all(axis=1)
        for item, usable in zip(pending, has_features, strict=True):
            if not usable:
                message = "no feature of the record is a finite number; check the names given by --features"
                self._dead_letter(task, item.record, "no_features", message)
        scored_items = [item for item, usable in zip(pending, has_features, strict=True) if usable]
        if not scored_items:
            return
        scored = detector.process(rows[has_features])
        results = [result_of(scored, i, self._model.name, _source(item.record)) for i, item in enumerate(scored_items)]
        for item, result in zip(scored_items, results, strict=True):
            self._send(task, item, result)
        self._observe(task, detector, scored_items, results)

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
            self._dead_letter(task, record, "not_encodable", f"the scored record is no JSON: {error}")
            return
        self._outbox.send(
            Output(
                self._settings.out,
                record.key,
                value,
                record.headers,
                partial(self._sent, task, item),
                self._partition_of(self._settings.out, record),
                _positive(record.timestamp),
            )
        )

    def _sent(self, task: PartitionTask, item: Pending, refusal: str | None) -> None:
        if refusal is not None:
            self._dead_letter(task, item.record, "output_refused", f"topic {self._settings.out} refuses it: {refusal}")
            return
        task.tracker.close(item.record.offset)
        self.progress.seconds.append(monotonic() - item.polled_at)

    def _dead_letter(self, task: PartitionTask, record: Record, reason: str, message: str) -> None:
        """Send the original bytes to the dead-letter topic; the record is finished once they are there."""
        self.progress.dead_letters += 1
        left_out = self._throttle.allow(reason)
        if left_out is not None:
            log.warning(kv("dead_letter", record=record.where(), reason=reason, error=message, more_since=left_out))
        self._send_dead_letter(task, record, _dead_letter_headers(record, reason, message), TRUNCATED_BYTES, None)

    def _send_dead_letter(
        self,
        task: PartitionTask,
        record: Record,
        headers: list[tuple[str, bytes | None]],
        cuts: tuple[int, ...],
        cut: int | None,
    ) -> None:
        value, sent_headers = record.value, headers
        if cut is not None and value is not None:
            value = value[:cut]
            sent_headers = [*headers, ("fomo-truncated-from", str(len(record.value or b"")).encode())]

        def done(refusal: str | None) -> None:
            if refusal is None:
                task.tracker.close(record.offset)
            elif cuts:
                self._send_dead_letter(task, record, headers, cuts[1:], cuts[0])
            else:
                raise BrokerError(
                    f"topic {self._settings.dead_letters} refuses the dead letter of {record.where()}, even "
                    f"without its value ({refusal}); check that topic's configuration"
                )

        self._outbox.send(
            Output(
                self._settings.dead_letters,
                record.key,
                value,
                sent_headers,
                done,
                self._partition_of(self._settings.dead_letters, record),
                _positive(record.timestamp),
            )
        )

    def _partition_of(self, topic: str, record: Record) -> int:
        """The partition to write to: the input's own where the counts match, else -1: by key.

        What has no key keeps to the others of its partition, and so in order.
        """
        counts = self._partitions()
        count = counts.get(topic, 0)
        if count == counts.get(self._settings.topic, 0):
            return record.partition
        return record.partition % count if count and record.key is None else -1


def _source(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }


def _positive(timestamp: int | None) -> int:
    """A timestamp as the producer takes it: 0 stands for now."""
    return timestamp if timestamp is not None and timestamp > 0 else 0


def _dead_letter_headers(record: Record, reason: str, message: str) -> list[tuple[str, bytes | None]]:
    added = {
        "fomo-reason": reason,
        "fomo-error": message,
        "fomo-source-topic": record.topic,
        "fomo-source-partition": str(record.partition),
        "fomo-source-offset": str(record.offset),
        "fomo-source-timestamp": "" if record.timestamp is None else str(record.timestamp),
    }
    return [*record.headers, *((name, value[:1000].encode(errors="replace")) for name, value in added.items())]
