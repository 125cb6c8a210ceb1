"""How far a value is from what its key usually has: deviations that are comparable between keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

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
N_KNOTS = 64
LARGEST = 1e6
NARROWEST = 1e-9  # of the unit: a smaller distance counts as this
FARTHEST_BEYOND = 100.0  # a score further beyond the knots has the value of this one


@lru_cache(maxsize=1)
def _weights() -> Float:
    """The sum of the weights of n values, of which each older one counts half as much every HALF_LIFE."""
    keep = 0.5 ** (1.0 / HALF_LIFE)
    return np.asarray((1.0 - keep ** np.arange(MOST_COUNTED + 2.0)) / (1.0 - keep))


class Expected(NamedTuple):
    """What is expected of n records from the past of their keys, and what they are: normal scores (n, d)."""

    known: Bool  # the value, and values of the key before
    level: Float
    spread: Float
    scores: Float
    limited: Float  # those at most FARTHEST spreads from the level


@dataclass(frozen=True)
class Pooled:
    """What is usual for all keys of a partition together: d features.

    Values become normal scores, by the quantiles of a sample of all records: then spreads are comparable, for keys
    with small values and with large ones. Beyond the sample the scores grow with the logarithm of the distance.
    """

    values: Float  # (d, k) ascending: knots of the normal scores
    scores: Float  # (d, k)
    unit: Float  # (d,) of the distance beyond them
    within: Float  # (d,) variance of a key's scores around its own level, of all keys

    @classmethod
    def fit(cls, columns: tuple[Float, ...], within: Float) -> Pooled:
        """From the values (m,) of each feature in the sample, ascending."""
        values, scores = np.zeros((2, len(columns), N_KNOTS))
        unit = np.ones(len(columns))
        for j, column in enumerate(columns):
            if not (m := len(column)):
                continue
            at = np.round(np.linspace(0.0, m - 1.0, N_KNOTS)).astype(np.int64)
            known, place = np.unique(column[at], return_inverse=True)
            score = np.bincount(place, ndtri((at + 0.5) / m)) / np.bincount(place)  # of equal values their mean
            values[j], scores[j] = (np.pad(row, (0, N_KNOTS - len(known)), "edge") for row in (known, score))
            unit[j] = max(float(np.std(column[at])), 1e-6 * float(np.abs(column[at]).max()), 1e-9)
        return cls(values, scores, unit, within)

    def normal(self, rows: Float) -> Float:
        """Normal scores of rows (n, d), NaN = missing."""
        found = np.empty(rows.shape)
        for j, column in enumerate(rows.T):
            found[:, j] = np.interp(column, self.values[j], self.scores[j])
        beyond = (rows - np.clip(rows, self.values[:, 0], self.values[:, -1])) / self.unit
        return np.asarray(found + np.sign(beyond) * np.log1p(np.abs(beyond)), dtype=np.float64)

    def raw(self, scores: Float) -> Float:
        """The values (n, d) of normal scores (n, d)."""
        return np.stack([self.raw_of(j, column) for j, column in enumerate(scores.T)], axis=1)

    def raw_of(self, feature: int, scores: Float) -> Float:
        """The values (n,) of normal scores (n,) of a feature."""
        known = self.scores[feature]
        beyond = scores - np.clip(scores, known[0], known[-1])
        further = np.sign(beyond) * np.expm1(np.minimum(np.abs(beyond), FARTHEST_BEYOND)) * self.unit[feature]
        return np.asarray(np.interp(scores, known, self.values[feature]) + further)

    def expected(self, rows: Any, x: Float, known: Bool, count: Int, rounds: Sequence[slice]) -> Expected:
        """What is expected of the keys of records x (k, d), of which these values are `known`, from their past.

        Level and spread are those of the key's values before, `count` (k, d), shrunk to those of all keys while these
        are few (empirical Bayes), and the spread is that of a prediction: it has the uncertainty of the level in it.
        rows: `level` and `variance` of keys, which are moved on; rounds: each of one record of the first keys.
        """
        scores = np.where(known, self.normal(x), 0.0)
        n = _weights()[count]
        share, of_own = n / (n + LEVEL_COUNTS), n / (n + SPREAD_COUNTS)
        of_all = SPREAD_COUNTS * self.within / (n + SPREAD_COUNTS)
        wider, unsure = 1.0 + 1.0 / (n + 1.0), (1.0 - share) ** 2
        gain = known / _weights()[count + 1]
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
        found = [(scores - level) / spread, (self.normal(moves[:, 0]) - level) / spread, moves[:, 1] - np.log(width)]
        relative = np.clip(np.stack(found, axis=1), -LARGEST, LARGEST).astype(np.float32).astype(np.float64)
        return np.where(known[:, None], relative, np.nan)

    def width(self, level: float, spread: float, feature: int) -> float:
        """Half of the distance between the values one spread below and one above a level."""
        low, high = self.raw_of(feature, np.array([level - spread, level + spread])).tolist()
        return float(max(high - low, NARROWEST * float(self.unit[feature])) / 2.0)

    def to_arrays(self) -> dict[str, NDArray[np.float64]]:
        """Named arrays of all of it."""
        return {"values": self.values, "scores": self.scores, "unit": self.unit, "within": self.within}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Pooled:
        """The same again."""
        return cls(**{name: np.array(arrays[name]) for name in ("values", "scores", "unit", "within")})

    def widened(self, more: int) -> Pooled:
        """With `more` further features, of which nothing is known."""
        values, scores = (np.pad(rows, [(0, more), (0, 0)]) for rows in (self.values, self.scores))
        unit, within = (
            np.pad(row, (0, more), constant_values=one) for row, one in ((self.unit, 1.0), (self.within, WITHIN))
        )
        return Pooled(values, scores, unit, within)


def within_keys(count: NDArray[np.uint8], variance: NDArray[np.float32]) -> Float:
    """The variance (d,) of scores around the level of their key, from those of n keys (n, d)."""
    free, n = np.maximum(count.astype(np.float64) - 1.0, 0.0), _weights()[count]
    total = (free * variance * (n / np.maximum(n - 1.0, 0.5))).sum(axis=0)
    return np.asarray((total + FEW_WITHIN * WITHIN) / (free.sum(axis=0) + FEW_WITHIN), dtype=np.float64)
