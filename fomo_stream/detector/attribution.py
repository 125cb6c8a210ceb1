"""Attribution: how much each feature of a record changes the model's logit when usual values replace it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.results import Cause, Reason
from fomo_stream.detector.step.follow import MIN_RELATIVE_SPREAD
from fomo_stream.errors import ConfigError

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

NEAREST_ROWS = 5  # rows whose middle value replaces a value
MAX_CANDIDATES = 1000  # rows among which the nearest ones are looked for
LOW, MIDDLE, HIGH = 0.01, 0.5, 0.99  # quantiles: the ends of the central 98 %, and the median


class Column(NamedTuple):
    """The content of a column of a context."""

    feature: int  # column of the record that it belongs to
    cause: Cause  # VALUE, PAST, LEVEL or SPREAD
    is_code: bool = False  # whether it holds category codes


class BackgroundRows:
    """Context rows (n, w), raw units, NaN = missing, and their columns (w,). Computed values are kept.

    A feature of the record has a column, several, or none. n_features: of the record; None: as the columns say.
    near: which of the rows (n,) count as near ones; None: all. The usual ranges are of all rows.
    """

    def __init__(
        self, rows: Float, columns: Sequence[Column], near: Bool | None = None, n_features: int | None = None
    ) -> None:
        self.rows, self.columns = rows, tuple(columns)
        self._near = np.ones(len(rows), dtype=bool) if near is None else near
        self.is_code = np.array([column.is_code for column in self.columns], dtype=bool)
        past = Cause.PAST, Cause.LEVEL, Cause.SPREAD
        self.is_of_record = np.array([column.cause not in past for column in self.columns], dtype=bool)
        self.features = np.array([column.feature for column in self.columns], dtype=np.int64)
        self.n_features = int(self.features.max()) + 1 if n_features is None else n_features

    @cached_property
    def usual(self) -> Float:
        """(3, w): the smallest value of the central 98 % of each column, its median, and the largest; NaN for codes."""
        quantiles = np.full((3, len(self.columns)), np.nan)
        for column in np.flatnonzero(~self.is_code):
            values = np.sort(self.rows[:, column])
            values = values[: len(values) - int(np.isnan(values).sum())]
            if len(values):
                quantiles[:, column] = values[[int(share * (len(values) - 1) + 0.5) for share in (LOW, MIDDLE, HIGH)]]
        return quantiles

    def frequency(self, column: int, code: float) -> float:
        """The share of the rows with a value in this column that have this code; NaN without such rows."""
        values = self.rows[:, column]
        n = int((~np.isnan(values)).sum())
        return float((values == code).sum()) / n if n else np.nan

    # -- near rows -----------------------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> Float:
        """The near rows side by side (w, m), at most MAX_CANDIDATES, evenly spread over the context."""
        near = np.flatnonzero(self._near)
        m = min(len(near), MAX_CANDIDATES)
        return np.ascontiguousarray(self.rows[near[np.arange(m) * len(near) // m]].T)

    @cached_property
    def lacking(self) -> Bool:
        """Return whether a candidate lacks a value of a feature: (features, m)."""
        missing = np.isnan(self.candidates)
        return np.stack([missing[self.features == f].any(axis=0) for f in range(self.n_features)])

    @cached_property
    def order(self) -> Float:
        """Numbers (w, m) by which one of several candidates is chosen: their values; of codes, their counts."""
        order = self.candidates.copy()
        for column in np.flatnonzero(self.is_code):
            _, where, counts = np.unique(order[column], return_inverse=True, return_counts=True)
            order[column] = np.where(np.isnan(order[column]), np.nan, counts[where])
        return order

    @cached_property
    def _known(self) -> Int:
        """Return how many candidates have a value of each column: (w,)."""
        counts: Int = (~np.isnan(self.candidates)).sum(axis=1)
        return counts

    @cached_property
    def _ranks(self) -> NDArray[np.int32]:
        """The ranks (w, m) of the candidates."""
        places = np.zeros(self.candidates.shape, dtype=np.int64)
        for place, values in zip(places, self.candidates, strict=True):
            ordered = np.sort(values)[: len(values) - int(np.isnan(values).sum())]
            place[:] = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
        return self._scaled(places, self._known[:, None], np.isnan(self.candidates)).astype(np.int32)

    def ranks(self, row: Float) -> Int:
        """Twice the mid-ranks (w,) of values (w,) among the candidates, from 0 to 2 m; m where a value is missing."""
        below, upto = (self.candidates < row[:, None]).sum(axis=1), (self.candidates <= row[:, None]).sum(axis=1)
        return self._scaled(below + upto, self._known, np.isnan(row))

    def _scaled(self, places: Int, counts: Int, missing: Bool) -> Int:
        """Twice the mid-ranks among the known candidates, on a scale from 0 to 2 m; m where a value is missing."""
        m = self.candidates.shape[1]
        scaled: Int = np.where(missing | (counts == 0), m, places * m // np.maximum(counts, 1))
        return scaled

    def distances(self, row: Float) -> NDArray[np.int32]:
        """Return how far a record (w,) is from each candidate in each feature: (features, m).

        Ranks are compared, column by column: so no unit and no far value counts for more than another, and sums are of
        whole numbers, the same on every machine. Of codes only counts whether they are equal. If they are not, the
        distance is the larger the rarer the record's code is: to have the same rare code tells more than to have the
        same frequent one. A value that is missing tells nothing.
        """
        m = self.candidates.shape[1]
        distances = np.abs(self._ranks - self.ranks(row).astype(np.int32)[:, None])
        differs = self.candidates[self.is_code] != row[self.is_code, None]
        distances[self.is_code] = 2 * differs * differs.sum(axis=1, keepdims=True)
        distances[np.isnan(row)] = 0
        order, present, begins = self._by_feature
        summed = np.zeros((self.n_features, m), dtype=np.int32)
        summed[present] = np.add.reduceat(distances[order], begins, axis=0)
        return summed

    @cached_property
    def _by_feature(self) -> tuple[Int, Int, Int]:
        """The columns in the order of their features, the features that have any, and where each begins there."""
        order = np.argsort(self.features, kind="stable")
        present, begins = np.unique(self.features[order], return_index=True)
        return order, present, begins


class Neighbourhood:
    """The candidates of a context as seen from one record (w,)."""

    def __init__(self, background: BackgroundRows, row: Float) -> None:
        self.background, self.row = background, row
        self._distances = background.distances(row)
        self._total = self._distances.sum(axis=0, dtype=np.int64)
        w = len(row)
        at = self._nearest(self._total[None])
        self.base = self._middle(np.arange(w), np.broadcast_to(at, (w, at.shape[1])))  # (w,) of the nearest rows

    @cached_property
    def strangeness(self) -> Float:
        """Return how far each value is from those of the nearest rows (w,), in widths of the usual range.

        Of a code: the share of the candidates that have more frequent ones.
        """
        background = self.background
        low, middle, high = background.usual
        value = np.where(np.isnan(self.row), middle, self.row)  # as the model sees it
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            widths: Float = np.nan_to_num(np.abs(value - self.base) / (high - low))
        for column in np.flatnonzero(background.is_code):
            count = (background.candidates[column] == self.row[column]).sum()
            widths[column] = (background.order[column] > count).mean()
        return widths

    @cached_property
    def is_usual(self) -> Bool:
        """Return whether each value is in the central 98 % of its column, or among the codes that 98 % have: (w,).

        Any value of a column without values is, such as of the level of a category.
        """
        low, _, high = self.background.usual
        codes = ~np.isnan(self.row) & (self.strangeness <= HIGH - LOW)
        return np.where(self.background.is_code, codes, np.isnan(low) | ((self.row >= low) & (self.row <= high)))

    def without(self, groups: Int) -> Float:
        """The record with each group (k, s) of s features, by their positions, replaced: (k, w).

        The new values are the middle ones of the rows that are nearest in the other features, and have values.
        """
        background = self.background
        keys = self._total - self._distances[groups].sum(axis=1)
        at = self._nearest(keys + background.lacking[groups].any(axis=1) * (self._total.max() + 1))
        rows = np.repeat(self.row[None], len(groups), axis=0)
        where, column = np.nonzero((background.features == groups[:, :, None]).any(axis=1))
        rows[where, column] = self._middle(column, at[where])
        return rows

    def _nearest(self, keys: Int) -> Int:
        """The candidates (k, NEAREST_ROWS) with the smallest keys (k, m) >= 0, of equal ones the first."""
        m = keys.shape[1]
        count = min(NEAREST_ROWS, m)
        at: Int = np.sort(np.partition(keys * m + np.arange(m), count - 1, axis=1)[:, :count], axis=1) % m
        return at

    def _middle(self, columns: Int, at: Int) -> Float:
        """The middle values (c,) of columns (c,) in the candidates at (c, NEAREST_ROWS), less the missing ones.

        Of codes the one that most of them have, of several such the one that most of all candidates have.
        """
        order = self.background.order[columns[:, None], at]
        middle = np.maximum((~np.isnan(order)).sum(axis=1) - 1, 0) // 2
        each = np.arange(len(columns))
        chosen = np.argsort(order, axis=1, kind="stable")[each, middle]
        codes = np.flatnonzero(self.background.is_code[columns])
        codes_found = self.background.candidates[columns[codes, None], at[codes]]
        alike = (codes_found[:, :, None] == codes_found[:, None, :]).sum(axis=2)
        chosen[codes] = np.argmax(alike * (MAX_CANDIDATES + 1) + np.nan_to_num(order[codes]), axis=1)
        values: Float = self.background.candidates[columns, at[each, chosen]]
        return values


Scorer = Callable[[Float], Float]  # rows (q, w), raw units, codes for categories -> their logits (q,)

MAX_FEATURES_TRIED = 10  # features whose effect on the logit is computed: those with the strangest values
MAX_PARTNERS = 5  # features among which a partner is looked for
MIN_RELATIVE_SHARE = 0.1  # of the share of the first reason: a feature with less is not a reason
STANDSTILL = 2 * MIN_RELATIVE_SPREAD  # of the level: a smaller spread is 0, because `Series` does not tell it from none


@dataclass(frozen=True)
class Comparison:
    """Columns of a record, the context rows that they are compared with, and the logits that count their mean."""

    background: BackgroundRows
    scorers: tuple[Scorer, ...]

    def logits(self, rows: Float) -> Float:
        """The sum (q,) of the logits of rows (q, w)."""
        total = np.zeros(len(rows))
        for scorer in self.scorers:
            total += scorer(rows)
        return total


def attribute(
    comparisons: Sequence[Comparison], rows: Sequence[Float], most: int, unknown: Bool | None = None
) -> tuple[Reason, ...]:
    """The reasons of one record, at most `most`, the one that counts most first; equal ones by their columns.

    Features whose share is less than MIN_RELATIVE_SHARE of that of the first reason are left out.

    rows: of each comparison, the record's columns (w,), raw units, NaN = missing. The record's logit is the mean over
    the scorers of all comparisons. The effect of a feature is the fall of that logit when all columns of the feature,
    in all comparisons, are replaced by values of the context rows that are nearest in the other features. Features that
    hide each other, as many that moved together, have small effects in that sense. Then it is the mean of that and of
    the rise of the logit when the feature alone keeps its values (the first and the last step of Shapley values).

    The shares are those of the effects in their sum, times the part of the excess that goes away with all of these
    features together. Excess: the fall of the logit when all features are replaced. () if nothing that is replaced
    makes the record more usual. Raises ConfigError if most < 1.

    unknown: (features,) those whose value is missing, even where another one stands in; None: no other stands in. They
    can only be a reason by what is known of the records before, their level and spread.
    """
    if most < 1:
        raise ConfigError(f"at least one reason has to be asked for, not {most}")
    record = _Record(comparisons, rows, unknown)
    effects = np.maximum(record.effects.sum(axis=0), 0.0)
    strongest = [f for f in np.argsort(-effects, kind="stable").tolist() if effects[f] > 0]
    if not strongest:
        return ()
    shares = effects * (record.explained / math.fsum(effects.tolist()))
    partner = record.partner(strongest[:MAX_PARTNERS])
    share = float(shares[strongest[0]] + (shares[partner] if partner >= 0 else 0.0))
    first = record.reason(strongest[0], share)._replace(partner=partner)
    others = [f for f in strongest[1:] if f != partner and shares[f] >= MIN_RELATIVE_SHARE * share]
    return (first, *(record.reason(f, float(shares[f])) for f in others[: most - 1]))


class _Record:
    """A record in all comparisons, and the effects of its features."""

    def __init__(self, comparisons: Sequence[Comparison], rows: Sequence[Float], unknown: Bool | None = None) -> None:
        self.comparisons = comparisons
        backgrounds = [comparison.background for comparison in comparisons]
        self.near = list(map(Neighbourhood, backgrounds, rows))
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
        for effects, near in zip(self.effects, self.near, strict=True):
            if near.background.columns[0].cause not in (Cause.LEVEL, Cause.SPREAD):
                effects[near.background.features[np.isnan(near.row) & near.background.is_of_record]] = 0.0
                effects[[] if unknown is None else unknown] = 0.0
        self.explained = min(max(gone, 0.0) / excess, 1.0) if excess > 0 else 1.0  # part of the excess, 0 to 1

    def _effects_alone(self, tried: Int) -> Float:
        """Return by how much the logit rises if the record keeps one feature, and all others are replaced."""
        effects = np.zeros_like(self.effects)
        for of_comparison, comparison, near in zip(effects, self.comparisons, self.near, strict=True):
            kept = np.where(comparison.background.features == tried[:, None], near.row, near.base)
            logits = comparison.logits(np.vstack([near.base, kept]))
            of_comparison[tried] = logits[1:] - logits[0]
        return effects

    def _strangest(self) -> Int:
        strangeness = np.zeros(self.effects.shape[1])
        for near in self.near:
            np.maximum.at(strangeness, near.background.features, near.strangeness)
        return np.argsort(-strangeness, kind="stable")[:MAX_FEATURES_TRIED]

    def partner(self, strongest: list[int]) -> int:
        """Return the feature that the strongest one is odd together with, while each alone is usual; -1 = none.

        The other one has a large effect, too, but most of it is the same effect: replacing both changes little more.
        """
        effects = self.effects.sum(axis=0)
        first, *others = strongest
        others = [f for f in others if 2 * effects[f] > effects[first] and self._is_usual(f)]
        if not others or not self._is_usual(first):
            return -1
        both = np.zeros(len(others))
        for comparison, near in zip(self.comparisons, self.near, strict=True):
            pairs = np.array([[first, other] for other in others])
            logits = comparison.logits(np.vstack([near.row, near.without(pairs)]))
            both += logits[0] - logits[1:]
        shared = effects[first] + effects[others] - both
        at = int(np.argmax(shared))
        return others[at] if 2 * shared[at] > effects[others[at]] else -1

    def _is_usual(self, feature: int) -> bool:
        return all(near.is_usual[_columns_of_feature(near, feature)].all() for near in self.near)

    def reason(self, feature: int, share: float) -> Reason:
        """The reason that names this feature."""
        at_comparison = int(np.argmax(self.effects[:, feature]))
        near = self.near[at_comparison]
        background, columns = near.background, _columns_of_feature(near, feature)
        causes = [background.columns[column].cause for column in columns]
        column, cause, before = int(columns[0]), causes[0], int((~np.isnan(near.row[columns[1:]])).sum())
        if Cause.LEVEL in causes or cause is Cause.SPREAD:
            at = int(np.argmax(near.strangeness[columns]))
            column, cause = int(columns[at]), causes[at]
        elif Cause.PAST in causes and before and near.is_usual[column]:
            cause = Cause.PAST
        elif background.is_code[column]:
            cause = Cause.CATEGORY
        value, (low, median, high) = float(near.row[column]), background.usual[:, column].tolist()
        if cause is Cause.SPREAD:
            still = STANDSTILL * float(np.abs([near.row[columns[0]], background.usual[1, columns[0]]]).max())
            changes = [math.exp(number) for number in (value, low, median, high)]
            value, low, median, high = (0.0 if size <= max(still, 1e-149) else size for size in changes)
        frequency = background.frequency(column, value) if cause is Cause.CATEGORY else math.nan
        before = before if cause is Cause.PAST else 0
        fits = cause is Cause.VALUE and not background.is_code[column]
        expected = float(self._replaced[at_comparison][feature][column]) if fits else math.nan
        return Reason(feature, cause, min(share, 1.0), value, median, low, high, frequency, -1, before, expected)


def _columns_of_feature(near: Neighbourhood, feature: int) -> Int:
    return np.flatnonzero(near.background.features == feature)
