"""Rolling context of confirmed inliers, in numbered slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 finaliser: a well-spread 64-bit number for each counter, with no generator state to keep."""
    with np.errstate(over="ignore"):
        z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Reservoir:
    """At most `capacity` rows; once full, each new row replaces a pseudo-random one.

    So a row's age is geometric with mean `capacity` admissions (biased reservoir sampling, Aggarwal 2006): recent rows
    dominate, older ones fade. The slot of the i-th admission is a function of (seed, i) alone: two reservoirs that
    admitted the same rows are equal, whenever they were restored and however the rows came in batches.
    """

    def __init__(self, capacity: int, n_features: int, seed: int = 0) -> None:
        if not 2 <= capacity <= 5000:
            raise ValueError(f"a reservoir holds 2 to 5000 rows, not {capacity}")
        self.capacity = capacity
        self.seed = seed
        self.admitted = 0
        self._rows: NDArray[np.float64] = np.zeros((capacity, n_features))
        self._taken = np.zeros(capacity, dtype=bool)

    def __len__(self) -> int:
        return int(self._taken.sum())

    @property
    def rows(self) -> NDArray[np.float64]:
        """A copy of the rows (len(self), n_features), by slot."""
        return self._rows[self._taken]

    def admit(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        """Take rows (n, n_features) in order; returns the slot (n,) that each went to."""
        numbers = np.arange(self.admitted, self.admitted + len(rows), dtype=np.uint64)
        offset = np.uint64((self.seed * 0x632BE59BD9B4E019) % 2**64)
        with np.errstate(over="ignore"):
            drawn = (_mix(numbers + offset) % np.uint64(self.capacity)).astype(np.int64)
        empty = np.flatnonzero(~self._taken)[: len(rows)]
        slots = np.concatenate([empty, drawn[len(empty) :]])
        self._rows[slots] = rows  # numpy writes in order: of two rows for one slot the later stays
        self._taken[slots] = True
        self.admitted += len(rows)
        return slots

    def find(self, row: NDArray[np.float64]) -> NDArray[np.int64]:
        """Slots that hold exactly this row (n_features,); NaN equals NaN."""
        same = ((self._rows == row) | (np.isnan(self._rows) & np.isnan(row))).all(1)
        return np.flatnonzero(same & self._taken)

    def discard(self, slots: NDArray[np.int64]) -> None:
        """Empty these slots; the next admissions fill them."""
        self._taken[slots] = False

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The state, as arrays that `restore` takes back."""
        return {"rows": self.rows, "slots": np.flatnonzero(self._taken), "admitted": np.array(self.admitted)}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Become what `snapshot` saw."""
        self.admitted = int(state["admitted"])
        self._taken[:] = False
        self._taken[state["slots"]] = True
        self._rows[state["slots"]] = state["rows"]
