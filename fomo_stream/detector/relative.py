"""How far a value is from what its key usually has: deviations that are comparable between keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

HALF_LIFE = 150.0  # values of a key's feature after which an older one counts half in what is usual for the key
LEVEL_COUNTS = 2.0  # values of a key that count as much as the partition in its level ...
SPREAD_COUNTS = 8.0  # ... and in its spread
FEW_WITHIN = 10.0  # values that count as much as all keys in the spread within keys, which is first taken as ...
WITHIN = 0.5  # ... this variance, in units of the partition's
FARTHEST = 3.0  # spreads: what follows a value that is further off counts as if it were so far
MOST_COUNTED = 255  # values of a key that are counted
RELATIVE = 3  # vectors: of the value, of its level, and of the size of its changes
LARGEST = 1e6
NARROWEST = 1e-9  # of the unit: a smaller distance counts as this
LARGEST_SCORE = 140.0  # the value of a larger score is that of this one


@lru_cache(maxsize=2)
def weights(half_life: float = HALF_LIFE) -> Float:
    """The sum of the weights of n values, of which each older one counts half as much every `half_life`: by n."""
    keep = 0.5 ** (1.0 / half_life)
    return np.asarray((1.0 - keep ** np.arange(MOST_COUNTED + 2.0)) / (1.0 - keep))


class Usual(NamedTuple):
    """What is usual for n records at their times, as scores (n, d)."""

    known: Bool  # where a season explains much
    level: Float  # else 0
    spread: Float  # else 1


class Expected(NamedTuple):
    """What is expected of n records from the past of their keys, and what they are: scores (n, d)."""

    known: Bool  # the value, and values of the key before
    level: Float
    spread: Float
    scores: Float
    limited: Float  # those at most FARTHEST spreads from the level

    def of_season(self, season: Usual, records: Bool, known: Bool, scores: Float) -> Expected:
        """With what is usual at their time for some records (k,), which have no key. known: (k, d) their values."""
        level, spread = season.level, season.spread
        limited = np.clip(scores, level - FARTHEST * spread, level + FARTHEST * spread)
        told = Expected(known & season.known, level, spread, scores, limited)
        return Expected(*(np.where(records[:, None], mine, own) for mine, own in zip(told, self, strict=True)))


@dataclass(frozen=True)
class Pooled:
    """What is usual for all keys of a partition together: d features.

    Values become scores: differences from the median, which count by their logarithm beyond the usual distance from it,
    with mean 0 and variance 1 in a sample of all records. So spreads are comparable, for keys with small values and
    with large ones.
    """

    center: Float  # (d,) median
    unit: Float  # (d,) usual distance from it
    mean: Float  # (d,) of the sample, and its standard deviation, before they are taken out
    deviation: Float  # (d,)
    within: Float  # (d,) variance of a key's scores around its own level, of all keys

    ARRAYS = ("center", "unit", "mean", "deviation", "within")

    @classmethod
    def fit(cls, columns: tuple[Float, ...], within: Float) -> Pooled:
        """From the values (m,) of each feature in the sample, ascending."""
        found = np.array([[0.0, 1.0, 0.0, 1.0]] * len(columns)).reshape(len(columns), 4)
        for j, column in enumerate(columns):
            if len(column):
                center = float(np.median(column))
                distance = np.abs(column - center)
                unit = float(np.median(distance)) or float(distance.mean()) or abs(center) or 1.0
                scores = np.arcsinh((column - center) / unit)
                found[j] = center, unit, scores.mean(), scores.std() or 1.0
        return cls(found[:, 0].copy(), found[:, 1].copy(), found[:, 2].copy(), found[:, 3].copy(), within)

    def scores(self, rows: Float) -> Float:
        """Scores of rows (n, d), NaN = missing."""
        return np.asarray((np.arcsinh((rows - self.center) / self.unit) - self.mean) / self.deviation)

    def raw(self, scores: Float, features: Any = slice(None)) -> Float:
        """The values (n, d) of scores (n, d), of all features or of some."""
        center, unit, mean, deviation = (
            array[features] for array in (self.center, self.unit, self.mean, self.deviation)
        )
        return np.asarray(center + unit * np.sinh(np.clip(mean + deviation * scores, -LARGEST_SCORE, LARGEST_SCORE)))

    def expected(
        self, rows: Any, x: Float, known: Bool, count: Int, rounds: Sequence[slice], season: Float | None = None
    ) -> Expected:
        """What is expected of the keys of records x (k, d), of which these values are `known`, from their past.

        Level and spread are those of the key's values before, `count` (k, d), shrunk to those of all keys while these
        are few (empirical Bayes), and the spread is that of a prediction: it has the uncertainty of the level in it.
        rows: `level` and `variance` of keys, which are moved on; rounds: each of one record of the first keys; season:
        (k, d) scores that are usual at the time of each record, which are no level of a key.
        """
        scores = np.where(known, self.scores(x), 0.0) - (0.0 if season is None else season)
        n = weights()[count]
        share, of_own = n / (n + LEVEL_COUNTS), n / (n + SPREAD_COUNTS)
        of_all = SPREAD_COUNTS * self.within / (n + SPREAD_COUNTS)
        wider, unsure = 1.0 + 1.0 / (n + 1.0), (1.0 - share) ** 2
        gain = known / weights()[count + 1]
        levels, spreads, limited = np.empty(x.shape), np.empty(x.shape), np.empty(x.shape)
        level, variance = rows["level"], rows["variance"]
        for turn in rounds:
            m = turn.stop - turn.start
            expected = share[turn] * level[:m]
            spread = np.sqrt((of_own[turn] * variance[:m] + of_all[turn]) * wider[turn] + unsure[turn])
            score = np.clip(scores[turn], expected - FARTHEST * spread, expected + FARTHEST * spread)
            levels[turn], spreads[turn], limited[turn] = expected, spread, score
            change = score - level[:m]
            level[:m] += change * gain[turn]
            variance[:m] += (change * (score - level[:m]) - variance[:m]) * gain[turn]
        if season is not None:
            levels, scores, limited = levels + season, scores + season, limited + season
        return Expected(known & (count > 0), levels, spreads, scores, limited)

    def limited(self, x: Float, expected: Expected) -> Float:
        """Records x (k, d) whose values are at most FARTHEST spreads off: so one value alone is no movement."""
        far = expected.known & (expected.limited != expected.scores)
        return np.where(far, self.raw(expected.limited), x) if far.any() else x

    def relative(self, expected: Expected, moves: Float) -> Float:
        """How far records are from what is usual for their keys: (k, RELATIVE, d), NaN = unknown.

        How many spreads of the key their values are from its level; how many their own level is (`moves` (k, MOVEMENT,
        d) of `Series`); and by which factor, as a logarithm, the size of their changes differs from that spread.
        """
        known, level, spread, scores, _ = expected
        width = np.maximum(self.raw(level + spread) - self.raw(level - spread), NARROWEST * self.unit) / 2.0
        found = [(scores - level) / spread, (self.scores(moves[:, 0]) - level) / spread, moves[:, 1] - np.log(width)]
        relative = np.clip(np.stack(found, axis=1), -LARGEST, LARGEST).astype(np.float32).astype(np.float64)
        return np.where(known[:, None], relative, np.nan)

    def width(self, level: float, spread: float, feature: int) -> float:
        """Half of the distance between the values one spread below and one above a level."""
        low, high = self.raw(np.array([level - spread, level + spread]), feature).tolist()
        return float(max(high - low, NARROWEST * float(self.unit[feature])) / 2.0)

    def to_arrays(self) -> dict[str, Float]:
        """Named arrays of all of it."""
        return {name: getattr(self, name) for name in self.ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Float]) -> Pooled:
        """The same again."""
        return cls(*(np.array(arrays[name]) for name in cls.ARRAYS))

    def widened(self, more: int) -> Pooled:
        """With `more` further features, of which nothing is known."""
        unknown = (0.0, 1.0, 0.0, 1.0, WITHIN)
        pairs = zip(self.ARRAYS, unknown, strict=True)
        return Pooled(*(np.pad(getattr(self, name), (0, more), constant_values=one) for name, one in pairs))


def within_keys(count: NDArray[np.uint8], variance: NDArray[np.float32]) -> Float:
    """The variance (d,) of scores around the level of their key, from those of n keys (n, d)."""
    free, n = np.maximum(count.astype(np.float64) - 1.0, 0.0), weights()[count]
    total = (free * variance * (n / np.maximum(n - 1.0, 0.5))).sum(axis=0)
    return np.asarray((total + FEW_WITHIN * WITHIN) / (free.sum(axis=0) + FEW_WITHIN), dtype=np.float64)
