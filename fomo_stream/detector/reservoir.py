"""Bounded samples of a stream's records, in numbered slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries, Table
from fomo_stream.detector.series import flat, with_missing_features
from fomo_stream.limits import MAX_CONTEXT

Float = NDArray[np.float64]
Int = NDArray[np.int64]

EMPTY = -1  # the number in a slot without a record
BLOCK_BYTES = 128  # of rows in a block, about: slots are written in no order, and each write costs a whole block
AHEAD = 1024  # records whose priorities are computed together


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 finaliser: a well-spread 64-bit number for each counter, without the state of a generator."""
    with np.errstate(over="ignore"):
        z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Reservoir:
    """A random sample of at most `capacity` rows of those admitted, each known by its record's number.

    Every record number has a pseudo-random priority, which rises with the number: it grows by the factor e every
    `horizon` records. The rows with the highest priorities stay (Efraimidis & Spirakis 2006, with the forward decay of
    Cormode et al. 2009). So the sample is uniform over about the last `horizon` records, and older ones fade
    exponentially. The sample depends only on the seed, the horizon and the set of admitted numbers: the order of
    admissions and how they are split over calls do not matter, and admitting a row again changes nothing. After a row
    is discarded this no longer holds: rows that were dropped earlier do not come back.
    """

    def __init__(self, capacity: int, n_features: int, horizon: float = np.inf, seed: int = 0) -> None:
        if not 2 <= capacity <= MAX_CONTEXT:
            raise ValueError(f"a reservoir holds 2 to {MAX_CONTEXT} rows, not {capacity}")
        self.capacity = capacity
        self.horizon = horizon
        self.seed = seed
        self._slots = Table(
            max(1, BLOCK_BYTES // (8 * n_features)),
            rows=np.zeros((capacity, n_features)),
            numbers=np.full(capacity, EMPTY, dtype=np.int64),
        )
        self._priorities = np.full(capacity, np.inf)  # of the rows; inf: an empty slot
        self._count = 0  # rows
        self._lowest = -np.inf  # priority that a further row needs to enter
        self._newest = EMPTY  # no row has a higher number
        self._ahead_of, self._ahead = 0, np.zeros(0)  # priorities of the records from this number on

    def __len__(self) -> int:
        return self._count

    @property
    def numbers(self) -> Int:
        """Record numbers (len(self),) of the rows, ascending."""
        return np.sort(self._slots["numbers"][self._taken])

    @property
    def rows(self) -> Float:
        """A copy of the rows (len(self), n_features), by record number."""
        slots = np.flatnonzero(self._taken)
        return self._slots["rows"][slots[np.argsort(self._slots["numbers"][slots])]]

    @property
    def _taken(self) -> NDArray[np.bool_]:
        taken: NDArray[np.bool_] = self._slots["numbers"] != EMPTY
        return taken

    def _priority(self, numbers: Int) -> Float:
        offset = np.uint64((self.seed * 0x632BE59BD9B4E019) % 2**64)
        with np.errstate(over="ignore"):
            uniform = (_mix(numbers.astype(np.uint64) + offset) >> np.uint64(11)).astype(np.float64)
        return numbers / self.horizon - np.log(-np.log((uniform + 0.5) * 2.0**-53))

    def _priority_of_next(self, numbers: Int, first: int) -> Float:
        """The same for numbers from `first` on, which are usually close together and higher than any before."""
        last = int(numbers.max())
        if first < self._ahead_of or last - first >= AHEAD:
            return self._priority(numbers)
        if last >= self._ahead_of + len(self._ahead):
            self._ahead_of, self._ahead = first, self._priority(np.arange(first, first + AHEAD))
        return self._ahead[numbers - self._ahead_of]

    def admit(self, numbers: Int, rows: Float) -> Int:
        """Offer rows (n, n_features) of the records of these numbers (n,), all different.

        Returns the slots (m,), m <= n, whose rows have changed.
        """
        if len(numbers) and (first := int(numbers.min())) <= self._newest:
            new = ~np.isin(numbers, self._slots["numbers"])
            numbers, rows = numbers[new], rows[new]
        if not len(numbers):
            return np.zeros(0, dtype=np.int64)
        priority = self._priority_of_next(numbers, first)
        entering = np.flatnonzero(priority > self._lowest)
        excess = self._count + len(entering) - self.capacity
        if excess > 0:  # of the rows and the new ones, those with the lowest priorities leave or do not enter
            held = np.flatnonzero(self._taken)
            if excess < len(held):
                held = np.argpartition(self._priorities, excess - 1)[:excess]
            everything = np.concatenate([self._priorities[held], priority[entering]])
            low, high = np.split(np.argpartition(everything, excess - 1), [excess])
            self._empty(np.sort(held[low[low < len(held)]]))
            entering = np.sort(entering[high[high >= len(held)] - len(held)])
        return self._fill(numbers[entering], rows[entering], priority[entering])

    def _fill(self, numbers: Int, rows: Float, priority: Float) -> Int:
        if not len(numbers):
            return numbers
        slots: Int = np.flatnonzero(~self._taken)[: len(numbers)]
        self._slots.put(slots, rows=rows, numbers=numbers)
        self._priorities[slots] = priority
        self._newest = max(self._newest, int(numbers.max()))
        self._count += len(slots)
        self._lowest = float(self._priorities.min()) if self._count == self.capacity else -np.inf
        return slots

    def _empty(self, slots: Int) -> None:
        if len(slots):
            self._slots.put(slots, numbers=EMPTY)
            self._priorities[slots], self._lowest = np.inf, -np.inf
            self._count -= len(slots)

    def discard(self, numbers: Int) -> Int:
        """Remove the rows of these records; returns the slots (m,) that were emptied."""
        slots = np.flatnonzero(self._taken & np.isin(self._slots["numbers"], numbers)) if len(numbers) else numbers
        self._empty(slots)
        return slots

    def copy(self, more: int = 0, vector: int = 1) -> Reservoir:
        """An independent reservoir with the same rows, with `more` further features that none of them has.

        vector: columns of a vector; a row has one or several vectors, and each gets the features at its end.
        """
        width = self._slots["rows"].shape[1]
        at = np.flatnonzero(self._taken)
        vectors = with_missing_features(self._slots["rows"][at].reshape(len(at), width // vector, vector), more)
        twin = Reservoir(self.capacity, width // vector * (vector + more), self.horizon, self.seed)
        twin._slots.put(at, rows=flat(vectors), numbers=self._slots["numbers"][at])
        twin._look_over()
        return twin

    def changes(self, name: str) -> Entries:
        """Entries of the slots that were written since the last call, at first of all."""
        return self._slots.changes(name)

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Take the state from the entries. Raises StateError when they do not fit."""
        self._slots.recover(entries, name)
        self._look_over()

    def _look_over(self) -> None:
        """Compute what follows from the numbers in the slots."""
        numbers, taken = self._slots["numbers"], self._taken
        self._priorities[:] = np.where(taken, self._priority(np.where(taken, numbers, 0)), np.inf)
        self._count = int(taken.sum())
        self._lowest = float(self._priorities.min()) if self._count == self.capacity else -np.inf
        self._newest = int(numbers.max())
