"""Scoring with one schema: micro-batches of a partition go through its detector, and each record gets an output."""

from __future__ import annotations

import logging
from concurrent.futures import Executor
from typing import Any

import numpy as np

from fomo_stream.detector.config import LEAST_CONTEXT
from fomo_stream.detector.detector import Detector
from fomo_stream.errors import DamagedStateError, RecordError, SchemaError, StateError
from fomo_stream.kafka.feedback.labelling import Labelling
from fomo_stream.kafka.observer import Observation, Observer
from fomo_stream.kafka.outputs import Outputs
from fomo_stream.kafka.partition import PartitionTask, Pending
from fomo_stream.kafka.record import Record
from fomo_stream.kafka.state.position import unusable_state_error
from fomo_stream.logs import kv
from fomo_stream.model.zero_shot import ZeroShotModel
from fomo_stream.records.files import read_rows
from fomo_stream.records.result import result_of
from fomo_stream.records.rows import RowReader
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)

NO_FEATURES = "the record has no value of any feature; check the names given by --features"


class Scorer:
    """Scores the records of all partitions with one schema.

    executor: encodes contexts. Raises SchemaError when the schema does not fit the model or the seed context.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: ZeroShotModel,
        schema: Schema,
        executor: Executor,
        outputs: Outputs,
        labelling: Labelling,
        observer: Observer,
    ) -> None:
        self.schema = schema
        self._settings = settings
        self._model_name = model.name
        self._outputs = outputs
        self._labelling = labelling
        self._observer = observer
        reader = RowReader(schema, settings.lags)
        config = settings.detector_config()
        # Every partition begins as a copy of this one: a seed context is the same for all, so it is encoded once.
        self._prototype = Detector(model, reader.width, config, executor=executor, categorical=reader.categorical)
        rows = _read_seed(settings, schema)
        if rows is not None:
            self._prototype.seed_context(reader.past.rows(rows))

    def equip(self, task: PartitionTask) -> tuple[Detector, RowReader]:
        """The detector and the reader of a partition. Raises StateError, with a remedy, when its state does not fit."""
        try:
            return task.equip(self._prototype, self.schema)
        except StateError as error:
            topic = self._settings.state_topic
            if self._settings.delivery == "exactly-once" or not isinstance(error, DamagedStateError):
                raise unusable_state_error(topic, task.number, error) from None
            # Without transactions, a crash may leave a state that is only partly written.
            place = {"topic": topic, "partition": task.number}
            log.warning(kv("state_damaged", **place, reason=error, effect="warming up again"))
            task.discard_state()
            return task.equip(self._prototype, self.schema)

    def score(self, task: PartitionTask) -> list[float]:
        """Score the records that wait, in micro-batches; stop where a generation is not built yet.

        Returns the poll times (monotonic seconds) of the finished records.
        """
        detector, reader = self.equip(task)
        lag = detector.config.lag
        finished: list[float] = []
        self.apply_labels(task)
        while waiting := len(task.batch):
            # Records of a micro-batch must not trigger a generation that scores later records of the same batch.
            room = lag if detector.generation else detector.room
            n = min(waiting, self._settings.batch_size, room)
            if not detector.is_ready(n):
                break
            pending = task.batch.take(n)
            self._score_batch(task, detector, reader, pending)
            finished += [item.polled_at for item in pending]
            self.apply_labels(task)
        return finished

    def apply_labels(self, task: PartitionTask) -> None:
        """Let the labels that are due take effect in the partition's detector."""
        if labels := self._labelling.apply(task):
            self._observer.labelled(labels)

    def _score_batch(self, task: PartitionTask, detector: Detector, reader: RowReader, pending: list[Pending]) -> None:
        """Score consecutive records of a partition and send one output for each, in their order."""
        sound = [item for item in pending if item.error is None]
        again = [item for item in sound if item.record.offset < task.learned_until]
        results: dict[int, dict[str, Any]] = {}  # by offset
        missing = 0
        for items, learn in ((again, False), (sound[len(again) :], True)):
            results |= self._results(task, detector, reader, items, learn)
        for item in pending:
            if (result := results.get(item.record.offset)) is not None:
                self._outputs.scored(item.record, item.fields, result)
                missing += result["missing"]
            else:
                self._outputs.dead_letter(item.record, *dead_letter_reason(item.error, "no_features", NO_FEATURES))
        task.position = pending[-1].record.offset + 1
        self._report_regimes(task, list(results.values()))
        scored = [item for item in sound if item.record.offset in results]
        pairs = zip(scored, results.values(), strict=True)
        outliers = [(item.fields, result) for item, result in pairs if result["outlier"]]
        place = (self._settings.topic, task.number)
        self._observer.scored(
            Observation(*place, len(scored), detector.context_rows, detector.generation, outliers, missing)
        )

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
        results = detector.process(rows) if learn else detector.score_rows(rows)
        lacking = missing[has_features].tolist()
        return {
            item.record.offset: result_of(results, i, self._model_name, _source(item.record), lacking[i])
            for i, item in enumerate(usable)
        }

    def _report_regimes(self, task: PartitionTask, results: list[dict[str, Any]]) -> None:
        for result in results:
            if result["regime"] > max(task.regime, 1):  # the first is no change
                self._observer.regime_changed()
                place = {"topic": self._settings.topic, "partition": task.number, "offset": result["offset"]}
                log.warning(kv("regime", **place, regime=result["regime"], effect="a lasting shift is the new normal"))
            task.regime = result["regime"]


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


def dead_letter_reason(error: RecordError | None, reason: str, message: str) -> tuple[str, str, RecordError | None]:
    """Reason, message and error of a dead letter: those of its decoding error, if any, else `reason` and `message`."""
    return (error.reason, str(error), error) if error is not None else (reason, message, None)


def _source(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
