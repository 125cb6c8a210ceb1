"""How far a value is from what its key usually has: deviations that are comparable between keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.bulk import NEARLY_ALL

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

HALF_LIFE = 150.0  # values of a key's feature after which an older one counts half in what is usual for the key
LEVEL_COUNTS = 2.0  # values of a key that count as much as the partition in its level ...
SPREAD_COUNTS = 8.0  # ... and in its spread
FEW_WITHIN = 10.0  # values that count as much as all keys in the spread within keys, which is first taken as ...
WITHIN = 0.5  # ... this variance, in units of the partition's
ALIKE = 2.0  # how far apart keys are, see `apart_of`, so that the spread of one says nothing of that of others
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
    doubt: Float  # how far off the level may be, in deviations of all records, but at least 1
    alike: Bool  # whether the spread of keys is like that of others

    @property
    def is_near(self) -> Bool:
        """Which values (k, d) are not further off than what follows counts them."""
        return np.asarray(self.known & (self.limited == self.scores))

    def of_season(self, season: Usual, records: Bool, known: Bool, scores: Float) -> Expected:
        """With what is usual at their time for some records (k,), which have no key. known: (k, d) their values."""
        level, spread = season.level, season.spread
        limited = np.clip(scores, level - FARTHEST * spread, level + FARTHEST * spread)
        told = Expected(known & season.known, level, spread, scores, limited, *self[5:])
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
    # (d,) where most records have the same value: how far the level of a key may be from that, so that it is usual for
    # the key, too; else 0
    common: Float
    steady: Float  # (d,) 1 where nearly all records have it, as a flag that is 0; else 0

    ARRAYS = ("center", "unit", "mean", "deviation", "within", "common", "steady")

    @classmethod
    def fit(cls, columns: tuple[Float, ...], within: Float) -> Pooled:
        """From the values (m,) of each feature in the sample, ascending."""
        found = np.array([[0.0, 1.0, 0.0, 1.0, 0.0, 0.0]] * len(columns)).reshape(len(columns), 6)
        for j, column in enumerate(columns):
            if len(column):
                middle = float(np.median(column))
                distance = np.abs(column - middle)
                width = float(np.median(distance)) or float(distance.mean()) or abs(middle) or 1.0
                scores = np.arcsinh((column - middle) / width)
                found[j, :4] = middle, width, scores.mean(), scores.std() or 1.0
                if not np.median(distance):
                    others = np.abs(scores[column != middle]) / found[j, 3]
                    found[j, 4] = others.mean() / 2.0 if len(others) else LARGEST
                    found[j, 5] = (column == middle).mean() >= NEARLY_ALL
        center, unit, mean, deviation, common, steady = found.T.copy()
        return cls(center, unit, mean, deviation, within, common, steady)

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
        self,
        rows: Any,
        x: Float,
        known: Bool,
        count: Int,
        rounds: Sequence[slice],
        apart: Float,
        season: Float | None = None,
    ) -> Expected:
        """What is expected of the keys of records x (k, d), of which these values are `known`, from their past.

        Level and spread are those of the key's values before, `count` (k, d), shrunk to those of all keys while these
        are few (empirical Bayes), and the spread is that of a prediction: it has the uncertainty of the level in it.
        rows: `level` and `variance` of keys, which are moved on; rounds: each of one record of the first keys; apart:
        (k, d) of `apart_of`; season: (k, d) scores that are usual at the time of each record, which are no level of a
        key.
        """
        scores = np.where(known, self.scores(x), 0.0) - (0.0 if season is None else season)
        n = weights()[count]
        share, of_own = n / (n + LEVEL_COUNTS / (apart * apart)), n / (n + SPREAD_COUNTS)
        of_all = SPREAD_COUNTS * self.within / (n + SPREAD_COUNTS)
        off = (1.0 - share) * apart
        wider, unsure, alike = 1.0 + 1.0 / (n + 1.0), off**2, apart < ALIKE
        gain = known / weights()[count + 1]
        levels, spreads, limited = np.empty(x.shape), np.empty(x.shape), np.empty(x.shape)
        level, variance = rows["level"], rows["variance"]
        for turn in rounds:
            m = turn.stop - turn.start
            expected = share[turn] * level[:m]
            within = of_own[turn] * variance[:m] + of_all[turn]
            if not alike.all():  # spreads may be of another order: then their logarithms count
                own = np.log(np.maximum(variance[:m], NARROWEST)) * of_own[turn]
                ratio = np.exp(own + np.log(self.within) * (1.0 - of_own[turn]))
                within = np.where(alike[turn] | (n[turn] < 2.0), within, ratio)
            spread = np.sqrt(within * wider[turn] + unsure[turn])
            score = np.clip(scores[turn], expected - FARTHEST * spread, expected + FARTHEST * spread)
            levels[turn], spreads[turn], limited[turn] = expected, spread, score
            change = score - level[:m]
            level[:m] += change * gain[turn]
            variance[:m] += (change * (score - level[:m]) - variance[:m]) * gain[turn]
        if season is not None:
            levels, scores, limited = levels + season, scores + season, limited + season
        return Expected(known & (count > 0), levels, spreads, scores, limited, np.maximum(off, 1.0), alike)

    def typical(self, vectors: Float, moves: int, usual: Float, features: Bool) -> Float:
        """Records (n, vectors, d) of keys, as if their keys were like all others: less their own level and spread.

        moves: how many of the vectors, the last ones, are movement: none, or level and spread; usual: (n, 3, d) of
        `Batch`; features: (d,) those that count. Of a key that surely has about the level of all they stay as they are.
        """
        level, spread, doubt = usual[:, 0], usual[:, 1], usual[:, 2]
        changed = features & ((np.abs(level) > spread) | (doubt > 1.0))
        found = vectors.copy()
        for v in range(vectors.shape[1]):
            if moves and v == vectors.shape[1] - 1:
                factor = self._half_width(level, spread) / self._half_width(np.zeros_like(level), np.sqrt(self.within))
                like = vectors[:, v] - np.log(factor)
            else:
                like = self.raw((self.scores(vectors[:, v]) - level) / doubt)
            found[:, v] = np.where(changed, like, vectors[:, v])
        # where most records have one value, that is what all have: few are near the level of all
        is_usual = changed & (self.common > 0.0) & (np.abs(self.scores(vectors[:, 0]) - level) <= spread * doubt)
        n_values = vectors.shape[1] - bool(moves)
        found[:, :n_values] = np.where(is_usual[:, None], self.center, found[:, :n_values])
        return found

    def _half_width(self, level: Float, spread: Float) -> Float:
        """Half of the distance (n, d) between the values one spread below and one above a level."""
        return np.maximum(self.raw(level + spread) - self.raw(level - spread), NARROWEST * self.unit) / 2.0

    def limited(self, x: Float, expected: Expected) -> Float:
        """Records x (k, d) whose values are at most FARTHEST spreads off: so one value alone is no movement."""
        far = expected.known & (expected.limited != expected.scores)
        return np.where(far, self.raw(expected.limited), x) if far.any() else x

    def relative(self, expected: Expected, moves: Float) -> Float:
        """How far records are from what is usual for their keys: (k, RELATIVE, d), NaN = unknown.

        How many spreads of the key their values are from its level; how many their own level is (`moves` (k, MOVEMENT,
        d) of `Series`); and by which factor, as a logarithm, the size of their changes differs from that spread.
        """
        known, level, spread, scores = expected[:4]
        width = self._half_width(level, spread)
        change = moves[:, 1] - np.log(width)
        # of keys that are not alike none is called calm: the spread of another is no measure for it
        change = np.where(expected.alike, change, np.maximum(change, 0.0))
        found = [(scores - level) / spread, (self.scores(moves[:, 0]) - level) / spread, change]
        relative = np.clip(np.stack(found, axis=1), -LARGEST, LARGEST).astype(np.float32).astype(np.float64)
        of_all = self._common_scores
        # what is usual for all is not odd for a key, unless its own level is another
        is_common = (scores == of_all) & (np.abs(level - of_all) < self.common)
        relative[:, :2] = np.where(is_common[:, None], 0.0, relative[:, :2])
        relative[:, 2] = np.where(is_common & (self.steady > 0.0), 0.0, relative[:, 2])
        return np.where(known[:, None], relative, np.nan)

    @property
    def _common_scores(self) -> Float:
        """The score (d,) of the value that most records have; NaN: they have different ones."""
        return np.where(self.common > 0.0, -self.mean / self.deviation, np.nan)

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
        zeros = np.zeros_like(arrays["center"])
        found = {"common": zeros, "steady": zeros} | dict(arrays)  # a state of before does not have these
        return cls(*(np.array(found[name]) for name in cls.ARRAYS))


def apart_of(keys: Float, distances: Float) -> Float:
    """How far keys are from each other, in deviations of all records, at least 1: larger if they are not alike.

    keys: of which the first value is known; distances: the sum of the distances of these from the middle of all.

    >>> apart_of(np.array([0, 1, 2, 40]), np.array([0.0, 0.5, 12.0, 36.0]))
    array([1.e+06, 1.e+06, 6.e+00, 1.e+00])
    """
    few = np.maximum(keys, 2.0)
    return np.where(keys < 2.0, LARGEST, np.maximum(distances / few, 1.0))


def within_keys(count: NDArray[np.uint8], variance: NDArray[np.float32], apart: Float) -> Float:
    """The variance (d,) of scores around the level of their key, from those of n keys (n, d).

    apart: (d,) of `apart_of`; of keys that are not alike, whose variances may be of another order, their logarithms
    count.
    """
    free, n = np.maximum(count.astype(np.float64) - 1.0, 0.0), weights()[count]
    each, known = variance * (n / np.maximum(n - 1.0, 0.5)), free.sum(axis=0) + FEW_WITHIN
    mean = ((free * each).sum(axis=0) + FEW_WITHIN * WITHIN) / known
    logs = (free * np.log(np.maximum(each, NARROWEST))).sum(axis=0) + FEW_WITHIN * np.log(WITHIN)
    return np.asarray(np.where(apart < ALIKE, mean, np.exp(logs / known)), dtype=np.float64)
