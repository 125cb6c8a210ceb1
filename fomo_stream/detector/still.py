"""Values that stand still: a feature that nearly always changes keeps one value far longer than it ever did."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Document, Entries, StoredEntries
from fomo_stream.errors import DamagedStateError

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

FEW = 500  # known values of a feature before which nothing is said of it
RARE = 0.1  # share of the values of a feature that may be the same as the one before, so that it can stand still
CHANCE = 20.0  # minus the logarithm of the chance of so many equal values, at least
LEAST = 5  # equal values after the first one, at least
LONG_BEFORE = 1  # runs at least half as long that there may have been before
SIZES = 16  # runs are counted by the powers of 2 that they reach


class Stillness:
    """Counts of d features over all records: values, those equal to the one before in their series, and runs of these.

    A feature stands still if its run of equal values is improbable, and if at most LONG_BEFORE runs of it were half as
    long. So a fault is seen when it comes the second time, and a habit is no fault.
    """

    def __init__(self, n_features: int) -> None:
        self._values, self._equal = np.zeros((2, n_features), np.int64)
        self._runs = np.zeros((SIZES, n_features), np.int64)  # that have ended, by the power of 2 that they reached
        self.begin_log()

    def look(self, known: Bool, runs: Int, ended: Int, learn: bool) -> Bool:
        """Which features of the next records stand still (n, d).

        known: (n, d) which values are; runs: (n, d) values before each that are equal to it; ended: (n, d) length of
        the run that ended with it; 0: none.
        """
        equal = known & (runs > 0)
        values = self._values + np.cumsum(known, axis=0) - known
        repeats = self._equal + np.cumsum(equal, axis=0) - equal
        share = (repeats + 1) / (values + 2)
        still = equal & (runs >= LEAST) & (values >= FEW) & (share < RARE) & (-runs * np.log(share) > CHANCE)
        reached = np.where(known & (ended > 0), np.frexp(ended)[1] - 1, -1)
        for i, j in np.argwhere(still).tolist():
            half = min(SIZES - 1, max(0, math.frexp(runs[i, j] // 2)[1] - 1))
            before = self._runs[half:, j].sum() + (reached[:i, j] >= half).sum()
            still[i, j] = before <= LONG_BEFORE
        if learn:
            self._values, self._equal = self._values + known.sum(axis=0), self._equal + equal.sum(axis=0)
            at, features = np.nonzero(reached >= 0)
            np.add.at(self._runs, (np.minimum(reached[at, features], SIZES - 1), features), 1)
        return np.asarray(still)

    def copy(self) -> Stillness:
        """Independent counts, the same now."""
        twin = Stillness(len(self._values))
        twin._values, twin._equal, twin._runs = self._values.copy(), self._equal.copy(), self._runs.copy()
        return twin

    # -- log -----------------------------------------------------------------------------------------------------

    def begin_log(self) -> None:
        """Start with an empty log."""
        self._counts_log, self._runs_log = Document(), Document()

    def changes(self, name: str) -> Entries:
        """The entries that have changed since the last call; that of runs rarely does."""
        counts, runs = np.vstack([self._values, self._equal]).astype("<i8"), self._runs.astype("<i8")
        of_counts = self._counts_log.changes(f"{name}/counts", counts.tobytes())
        return of_counts | self._runs_log.changes(f"{name}/runs", runs.tobytes())

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Take the state from the entries. Raises DamagedStateError."""
        self.begin_log()
        data = self._counts_log.recover(entries, f"{name}/counts"), self._runs_log.recover(entries, f"{name}/runs")
        found = np.frombuffer(b"".join(data), "<i8")
        if len(found) != (2 + SIZES) * len(self._values):
            raise DamagedStateError(f"the state is damaged: {name} has {len(found)} numbers")
        table = found.reshape(2 + SIZES, -1).astype(np.int64)
        self._values, self._equal, self._runs = table[0], table[1], table[2:].copy()
