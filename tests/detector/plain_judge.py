"""How records are remembered and judged, one after the other, in plain Python: compiled code has to agree with it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.rarity import HALF_LIFE as LONG
from fomo_stream.detector.step.follow import HALF_LIFE


@dataclass
class Record:
    """A record with the logits that a detector finds."""

    logit: float  # of the record alone
    by_view: list[float]
    by_key: float  # NaN: nothing is known of its key
    series: int = 0
    begins: bool = False  # its series
    is_far: bool = False
    is_ordinary: bool = False  # all values are those of nearly all records
    # what is found
    own: float = math.nan  # its logit, from 32 bits
    remembered: float = math.nan
    score: float = math.nan
    p_value: float = math.nan
    outlier: bool = False
    severity: int = 0
    is_taken_back: bool = False  # feedback calls it an outlier


def assumed(x: float) -> float:
    """The share of the assumed records above x, by its formula."""
    z = (x - 3) / 2
    return 0.5 * (1 - z / math.sqrt(1 + z * z)) if z < 0 else 0.5 / (math.sqrt(1 + z * z) * (math.sqrt(1 + z * z) + z))


def share_above(x: float, earlier: list[float], ages: list[int]) -> float:
    """P of a logit, one earlier record after the other; ages: of each, the steps since it came."""
    above = total = 0.0
    low = (math.floor((x + 12) / 0.25) * 0.25 - 12) if -12 <= x < 30 else x
    for logit, age in zip(earlier, ages, strict=True):
        weight = 0.5 ** (age * STEP / LONG)
        total += weight
        if x < -12 or x >= 30:
            above += weight * (x < -12 <= logit)
        elif logit >= low + 0.25:
            above += weight
        elif logit >= low:  # in the same bin: spread over it evenly
            above += weight * (low + 0.25 - x) / 0.25
    return (above + 300 * assumed(x)) / (total + 300)


def clear_above(logits: list[float], many: int) -> float:
    """What is clear above the largest of them, in its heights above the median."""
    if len(logits) >= many:
        return 0.12
    around = np.array(logits) - np.mean(logits)
    following = max(0.0, float((around[1:] * around[:-1]).sum() / max((around**2).sum(), 1e-300)))
    free = max(3.0, len(logits) * (1 - following) / (1 + following))
    return round(0.12 * math.log(many) / math.log(free) + 1 / math.sqrt(free), 3)


def reached(those: list[Record], before: list[Record], name: str, rate: float, many: int) -> tuple[float, ...]:
    """Of these logits of records: the median, the top, its height, what is clear above it, and above usual ones.

    before: those and earlier ones.
    """
    if rate * (len(those) + 1) < 1 - 1e-9:
        return (math.inf,) * 5
    logits = [float(getattr(one, name)) for one in those]
    median, top, clear = float(np.median(logits)), max(1.0, *logits), clear_above(logits, many)
    usual = max([1.0, *(float(getattr(one, name)) for one in before if not one.outlier)])
    return median, top, max(top - median, 0.3), clear, usual + clear * max(usual - median, 0.3)


class PlainJudge:
    """The rules of `Memory` and `Alerts`. prior: as for a detector of one key; 0: of a partition."""

    def __init__(self, config: DetectorConfig, prior: float = 0.0) -> None:
        self.config, self.rate, self.prior = config, config.alert_rate, prior
        self.past: list[Record] = []
        self.means: dict[int, tuple[float, int]] = {}  # of each series: mean, and logits in it
        self.open: dict[int, int] = {}  # of each series: in how many more records an incident can continue
        self.begin(0.0)

    def begin(self, load: float) -> None:
        """Start a step."""
        self.stepped, self.load, self.since = len(self.past), load, 0

    def first(self, records: list[Record]) -> None:
        """The records of the warm-up."""
        self.past += [self.remember(record) for record in records]
        self.begin(0.0)

    def combined(self, by_view: list[float], by_key: float, weight: float) -> float:
        """The logit of a record, if nothing is usual for its key that is odd for others."""
        mean = sum(by_view) / len(by_view)
        if weight:
            return mean if math.isnan(by_key) else (1 - weight) * mean + weight * by_key
        return by_key if by_key > mean else mean

    def remember(self, it: Record) -> Record:
        """Its own logit, and that with a share of the mean of those before it."""
        weight = self.prior / (self.prior + len(self.past)) if self.prior else 0.0
        is_less = it.logit < self.combined(it.by_view, it.by_key, weight)
        single = [float(np.float32(logit)) for logit in (*it.by_view, it.by_key)]
        it.own = it.logit if is_less else self.combined(single[:-1], single[-1], weight)
        is_known, share = not math.isnan(it.by_key), self.config.memory
        logit = sum(it.by_view) / len(it.by_view) if weight else it.logit
        mean, n = (0.0, 0) if it.begins else self.means.get(it.series, (0.0, 0))
        alone = not weight and it.series > 0 and (is_known or is_less)
        it.remembered = float(np.float32((1 - share) * logit + share * mean)) if n and not alone else logit
        if weight and is_known:
            it.remembered = (1 - weight) * it.remembered + weight * it.by_key
        if not it.is_far:
            shares = sum(0.5 ** (age / HALF_LIFE) for age in range(n + 1))
            mean, n = float(np.float32(mean + (logit - mean) / shares)), min(n + 1, 255)
        self.means[it.series] = mean, n
        return it

    def judge(self, it: Record) -> Record:
        """What is said of the next record."""
        it, a, window_size, peak_size = self.remember(it), self.rate, self.config.window_size, self.config.peak_size
        is_short = self.config.are_independent
        usual_size = peak_size if is_short else min(math.ceil(20 / a), self.config.history_scores)
        first = self.stepped - max(window_size, peak_size, usual_size)
        known = [(i, one) for i, one in enumerate(self.past[: self.stepped]) if not one.is_taken_back]
        recent = [(i, one) for i, one in known if i >= first]
        highest = sorted((one for _, one in recent), key=lambda one: one.remembered)
        highest = highest[-min(len(recent), max(40, round(2 * a * len(recent)))) :]
        series = Counter(one.series for _, one in recent)
        greedy = {
            key
            for key, n in Counter(one.series for one in highest).items()
            if key and n > len(highest) * max(0.25, 3 * series[key] / len(recent))
        }
        others = [(i, one) for i, one in recent if not (one.is_far or one.series in greedy)]
        those = recent if it.is_far or it.series in greedy else others
        share = len(those) / max(1, len(recent))
        window = [one.remembered for i, one in those if i >= self.stepped - window_size]
        last = [one for i, one in those if i >= self.stepped - peak_size]
        before = [one for i, one in those if i >= self.stepped - usual_size]
        own, with_past = (reached(last, before, name, a, round(peak_size * share)) for name in ("own", "remembered"))
        it.p_value = (1 + sum(one >= it.remembered for one in window)) / (len(window) + 1)

        above = [(x, *peak) for x, peak in ((it.own, own), (it.remembered, with_past))]
        rises = [max(0.0, x - top) / height for x, _, top, height, _, _ in above]
        extreme = any(rise > 2 * clear for rise, (_, _, _, _, clear, _) in zip(rises, above, strict=True))
        begins = any(x > usual for x, *_, usual in above)
        asked = max(it.own, it.remembered) if rises[0] > 0 else it.remembered
        ages = [(self.stepped - i - 1) // STEP + 1 for i, _ in known]
        rarity = share_above(asked, [one.remembered for _, one in known], ages) / (1 + 2 * max(rises)) ** 3
        left = 0 if it.begins else self.open.get(it.series, 0)
        follows = left > 0 and rarity <= max(a, min(7 * a, 0.07)) and it.own > own[0]
        enough = sum(i >= self.stepped - peak_size for i, _ in recent)
        is_ready = a * (enough + 1) >= 1 - 1e-9
        if self.config.are_independent:
            follows = is_ready and rarity <= a and those is not recent
        is_odd = not it.is_ordinary or it.by_key > 1
        it.outlier = is_odd and (extreme or ((begins or follows) and self.load + self.since < 100))
        self.since += it.outlier
        self.open[it.series] = 10 if it.outlier else max(left - 1, 0)
        it.score = 1 - max(rarity, 2.0**-50)
        it.severity = ((3 if rarity <= a / 5 else 2) if it.outlier else int(rarity <= a)) if is_ready else 0
        self.past.append(it)
        if len(self.past) - self.stepped == STEP:
            self.begin(self.load * (1 - STEP * a / 20) + self.since)
        return it
