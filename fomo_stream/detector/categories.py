"""Categories as numbers that a detector can compare: how rare they are.

Rows hold codes: floats that are equal for equal categories and have no other meaning. Every context counts the codes of
its own rows and replaces each by its rarity. So rarity follows the context as it changes, and a category that the
context does not have is rarer than all that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]

Counts = tuple[NDArray[Any], Float]  # values, ascending, and how often each occurs

MAX_PAIRED_COLUMNS = 8  # columns whose pairs count, the first ones: 28 pairs
CODE_BASE = 2**20  # more than the categories of a column


def _count_values(values: NDArray[Any]) -> Counts:
    distinct, counts = np.unique(values, return_counts=True)
    return distinct, counts.astype(np.float64)


def _find_counts(counts: Counts, requested: NDArray[Any]) -> tuple[Int, Float]:
    """The place of each wanted value among the counted ones, -1 for another value; and how often it occurs."""
    values, often = counts
    if not len(values):
        return np.full(requested.shape, -1), np.zeros(requested.shape)
    at = np.minimum(np.searchsorted(values, requested), len(values) - 1)
    is_known = values[at] == requested
    return np.where(is_known, at, -1), np.where(is_known, often[at], 0.0)


@dataclass(frozen=True)
class Pairs:
    """The frequency of each pair of categories in a context, for each two of its columns: p pairs of columns."""

    first: Int  # (p,) of each two columns, the position of the first one among all
    second: Int  # (p,) and that of the second one
    both: Float  # (p, 1) rows with a value in both columns
    numbers: Counts  # of the pairs of these rows
    dependence: Float  # (p, 1) of the two columns, from 0 to 1

    @classmethod
    def fit(cls, places: Int, shares: Float, columns: int) -> Pairs:
        """Count the pairs of the first columns, at least two, of context rows.

        places, shares: (all columns, n) of each row's categories: the place among those of its column, -1 for none, and
        the share of the rows that have it, NaN for none.
        """
        first, second = np.triu_indices(columns, 1)
        numbers = _pair_numbers(places[first], places[second])
        both = (numbers >= 0).sum(axis=1, keepdims=True).astype(np.float64)
        made = cls(first, second, both, _count_values(numbers[numbers >= 0]), np.zeros(both.shape))
        count, expected = made._others(places, shares)
        ratio = np.sort(count / expected, axis=1)  # else the order of the rows would change the last bits of the sum
        ratio = np.nansum(ratio, axis=1, keepdims=True) / np.maximum(both, 1.0)
        return replace(made, dependence=np.clip(ratio - 1.0, 0.0, 1.0))

    def rarity(self, places: Int, shares: Float) -> Float:
        """Return how rare the rarest pair of each of q rows is against its parts, from 0: (q,). Arguments as of `fit`.

        A pair gets (1 + w e) / (1 + w c) - 1, or 0 if that is less. c other rows have the pair, and e rows would have
        it if the two columns were independent. w is how much they depend on each other: their mean-square contingency,
        estimated without the row itself, and at most 1. So it is e / c, with 1 / w rows added to both (DuMouchel 1999).
        Where columns are independent, w is near 0: a pair that happens to be rare tells nothing. Where they are not,
        a pair that was expected often and never came is rare. One that is not expected even once never is: the
        rarities of its parts tell it already.
        """
        count, expected = self._others(places, shares)
        rarity = (1.0 + self.dependence * expected) / (1.0 + self.dependence * count) - 1.0
        return np.asarray(np.fmax.reduce(rarity, axis=0, initial=0.0), dtype=np.float64)

    def _others(self, places: Int, shares: Float) -> tuple[Float, Float]:
        """Return for each pair (p, q) how many other rows have it, and how many would if the columns were
        independent."""
        _, count = _find_counts(self.numbers, _pair_numbers(places[self.first], places[self.second]))
        return np.maximum(count - 1.0, 0.0), self.both * (shares[self.first] * shares[self.second])


def _pair_numbers(first: Int, second: Int) -> Int:
    """Return a number for each pair of places (p, q) in two columns, different in every p; -1: a place is missing."""
    numbers = (np.arange(len(first))[:, None] * CODE_BASE + first) * CODE_BASE + second
    return np.where((first >= 0) & (second >= 0), numbers, -1)


@dataclass(frozen=True)
class Frequencies:
    """The frequency of each category in a context, and the rarities computed from it."""

    columns: tuple[int, ...]  # the columns that hold category codes
    _known: tuple[Counts, ...]  # for each column: its codes
    _pairs: Pairs | None  # of its first columns; None: of none

    @classmethod
    def fit(cls, rows: Float, columns: Sequence[int], width: int | None = None) -> Frequencies:
        """Count the codes in `columns` of context rows (n, d), and the pairs of the record's own; NaN is missing.

        width: columns of the record itself, the first ones; the others are of earlier records. None: d.
        """
        counts = tuple(_count_values(values[~np.isnan(values)]) for values in (rows[:, column] for column in columns))
        paired = min(sum(width is None or column < width for column in columns), MAX_PAIRED_COLUMNS)
        made = cls(tuple(columns), counts, None)
        if paired < 2:
            return made
        places, shares = made._found(rows)
        return replace(made, _pairs=Pairs.fit(places, shares, paired))

    def encode(self, rows: Float) -> Float:
        """A copy of rows (q, d) in which the codes are rarities, in standard deviations; NaN stays NaN.

        With pairs it has one more column: the rarity of each row's rarest pair, see `Pairs`.

        A category of share p gets sqrt(1 / p - 1): the distance of its indicator variables from their mean, measured
        by their covariance (the chi-square distance of correspondence analysis, Greenacre 1984). So it is on the scale
        of a z-score: 1 for one of two equal categories, 10 for one in a hundred rows. The share is (c + 1/2) / (n + 1)
        where c of n other rows with a value have the category (Krichevsky & Trofimov 1981).

        For a category that the context has, one of its rows is left out: the row itself, or, of a new row, another one.
        So new rows and those of the context get the same rarity for the same category. Were they to differ a little, a
        column of two equal categories would have new rows far from all of the context, on the scale of its spread.
        A category that no row has gets sqrt(2 n + 1), larger than any other, even if all others are equally frequent.
        Where most rows have a category of their own, such as an identifier, it is nearly the same as theirs.
        """
        encoded = np.array(rows, dtype=np.float64)
        parts = [encoded]
        if self.columns:
            places, shares = self._found(rows)
            encoded[:, list(self.columns)] = np.sqrt(1.0 / shares - 1.0).T
            parts += [] if self._pairs is None else [self._pairs.rarity(places, shares)[:, None]]
        return np.concatenate(parts, axis=1) if len(parts) > 1 else encoded

    def _found(self, rows: Float) -> tuple[Int, Float]:
        """The place of each category of rows (q, d) among the known ones, -1 for none, and its share: (columns, q)."""
        places = np.empty((len(self.columns), len(rows)), dtype=np.int64)
        shares = np.empty(places.shape)
        for i, (column, counts) in enumerate(zip(self.columns, self._known, strict=True)):
            places[i], count = _find_counts(counts, rows[:, column])
            total = counts[1].sum()
            shares[i] = np.where(count > 0, (count - 0.5) / max(total, 1.0), 0.5 / (total + 1.0))
            shares[i, np.isnan(rows[:, column])] = np.nan
        return places, shares
