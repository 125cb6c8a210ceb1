"""Admission policies, and the tests for normal times and lasting shifts."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

RADIUS = 16  # records before and after it that decide about a record
GATE = 0.2  # the time of a record looks normal when the median p-value of these records is above this
SUSTAINED = 0.9  # a shift counts as lasting when this share of its records was rejected


class Policy(StrEnum):
    """Admission policies: which records become context, and what follows from it. Feedback counts with all of them."""

    AUTO = "auto"  # records from a time that looks normal; the most outlying of them are left out of the context
    FEEDBACK = "feedback"  # after the warm-up only records that feedback calls normal
    ALL = "all"  # every record that feedback does not call an outlier

    def admits(self, gate_p: Float, first: int, stop: int) -> NDArray[np.bool_]:
        """Whether each of the records `first` to `stop` - 1 of n consecutive ones may become context (stop - first,).

        gate_p: (n,) p-values of the gate; NaN: unknown.
        """
        if self is Policy.AUTO:
            return _looks_normal(gate_p, first, stop)
        return np.full(stop - first, self is Policy.ALL)

    @property
    def trims(self) -> bool:
        """Whether a generation leaves out the most outlying part of its rows."""
        return self is Policy.AUTO

    @property
    def adapts(self) -> bool:
        """Whether a lasting shift can become the new normal."""
        return self is Policy.AUTO


def _looks_normal(p: Float, first: int, stop: int) -> NDArray[np.bool_]:
    """Whether the median p-value around each of the records `first` to `stop` - 1 is above GATE (stop - first,)."""
    if first < RADIUS or stop > len(p) - RADIUS or np.isnan(p).any():
        return neighbourhood_median(p)[first:stop] > GATE
    above = np.append(0, np.cumsum(p > GATE))  # an odd number of known values: the median is above if most are
    around = above[first + RADIUS + 1 : stop + RADIUS + 1] - above[first - RADIUS : stop - RADIUS]
    most: NDArray[np.bool_] = around > RADIUS
    return most


def neighbourhood_median(p: Float, radius: int = RADIUS) -> Float:
    """Median (n,) of p[i - radius : i + radius + 1] for each i; NaN and places beyond the ends do not count."""
    if not len(p):
        return np.zeros(0)
    padded = np.pad(p, radius, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * radius + 1)
    known = ~np.isnan(windows)
    ordered = np.sort(np.where(known, windows, np.inf), axis=1)
    count = known.sum(1)
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    at = np.arange(len(p))
    middle = (ordered[at, low] + ordered[at, np.minimum(high, 2 * radius)]) / 2
    return np.where(count > 0, middle, np.nan)


def is_lasting_shift(rejected: int, n: int) -> bool:
    """Whether the last n records, `rejected` of which did not become context, are a new regime.

    Bursts alone do not reject so many records, because records between bursts look normal.
    """
    return n > 0 and rejected / n >= SUSTAINED
