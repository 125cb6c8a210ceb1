"""Remembered logits, scores and alerts, from logits; and lasting shifts of a stream."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector import rarity
from fomo_stream.detector.changelog import State
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.history import History
from fomo_stream.detector.keys import UNKEYED, Keys
from fomo_stream.detector.relative import weights
from fomo_stream.detector.results import Results, Scores, Status
from fomo_stream.detector.step.follow import HALF_LIFE
from fomo_stream.detector.step.judge import LOAD, ODD_LOGIT, EarlierLogits, greedy_of, remember, severities
from fomo_stream.model.kernels.handles import Handle

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int = NDArray[np.int64]


# Records over the alert rate in which outliers count as load, see `Alerts.step`: with MAX_LOAD of them only extremes
# are outliers.
LOAD_SPAN = 20.0
SHARED_ROWS = 1000.0  # records that the partition's count as, see `Alerts.start_from_shared`
# A key is greedy if it has more than GREEDY_SHARE of the highest last logits, and more than GREEDY_RATIO times its
# share of all; so less than a third of all records belong to greedy keys. TOP_SHARE times the alert rate: how many are
# the highest. Before there was this rule, with 100 keys and one that was wild in 10 % of the records, 1 of 8 faults of
# others was found.
GREEDY_SHARE, GREEDY_RATIO, TOP_SHARE, MIN_TOP_LOGITS = 0.25, 3.0, 2.0, 40


def continued(alert_rate: float, times: float = 7.0) -> float:
    """Return the largest 1 - score of a record that continues the incident of an alert shortly before it.

    times: it is so many times the alert rate, or so many percent if that is less.

    >>> continued(0.001), continued(0.01), continued(0.1)
    (0.007, 0.07, 0.1)
    """
    return max(alert_rate, times * min(alert_rate, 0.01))


def peak_of(logits: Float, usual: float, alert_rate: float, size: int) -> tuple[float, ...]:
    """Return TOP, HEIGHT, ... of the last `size` logits (m,); of fewer logits a clear distance is larger.

    usual: the largest of earlier logits that were not outliers, at least ODD_LOGIT.
    """
    if not (n := len(logits)) or not rarity.is_calibrated(n, alert_rate):
        return (math.inf,) * 5
    ascending, clear = np.sort(logits), rarity.clear_above(logits, size)
    median = float(ascending[(n - 1) // 2] + ascending[n // 2]) / 2.0
    largest = max(ODD_LOGIT, float(ascending[-1]))
    height, of_usual = max(largest - median, rarity.MIN_HEIGHT), max(usual - median, rarity.MIN_HEIGHT)
    return largest, height, clear, usual + clear * of_usual, median


def greedy_keys(logits: Float, series: Int, alert_rate: float) -> Int:
    """Return the greedy series (k,), from logits (m,) and their series (m,).

    >>> logits, series = np.arange(1000.0), np.arange(1000) % 50 + 1
    >>> greedy_keys(logits, series, 0.01), greedy_keys(np.where(series == 7, 5000.0, logits), series, 0.01)
    (array([], dtype=int64), array([7]))
    """
    n = min(len(logits), max(MIN_TOP_LOGITS, round(TOP_SHARE * alert_rate * len(logits))))
    if n == 0 or not (series > UNKEYED).any():
        return np.zeros(0, np.int64)
    highest = series[np.argpartition(logits, -n)[-n:]]
    return np.asarray(greedy_of(highest, series, GREEDY_SHARE * n, GREEDY_RATIO), np.int64)


class Memory:
    """Remembered logits: (1 - weight) times the record's own, plus weight times the mean of those before it.

    The mean is over the earlier records of the same series; the weight of a record halves every HALF_LIFE records. The
    first record of a series has its own logit. So has a record that is compared with the usual values of its key: these
    include its movement already, and a key that is odd among all keys would stay odd. Means are rounded to 32 bits:
    without that, rounding errors would order the records of a constant stream, and equal records would get different
    p-values. The mean is kept with the series. Records with a far value do not count in it: one reading of 3.4e38 says
    nothing about the next records.
    """

    def __init__(self, weight: float, keys: Keys) -> None:
        self.weight, self.keys, self.sizes = float(weight), keys, weights(HALF_LIFE).copy()

    def remember(self, scores: Scores, slots: Int, begins: Bool, learn: bool = True, far: Bool | None = None) -> Float:
        """Return the remembered logits (n,) of the next records with these scores; with `learn` they count from now on.

        slots, begins, far: (n,) of `Series.follow`. NaN for a NaN, which does not count.
        """
        far = np.zeros(len(slots), dtype=bool) if far is None else far
        mean, count = (self.keys.column(name, slots) for name in ("mean", "logits"))
        logits = scores.logit, scores.by_view, scores.by_key, scores.weights
        out: Float = remember(*logits, slots, begins, far, mean, count, self.sizes, self.weight)
        if learn:
            self.keys.write(slots, mean=mean, logits=count)
        return out


class Alerts(State):
    """Logits and limits that `_judge_visit` of `step.judge` compares records with, to decide which are outliers.

    A step is every `STEP` records. Between two steps nothing that records are compared with changes, so that a result
    does not depend on how records are split over calls. All logits are compared as they were when the records came.

    The beginning of an incident is judged by the recent past, its continuation by the long one. A record is an outlier

    - if its own logit, or its remembered one, is above 1 and clearly above all of the last 20 / alert_rate ones that
      were not outliers;
    - or if one of them is an extreme: twice as far above all of the last 7 / alert_rate ones;
    - or if, at most INCIDENT_GAP records of its series after another outlier, it is rare in the long run, and its own
      logit is above the median.

    Where records are independent of each other, no incident continues: the third condition is that a record is rarer
    than the alert rate in the long run.

    None of these counts for a record whose values are all those of nearly all records, unless it is odd for its key.
    So of normal records at most about the alert rate are outliers, and usually a fifth of it. A real incident adds as
    many as it has. Neither a burst nor a quiet time changes what comes later: an extreme always alerts. After a lasting
    shift, the first and the third end when the new records are not rare any more, or when MAX_LOAD says so.

    A key that is wild all the time must not hide others. If it has more than GREEDY_SHARE of the highest last logits,
    and so many times as many as of all, its records are left out of what those of other keys are compared with. So are
    records with a far value, such as a -9999: however many they are, the others are judged as if there were none.
    """

    parts: ClassVar = {"_rarity": ""}
    scalars: ClassVar = ("stepped", "_count", "_load", "_rarity.weight")

    def __init__(self, config: DetectorConfig, keys: Keys) -> None:
        """keys: of the series; each remembers in how many more records an incident can continue."""
        self._rate, self._window, self._peak = config.alert_rate, config.window_size, config.peak_size
        self._usual = config.usual_size
        self.stepped = 0  # number of records at the last step
        self._rarity = rarity.Rarity()
        self.memory = Memory(config.memory, keys)
        # see `step.judge`; one of them is the load: outliers up to the last step, older ones count less
        limits = config.memory, config.alert_rate, continued(config.alert_rate), 0.0, config.stuck_values == "alert"
        self._limits = np.array([*limits, config.are_independent])
        self._outliers = np.zeros(1, np.int64)
        self._recent: Handle | None = None  # None: take from the history

    @property
    def kernel_arrays(self) -> tuple[Float, Float, Int]:
        """The arrays that the compiled step reads: sizes of means, limits, and the outliers since the last step, which
        it counts. See `step.judge`."""
        return self.memory.sizes, self._limits, self._outliers

    @property
    def _count(self) -> int:
        """Outliers since the last step."""
        return int(self._outliers[0])

    @_count.setter
    def _count(self, count: int) -> None:
        self._outliers[0] = count

    @property
    def _load(self) -> float:
        """Outliers up to the last step; older ones count less."""
        return float(self._limits[LOAD])

    @_load.setter
    def _load(self, load: float) -> None:
        self._limits[LOAD] = load

    def earlier_logits(self, history: History) -> Handle:
        """Return the earlier logits that the next records are compared with."""
        if self._recent is None:
            self._recent = Handle(self._earlier_logits(history))
        return self._recent

    def judge_first(self, scores: Scores, slots: Int, begins: Bool, far: Bool) -> Results:
        """Return the results of the first records (n,) of these series, each compared with the others."""
        remembered = self.memory.remember(scores, slots, begins, learn=False, far=far)
        outlier, p = self.first_outliers(scores, remembered), rarity.own_p_values(remembered)
        return self._by_p_value(scores, remembered, p, len(scores), outlier, slots, begins)

    def first_outliers(self, scores: Scores, remembered: Float) -> Bool:
        """Which of the first records (n,) are outliers: those far outside of the others, however many."""
        if not rarity.is_calibrated(len(scores), self._rate):
            return np.zeros(len(scores), dtype=bool)
        clear = rarity.clear_above(scores.stored_logit, self._peak)
        return rarity.far_outside(scores.stored_logit, clear) | rarity.far_outside(remembered, clear)

    def judge_independent(self, scores: Scores, history: History) -> Results:
        """Return the results of records that are not a stream, from their scores: none follows another."""
        ascending = self._earlier_logits(history).of_every
        return self._by_p_value(scores, scores.logit, rarity.p_values(scores.logit, ascending), len(ascending))

    def _by_p_value(
        self,
        scores: Scores,
        logits: Float,
        p: Float,
        n: int,
        outlier: Bool | None = None,
        slots: Int | None = None,
        begins: Bool | None = None,
    ) -> Results:
        """Results of records (q,) from their p-values among n others. outlier: None: by whether these are small."""
        is_ready, score = rarity.is_calibrated(n, self._rate), 1.0 - self._rarity.above(logits)
        outlier = (p <= self._rate) & is_ready if outlier is None else outlier
        severity = severities(outlier, score, self._rate if is_ready else 0.0)
        status = Status.OK if is_ready else Status.CALIBRATING
        return Results.of(scores, logits, score, p, outlier, severity, status, slots, begins)

    def _earlier_logits(self, history: History) -> EarlierLogits:
        first = self.stepped - max(self._window, self._peak, self._usual)
        numbers, own, remembered, outlier, series, far = history.scored(first, self.stepped)
        greedy, n = greedy_keys(remembered, series, self._rate), len(numbers)

        def compared(kept: Bool | slice) -> tuple[Float, list[tuple[float, ...]]]:
            kept_numbers, x, y, were_usual = numbers[kept], own[kept], remembered[kept], ~outlier[kept]
            sizes = self._window, self._peak, self._usual
            window, last, usual = kept_numbers.searchsorted(np.subtract(self.stepped, sizes)).tolist()
            were_usual[:usual] = False
            size = round(self._peak * len(kept_numbers) / max(1, n))
            highest = (float(values[were_usual].max(initial=ODD_LOGIT)) for values in (x, y))
            peaks = [peak_of(v[last:], top, self._rate, size) for v, top in zip((x, y), highest, strict=True)]
            return np.sort(y[window:]), peaks

        every, left_out = compared(slice(None)), far | np.isin(series, greedy) if len(greedy) else far
        ordinary = compared(~left_out) if left_out.any() else every
        peaks = np.array([ordinary[1], every[1]])
        return EarlierLogits(ordinary[0], every[0], peaks, greedy, self._rarity.counts_above)

    def start_from_shared(self, other: Alerts) -> None:
        """Start the scores of a key from the records of its partition, so that both can be compared."""
        self._rarity.start_from_shared(other._rarity, SHARED_ROWS)
        self.refresh()

    def step(self, history: History) -> None:
        """Count the records since the last step."""
        remembered = history.scored(self.stepped, history.records)[2]
        self._rarity.add(remembered, np.zeros(len(remembered), dtype=np.int64))
        self._rarity.step()
        self._load = self._load * max(0.0, 1.0 - STEP * self._rate / LOAD_SPAN) + self._count
        self.begin(history.records)

    def begin(self, records: int) -> None:
        """Start a new step."""
        self._count, self.stepped, self._recent = 0, records, None

    def note(self, numbers: Int, remembered: Float, sign: float = 1.0) -> None:
        """Count records (n,) that came before the last step; sign: -1.0 takes them back."""
        is_counted = (numbers < self.stepped) & ~np.isnan(remembered)
        steps_ago = (self.stepped - numbers[is_counted] - 1) // STEP + 1
        self._rarity.add(remembered[is_counted], steps_ago, sign)
        self.refresh()

    def refresh(self) -> None:
        """Forget the earlier logits, because records of the history have changed."""
        self._recent = None

    def copy(self, keys: Keys | None = None) -> Alerts:
        """Return alerts in the same state; `keys`: where they remember series, None = the same keys."""
        twin = super().copy()
        twin.memory = Memory(self.memory.weight, self.memory.keys if keys is None else keys)
        return twin

    def _recovered(self) -> None:
        self._recent = None


SHIFTED_SHARE = 0.9  # share of the steps of a lasting shift that look shifted


class Shifts:
    """Announces lasting shifts: recent records call normal, for long, what the history calls odd. It is not stored.

    A step looks shifted when most of its records are odd in the history and most are normal among recent records. A
    step that does not counts as much as nine that do, so a share of SHIFTED_SHARE of the steps has to look shifted. The
    next shift can be announced after the history has called the records normal again.
    """

    def __init__(self, adapt_after: int) -> None:
        self.number = 0  # shifts that were announced
        self._adapt_after = adapt_after
        self._shifted = 0  # records that look shifted, less the others by their weight
        self._is_announced = False  # whether this shift was

    @property
    def drift(self) -> float:
        """Return how much of what announces a shift was seen, from 0 to 1."""
        return min(1.0, self._shifted / self._adapt_after) if self._adapt_after else 0.0

    def watch(self, odd: Bool, normal: Bool) -> None:
        """Learn the records (n,) of one more step, and announce a shift if it has lasted.

        odd: which of them the history calls odd; normal: which of them recent records call normal.
        """
        n = len(odd)
        if 2 * int(odd.sum()) > n and 2 * int(normal.sum()) > n:
            self._shifted = min(self._shifted + n, self._adapt_after)
        else:
            self._shifted = max(0, self._shifted - round(n * SHIFTED_SHARE / (1 - SHIFTED_SHARE)))
        is_lasting = 0 < self._adapt_after <= self._shifted
        self.number += is_lasting and not self._is_announced
        self._is_announced = is_lasting or (self._is_announced and self._shifted > 0)
