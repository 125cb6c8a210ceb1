"""How far rows are beyond all values of a context. Evidence grows ever more slowly there; this keeps growing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


class Ranges(NamedTuple):
    """The two smallest and the two largest values of each of d features; infinite where there are none."""

    low: Float  # (2, d) ascending
    high: Float  # (2, d) ascending

    @classmethod
    def of(cls, rows: Float) -> Ranges:
        """The ranges of rows (n, d), n >= 2, NaN = missing."""
        low = np.sort(np.where(np.isnan(rows), np.inf, rows), axis=0)[:2]
        high = np.sort(np.where(np.isnan(rows), -np.inf, rows), axis=0)[-2:]
        return cls(low, high)

    def beyond(self, rows: Float) -> Float:
        """log(1 + the largest distance beyond a feature's range, in widths of that range) of rows (n, d): (n,).

        0 inside of all ranges. A feature that never varied has no width, and does not count.
        """
        return _beyond(rows, self.low[0], self.high[1])

    def beyond_others(self, rows: Float) -> Float:
        """The same for the rows of the context themselves, each compared with the others."""
        low = np.where(rows == self.low[0], self.low[1], self.low[0])
        high = np.where(rows == self.high[1], self.high[0], self.high[1])
        return _beyond(rows, low, high)


def _beyond(rows: Float, low: Float, high: Float) -> Float:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        width = high - low
        excess = np.maximum(low - rows, rows - high) / width
        excess[~((excess > 0) & (width > 0) & np.isfinite(excess))] = 0.0
    return np.asarray(np.log1p(excess.max(axis=1, initial=0.0)), dtype=np.float64)
