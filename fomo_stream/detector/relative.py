"""The distance of a value from the usual values of its key: deviations that are comparable between keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.step import follow
from fomo_stream.model.bulk import NEARLY_ALL

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

PRIOR_VALUES = 10.0  # values that the prior of the variance within keys counts as ...
PRIOR_VARIANCE = 0.5  # ... and this prior, in units of the partition's variance


@lru_cache(maxsize=2)
def weights(half_life: float = follow.USUAL_HALF_LIFE) -> Float:
    """Return the sum of the weights of n values, by n; the weight of a value halves every `half_life` newer ones."""
    keep = 0.5 ** (1.0 / half_life)
    return np.asarray((1.0 - keep ** np.arange(follow.MAX_COUNTED_VALUES + 2.0)) / (1.0 - keep))


@dataclass(frozen=True)
class Pooled:
    """The usual values of all keys of a partition together: d features.

    Values become scores: differences from the median, which count by their logarithm beyond the usual distance from it,
    with mean 0 and variance 1 in a sample of all records. So spreads are comparable, for keys with small values and
    with large ones.

    How far a record is from what is usual for its key (`Batch.relative`): how many spreads of the key its values are
    from its level; how many their own level is; and by which factor, as a logarithm, the size of their changes differs
    from that spread. See `step.follow.compare_with_key`.
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
    def fit(cls, columns: Sequence[Float], within: Float) -> Pooled:
        """Fit to the values (m,) of each feature in the sample, ascending."""
        table = np.array([[0.0, 1.0, 0.0, 1.0, 0.0, 0.0]] * len(columns)).reshape(len(columns), 6)
        for j, column in enumerate(columns):
            if len(column):
                middle = float(np.median(column))
                distance = np.abs(column - middle)
                width = float(np.median(distance)) or float(distance.mean()) or abs(middle) or 1.0
                scores = np.arcsinh((column - middle) / width)
                table[j, :4] = middle, width, scores.mean(), scores.std() or 1.0
                if not np.median(distance):
                    others = np.abs(scores[column != middle]) / table[j, 3]
                    table[j, 4] = others.mean() / 2.0 if len(others) else follow.MAX_DEVIATION
                    table[j, 5] = (column == middle).mean() >= NEARLY_ALL
        center, unit, mean, deviation, common, steady = table.T.copy()
        return cls(center, unit, mean, deviation, within, common, steady)

    def where(self, chosen: Bool, other: Pooled) -> Pooled:
        """Return this scale for the chosen features (d,), and another one for the others."""
        arrays = {name: np.where(chosen, getattr(self, name), getattr(other, name)) for name in self.ARRAYS}
        return Pooled(**arrays | {"within": self.within})

    def scores(self, rows: Float) -> Float:
        """Scores of rows (n, d), NaN = missing."""
        return np.asarray((np.arcsinh((rows - self.center) / self.unit) - self.mean) / self.deviation)

    def raw(self, scores: Float, features: Any = slice(None)) -> Float:
        """The values (n, d) of scores (n, d), of all features or of some."""
        center, unit, mean, deviation = (
            array[features] for array in (self.center, self.unit, self.mean, self.deviation)
        )
        values = np.clip(mean + deviation * scores, -follow.MAX_SCORE, follow.MAX_SCORE)
        return np.asarray(center + unit * np.sinh(values))

    def typical(self, vectors: Float, moves: int, usual: Float, features: Bool) -> Float:
        """Records (n, vectors, d) of keys, as if their keys were like all others: less their own level and spread.

        moves: how many of the vectors, the last ones, are movement: none, or level and spread; usual: (n, 3, d) of
        `Batch`; features: (d,) those that count. Of a key that surely has about the level of all they stay as they are.
        """
        level, spread, doubt = usual[:, 0], usual[:, 1], usual[:, 2]
        changed = features & ((np.abs(level) > spread) | (doubt > 1.0))
        out = vectors.copy()
        for v in range(vectors.shape[1]):
            if moves and v == vectors.shape[1] - 1:
                factor = self._half_width(level, spread) / self._half_width(np.zeros_like(level), np.sqrt(self.within))
                like = vectors[:, v] - np.log(factor)
            else:
                like = self.raw((self.scores(vectors[:, v]) - level) / doubt)
            out[:, v] = np.where(changed, like, vectors[:, v])
        # where most records have one value, this value is usual for all; few records are near the level of all
        is_usual = changed & (self.common > 0.0) & (np.abs(self.scores(vectors[:, 0]) - level) <= spread * doubt)
        n_values = vectors.shape[1] - bool(moves)
        out[:, :n_values] = np.where(is_usual[:, None], self.center, out[:, :n_values])
        return out

    def _half_width(self, level: Float, spread: Float) -> Float:
        """Half of the distance (n, d) between the values one spread below and one above a level."""
        return np.maximum(self.raw(level + spread) - self.raw(level - spread), follow.MIN_WIDTH * self.unit) / 2.0

    def width(self, level: float, spread: float, feature: int) -> float:
        """Half of the distance between the values one spread below and one above a level."""
        low, high = self.raw(np.array([level - spread, level + spread]), feature).tolist()
        return float(max(high - low, follow.MIN_WIDTH * float(self.unit[feature])) / 2.0)

    @cached_property
    def table(self) -> Float:
        """All arrays (7, d), for `step.follow`."""
        return np.stack([getattr(self, name) for name in self.ARRAYS])

    def to_arrays(self) -> dict[str, Float]:
        """Named arrays of all of it."""
        return {name: getattr(self, name) for name in self.ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Float]) -> Pooled:
        """Return the pooled values from the arrays of `to_arrays`."""
        zeros = np.zeros_like(arrays["center"])
        complete = {"common": zeros, "steady": zeros} | dict(arrays)  # an older state does not have these
        return cls(*(np.array(complete[name]) for name in cls.ARRAYS))


def distances_between_keys(keys: Float, distances: Float) -> Float:
    """Return how far keys are from each other, in deviations of all records, at least 1: larger if they are not alike.

    keys: those whose first value is known; distances: the sum of the distances of these from the middle of all.

    >>> distances_between_keys(np.array([0, 1, 2, 40]), np.array([0.0, 0.5, 12.0, 36.0]))
    array([1.e+06, 1.e+06, 6.e+00, 1.e+00])
    """
    few = np.maximum(keys, 2.0)
    return np.where(keys < 2.0, follow.MAX_DEVIATION, np.maximum(distances / few, 1.0))


def within_keys(count: NDArray[np.uint8], variance: NDArray[np.float32], key_distance: Float) -> Float:
    """The variance (d,) of scores around the level of their key, from those of n keys (n, d).

    key_distance: (d,) of `distances_between_keys`; of keys that are not alike, whose variances may be of another order,
    their logarithms count.
    """
    free, n = np.maximum(count.astype(np.float64) - 1.0, 0.0), weights()[count]
    each, total = variance * (n / np.maximum(n - 1.0, 0.5)), free.sum(axis=0) + PRIOR_VALUES
    mean = ((free * each).sum(axis=0) + PRIOR_VALUES * PRIOR_VARIANCE) / total
    logs = (free * np.log(np.maximum(each, follow.MIN_WIDTH))).sum(axis=0) + PRIOR_VALUES * np.log(PRIOR_VARIANCE)
    return np.asarray(np.where(key_distance < follow.MAX_ALIKE_DISTANCE, mean, np.exp(logs / total)), dtype=np.float64)
