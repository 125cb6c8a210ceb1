"""What a partition's records are compared with: which of them become context, and what feedback makes of that."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.admission import RADIUS, Policy, is_lasting_shift, neighbourhood_median
from fomo_stream.detector.changelog import Document, Entries, Survivors
from fomo_stream.detector.config import LEAST_CONTEXT, DetectorConfig
from fomo_stream.detector.generation import Blueprint, Snapshot, Trial, under
from fomo_stream.detector.history import INLIER, OUTLIER, History
from fomo_stream.detector.quantile_sketch import QuantileSketch
from fomo_stream.detector.reservoir import Reservoir
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
Int = NDArray[np.int64]

YOUNG = 5  # times the records learned: how long a shift has to last before a young detector adapts
OUTLIERS_KEPT = 500  # rows that feedback called outliers
PARTS = ("pool", "sample", "outliers", "sketch", "memory")
COUNTERS = ("regime", "changed", "_learned", "_decided", "_adapted", "_not_before")


class Context:
    """The reservoirs of one partition and the memory of its last records.

    A record waits in quarantine until its successors are known. What is admitted is a candidate for the context: the
    pool, of which a generation leaves out the most outlying part. Another sample, of all records, is what the gate
    compares with: a time looks normal when it is no rarer than `gate` in the partition's whole past.
    """

    def __init__(
        self,
        model: ZeroShotModel,
        n_features: int,
        config: DetectorConfig,
        executor: Executor | None,
        categorical: tuple[int, ...],
    ) -> None:
        self.config = config
        self._model, self._n_features, self._executor, self._categorical = model, n_features, executor, categorical
        size, horizon, seed = config.context_size, config.horizon, config.seed
        self.pool = Reservoir(size, n_features, horizon, seed)  # of learned records
        self.sample = Reservoir(size, n_features, horizon, seed + 1)  # of all records but known outliers
        self.outliers = Reservoir(OUTLIERS_KEPT, n_features, horizon, seed + 2)  # of those, by feedback
        self.sketch = self._new_sketch()
        self.memory = History(n_features, config.memory_rows, config.memory_scores)
        self.regime = 0  # counts the regimes that the context was adapted to; 0 while warming up
        self.changed = 0  # slots of the reservoirs that changed since the last trigger
        self.trial: Trial | None = None
        self._confirmed: Int = np.zeros(0, dtype=np.int64)  # records in the pool that feedback calls normal
        self._learned = 0  # records that became context
        self._decided = 0  # number of the first record that may yet become context
        self._adapted = 0  # number of records when the regime began
        self._not_before = 0  # number of records before which there is to be no other trial
        self._pending: dict[int, int] = {}  # records whose verdict is not heeded yet, and the verdict heeded last
        self._confirmed_log = Document()

    @property
    def most_rows(self) -> int:
        """Rows that the pool may have once the verdicts are heeded, at most."""
        return len(self.pool) + len(self._pending)

    @property
    def is_due(self) -> bool:
        """Whether enough has changed for a new generation, and feedback has left enough to make one of."""
        enough = min(len(self.pool), len(self.sample)) >= LEAST_CONTEXT
        return enough and self.changed >= self.config.refresh * (len(self.pool) + len(self.sample))

    def take_first(self, rows: Float, confirmed: bool = False) -> None:
        """Rows (n, d) of the warm-up: all become context. confirmed: somebody vouches for them."""
        numbers = np.arange(self.memory.records, self.memory.records + len(rows))
        unknown = np.full(len(rows), np.nan)
        self.memory.append(rows, unknown, unknown)
        self.memory.learn(numbers)
        self.pool.admit(numbers, rows)
        self.sample.admit(numbers, rows)
        self.sketch.update(rows)
        self._learned += len(rows)
        if confirmed:
            self._confirmed = np.union1d(self._confirmed, numbers)

    def end_warm_up(self) -> None:
        """From now on admission is by policy."""
        self._decided = self._adapted = self.memory.records
        self.regime = 1

    def step(self, n: int) -> None:
        """Learn from the last n records, now remembered."""
        fresh = np.arange(self.memory.records - n, self.memory.records)
        fresh = fresh[self.memory.verdict(fresh) != OUTLIER]
        self.changed += len(self.sample.admit(fresh, self.memory.rows(fresh)))
        self._decide()
        if self._adapts:
            self._watch()

    def feedback(self, verdicts: dict[int, bool]) -> int:
        """Note verdicts by record number (True: outlier). Returns how many were new; see `Detector.feedback`.

        The memory has them at once, so p-values no longer refer to outliers. The context follows in `apply_verdicts`.
        """
        known = [number for number in verdicts if self.memory.oldest <= number < self.memory.records]
        given = np.array(known, dtype=np.int64)
        verdict = np.array([OUTLIER if verdicts[number] else INLIER for number in known], dtype=np.int8)
        before = self.memory.verdict(given)
        new = before != verdict
        self.memory.judge(given[new], verdict[new])
        for number, old, now in zip(given[new].tolist(), before[new].tolist(), verdict[new].tolist(), strict=True):
            if self._pending.setdefault(number, old) == now:
                del self._pending[number]  # as if nothing had been said since the last record
        return int(new.sum())

    def apply_verdicts(self) -> None:
        """Let the context follow the verdicts given since the last record; to be called before the next is learned.

        All at once and by record number, because the order counts: in the sketch older rows weigh less, and from a full
        reservoir other rows are lost when rows come in before others go.
        """
        if not self._pending:
            return
        given = np.array(sorted(self._pending), dtype=np.int64)
        self._pending = {}
        verdict = self.memory.verdict(given)
        bad, good = given[verdict == OUTLIER], given[verdict == INLIER]
        self._confirmed = np.union1d(np.setdiff1d(self._confirmed, bad), good)
        for reservoir, leaving in ((self.pool, bad), (self.sample, bad), (self.outliers, good)):
            self.changed += len(reservoir.discard(leaving))
        # records in quarantine are heeded when their turn comes; while warming up there is none
        self._admit(good[good < self._decided] if self.regime else good)
        for reservoir, entering in ((self.sample, good), (self.outliers, bad)):
            self.changed += len(reservoir.admit(entering, self.memory.rows(entering)))

    def blueprint(self, number: int, takes_effect: int) -> Blueprint:
        """Of a generation of what is known now."""
        self.changed = 0
        numbers, rows = self.pool.numbers, self.pool.rows
        waiting = self._confirmed[self._confirmed >= self._decided]
        self._confirmed = np.union1d(np.intersect1d(self._confirmed, numbers), waiting)
        recent_numbers, recent, sample = numbers, rows, rows
        if number > 1:
            first = max(self.memory.oldest, self.memory.records - self.config.calibration_size)
            recent_numbers = np.arange(first, self.memory.records)
            recent, sample = self.memory.rows(recent_numbers), self.sample.rows
        sketch = self._new_sketch()
        sketch.restore(self.sketch.snapshot())
        return Blueprint(
            number=number,
            takes_effect=takes_effect,
            seed=self.config.seed,
            categorical=self._categorical,
            trim=self.config.trim if self.config.admit == Policy.AUTO else 0.0,
            numbers=numbers,
            rows=rows,
            confirmed=np.isin(numbers, self._confirmed),
            outliers=self.outliers.rows,
            sketch=sketch,
            sample=sample,
            recent_numbers=recent_numbers,
            recent=recent,
        )

    # -- admission -----------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Admit the records whose neighbours on both sides are known by now, if they look normal."""
        stop = max(self.memory.records - RADIUS, self._decided)
        near = np.arange(max(self.memory.oldest, self._decided - RADIUS), self.memory.records)
        new = (near >= self._decided) & (near < stop)
        if self.config.admit == Policy.AUTO:
            looks_normal = neighbourhood_median(self.memory.gate_p(near))[new] > self.config.gate
        else:
            looks_normal = np.full(int(new.sum()), self.config.admit == Policy.ALL)
        verdict = self.memory.verdict(near[new])
        self._admit(near[new][((verdict == INLIER) | looks_normal) & (verdict != OUTLIER)])
        self._decided = stop

    def _admit(self, numbers: Int) -> None:
        """Offer remembered records to the pool."""
        rows, new = self.memory.rows(numbers), ~self.memory.learned(numbers)
        self.sketch.update(rows[new])
        self._learned += int(new.sum())
        self.memory.learn(numbers)
        self.changed += len(self.pool.admit(numbers, rows))

    # -- regimes -------------------------------------------------------------------------------------------------

    @property
    def _adapts(self) -> bool:
        """Whether a shift that lasts becomes the new normal."""
        return self.config.admit == Policy.AUTO and self.config.adapt_after > 0

    def _watch(self) -> None:
        """Look for a shift that lasts; put it to trial; adapt if it agrees with itself."""
        if self.trial is not None:
            if self.memory.records < self.trial.due:
                return
            trial, self.trial = self.trial, None
            # feedback may have called it a lasting incident meanwhile
            if trial.result() and is_lasting_shift(self.memory.learned(self._not_outliers(trial.first))):
                self._adapt(trial.first)
                return
            self._not_before = self.memory.records + (trial.stop - trial.first) // 4
        # a young detector knows little: it need not wait for longer than several times what it has learned
        first = self._decided - min(self.config.adapt_after, YOUNG * self._learned)
        if first < self._adapted or self.memory.records < self._not_before:
            return
        if is_lasting_shift(self.memory.learned(self._not_outliers(first))):
            self._try((first, self._decided, self.memory.records + self.config.lag))

    def _try(self, span: tuple[int, int, int]) -> None:
        rows = self.memory.rows(np.arange(*span[:2]))
        self.trial = Trial(span, self._model, rows, self._categorical, self._executor)

    def _not_outliers(self, first: int) -> Int:
        """Numbers of the decided records from `first` on, less those that feedback calls outliers."""
        numbers: Int = np.arange(first, self._decided)
        kept: Int = numbers[self.memory.verdict(numbers) != OUTLIER]
        return kept

    def _adapt(self, first: int) -> None:
        """Make room for a new regime that began with record `first`: half of the context stays, half is new."""
        numbers = self._not_outliers(first)
        rows = self.memory.rows(numbers)
        vouched_for = numbers[self.memory.verdict(numbers) == INLIER]
        self._confirmed = np.union1d(self._confirmed, vouched_for)
        for reservoir in (self.pool, self.sample):
            reservoir.make_room(0.5, before=first)
            reservoir.admit(numbers, rows)
        self._learned += int((~self.memory.learned(numbers)).sum())
        self.memory.learn(numbers)
        self.sketch = self._new_sketch()
        self.sketch.update(self.pool.rows)
        self.changed = len(self.pool) + len(self.sample)
        self.regime += 1
        self._adapted = self.memory.records

    def _new_sketch(self) -> QuantileSketch:
        return QuantileSketch(self._n_features, half_life=np.log(2) * self.config.context_size)

    # -- state ---------------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """The part of the state that is plain numbers."""
        trial = None if self.trial is None else [self.trial.first, self.trial.stop, self.trial.due]
        sizes = {"records": self.memory.records, "waiting": self.sketch.waiting}
        pending = sorted(self._pending.items())
        return {name: getattr(self, name) for name in COUNTERS} | sizes | {"trial": trial, "pending": pending}

    def snapshot(self) -> Snapshot:
        """The rest of the state, as arrays that `restore` takes back."""
        state: Snapshot = {"confirmed": self._confirmed.copy()}
        for name in PARTS:
            state |= {f"{name}.{key}": array for key, array in getattr(self, name).snapshot().items()}
        return state

    def restore(self, state: Snapshot, counters: Mapping[str, Any]) -> None:
        """Become what `snapshot` and `counters` saw."""
        self._confirmed_log = Document()
        self._confirmed = np.array(state["confirmed"])
        for name in PARTS:
            getattr(self, name).restore(under(state, name))
        self._count(counters)

    def changes(self) -> Entries:
        """Entries of what was written since the last call, at first of everything; not the counters."""
        entries = self._confirmed_log.changes("confirmed", self._confirmed.tobytes())
        for name in PARTS:
            entries |= getattr(self, name).changes(name)
        return entries

    def recover(self, entries: Survivors, counters: Mapping[str, Any]) -> None:
        """Become what the entries and the counters say. Raises StateError when they do not fit."""
        self._confirmed = np.frombuffer(self._confirmed_log.recover(entries, "confirmed"), np.int64)
        for name in ("pool", "sample", "outliers"):
            getattr(self, name).recover(entries, name)
        self.sketch.recover(entries, "sketch", counters["waiting"])
        self.memory.recover(entries, "memory", counters["records"])
        self._count(counters)

    def _count(self, counters: Mapping[str, Any]) -> None:
        """Take what `counters` gave, the memory being there."""
        for name in COUNTERS:
            setattr(self, name, counters[name])
        self._pending = dict(counters.get("pending", ()))  # older states have none
        self.trial = None
        if counters["trial"] is not None and self._adapts:
            first, stop, due = counters["trial"]
            self._try((first, stop, due))

    def copy(self) -> Context:
        """A context in the same state that goes its own way."""
        twin = Context(self._model, self._n_features, self.config, self._executor, self._categorical)
        twin.restore(self.snapshot(), self.counters())
        return twin
