"""The detector of one partition: every record is scored, then perhaps learned, as one pure state machine.

What scores a record is a *generation*: an immutable context and its encoding. A generation is triggered by changes of
the reservoirs and takes effect a fixed number of records later. Decisions - what becomes context, what p-values refer
to, what counts as an outlier - are taken every `STEP` records. So the result of a record depends on the records and
the feedback before it and on nothing else: not on time, on batches of either, or on how long an encoding took.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.calibration import AlertThreshold, p_values
from fomo_stream.detector.changelog import Document, Entries, Survivors
from fomo_stream.detector.config import LEAST_CONTEXT, STEP, DetectorConfig
from fomo_stream.detector.context import Context
from fomo_stream.detector.fingerprint import check_fingerprint, fingerprint_of
from fomo_stream.detector.generation import Blueprint, Build, Generation, GenerationLog, Snapshot, Trial, under, widened
from fomo_stream.detector.history import UNKNOWN
from fomo_stream.detector.results import Results, Status
from fomo_stream.errors import SchemaError, StateError
from fomo_stream.model.imputation import VALUE_LIMIT
from fomo_stream.model.zero_shot import ZeroShotModel

__all__ = ["LEAST_CONTEXT", "Detector", "DetectorConfig", "Results", "Snapshot", "Status"]

Float = NDArray[np.float64]
Int = NDArray[np.int64]

COUNTERS = ("_stepped", "_alerts", "_settled")


class Detector:
    """Scores and learns the rows of one partition.

    model: from `load_model`; n_features: d; executor: where generations are encoded, off the hot path (None: in the
    thread that calls, when first needed). If an encoding is late, `process` waits for it. categorical: columns that
    hold category codes.

    >>> import numpy as np
    >>> from fomo_stream import Detector, DetectorConfig, load_model
    >>> rng = np.random.default_rng(0)
    >>> detector = Detector(load_model(), n_features=3, config=DetectorConfig(min_context=100))
    >>> scored = detector.process(np.vstack([rng.normal(size=(500, 3)), [[9, -9, 9]]]))
    >>> scored.status[0].value, scored.status[-1].value, bool(scored.outlier[-1])
    ('warming_up', 'ok', True)
    """

    def __init__(
        self,
        model: ZeroShotModel,
        n_features: int,
        config: DetectorConfig | None = None,
        executor: Executor | None = None,
        categorical: tuple[int, ...] = (),
    ) -> None:
        self.model = model
        self.n_features = n_features
        self.categorical = categorical
        self.config = config = config or DetectorConfig()
        self.identity = fingerprint_of(model.name, n_features, categorical, config)  # what a state has to be of
        self._executor = executor
        self._context = Context(model, n_features, config, executor, categorical)
        self._threshold = AlertThreshold(config.alert_rate, config.window_size)
        self._stepped = 0  # number of records at the last step
        self._alerts = 0  # since then
        self._settled = 0  # generation whose scores of earlier records are in the memory
        self._current: Build | None = None
        self._next: Build | None = None
        self._window: Float | None = None  # what p-values refer to until the next step; None: to be made
        self._begin_log()

    @property
    def context_rows(self) -> int:
        """Rows now in the reservoir; verdicts given since the last record may yet change that."""
        return len(self._context.pool)

    @property
    def context_numbers(self) -> Int:
        """Numbers (n,) of the records that are the context of the current generation; empty while warming up."""
        return np.zeros(0, dtype=np.int64) if self._current is None else self._current.result().numbers

    @property
    def regime(self) -> int:
        """Counts the lasting shifts that became the new normal, from 1; 0 while warming up."""
        return self._context.regime

    @property
    def records(self) -> int:
        """Records processed: the number of the next one."""
        return self._context.memory.records

    @property
    def generation(self) -> int:
        """Number of the generation that scores the next record; 0 while warming up."""
        return 0 if self._current is None else self._current.blueprint.number

    def process(self, rows: Float) -> Results:
        """Score each of rows (n, d), raw units, NaN = missing, then learn it, in order.

        The result is the same however the rows of a partition are split over calls.
        Raises SchemaError when the rows have another number of features than the detector.
        """
        rows = self._checked(rows)
        parts = []
        while len(rows):
            self._context.apply_verdicts()
            room = self.room
            part, rows = rows[:room], rows[room:]
            parts.append(self._learn(part, *self._logits(part)))
        return Results.concatenate(parts)

    def is_ready(self, n: int) -> bool:
        """Whether the next n records can be processed without waiting for a generation that is being built."""
        needed: list[Build | Trial] = [] if self._current is None else [self._current]
        if self._next is not None and self.records + n > self._next.blueprint.takes_effect:
            needed.append(self._next)
        if self._context.trial is not None and self.records + n >= self._context.trial.due:
            needed.append(self._context.trial)
        return all(build.done for build in needed)

    def score_rows(self, rows: Float) -> Results:
        """Score rows (n, d) as the next n records, learning nothing: p-values refer to the records before the first.

        Asking changes no result: verdicts that come before these rows are learned count as if all had come at once.
        """
        logit, generation = self._logits(self._checked(rows))
        self._settle()
        return self._judged(logit, generation)

    def learn_rows(self, rows: Float, scored: Results) -> None:
        """Learn rows (n, d), n <= lag, as the next n records: remember their scores, admit what looks normal.

        scored: what `score_rows` said of exactly these rows since the last record; verdicts may have come meanwhile.
        """
        rows = self._checked(rows)
        if self._current is None:  # the warm-up may end among them, and then the others need scores
            self.process(rows)
        elif len(rows):
            self._context.apply_verdicts()
            self._learn(rows, scored.logit, scored.generation)

    def seed_context(self, rows: Float) -> None:
        """Start warm from trusted rows (n, d), n >= 4: they count as the first n records, confirmed by feedback.

        Must come before the first record. Raises SchemaError for fewer rows; StateError when records were processed.
        """
        rows = self._checked(rows)
        if self.records:
            raise StateError("a context can be seeded only before the first record")
        if len(rows) < LEAST_CONTEXT:
            raise SchemaError(f"a seed context needs at least {LEAST_CONTEXT} rows, got {len(rows)}")
        self._context.take_first(rows, confirmed=True)
        self._begin()

    def feedback(self, numbers: Int, outlier: NDArray[np.bool_]) -> int:
        """Take verdicts on records, by their numbers (k,) in this partition: is each an outlier?

        An outlier leaves the scores that p-values refer to at once, and the context when the next record is learned;
        then a normal record that was rejected enters the context. The transform's quantiles keep what they have
        learned. All verdicts before the next record take effect together: neither their order nor how they are split
        over calls matters, but of several verdicts on one record the last counts. Repeating them changes nothing.
        Records out of memory are passed over. Returns the number of verdicts that said something new.
        """
        new = self._context.feedback(dict(zip(map(int, numbers), map(bool, outlier), strict=True)))
        self._window = None
        return new

    def numbers_of(self, rows: Float, columns: Int | None = None) -> list[Int]:
        """For each of rows (n, d), the numbers of the remembered records equal to it, in these columns or in all."""
        at = np.arange(self.n_features) if columns is None else columns
        return [self._context.memory.find(row[at], at) for row in self._checked(rows)]

    def has_verdict(self, numbers: Int) -> NDArray[np.bool_]:
        """Whether feedback has said anything about remembered records, by number (k,)."""
        known: NDArray[np.bool_] = self._context.memory.verdict(numbers) != UNKNOWN
        return known

    def copy(self) -> Detector:
        """A detector in the same state that goes its own way; what is immutable, the encoded context, is shared."""
        twin = copy(self)
        twin._context, twin._threshold = self._context.copy(), copy(self._threshold)
        twin._begin_log()
        return twin

    def widened(self, n_features: int) -> Detector:
        """The same detector with further features, which no row so far has: they count once the context knows them."""
        wider = Detector(self.model, n_features, self.config, self._executor, self.categorical)
        wider._become(widened(self.snapshot(), n_features - self.n_features))
        return wider

    def flush_warm_up(self) -> None:
        """Let scores begin now, with fewer than min_context rows. Raises SchemaError with fewer than 4 rows."""
        if self._current is None:
            context = self._context.copy()  # when there are too few, nothing may change
            context.apply_verdicts()
            n = len(context.pool)
            if n < LEAST_CONTEXT:
                raise SchemaError(f"{n} rows are too few for a context; at least {LEAST_CONTEXT} are needed")
            self._context.apply_verdicts()
            self._begin()

    def cross_scored(self) -> Results:
        """Scores of the warm-up's rows, each as if it were not in the context, when the warm-up has just ended.

        Empty before and after.
        """
        if self.generation != 1 or self._current is None or self.records > self._current.blueprint.takes_effect:
            return Results.nothing(0)
        logit = self._current.result().recent
        ordered = np.sort(logit)
        p = (len(ordered) - np.searchsorted(ordered, logit)) / len(ordered)  # each counts itself
        return Results.of(logit, p, np.ones(len(p), np.int64), self.regime, len(p), self._threshold)

    # -- one step after the other --------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many of the next records can be scored before any of them is learned; 1 at least."""
        if self._current is None:
            return max(1, self.config.min_context - self._context.most_rows)
        if self._next is None:
            return self.config.lag
        return self._next.blueprint.takes_effect - self.records

    def _logits(self, rows: Float) -> tuple[Float, Int]:
        """Of rows (n, d) as the next n records: logits (n,), NaN while warming up, and generations (n,)."""
        cut = len(rows) if self._next is None else self._next.blueprint.takes_effect - self.records
        logits, generations = [np.zeros(0)], [np.zeros(0, np.int64)]
        for build, part in ((self._current, rows[:cut]), (self._next, rows[cut:])):
            if build is not None and len(part):
                logits.append(build.result().logits(self.model, part))
                generations.append(np.full(len(part), build.blueprint.number))
            else:
                logits.append(np.full(len(part), np.nan))
                generations.append(np.zeros(len(part), np.int64))
        return np.concatenate(logits), np.concatenate(generations)

    def _learn(self, rows: Float, logit: Float, generation: Int) -> Results:
        """Judge the next records and learn them, from one event to the next."""
        if self._current is None:
            self._context.take_first(rows)
            if self.context_rows >= self.config.min_context:
                self._begin()
            return Results.nothing(len(rows))
        parts = []
        while len(rows):
            until_step = STEP - (self.records - self._stepped)
            n = until_step if self._next is None else min(until_step, self._next.blueprint.takes_effect - self.records)
            self._settle()
            parts.append(self._judged(logit[:n], generation[:n]))
            self._context.memory.append(rows[:n], logit[:n], p_values(logit[:n], self._current.result().sample))
            self._alerts += int(parts[-1].outlier.sum())
            if self._next is not None and self.records >= self._next.blueprint.takes_effect:
                self._current, self._next = self._next, None
            if self.records - self._stepped == STEP:
                self._step()
            rows, logit, generation = rows[n:], logit[n:], generation[n:]
        return Results.concatenate(parts)

    def _judged(self, logit: Float, generation: Int) -> Results:
        """Scores of the next records from their logits (n,)."""
        if self._current is None:
            return Results.nothing(len(logit))
        if self._window is None:
            self._window = self._context.memory.window(self.config.window_size, self._stepped)
        p = p_values(logit, self._window)
        return Results.of(logit, p, generation, self.regime, len(self._window), self._threshold)

    def _begin(self) -> None:
        """The first generation: takes effect at once."""
        self._stepped = self.records
        self._context.end_warm_up()
        self._current = self._build(self._context.blueprint(1, self.records))

    def _step(self) -> None:
        """Every `STEP` records: learn, and trigger a new generation if enough has changed."""
        self._threshold.update(self._alerts, STEP)
        self._alerts, self._stepped, self._window = 0, self.records, None
        self._context.step(STEP)
        if self._next is None and self._context.is_due:
            self._next = self._build(self._context.blueprint(self.generation + 1, self.records + self.config.lag))

    def _settle(self) -> None:
        """Replace the scores of earlier records by the current generation's, once."""
        if self._current is not None and self._settled < self.generation:
            self._context.memory.rescore(self._current.blueprint.recent_numbers, self._current.result().recent)
            self._settled, self._window = self.generation, None

    def _build(self, blueprint: Blueprint, known: Sequence[Build | None] = (), made: Generation | None = None) -> Build:
        same = (build for build in known if build is not None and build.blueprint.equals(blueprint))
        return next(same, None) or Build(self.model, blueprint, self._executor, made)

    def _recovered(self, entries: Survivors, number: int, known: Sequence[Build | None]) -> Build:
        sketch, device = self._context.sketch, self.model.device
        blueprint, made = self._generations_log.recover(entries, "generation", number, sketch, device)
        return self._build(blueprint, known, made)

    # -- state ---------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Entries of what has changed since the last call; of a detector that was not recovered, at first everything.

        Between two calls the entries of the first have to be in the log; if they never get there, go back: `recover`.
        """
        return {
            **self._identity_log.changes("identity", json.dumps(self.identity).encode()),
            **self._counters_log.changes("counters", json.dumps(self._counters()).encode()),
            **self._generations_log.changes("generation", (self._current, self._next)),
            **self._context.changes(),
        }

    def recover(self, entries: Survivors, known: Detector | None = None) -> None:
        """Become what the entries say: the same records then get the same results, bit for bit on one device.

        known: a detector of the same partition, perhaps this one; generations that it has encoded need not be again.
        Raises StateError when the entries are of another detector (what differs, joined by "; "), incomplete or
        damaged. This one is of no use then.
        """
        builds = [] if known is None or known.model is not self.model else [known._current, known._next]
        self._begin_log()
        check_fingerprint(json.loads(self._identity_log.recover(entries, "identity")), self.identity)
        counters = json.loads(self._counters_log.recover(entries, "counters"))
        self._context.recover(entries, counters)
        self._current, self._next = (
            self._recovered(entries, number, builds) if number else None
            for number in (counters["current"], counters["next"])
        )
        self._count(counters)

    def snapshot(self) -> Snapshot:
        """Everything that the results of coming records depend on, as named arrays (plain numbers and text)."""
        documents = {"identity": self.identity, "counters": self._counters()}
        state = {name: np.array(json.dumps(document)) for name, document in documents.items()}
        for name, build in (("current", self._current), ("next", self._next)):
            if build is not None:
                state |= {f"{name}.{key}": array for key, array in build.blueprint.to_arrays().items()}
        return state | self._context.snapshot()

    def restore(self, state: Snapshot) -> None:
        """Become what `snapshot` saw: the same records then get the same results, bit for bit on one device.

        Raises StateError when the snapshot is of another detector: what differs, joined by "; ".
        """
        check_fingerprint(json.loads(str(state["identity"])), self.identity)
        self._become(state)

    def _become(self, state: Snapshot) -> None:
        self._begin_log()
        counters = json.loads(str(state["counters"]))
        self._context.restore(state, counters)
        self._current, self._next = (
            self._build(Blueprint.from_arrays(under(state, name), self._context.sketch)) if counters[name] else None
            for name in ("current", "next")
        )
        self._count(counters)

    def _counters(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in COUNTERS}
        factor = {"log_factor": self._threshold.log_factor}
        generations = {
            name: 0 if build is None else build.blueprint.number
            for name, build in (("current", self._current), ("next", self._next))
        }
        return {**numbers, **factor, **generations, **self._context.counters()}

    def _count(self, counters: Mapping[str, Any]) -> None:
        """Take what `_counters` gave, less the generations."""
        for name in COUNTERS:
            setattr(self, name, counters[name])
        self._threshold.log_factor = counters["log_factor"]
        self._window = None

    def _begin_log(self) -> None:
        """From now on the log is one that has nothing yet."""
        self._identity_log, self._counters_log, self._generations_log = Document(), Document(), GenerationLog()

    def _checked(self, rows: Float) -> Float:
        rows = np.asarray(rows, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise SchemaError(
                f"the detector takes rows of {self.n_features} features, got an array of shape {rows.shape}"
            )
        return np.where(np.isfinite(rows), np.clip(rows, -VALUE_LIMIT, VALUE_LIMIT), np.nan)
