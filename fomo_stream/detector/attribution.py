"""Attribution: how much each feature of a record changes the model's logit when usual values replace it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.background import Background, Neighbourhood
from fomo_stream.detector.results import Cause, Reason
from fomo_stream.detector.series import TINY
from fomo_stream.errors import ConfigError

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Scorer = Callable[[Float], Float]  # rows (q, w), raw units, codes for categories -> their logits (q,)

MOST_TRIED = 10  # features whose effect on the logit is computed: those with the strangest values
STRONGEST = 5  # features among which a partner is looked for
LEAST_SHARE = 0.1  # of the share of the first reason: what counts less is no reason
STANDSTILL = 2 * TINY  # of the level: a smaller spread is 0, because `Series` does not tell it from none


@dataclass(frozen=True)
class Comparison:
    """Columns of a record, the context rows that they are compared with, and the logits that count their mean."""

    background: Background
    scorers: tuple[Scorer, ...]

    def logits(self, rows: Float) -> Float:
        """The sum (q,) of the logits of rows (q, w)."""
        total = np.zeros(len(rows))
        for scorer in self.scorers:
            total += scorer(rows)
        return total


def attribute(comparisons: Sequence[Comparison], rows: Sequence[Float], most: int) -> tuple[Reason, ...]:
    """The reasons of one record, at most `most`, the one that counts most first; equal ones by their columns.

    Features whose share is less than LEAST_SHARE of that of the first reason are left out.

    rows: of each comparison, the record's columns (w,), raw units, NaN = missing. The record's logit is the mean over
    the scorers of all comparisons. The effect of a feature is the fall of that logit when all columns of the feature,
    in all comparisons, are replaced by values of the context rows that are nearest in the other features. Features that
    hide each other, as many that moved together, have small effects in that sense. Then it is the mean of that and of
    the rise of the logit when the feature alone keeps its values (the first and the last step of Shapley values).

    The shares are those of the effects in their sum, times the part of the excess that goes away with all of these
    features together. Excess: the fall of the logit when all features are replaced. () if nothing that is replaced
    makes the record more usual. Raises ConfigError if most < 1.
    """
    if most < 1:
        raise ConfigError(f"at least one reason has to be asked for, not {most}")
    record = _Record(comparisons, rows)
    effects = np.maximum(record.effects.sum(axis=0), 0.0)
    strongest = [f for f in np.argsort(-effects, kind="stable").tolist() if effects[f] > 0]
    if not strongest:
        return ()
    shares = effects * (record.explained / math.fsum(effects.tolist()))
    partner = record.partner(strongest[:STRONGEST])
    share = float(shares[strongest[0]] + (shares[partner] if partner >= 0 else 0.0))
    first = record.reason(strongest[0], share)._replace(partner=partner)
    others = [f for f in strongest[1:] if f != partner and shares[f] >= LEAST_SHARE * share]
    return (first, *(record.reason(f, float(shares[f])) for f in others[: most - 1]))


class _Record:
    """A record in all comparisons, and the effects of its features."""

    def __init__(self, comparisons: Sequence[Comparison], rows: Sequence[Float]) -> None:
        self.comparisons = comparisons
        self.near = [
            Neighbourhood(comparison.background, row) for comparison, row in zip(comparisons, rows, strict=True)
        ]
        self.effects = np.zeros((len(comparisons), comparisons[0].background.n_features))
        self._replaced: list[dict[int, Float]] = []  # of each comparison: the record without each tried feature
        tried, excess, gone = self._strangest(), 0.0, 0.0
        for effects, comparison, near in zip(self.effects, comparisons, self.near, strict=True):
            without_all = np.where(np.isin(comparison.background.features, tried), near.base, near.row)
            replaced = near.without(tried[:, None])
            self._replaced.append(dict(zip(tried.tolist(), replaced, strict=True)))
            logits = comparison.logits(np.vstack([near.row, near.base, without_all, replaced]))
            falls = logits[0] - logits
            effects[tried] = falls[3:]
            excess, gone = excess + float(falls[1]), gone + float(falls[2])
        if 2 * math.fsum(np.maximum(self.effects.sum(axis=0), 0.0).tolist()) < gone:
            self.effects = (self.effects + self._effects_alone(tried)) / 2
        self.explained = min(max(gone, 0.0) / excess, 1.0) if excess > 0 else 1.0  # part of the excess, 0 to 1

    def _effects_alone(self, tried: Int) -> Float:
        """By how much the logit rises if the record keeps the values of one feature, and all others are replaced."""
        effects = np.zeros_like(self.effects)
        for of_comparison, comparison, near in zip(effects, self.comparisons, self.near, strict=True):
            one = np.where(comparison.background.features == tried[:, None], near.row, near.base)
            logits = comparison.logits(np.vstack([near.base, one]))
            of_comparison[tried] = logits[1:] - logits[0]
        return effects

    def _strangest(self) -> Int:
        found = np.zeros(self.effects.shape[1])
        for near in self.near:
            np.maximum.at(found, near.background.features, near.strangeness)
        return np.argsort(-found, kind="stable")[:MOST_TRIED]

    def partner(self, strongest: list[int]) -> int:
        """The feature, of the strongest, that the first of them is odd together with, while each is usual; -1: none.

        That is so if the other one has a large effect, too, but most of it is the same: replacing both changes little.
        """
        effects = self.effects.sum(axis=0)
        first, *others = strongest
        others = [f for f in others if 2 * effects[f] > effects[first] and self._is_usual(f)]
        if not others or not self._is_usual(first):
            return -1
        both = np.zeros(len(others))
        for comparison, near in zip(self.comparisons, self.near, strict=True):
            logits = comparison.logits(
                np.vstack([near.row, near.without(np.array([[first, other] for other in others]))])
            )
            both += logits[0] - logits[1:]
        shared = effects[first] + effects[others] - both
        at = int(np.argmax(shared))
        return others[at] if 2 * shared[at] > effects[others[at]] else -1

    def _is_usual(self, feature: int) -> bool:
        return all(near.is_usual[_columns(near, feature)].all() for near in self.near)

    def reason(self, feature: int, share: float) -> Reason:
        """The reason that names this feature."""
        at_comparison = int(np.argmax(self.effects[:, feature]))
        near = self.near[at_comparison]
        of, columns = near.background, _columns(near, feature)
        causes = [of.columns[column].cause for column in columns]
        column, cause, before = int(columns[0]), causes[0], int((~np.isnan(near.row[columns[1:]])).sum())
        if cause in (Cause.LEVEL, Cause.SPREAD):
            at = int(np.argmax(near.strangeness[columns]))
            column, cause = int(columns[at]), causes[at]
        elif np.isnan(near.row[column]):
            cause = Cause.MISSING
        elif Cause.PAST in causes and before and near.is_usual[column]:
            cause = Cause.PAST
        elif of.is_code[column]:
            cause = Cause.CATEGORY
        value, (low, median, high) = float(near.row[column]), of.usual[:, column].tolist()
        if cause is Cause.SPREAD:
            still = STANDSTILL * float(np.abs([near.row[columns[0]], of.usual[1, columns[0]]]).max())
            changes = [math.exp(number) for number in (value, low, median, high)]
            value, low, median, high = (0.0 if size <= max(still, 1e-149) else size for size in changes)
        frequency = of.frequency(column, value) if cause is Cause.CATEGORY else math.nan
        before = before if cause is Cause.PAST else 0
        fits = cause in (Cause.VALUE, Cause.MISSING) and not of.is_code[column]
        expected = float(self._replaced[at_comparison][feature][column]) if fits else math.nan
        return Reason(feature, cause, min(share, 1.0), value, median, low, high, frequency, -1, before, expected)


def _columns(near: Neighbourhood, feature: int) -> Int:
    """The columns of a feature."""
    return np.flatnonzero(near.background.features == feature)
