"""From logits to remembered logits, scores and alerts, and lasting shifts of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.history import History
from fomo_stream.detector.keys import WHOLE, Keys
from fomo_stream.detector.rarity import (
    LEAST_HEIGHT,
    ODD,
    Rarity,
    clear_above,
    far_outside,
    is_calibrated,
    own_p_values,
    p_values,
)
from fomo_stream.detector.relative import MOST_COUNTED, weights
from fomo_stream.detector.results import Results, Scores, Status, severities
from fomo_stream.detector.series import HALF_LIFE, Batch

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int = NDArray[np.int64]


GAP = 10  # records of its series after an alert in which an incident can continue
LIMIT, SPAN = 100.0, 20.0  # an incident continues while fewer than 100 of about the last 20 / alert_rate are outliers
AGAIN = 0.7  # of the alert rate: p-value of a record that is clear above the last ones that were no outliers
BORROWED = 1000.0  # records that others count as, see `Alerts.borrow`
# A key is greedy that has more than this share of the highest last logits, and so many times as many as of all. Of all
# then less than a third are of greedy keys. How many are looked at: HIGHEST times the alert rate, but not fewer.
GREEDY, TIMES, HIGHEST, LEAST_HIGHEST = 0.25, 3.0, 2.0, 40
RAREST = 2.0**-50  # 1 - score, at least: so that no score is 1


def continued(alert_rate: float) -> float:
    """1 - score at and below which a record shortly after an alert continues its incident.

    >>> continued(0.001), continued(0.01), continued(0.1)
    (0.005, 0.05, 0.1)
    """
    return max(alert_rate, min(5.0 * alert_rate, 0.05))


class Peak(NamedTuple):
    """What some earlier logits reach, at least ODD; all numbers are infinite if they are too few to compare with."""

    top: float  # the largest
    height: float  # how far it is above the median
    clear: float  # what is clear above it, in heights
    usual: float  # what is clear above the largest of those that were no outliers
    median: float

    @classmethod
    def of(cls, logits: Float, outlier: Bool, alert_rate: float, size: int) -> Peak:
        """That of logits (m,), the last `size` ones, or all if there were fewer: then clear above means further."""
        if not len(logits) or not is_calibrated(len(logits), alert_rate):
            return cls(np.inf, np.inf, np.inf, np.inf, np.inf)
        median = float(np.median(logits))
        top, usual = (float(some.max(initial=ODD)) for some in (logits, logits[~outlier]))
        heights = [max(one - median, LEAST_HEIGHT) for one in (top, usual)]
        clear = clear_above(logits, size)
        return cls(top, heights[0], clear, usual + clear * heights[1], median)

    def rise(self, logits: Float) -> Float:
        """How far logits (n,) are above the top, relative to its height: 0 for those that are not."""
        return np.asarray(np.maximum(logits - self.top, 0.0) / self.height)


# The last remembered logits, ascending; the peaks of own and remembered ones; how many of the last ones may be as high
# as one that is clear above those that were no outliers
Standard = tuple[Float, Peak, Peak, float]
# the series of greedy keys; what the records of others are compared with; and, if there are such keys, or records with
# far values, what theirs are
Recent = tuple[Int, list[Standard]]


def greedy_keys(logits: Float, series: Int, alert_rate: float) -> Int:
    """Series of keys (k,) that have more than is fair of the highest of some logits (m,), which are of `series` (m,).

    >>> logits, series = np.arange(1000.0), np.arange(1000) % 50 + 1
    >>> greedy_keys(logits, series, 0.01), greedy_keys(np.where(series == 7, 5000.0, logits), series, 0.01)
    (array([], dtype=int64), array([7]))
    """
    n = min(len(logits), max(LEAST_HIGHEST, round(HIGHEST * alert_rate * len(logits))))
    if n == 0 or not (series > WHOLE).any():
        return np.zeros(0, np.int64)
    found, counts = np.unique(series[np.argpartition(logits, -n)[-n:]], return_counts=True)
    shares = (series == found[:, None]).mean(axis=1)
    return np.asarray(found[(found > WHOLE) & (counts > n * np.maximum(GREEDY, TIMES * shares))], np.int64)


class Memory:
    """Remembered logits: (1 - weight) times the record's own, plus weight times the mean of those before it.

    The mean is over the earlier records of the same series; each older one counts half every HALF_LIFE records. The
    first record of a series has its own logit, and so has a record that is compared with what is usual for its key:
    its movement is in that already, and a key that all others call odd would else stay so. Means are rounded to 32
    bits: where nothing ever changes, rounding errors would else order the records, and p-values would tell equal
    records apart. It is kept with the series. Records with a far value count in no mean: one reading of 3.4e38 says
    nothing of the next ones.
    """

    def __init__(self, weight: float, keys: Keys) -> None:
        self.weight, self._keys = weight, keys

    def remember(
        self,
        logits: Float,
        slots: Int,
        begins: Bool,
        alone: Bool | None = None,
        learn: bool = True,
        far: Bool | None = None,
    ) -> Float:
        """Remembered logits (n,) of the next records from their own (n,), which count from now on, if they are learned.

        slots, begins, far: (n,) of `Series.follow`; alone: (n,) which records have their own logits; None: none. NaN
        for a NaN, which does not count.
        """
        if not len(logits):
            return logits
        now: dict[int, tuple[float, int]] = {}
        means, counts = (self._keys.column(name, slots).tolist() for name in ("mean", "logits"))
        sizes, weight, out = weights(HALF_LIFE).tolist(), self.weight, logits.copy()
        are_far = [False] * len(logits) if far is None else far.tolist()
        for i, (slot, is_first) in enumerate(zip(slots.tolist(), begins.tolist(), strict=True)):
            mean, count = (0.0, 0) if is_first else now.get(slot) or (means[i], counts[i])
            logit = float(logits[i])
            if logit == logit:
                if count and weight and not (alone is not None and alone[i]):
                    out[i] = np.float32((1.0 - weight) * logit + weight * mean)
                if not are_far[i]:
                    mean = float(np.float32(mean + (logit - mean) / sizes[count + 1]))
                    count = min(count + 1, MOST_COUNTED)
            now[slot] = mean, count
        if learn:
            mean, count = np.array(list(now.values())).T
            self._keys.write(np.fromiter(now, np.int64), mean=mean, logits=count)
        return out


class Alerts:
    """Compares records with those before the last step, and says which of them are outliers.

    A step is every `STEP` records. Between two steps nothing that records are compared with changes, so that a result
    does not depend on how records are split over calls. All logits are compared as they were when the records came.

    The beginning of an incident is judged by the recent past, its continuation by the long one. A record is an outlier

    - if its own logit, or its remembered one, is above 1 and clear above all of the last 7 / alert_rate ones;
    - or clear above those of them that were no outliers, while its p-value is at most AGAIN * alert_rate;
    - or if, at most GAP records of its series after another outlier, it is rare in the long run.

    So of ordinary records at most the alert rate are outliers, and usually a third of it. A real incident adds as many
    as it has. Neither a burst nor a quiet time changes what comes later: an extreme always alerts. After a lasting
    shift, the second and the third end when the new records are not rare any more, or when LIMIT says so.

    A key that is wild all the time must not hide others. If it has more than GREEDY of the highest last logits, and so
    many times as many as of all, its records are left out of what those of other keys are compared with. So are records
    with a far value, such as a -9999: however many they are, the others are judged as if there were none.
    """

    def __init__(self, config: DetectorConfig, keys: Keys) -> None:
        """keys: of the series, of which each remembers in how many more records an incident can continue."""
        self._rate, self._window, self._peak = config.alert_rate, config.window_size, config.peak_size
        self.stepped = 0  # number of records at the last step
        self._rarity = Rarity()
        self._keys = keys
        self._load = 0.0  # outliers up to the last step; older ones count less
        self._count = 0  # outliers since the last step
        self._recent: Recent | None = None  # None: take from the history

    def judge(self, scores: Scores, remembered: Float, batch: Batch, history: History, learn: bool) -> Results:
        """Results of the next records from their scores and remembered logits (n,).

        learn: whether the following records follow these; else nothing changes.
        """
        if self._recent is None:
            self._recent = self._taken(history)
        greedy, standards = self._recent
        own, n = scores.stored_logit, len(scores)
        # records that others are not compared with are compared with all
        is_greedy = np.isin(batch.slots, greedy) | batch.far if len(standards) > 1 else np.zeros(n, dtype=bool)
        (p, own_rise, rise), (top, again, odder) = np.ones((3, n)), np.zeros((3, n), dtype=bool)
        for at, (ascending, own_peak, peak, few) in zip((~is_greedy, is_greedy), standards, strict=False):
            x, y = own[at], remembered[at]
            p[at], own_rise[at], rise[at] = p_values(y, ascending), own_peak.rise(x), peak.rise(y)
            top[at] = (own_rise[at] > own_peak.clear) | (rise[at] > peak.clear)
            odder[at] = x > own_peak.median  # else the record before is all that is odd about it
            again[at] = ((x > own_peak.usual) | (y > peak.usual)) & (p[at] * (len(ascending) + 1.0) <= few)
        # a beginning has no records before it that belong to it, so memory must not make it smaller
        counted = np.where(own_rise > 0, np.maximum(own, remembered), remembered)
        above = 1.0 + 2.0 * np.maximum(own_rise, rise)
        rarity = np.maximum(self._rarity.above(counted) / (above * above * above), RAREST)
        # in a constant stream the records before are all that is odd about the usual one
        odd = ~batch.ordinary.all(axis=1) | (scores.by_key > ODD)
        outlier = self._follow(top & odd, again & odd, (rarity <= continued(self._rate)) & odder & odd, batch, learn)
        status = Status.OK if np.isfinite(standards[-1][2].top) else Status.CALIBRATING
        severity = severities(outlier, 1.0 - rarity, self._rate if status is Status.OK else 0.0)
        return Results.of(scores, remembered, 1.0 - rarity, p, outlier, severity, status)

    def judge_first(self, scores: Scores, remembered: Float) -> Results:
        """Results of the first records (n,), each compared with the others."""
        outlier = self.first_outliers(scores, remembered)
        return self._by_p_value(scores, remembered, own_p_values(remembered), len(scores), outlier)

    def first_outliers(self, scores: Scores, remembered: Float) -> Bool:
        """Which of the first records (n,) are outliers: those far outside of the others, however many."""
        if not is_calibrated(len(scores), self._rate):
            return np.zeros(len(scores), dtype=bool)
        clear = clear_above(scores.stored_logit, self._peak)
        return far_outside(scores.stored_logit, clear) | far_outside(remembered, clear)

    def judge_apart(self, scores: Scores, history: History) -> Results:
        """Results of records that belong to no stream, from their scores: none follows another."""
        ascending = self._taken(history)[1][-1][0]
        return self._by_p_value(scores, scores.logit, p_values(scores.logit, ascending), len(ascending))

    def _by_p_value(self, scores: Scores, logits: Float, p: Float, n: int, outlier: Bool | None = None) -> Results:
        """Results of records (q,) from their p-values among n others. outlier: None: by whether these are small."""
        is_ready, score = is_calibrated(n, self._rate), 1.0 - self._rarity.above(logits)
        outlier = (p <= self._rate) & is_ready if outlier is None else outlier
        severity = severities(outlier, score, self._rate if is_ready else 0.0)
        status = Status.OK if is_ready else Status.CALIBRATING
        return Results.of(scores, logits, score, p, outlier, severity, status)

    def _taken(self, history: History) -> Recent:
        first = max(0, self.stepped - max(self._window, self._peak))
        numbers, own, remembered, outlier = history.scored(first, self.stepped)
        series = history.series(first, self.stepped)[0][numbers - first]
        greedy, standards = greedy_keys(remembered, series, self._rate), list[Standard]()
        every = np.ones(len(numbers), dtype=bool)
        apart = np.isin(series, greedy) | history.far(numbers)
        for kept in (~apart, every) if apart.any() else (every,):
            window, last = (kept & (numbers >= self.stepped - size) for size in (self._window, self._peak))
            size = round(self._peak * kept.sum() / max(1, len(kept)))
            own_peak, peak = (Peak.of(one[last], outlier[last], self._rate, size) for one in (own, remembered))
            # those that have not come yet count as ordinary ones: a young stream may have as many as an old one
            few = AGAIN * self._rate * (max(int(window.sum()), self._window * kept.sum() / max(1, len(kept))) + 1.0)
            standards.append((np.sort(remembered[window]), own_peak, peak, few))
        return greedy, standards

    def _follow(self, top: Bool, again: Bool, rare: Bool, batch: Batch, learn: bool) -> Bool:
        """Which of the next records (n,) are outliers, by the three rules; LIMIT is for the second and the third."""
        left = np.where(batch.begins, 0, self._keys.column("open", batch.slots))
        if not (top | again | (left > 0)).any():
            return top
        outlier, count = top.copy(), self._count
        now: dict[int, int] = {}
        records = zip(batch.slots.tolist(), batch.begins.tolist(), left.tolist(), strict=True)
        for i, (slot, is_new, known) in enumerate(records):
            before = 0 if is_new else now.get(slot, known)
            outlier[i] |= (again[i] or (rare[i] and before > 0)) and self._load + count < LIMIT
            now[slot], count = (GAP, count + 1) if outlier[i] else (max(before - 1, 0), count)
        if learn:
            self._count = count
            self._keys.write(np.fromiter(now, np.int64), open=list(now.values()))
        return outlier

    def borrow(self, other: Alerts) -> None:
        """Begin with what is rare among other records, so that scores can be compared with theirs."""
        self._rarity.borrow(other._rarity, BORROWED)
        self.refresh()

    def step(self, history: History) -> None:
        """Count the records since the last step."""
        numbers, _, remembered, _ = history.scored(self.stepped, history.records)
        self._rarity.add(remembered, np.zeros(len(numbers), dtype=np.int64))
        self._rarity.step()
        self._load = self._load * max(0.0, 1.0 - STEP * self._rate / SPAN) + self._count
        self.begin(history.records)

    def begin(self, records: int) -> None:
        """Start a new step."""
        self._count, self.stepped, self._recent = 0, records, None

    def note(self, numbers: Int, remembered: Float, sign: float = 1.0) -> None:
        """Count records (n,) that came before the last step; sign: -1.0 takes them back."""
        known = (numbers < self.stepped) & ~np.isnan(remembered)
        steps_ago = (self.stepped - numbers[known] - 1) // STEP + 1
        self._rarity.add(remembered[known], steps_ago, sign)
        self.refresh()

    def refresh(self) -> None:
        """Records of the history have changed."""
        self._recent = None

    def copy(self, keys: Keys | None = None) -> Alerts:
        """Alerts in the same state: independent, if `keys` are, for what they remember of series; None: the same."""
        twin = copy(self)
        twin._rarity = self._rarity.copy()
        twin._keys = self._keys if keys is None else keys
        return twin

    def counters(self) -> dict[str, Any]:
        """The state that is plain numbers."""
        counters = {"stepped": self.stepped, "alerts": self._count, "load": self._load}
        return counters | {"weight": self._rarity.weight}

    def changes(self) -> Entries:
        """Entries that the log does not have yet; not the counters."""
        return self._rarity.changes()

    def recover(self, entries: StoredEntries, counters: Mapping[str, Any]) -> None:
        """Take the state from entries and counters. Raises StateError when they do not fit."""
        self.stepped, self._count, self._load = counters["stepped"], counters["alerts"], counters["load"]
        self._rarity.recover(entries, counters["weight"])
        self._recent = None


SUSTAINED = 0.9  # share of the steps of a lasting shift that look shifted


class Shifts:
    """Announces lasting shifts: where recent records call normal what the history calls odd, for long. It is no state.

    A step looks shifted when most of its records are odd in the history and most are normal among recent records. A
    step that does not counts as much as nine that do, so a share of SUSTAINED of the steps has to look shifted. The
    next shift can be announced after the history has called the records normal again.
    """

    def __init__(self, adapt_after: int) -> None:
        self.number = 0  # shifts that were announced
        self._adapt_after = adapt_after
        self._shifted = 0  # records that look shifted, less the others by their weight
        self._is_announced = False  # whether this shift was

    @property
    def drift(self) -> float:
        """How much of what announces a shift was seen, from 0 to 1."""
        return min(1.0, self._shifted / self._adapt_after) if self._adapt_after else 0.0

    def watch(self, odd: Bool, normal: Bool) -> None:
        """Learn of the records (n,) of one more step, and perhaps announce a shift.

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
