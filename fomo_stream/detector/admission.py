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

    def admits(self, gate_p: Float) -> NDArray[np.bool_]:
        """Whether each of n consecutive records may become context, by their p-values of the gate (n,)."""
        if self is Policy.AUTO:
            return neighbourhood_median(gate_p) > GATE
        return np.full(len(gate_p), self is Policy.ALL)

    @property
    def trims(self) -> bool:
        """Whether a generation leaves out the most outlying part of its rows."""
        return self is Policy.AUTO

    @property
    def adapts(self) -> bool:
        """Whether a lasting shift can become the new normal."""
        return self is Policy.AUTO


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


def is_lasting_shift(learned: NDArray[np.bool_]) -> bool:
    """Whether the last `adapt_after` records are a new regime, by whether each of them became context (n,).

    Bursts alone do not reject so many records, because records between bursts look normal.
    """
    return len(learned) > 0 and float(np.mean(~learned)) >= SUSTAINED
