"""Scoring with one schema: micro-batches of a partition go through its detector, and each record gets an output."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable
from concurrent.futures import Executor
from itertools import compress

import numpy as np

from fomo_stream.detector.config import LEAST_CONTEXT
from fomo_stream.detector.detector import Detector
from fomo_stream.errors import DamagedStateError, SchemaError, StateError
from fomo_stream.kafka.feedback.labelling import Labelling
from fomo_stream.kafka.observer import Observation, Observer, Outlier
from fomo_stream.kafka.outputs import Outputs
from fomo_stream.kafka.partition import PartitionTask, Pending
from fomo_stream.kafka.state.position import unusable_state_error
from fomo_stream.logs import kv
from fomo_stream.model.zero_shot import ZeroShotModel
from fomo_stream.records.files import read_rows
from fomo_stream.records.incidents import Closed
from fomo_stream.records.result import Result, results_of
from fomo_stream.records.rows import RowReader
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)


Finished = tuple[float, int | None]  # when a record was polled (monotonic seconds), and its timestamp (milliseconds)


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
        # Every partition begins as a copy of this one: a seed context is the same for all, so it is encoded once.
        self._prototype = first_detector(settings, model, schema, executor)
        for view in self._prototype.left_out:
            log.warning(kv("view_left_out", view=view.view, columns=view.columns, limit=view.limit))

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

    def score(self, task: PartitionTask) -> list[Finished]:
        """Score the records that wait, in micro-batches; stop where a generation is not built yet.

        Returns the times of the finished records.
        """
        detector, reader = self.equip(task)
        finished: list[Finished] = []
        self.apply_labels(task)
        while waiting := len(task.batch):
            # the detector scores at most so many records at once
            n = min(waiting, self._settings.batch_size, detector.room)
            if not detector.is_ready(n):
                task.late_since = task.late_since or time.monotonic()
                break
            task.late_since = None
            pending = task.batch.take(n)
            self._score_batch(task, detector, reader, pending)
            finished += [(item.polled_at, item.record.timestamp) for item in pending]
            self.apply_labels(task)
        return finished

    def apply_labels(self, task: PartitionTask) -> None:
        """Let the labels that are due take effect in the partition's detector."""
        if labels := self._labelling.apply(task):
            self._observer.labelled(labels)

    def _score_batch(self, task: PartitionTask, detector: Detector, reader: RowReader, pending: list[Pending]) -> None:
        """Score consecutive records of a partition and send one output for each, in their order."""
        sound = [item for item in pending if item.error is None]
        n_again = bisect_left(sound, task.learned_until, key=lambda item: item.record.offset)
        began, known, opened = time.perf_counter(), detector.records, len(task.incidents)
        again, _ = self._results(task, reader, sound[:n_again], learn=False)
        new, closed = self._results(task, reader, sound[n_again:], learn=True)
        found = iter(again + new)
        results = [next(found) if item.error is None else None for item in pending]
        scored = time.perf_counter()
        self._outputs.send(pending, results, closed)
        sent = time.perf_counter()
        last = pending[-1]
        task.position, task.last_timestamp = last.record.offset + 1, last.record.timestamp
        if detector.generation != task.generation:
            task.generation, task.generation_since = detector.generation, last.polled_at
        outcome = [(item, result) for item, result in zip(pending, results, strict=True) if result is not None]
        self._announce(task, (result for _, result in outcome))
        self._observer.scored(
            Observation(
                self._settings.topic,
                task.number,
                results=[result for _, result in outcome],
                outliers=[Outlier(item.fields, one, item.record.key) for item, one in outcome if one["outlier"]],
                context_rows=detector.context_rows,
                generation=detector.generation,
                learned=detector.records - known,
                opened=len(task.incidents) - opened + len(closed),
                closed=len(closed),
                score_s=scored - began,
                produce_s=sent - scored,
            )
        )

    def _results(
        self, task: PartitionTask, reader: RowReader, items: list[Pending], learn: bool
    ) -> tuple[list[Result | None], list[Closed]]:
        """The result of each record, None where it has no features; and the incidents that have ended.

        learn: the records were not learned before.
        """
        if not items:
            return [], []
        fields = [item.fields for item in items]
        rows, keys, which, missing = reader.read(fields, [item.record.key for item in items])
        usable = which.tolist()
        records, sources = list(compress(fields, usable)), [item.record[:4] for item in compress(items, usable)]
        if not sources:
            return [None] * len(items), []
        offsets = [offset for _, _, offset, _ in sources]
        scored = task.score(rows, keys, offsets, learn)
        results = results_of(scored, self._model_name, reader.schema, records, missing[which].tolist(), sources)
        closed = task.note_incidents(results, scored, keys, offsets, learn)
        found = iter(results)
        return [next(found) if has_features else None for has_features in usable], closed

    def _announce(self, task: PartitionTask, results: Iterable[Result]) -> None:
        """Log new regimes, and tell the observer."""
        for result in results:
            if result["regime"] > max(task.regime, 1):  # the first is no change
                self._observer.regime_changed()
                place = {"topic": self._settings.topic, "partition": task.number, "offset": result["offset"]}
                log.warning(kv("regime", **place, regime=result["regime"], reason="unlike the history"))
            task.regime = result["regime"]


def check_schema(settings: ServiceSettings, model: ZeroShotModel, schema: Schema) -> None:
    """Raise SchemaError when the model cannot take as many features, or the seed context has none of them."""
    _detector(settings, model, schema, None)
    _read_seed(settings, schema)


def first_detector(
    settings: ServiceSettings, model: ZeroShotModel, schema: Schema, executor: Executor | None
) -> Detector:
    """The detector that every partition begins with a copy of; it knows the seed context. Raises SchemaError."""
    detector, rows = _detector(settings, model, schema, executor), _read_seed(settings, schema)
    if rows is not None:
        detector.seed_context(rows)
    return detector


def _detector(settings: ServiceSettings, model: ZeroShotModel, schema: Schema, executor: Executor | None) -> Detector:
    reader, config = RowReader(schema), settings.detector_config()
    return Detector(model, reader.width, config, executor=executor, categorical=reader.categorical)


def _read_seed(settings: ServiceSettings, schema: Schema) -> np.ndarray | None:
    path = settings.seed_context
    if path is None:
        return None
    rows = read_rows(path, schema)
    if len(rows) < LEAST_CONTEXT:
        raise SchemaError(f"--seed-context {path} has {len(rows)} usable rows; at least {LEAST_CONTEXT} are needed")
    return rows
