"""Confidence intervals by a block bootstrap over windows.

Consecutive records depend on each other, so whole windows of time are resampled, with replacement (non-overlapping
block bootstrap, Carlstein 1986). Percentile intervals are too narrow for few windows, so their levels are those of the
expanded percentile interval (Hesterberg 2015, What Teachers Should Know About the Bootstrap).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Float = NDArray[np.float64]

REPLICATES = 500
MIN_WINDOWS = 8  # windows with data for a metric; fewer give no interval
_SEED = 20250117


def resamples(n_windows: int) -> Float:
    """Return how often each window is drawn in each replicate (n_windows, REPLICATES): the same for every call."""
    draws = np.random.RandomState(_SEED).randint(0, n_windows, (REPLICATES, n_windows))  # stable over versions
    rows = np.arange(REPLICATES)[:, None] * n_windows + draws
    counts = np.bincount(rows.reshape(-1), minlength=REPLICATES * n_windows)
    return counts.reshape(REPLICATES, n_windows).T.astype(np.float64)


def interval(replicates: Float, n_windows: int) -> tuple[float, float] | None:
    """Return the 95 % interval of replicates (r,) of a metric, to which n_windows windows contribute.

    None if the windows are too few, or if too many replicates have no value (NaN).
    """
    values = replicates[~np.isnan(replicates)]
    if n_windows < MIN_WINDOWS or len(values) < 0.9 * len(replicates):
        return None
    expansion = np.sqrt(n_windows / (n_windows - 1))
    share = float(special.ndtr(expansion * special.stdtrit(n_windows - 1, 0.025)))
    low, high = np.quantile(values, [share, 1 - share])
    return float(low), float(high)


@dataclass(frozen=True)
class MetricDifference:
    """The change of a metric from before to after, with its 95 % interval `ends`; None: too few windows for one."""

    value: float
    ends: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """A statement in words about whether the change is more than chance."""
        if self.ends is None:
            return "too few windows to say"
        if self.ends[0] > 0:
            return "higher by more than chance"
        return "lower by more than chance" if self.ends[1] < 0 else "no difference beyond chance"


def difference(before: dict[str, Any], after: dict[str, Any], name: str, is_paired: bool) -> MetricDifference | None:
    """Return the difference of the metric `name` between two detectors of reports, None if one of them has no value.

    is_paired: both have the same windows with the same records. Then their replicates draw the same windows, so the
    variation that they share cancels out.
    """
    metrics = (before["metrics"].get(name), after["metrics"].get(name))
    if metrics[0] is None or metrics[1] is None:
        return None
    value = metrics[1]["value"] - metrics[0]["value"]
    replicates = [(detector["replicates"] or {}).get(name) for detector in (before, after)]
    if replicates[0] is None or replicates[1] is None:
        return MetricDifference(value, None)
    first, second = (np.array(values, dtype=np.float64) for values in replicates)
    if not is_paired:
        second = np.random.RandomState(_SEED).permutation(second)  # else both would draw the same windows
    return MetricDifference(value, interval(second - first, min(metric["windows"] for metric in metrics)))
