"""Which records become context."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

RADIUS = 16  # records before and after that a record is judged with
SUSTAINED = 0.9  # share of records that must be rejected before a shift counts as lasting


class Policy(StrEnum):
    """Named admission policies; all of them follow feedback."""

    AUTO = "auto"  # records from a time that looks normal; the most outlying of them are left out of the context
    FEEDBACK = "feedback"  # after the warm-up only records that feedback calls normal
    ALL = "all"  # every record that feedback does not call an outlier


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
    """Whether records (n,) of the last `adapt_after`, by whether they became context, are a new regime.

    Nearly all were rejected for so long that this is no burst: between bursts a stream is normal again.
    """
    return len(learned) > 0 and float(np.mean(~learned)) >= SUSTAINED
