"""From scores to p-values to alerts (split conformal prediction)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


def p_values(logits: Float, reference: Float) -> Float:
    """Share of reference scores at least as high, counting the new one: (1 + #{r >= s}) / (n + 1).

    logits: (n,), any scale; reference: (m,), ascending, scores of earlier records, each taken before it was learned.
    Where new records resemble the reference, P(p <= a) <= a. With an empty reference every p-value is 1.

    >>> p_values(np.array([0.0, 5.0, 9.0]), np.array([1.0, 2.0, 5.0]))
    array([1.  , 0.5 , 0.25])
    """
    at_least = len(reference) - np.searchsorted(reference, logits, side="left")
    return np.asarray((1.0 + at_least) / (len(reference) + 1.0), dtype=np.float64)


def own_p_values(logits: Float) -> Float:
    """The p-value of each of n logits against the n - 1 others: #{r >= s} / n, where r is any of the n.

    >>> own_p_values(np.array([1.0, 2.0, 2.0, 5.0]))
    array([1.  , 0.75, 0.75, 0.25])
    """
    at_least = len(logits) - np.searchsorted(np.sort(logits), logits, side="left")
    return np.asarray(at_least / len(logits), dtype=np.float64)


def is_calibrated(n_reference: int, alert_rate: float) -> bool:
    """Whether a p-value can be as small as alert_rate at all.

    >>> is_calibrated(98, 0.01), is_calibrated(99, 0.01)
    (False, True)
    """
    return alert_rate * (n_reference + 1) >= 1.0 - 1e-9


class AlertThreshold:
    """The p-value at or below which a record is an outlier; it adapts to the share of records that were outliers.

    Adaptive conformal inference (Gibbs & Candès 2021) on a logarithmic scale: each alert lowers the threshold by the
    factor exp(-RATE), and 1 / alert_rate quiet records raise it by the same factor. So under any drift the share of
    alerts tends to `alert_rate`, unless the threshold reaches a bound. The lower bound is just below the smallest
    p-value that `window_size` scores allow, so that a burst of real outliers does not suppress later alerts for long.
    The upper bound is MAX_FACTOR times the rate, so that a long quiet time does not cause false alerts.
    """

    RATE = 0.1
    MAX_FACTOR = 10.0

    def __init__(self, alert_rate: float, window_size: int) -> None:
        self.alert_rate = alert_rate
        self.log_factor = 0.0  # natural log of threshold / alert_rate
        self._min_log_factor = min(0.0, math.log(1 / (window_size + 1) / alert_rate) - 2 * self.RATE)

    @property
    def value(self) -> float:
        """The threshold now, a p-value."""
        return self.alert_rate * math.exp(self.log_factor)

    def update(self, n_alerts: int, n_records: int) -> None:
        """Adapt to n_alerts outliers among the last n_records."""
        surplus = n_alerts / self.alert_rate - n_records
        moved = self.log_factor - self.RATE * self.alert_rate * surplus
        self.log_factor = min(max(moved, self._min_log_factor), math.log(self.MAX_FACTOR))
