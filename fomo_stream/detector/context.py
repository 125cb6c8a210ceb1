"""The context of a partition: which records become part of it, and how feedback changes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Executor
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.admission import RADIUS
from fomo_stream.detector.changelog import Entries, StoredEntries
from fomo_stream.detector.config import LEAST_CONTEXT, STEP, DetectorConfig
from fomo_stream.detector.generation import Blueprint
from fomo_stream.detector.history import INLIER, OUTLIER, History
from fomo_stream.detector.quantile_sketch import QuantileSketch
from fomo_stream.detector.regimes import Regimes
from fomo_stream.detector.reservoir import Reservoir
from fomo_stream.detector.sketch_log import LoggedSketch
from fomo_stream.detector.verdicts import Verdicts
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
Int = NDArray[np.int64]

OUTLIERS_KEPT = 500  # rows that feedback called outliers
HORIZON = 1e9  # records over which the reservoirs' samples are uniform: all that a partition ever has
TRIM = 0.2  # share of the pool, the most outlying part, that a generation leaves out


class Context:
    """The reservoirs of one partition and the history of its last records.

    A record is decided after its next `RADIUS` records are known; until then it is in quarantine. Admitted records
    enter the pool; each generation leaves out its most outlying part. The gate compares records with a sample of all
    past records, and admits a record if the median p-value around it is above `GATE`.
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
        self._n_features, self._categorical = n_features, categorical
        size, seed = config.context_size, config.seed
        self.pool = Reservoir(size, n_features, HORIZON, seed)  # of learned records
        self.sample = Reservoir(size, n_features, HORIZON, seed + 1)  # of all records except known outliers
        self.outliers = Reservoir(OUTLIERS_KEPT, n_features, HORIZON, seed + 2)  # of outliers by feedback
        self.quantiles = LoggedSketch(self._new_sketch(), config.history_rows)
        self.history = History(n_features, config.history_rows, config.history_scores)
        self._verdicts = Verdicts()
        self.regimes = Regimes(model, config, executor, categorical)
        self._changed = 0  # slots of the reservoirs that changed since the last trigger
        self._learned = 0  # records that became context
        self._decided = 0  # number of the first record that may still become context

    @property
    def max_rows(self) -> int:
        """An upper bound on the rows of the pool once the waiting verdicts are applied."""
        return len(self.pool) + len(self._verdicts)

    @property
    def is_due(self) -> bool:
        """Whether enough has changed for a new generation, and enough rows are left to make one."""
        enough = min(len(self.pool), len(self.sample)) >= LEAST_CONTEXT
        return enough and self._changed >= self.config.refresh * (len(self.pool) + len(self.sample))

    def take_first(self, rows: Float, confirmed: bool = False) -> None:
        """Rows (n, d) of the warm-up: all become context. confirmed: they are known to be normal."""
        while len(rows):  # up to the next step, as the sketch has to be ready before the history forgets rows
            part, rows = np.split(rows, [STEP - self.history.records % STEP])
            numbers, unknown = self.history.records + np.arange(len(part)), np.full(len(part), np.nan)
            self.history.append(part, unknown, unknown)
            self.history.learn(numbers)
            self.pool.admit(numbers, part)
            self.sample.admit(numbers, part)
            self.quantiles.update(numbers, part)
            if self.history.records % STEP == 0:
                self.quantiles.settle(self.history.records)
            self._learned += len(part)
            if confirmed:
                self._verdicts.confirm(numbers)

    def end_warm_up(self) -> None:
        """From now on admission is by policy."""
        self._decided = self.history.records
        self.quantiles.settle(self.history.records)  # steps are counted from here
        self.regimes.begin(self.history.records)

    def step(self, n: int) -> None:
        """Learn from the last n records of the history."""
        new = self.history.not_outliers(self.history.records - n, self.history.records)
        self._changed += len(self.sample.admit(new, self.history.rows(new)))
        self._decide()
        first = self.regimes.watch(self.history, self._decided, self._learned)
        if first is not None:
            self._adapt(first)
        self.quantiles.settle(self.history.records)

    def feedback(self, verdicts: Mapping[int, bool]) -> int:
        """Note verdicts by record number (True: outlier). Returns how many were new; see `Detector.feedback`.

        The history changes at once, so p-values no longer refer to outliers; `apply_verdicts` changes the reservoirs
        later.
        """
        return self._verdicts.note(verdicts, self.history)

    def apply_verdicts(self) -> None:
        """Update the context by the verdicts since the last record; call it before the next record is learned.

        All together and sorted by record number, so that the result does not depend on the order of the verdicts. (In
        the sketch older rows weigh less, and a full reservoir loses other rows if rows enter before others leave.)
        """
        if not len(self._verdicts):
            return
        bad, good = self._verdicts.take(self.history)
        for reservoir, leaving in ((self.pool, bad), (self.sample, bad), (self.outliers, good)):
            self._changed += len(reservoir.discard(leaving))
        # records in quarantine are admitted when they are decided; while warming up there is no quarantine
        self._admit(good[good < self._decided] if self.regimes.number else good)
        for reservoir, entering in ((self.sample, good), (self.outliers, bad)):
            self._changed += len(reservoir.admit(entering, self.history.rows(entering)))
        self.quantiles.settle(self.history.records)  # it has perhaps learned records that the history forgets soon

    def blueprint(self, number: int, takes_effect: int) -> Blueprint:
        """The blueprint of a generation from the present state."""
        self._changed = 0
        numbers, rows = self.pool.numbers, self.pool.rows
        self._verdicts.forget(self._decided, but=numbers)
        recent_numbers, recent, sample = numbers, rows, rows
        if number > 1:
            first = max(self.history.oldest, self.history.records - self.config.calibration_size)
            recent_numbers = np.arange(first, self.history.records)
            recent, sample = self.history.rows(recent_numbers), self.sample.rows
        return Blueprint(
            number=number,
            takes_effect=takes_effect,
            seed=self.config.seed,
            categorical=self._categorical,
            trim=TRIM if self.config.policy.trims else 0.0,
            numbers=numbers,
            rows=rows,
            confirmed=np.isin(numbers, self._verdicts.confirmed),
            outliers=self.outliers.rows,
            sketch=self.quantiles.sketch.copy(),
            sample=sample,
            recent_numbers=recent_numbers,
            recent=recent,
        )

    # -- admission -----------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Decide about the records whose neighbours on both sides are known now, and admit some of them."""
        stop = max(self.history.records - RADIUS, self._decided)
        first = max(self.history.oldest, self._decided - RADIUS)
        new = np.arange(max(first, self._decided), stop)
        gate_p = self.history.gate_p(np.arange(first, self.history.records))
        admitted = self.config.policy.admits(gate_p, stop - len(new) - first, stop - first)
        verdict = self.history.verdict(new)
        self._admit(new[((verdict == INLIER) | admitted) & (verdict != OUTLIER)])
        self._decided = stop

    def _admit(self, numbers: Int) -> None:
        """Offer records of the history to the pool."""
        rows, new = self.history.rows(numbers), ~self.history.learned(numbers)
        self.quantiles.update(numbers[new], rows[new])
        self._learned += int(new.sum())
        self.history.learn(numbers)
        self._changed += len(self.pool.admit(numbers, rows))

    def _adapt(self, first: int) -> None:
        """Make room for a new regime that began with record `first`: half of the context stays, half is new."""
        numbers = self.history.not_outliers(first, self._decided)
        rows = self.history.rows(numbers)
        self._verdicts.confirm(numbers[self.history.verdict(numbers) == INLIER])
        for reservoir in (self.pool, self.sample):
            reservoir.make_room(0.5, before=first)
            reservoir.admit(numbers, rows)
        self._learned += int((~self.history.learned(numbers)).sum())
        self.history.learn(numbers)
        self.quantiles.restart(self._new_sketch(), self.pool.rows)
        self._changed = len(self.pool) + len(self.sample)
        self.regimes.begin(self.history.records)

    def _new_sketch(self) -> QuantileSketch:
        return QuantileSketch(self._n_features, half_life=math.log(2) * self.config.context_size)

    # -- log -----------------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """The part of the state that is plain numbers."""
        sizes = {"records": self.history.records, "sketched": self.quantiles.sketch.count}
        own = {"changed": self._changed, "learned": self._learned, "decided": self._decided}
        return sizes | own | self._verdicts.counters() | self.regimes.counters()

    def changes(self) -> Entries:
        """Entries that the log does not have yet; not the counters."""
        entries = self._verdicts.changes() | self.quantiles.changes("sketch") | self.history.changes("history")
        for name, reservoir in self._reservoirs.items():
            entries |= reservoir.changes(name)
        return entries

    def recover(self, entries: StoredEntries, counters: Mapping[str, Any]) -> None:
        """Take the state from entries and counters. Raises StateError when they do not fit."""
        for name, reservoir in self._reservoirs.items():
            reservoir.recover(entries, name)
        self.history.recover(entries, "history", counters["records"])
        self.quantiles.recover(entries, "sketch", counters["sketched"], self.history)
        self._changed, self._learned, self._decided = (counters[name] for name in ("changed", "learned", "decided"))
        self._verdicts.recover(entries, counters)
        self.regimes.recover(counters, self.history)

    def copy(self, more: int = 0) -> Context:
        """An independent context in the same state, with `more` further features that no row has."""
        twin = copy(self)
        twin._n_features += more
        twin.pool, twin.sample, twin.outliers = (part.copy(more) for part in self._reservoirs.values())
        twin.quantiles, twin.history = self.quantiles.copy(more), self.history.copy(more)
        twin._verdicts = self._verdicts.copy()
        twin.regimes = self.regimes.copy(twin.history if more else None)
        return twin

    @property
    def _reservoirs(self) -> dict[str, Reservoir]:
        return {"pool": self.pool, "sample": self.sample, "outliers": self.outliers}
