"""Values far beyond a gap: a -9999 that means "missing", a reading of 3.4e38. They say nothing about usual values.

A few such values would decide the mean, the standard deviation and the covariance of a context, and so hide all other
outliers of their column. Heavy tails and bursts have gaps, too, but what is beyond them is spread as widely. A closer
bound, limits at quantiles, and to leave out bursts all cost accuracy on real streams. Where a stream moves, and where
its ranges end, a value says something unless the gap is WIDE_GAP: with 20 ranges there, too, the average precision of
some streams fell by a third.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.column_ends import column_ends
from fomo_stream.model.quantile_map import SortedColumns

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

GAP, WIDE_GAP = 20.0, 200.0  # ranges of the values before it
MAX_FAR_SHARE = 0.15  # of the values, on either side
NEARLY_ALL = 0.95  # of the values are the same one


class Bulk(NamedTuple):
    """The bulk of d columns: the ends of the values that are not far, and the bounds of far ones; infinite = none is
    far."""

    low: Float  # (d,)
    high: Float
    least: Float  # a smaller value is far
    most: Float  # so is a larger one
    common: Float  # the value that nearly all rows have; NaN = none

    @classmethod
    def of(cls, columns: Sequence[Float], gap: float = GAP) -> Bulk:
        """Find the bulk of columns of known values, each ascending (m,). gap: how wide a gap is."""
        counts = np.array([len(column) for column in columns], np.int64)
        values = np.zeros((len(columns), counts.max(initial=0)))
        for row, column in zip(values, columns, strict=True):
            row[: len(column)] = column
        return cls.of_sorted(SortedColumns(values, counts), gap)

    @classmethod
    def of_sorted(cls, columns: SortedColumns, gap: float = GAP) -> Bulk:
        """The same of sorted columns."""
        return cls(*ends_of(columns, gap)[:5])

    @classmethod
    def of_rows(cls, rows: Float) -> Bulk:
        """Find the bulk of the columns of rows (n, d), NaN = missing, with WIDE_GAP."""
        return cls.of_sorted(SortedColumns.of(rows), WIDE_GAP)

    def far(self, rows: Float) -> Bool:
        """Which values of rows (n, d) are far; NaN is not."""
        if not (np.isfinite(self.least).any() or np.isfinite(self.most).any()):
            return np.zeros(rows.shape, dtype=bool)
        return np.asarray((rows < self.least) | (rows > self.most))

    def without(self, categorical: tuple[int, ...]) -> Bulk:
        """Return the same bulk, without far values in columns of codes."""
        for ends, no_end in zip(self[:4], (-np.inf, np.inf, -np.inf, np.inf), strict=True):
            ends[list(categorical)] = no_end
        return self

    def limited(self, rows: Float) -> Float:
        """Rows (n, d) in which far values are the nearest ones that are not."""
        far = self.far(rows)
        return np.where(far, np.clip(rows, self.low, self.high), rows) if far.any() else rows


def without_far(values: Float) -> Float:
    """The ascending values (m,) of a column that are not far."""
    (low,), (high,), *_ = Bulk.of([values])
    has_far = len(values) > 0 and (values[0] < low or values[-1] > high)
    return values[(values >= low) & (values <= high)] if has_far else values


def ends_of(columns: SortedColumns, gap: float) -> Float:
    """The ends (9, d) of columns, see `kernels.column_ends`."""
    ends: Float = column_ends(*columns, gap, MAX_FAR_SHARE, NEARLY_ALL)
    return ends
