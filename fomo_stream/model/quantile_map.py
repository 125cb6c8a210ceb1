"""The knots of a quantile map, from values in ascending order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

N_KNOTS = 1000


def ascending(values: Float) -> Float:
    """The known values of a column (n,), NaN = missing: ascending. Without -0.0, which has no place among zeros."""
    return np.sort(values[~np.isnan(values)]) + 0.0


class SortedColumns(NamedTuple):
    """The known values of each of d columns, as `ascending` gives them, side by side."""

    values: Float  # (d, n), after the known ones NaN
    counts: NDArray[np.int64]  # (d,) known values

    @classmethod
    def of(cls, rows: Float) -> SortedColumns:
        """Sort the columns of rows (n, d), NaN = missing."""
        values = np.array(rows.T, dtype=np.float64, order="C")
        values.sort(axis=1)  # NaN comes last
        values += 0.0
        is_complete = not np.isnan(values[:, -1:]).any()
        counts = np.full(rows.shape[1], len(rows)) if is_complete else np.count_nonzero(~np.isnan(rows), axis=0)
        return cls(values, counts)

    def each(self) -> list[Float]:
        """The values (m,) of each column."""
        return [column[:m] for column, m in zip(self.values, self.counts.tolist(), strict=True)]


def knots_of(columns: Sequence[Float], n_knots: int = N_KNOTS) -> tuple[Float, Float]:
    """Values and levels (d, k) of knots of d columns from their known values, ascending: numpy's linear quantiles.

    k: the length of the longest column, at most n_knots, at least 1. A column without values has zeros.
    """
    k = max(1, min(n_knots, max(map(len, columns))))
    values, levels = np.zeros((len(columns), k)), np.empty((len(columns), k))
    places = {m: np.linspace(0.0, max(m - 1, 0), k) for m in set(map(len, columns))}
    for j, column in enumerate(columns):
        m = len(column)
        at = places[m]
        levels[j] = (at + 0.5) / max(m, 1)
        if m == k:
            values[j] = column
        elif m:
            low = np.minimum(at.astype(np.int64), max(m - 2, 0))
            above = column[np.minimum(low + 1, m - 1)]
            values[j] = column[low] + (at - low) * (above - column[low])  # two equal ones stay equal
    return values, levels
