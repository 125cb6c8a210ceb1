"""Values far beyond a gap: a -9999 that means "missing", a reading of 3.4e38. They say nothing about usual values.

A few such values would decide the mean, the standard deviation and the covariance of a context, and so hide all other
outliers of their column. Heavy tails and bursts have gaps, too, but what is beyond them is spread as widely. A closer
bound, limits at quantiles, and to leave out bursts all cost accuracy on real streams. Where a stream moves, and where
its ranges end, a value says something unless the gap is WIDE_GAP: with 20 ranges there, too, the average precision of
some streams fell by a third.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
        """Find the bulk of columns of known values, each ascending (m,). gap: see `_end_and_bound`."""
        bounds = np.array([[-np.inf, np.inf, -np.inf, np.inf, np.nan]] * len(columns)).reshape(len(columns), 5)
        for ends, values in zip(bounds, columns, strict=True):
            if len(values):
                m = len(values)
                aside = int(MAX_FAR_SHARE * m)
                ends[1], ends[3] = _end_and_bound(values, aside, gap)
                low, least = _end_and_bound(-values[::-1], aside, gap)
                ends[0], ends[2] = -low, -least
                middle = values[m // 2]
                if values[m // 10] == middle == values[m - 1 - m // 10]:  # else far fewer are equal
                    equal = np.searchsorted(values, middle, "right") - np.searchsorted(values, middle)
                    ends[4] = middle if equal >= NEARLY_ALL * m else np.nan
        return cls(*bounds.T.copy())

    @classmethod
    def of_rows(cls, rows: Float) -> Bulk:
        """Find the bulk of the columns of rows (n, d), NaN = missing, with WIDE_GAP."""
        ordered = np.sort(rows, axis=0)
        counts = (~np.isnan(rows)).sum(axis=0).tolist()
        return cls.of([column[:m] for column, m in zip(ordered.T, counts, strict=True)], WIDE_GAP)

    def far(self, rows: Float) -> Bool:
        """Which values of rows (n, d) are far; NaN is not."""
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


def _end_and_bound(values: Float, aside: int, gap: float) -> tuple[float, float]:
    """The largest of ascending values (m,) before a gap, and from where on a value is far; `aside`: those at each side.

    gap: how wide a gap is, in ranges of the values before it. Such a range begins at the smallest value that cannot be
    far itself; without a range a gap does not exist. The values beyond a gap are at most as far apart as it is wide,
    except for those beyond a further gap.
    """
    last, first = len(values) - 1, values.item(aside)
    high, before = values.item(last), values.item(last - aside)  # of Python, whose sums may be infinite, too
    if aside and high - before > gap * (before - first):
        with np.errstate(over="ignore"):
            upper = values[last - aside :]
            ranges, widths, end = upper[:-1] - first, np.diff(upper), aside
            is_gap = (widths > gap * ranges) & (ranges > 0)
            while len(nearer := np.flatnonzero((is_gap & (upper[end] - upper[1:] <= widths))[:end])):
                end = int(nearer[0])
            high = upper.item(end)
    return high, high + gap * (high - first) if high > first and aside else math.inf
