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


def most_above(threshold: float, n_reference: int) -> int:
    """How many of n_reference scores an outlier has above it or equal, at most, if its p-value is below the threshold.

    -1: no p-value is as small. It compares as p-values are compared.

    >>> most_above(0.01, 98), most_above(0.01, 99), most_above(0.02, 99), most_above(2.0, 99)
    (-1, 0, 1, 99)
    """
    above = min(max(math.floor(threshold * (n_reference + 1)) - 1, -1), n_reference)
    while above < n_reference and (2.0 + above) / (n_reference + 1.0) <= threshold:
        above += 1
    while above >= 0 and (1.0 + above) / (n_reference + 1.0) > threshold:
        above -= 1
    return above


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


class ScoreScale:
    """From the share of less odd records to a score that agrees with the alerts, also while a stream moves.

    Between two steps it is an increasing function of the score before it. The outliers are the records with a score
    above 1 - alert_rate. And where the contexts follow a stream with a delay, more than SHARE of its records would have
    a score above 1 - SHARE: so this follows how many do, as `AlertThreshold` follows alerts, and lowers scores by as
    much as needed. The lower bound is the smallest p-value that `window_size` scores allow, so that a burst of real
    outliers does not lower the scores for long.
    """

    SHARE = 0.05
    APART = 1.25  # at least the ratio between the two distances from 1 that alert_rate and SHARE belong to

    def __init__(self, alert_rate: float, window_size: int) -> None:
        self.alert_rate = alert_rate
        self.share = self.SHARE  # one minus the score, before it is scaled, that belongs to 1 - SHARE
        self._least = min(self.SHARE, 1 / (window_size + 1))

    def scaled(self, scores: Float, cut: float | None = None) -> Float:
        """Scores (n,) in (0, 1) after scaling, in the same order.

        cut: of scores before scaling, from 0 to 1, the one above which records are outliers; None: not calibrated.

        >>> scale = ScoreScale(0.01, 2000)
        >>> scale.scaled(np.array([0.4, 0.95, 0.98, 0.99]), cut=0.98).round(6)
        array([0.4  , 0.95 , 0.99 , 0.995])
        """
        known, wanted = self._points(cut)
        rest, found = 1.0 - scores, np.full(len(scores), np.nan)
        # only + - * /, because the last digits of NumPy's other functions depend on the processor
        for left, right, low, high in zip(known, known[1:], wanted, wanted[1:], strict=False):
            inside = (rest >= left) & (rest <= right)
            found = np.where(inside, low + (rest - left) * ((high - low) / (right - left)), found)
        return np.asarray(1.0 - found, dtype=np.float64)

    def _points(self, cut: float | None) -> tuple[list[float], list[float]]:
        """Distances from 1 before scaling, ascending, and those after it that belong to them."""
        rate, share = self.alert_rate, self.share
        if cut is None:
            return [0.0, share, 1.0], [0.0, self.SHARE, 1.0]
        rest = 1.0 - cut
        if rest <= 0:  # no record can be an outlier
            return ([0.0, share, 1.0], [rate, self.SHARE, 1.0]) if rate < self.SHARE else ([0.0, 1.0], [rate, 1.0])
        if rest >= 1:  # every record is one
            return [0.0, 1.0], [0.0, rate]
        if rate < self.SHARE:
            share = min(max(share, self.APART * rest), (1.0 + rest) / 2)
            return [0.0, rest, share, 1.0], [0.0, rate, self.SHARE, 1.0]
        if rate > self.SHARE:
            share = min(share, rest / self.APART)
            return [0.0, share, rest, 1.0], [0.0, self.SHARE, rate, 1.0]
        return [0.0, rest, 1.0], [0.0, rate, 1.0]

    def update(self, n_high: int, n_records: int) -> None:
        """Adapt to n_high scores above 1 - SHARE among the last n_records."""
        surplus = AlertThreshold.RATE * (n_high - self.SHARE * n_records)
        # about exp(-surplus), by + - * / only: its last digits are the same on all processors
        factor = 1.0 / (1.0 + surplus) if surplus > 0 else 1.0 - surplus
        self.share = min(max(self.share * factor, self._least), self.SHARE)
