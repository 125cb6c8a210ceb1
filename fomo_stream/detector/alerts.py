"""From logits to scores, p-values and alerts (split conformal prediction), and lasting shifts of a stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.history import History
from fomo_stream.detector.results import Results, Scores, Status

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

INFO, CRITICAL = 3.0, 0.1  # of the threshold: p-values of these severities


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


class Alerts:
    """Compares records with the window of those before the last step, and follows the share of alerts.

    A step is every `STEP` records. Between two steps the window and the threshold stay the same, so that a result does
    not depend on how records are split over calls.

    p-values refer to the logits that the newest contexts give to the records of the window. These contexts have learned
    them, so a burst of outliers does not hide the next one; but where a stream moves, new records seem rarer than they
    are, for which the threshold makes up. Scores refer to the larger one of that logit and of the one that a record had
    when it came, before it was learned, and are scaled. So ordinary records of a moving stream have ordinary scores,
    and the outliers are the records with a score above 1 - alert_rate.
    """

    def __init__(self, config: DetectorConfig) -> None:
        self.stepped = 0  # number of records at the last step
        self.threshold = AlertThreshold(config.alert_rate, config.window_size)
        self._scale = ScoreScale(config.alert_rate, config.window_size)
        self._size = config.window_size
        self._count = self._high = 0  # outliers, and high scores, since the last step
        # see `History.windows`, with the score of the larger logits above which records are outliers
        self._windows: tuple[Float, Float, float | None] | None = None  # None: to be taken from the history

    def judge(self, scores: Scores, remembered: Float, regime: int, history: History) -> Results:
        """Results of records from their scores and their remembered logits (n,)."""
        if self._windows is None:
            newest, larger = history.windows(self._size, self.stepped)
            self._windows = newest, larger, self._cut(newest, len(newest), larger)
        newest, larger, cut = self._windows
        return self._results(scores, remembered, larger, p_values(remembered, newest), cut, regime, len(newest))

    def judge_first(self, scores: Scores, remembered: Float, regime: int) -> Results:
        """Results of the first records (n,), each compared with the others."""
        n, ordered = len(remembered), np.sort(remembered)
        cut = self._cut(ordered[:-1], n, ordered)
        return self._results(scores, remembered, ordered, own_p_values(remembered), cut, regime, n)

    def _results(
        self, scores: Scores, remembered: Float, window: Float, p: Float, cut: float | None, regime: int, n: int
    ) -> Results:
        """Results with scores among `window`, and p-values p that refer to n records."""
        is_ready = is_calibrated(n, self.threshold.alert_rate)
        severity = np.zeros(len(scores), dtype=np.int8)
        for factor in (INFO, 1.0, CRITICAL) if is_ready else ():
            severity += p <= self.threshold.value * factor
        score, status = self._scale.scaled(scores_among(remembered, window), cut), Status.OK
        return Results.of(scores, remembered, score, p, regime, severity, status if is_ready else Status.CALIBRATING)

    def _cut(self, reference: Float, n_reference: int, window: Float) -> float | None:
        """The score among `window` above which records are outliers, if their p-values are among `reference`.

        Both ascending. None if no p-value can be as small as the alert rate.
        """
        if not is_calibrated(n_reference, self.threshold.alert_rate):
            return None
        m, above = len(reference), most_above(self.threshold.value, len(reference))
        if above < 0 or above >= m:
            return 1.0 if above < 0 else 0.0
        return float(scores_among(reference[[m - 1 - above]], window)[0])

    def count(self, results: Results) -> None:
        """Note the outliers and the high scores among records that are learned now."""
        self._count += int(results.outlier.sum())
        self._high += int((results.score > 1.0 - ScoreScale.SHARE).sum())

    def step(self, records: int) -> None:
        """Adapt to the outliers and the high scores since the last step; `records`: number of the next record."""
        self.threshold.update(self._count, records - self.stepped)
        self._scale.update(self._high, records - self.stepped)
        self.begin(records)

    def begin(self, records: int) -> None:
        """Start a new step without adapting."""
        self._count, self._high, self.stepped, self._windows = 0, 0, records, None

    def refresh(self) -> None:
        """Build the windows again: logits in the history have changed."""
        self._windows = None

    def copy(self) -> Alerts:
        """Independent alerts in the same state."""
        twin = copy(self)
        twin.threshold, twin._scale = copy(self.threshold), copy(self._scale)
        return twin

    def counters(self) -> dict[str, Any]:
        """The state, as plain numbers."""
        counters = {"stepped": self.stepped, "alerts": self._count, "log_factor": self.threshold.log_factor}
        return counters | {"high": self._high, "share": self._scale.share}

    def recover(self, counters: Mapping[str, Any]) -> None:
        """Take the state from `counters`."""
        self.stepped, self._count, self._windows = counters["stepped"], counters["alerts"], None
        self.threshold.log_factor = counters["log_factor"]
        self._high, self._scale.share = counters["high"], counters["share"]


SUSTAINED = 0.9  # share of the steps of a lasting shift that look shifted


class Regimes:
    """Counts regimes: a new one is announced when recent records call normal what the history calls odd, for long.

    A step looks shifted when most of its records are odd in the history and most are normal among recent records. A
    step that does not counts as much as nine that do, so a share of SUSTAINED of the steps has to look shifted. The
    next shift can be announced after the history has called the records normal again.
    """

    def __init__(self, adapt_after: int) -> None:
        self.number = 0  # counts the regimes; 0 while warming up
        self._adapt_after = adapt_after
        self._shifted = 0  # records that look shifted, less the others by their weight
        self._is_announced = False  # whether this shift was

    @property
    def drift(self) -> float:
        """How much of what announces a new regime was seen, from 0 to 1."""
        return min(1.0, self._shifted / self._adapt_after) if self._adapt_after else 0.0

    def begin(self) -> None:
        """The first regime begins with the next record."""
        self.number = 1

    def watch(self, odd: Bool, normal: Bool) -> None:
        """Learn of the records (n,) of one more step, and perhaps announce a regime.

        odd: which of them the history calls odd; normal: which of them recent records call normal.
        """
        n = len(odd)
        if 2 * int(odd.sum()) > n and 2 * int(normal.sum()) > n:
            self._shifted = min(self._shifted + n, self._adapt_after)
        else:
            self._shifted = max(0, self._shifted - round(n * SUSTAINED / (1 - SUSTAINED)))
        is_lasting = 0 < self._adapt_after <= self._shifted
        self.number += is_lasting and not self._is_announced
        self._is_announced = is_lasting or (self._is_announced and self._shifted > 0)

    def counters(self) -> dict[str, Any]:
        """The state, as plain numbers."""
        return {"regime": self.number, "shifted": self._shifted, "announced": self._is_announced}

    def recover(self, counters: dict[str, Any]) -> None:
        """Take the state from the counters."""
        self.number, self._shifted = counters["regime"], counters["shifted"]
        self._is_announced = counters["announced"]
