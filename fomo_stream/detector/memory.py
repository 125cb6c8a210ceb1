"""Memory of the score: outliers come in runs, so the records before a record say something about it."""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries, Table
from fomo_stream.detector.series import HALF_LIFE, MAX_KEYS

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

SERIES_BLOCK = 4  # series to an entry of the log


class Memory:
    """Remembered logits: (1 - weight) times the record's own, plus weight times the mean of those before it.

    The mean is over the earlier records of the same series; each older one counts half every HALF_LIFE records. The
    first record of a series has its own logit. Means are rounded to 32 bits: where nothing ever changes, rounding
    errors would else order the records, and p-values would tell equal records apart.

    >>> memory = Memory(weight=0.5)
    >>> memory.remember(np.array([4.0, 4.0, 0.0, 8.0]), np.array([0, 0, 0, 7]), np.array([True, False, False, True]))
    array([4., 4., 2., 8.])
    """

    def __init__(self, weight: float, max_keys: int = MAX_KEYS) -> None:
        self.weight = weight
        self._sums = Table(SERIES_BLOCK, sums=np.zeros((max_keys + 1, 2)))  # by series: of logits, and of weights

    def remember(self, logits: Float, slots: Int, begins: Bool) -> Float:
        """Remembered logits (n,) of the next records from their own (n,), which count from now on.

        slots, begins: (n,) of `Series.follow`. NaN for a NaN, which does not count.
        """
        return self._run(logits, slots, begins, {})

    def peek(self, logits: Float, slots: Int, begins: Bool) -> Float:
        """The same as from `remember`, but nothing changes."""
        return self.copy().remember(logits, slots, begins)

    def replay(self, logits: Float, slots: Int, begins: Bool) -> Float:
        """The same for the last records again, whose logits have changed: their series start from nothing."""
        return self._run(logits, slots, begins, dict.fromkeys(slots.tolist(), (0.0, 0.0)))

    def _run(self, logits: Float, slots: Int, begins: Bool, sums: dict[int, tuple[float, float]]) -> Float:
        if not len(logits):
            return logits
        before = self._sums["sums"]
        keep, weight, out, alone = 0.5 ** (1 / HALF_LIFE), self.weight, [], []
        for logit, slot, is_first in zip(logits.tolist(), slots.tolist(), begins.tolist(), strict=True):
            if is_first:
                total, count = 0.0, 0.0
            else:
                total, count = sums[slot] if slot in sums else before[slot].tolist()
            is_alone = not (count and weight and logit == logit)
            alone.append(is_alone)
            out.append(logit if is_alone else (1.0 - weight) * logit + weight * (total / count))
            if logit == logit:
                total, count = keep * total + logit, keep * count + 1.0
            sums[slot] = total, count
        self._sums.put(np.fromiter(sums, np.int64), sums=np.array(list(sums.values())))
        return np.where(alone, out, np.array(out, dtype=np.float32))

    def copy(self) -> Memory:
        """An independent memory in the same state."""
        twin = copy(self)
        twin._sums = Table(SERIES_BLOCK, sums=np.zeros_like(self._sums["sums"]))
        at = np.flatnonzero(self._sums["sums"][:, 1])
        twin._sums.put(at, sums=self._sums["sums"][at])
        return twin

    def changes(self) -> Entries:
        """Entries of all changes since the last call, at first of everything."""
        return self._sums.changes("memory")

    def recover(self, entries: StoredEntries) -> None:
        """Take the state from the entries. Raises StateError when they do not fit."""
        self._sums.recover(entries, "memory")
