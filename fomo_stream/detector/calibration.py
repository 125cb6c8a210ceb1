"""From logits to scores, p-values and alerts (split conformal prediction)."""

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


def scores_among(logits: Float, reference: Float) -> Float:
    """Scores (n,) in (0, 1): 1 - p_value without its steps, so that different logits have different scores.

    logits: (n,); reference: (m,), ascending, logits of earlier records. A score rises with the logit, and differs from
    1 - p_values by at most 1 / (m + 1). Between two neighbours of the reference it is linear. Beyond its ends, the
    distance to 1 or to 0 falls as 1 / (1 + the distance to the end), which float64 can still tell apart where an
    exponential tail could not. With an empty reference the logit 0 has score 1/2.

    >>> scores_among(np.array([0.0, 1.0, 1.5, 5.0, 9.0]), np.array([1.0, 2.0, 5.0]))
    array([0.0625, 0.125 , 0.25  , 0.625 , 0.925 ])
    """
    m = len(reference)
    if not m:
        return 0.5 + 0.5 * logits / (1.0 + np.abs(logits))
    # only + - * /, because the last digits of NumPy's other functions depend on the processor
    below, upto = (np.searchsorted(reference, logits, side=side) for side in ("left", "right"))
    left, right = reference[np.maximum(below - 1, 0)], reference[np.minimum(below, m - 1)]
    with np.errstate(divide="ignore", invalid="ignore"):  # where left is right, the row is replaced below
        rank = below - 0.5 + (logits - left) / (right - left)
    rank = np.where(upto > below, below + 0.5, rank)  # equal to some of the reference
    score = rank / (m + 1.0)
    under, over = np.maximum(reference[0] - logits, 0.0), np.maximum(logits - reference[-1], 0.0)
    score = np.where(under > 0, 0.5 / (m + 1.0) / (1.0 + under), score)
    return np.asarray(np.where(over > 0, 1.0 - 1.5 / (m + 1.0) / (1.0 + over), score), dtype=np.float64)


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
