"""The rows of a context as counterfactuals need them: the rows nearest to a record, and the usual range of a column."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.reasons import Cause

Float = NDArray[np.float64]
Int = NDArray[np.int64]

NEAREST = 5  # rows whose middle value replaces a value
MOST_ROWS = 1000  # rows among which the nearest ones are looked for
USUAL = (0.01, 0.5, 0.99)  # quantiles: the central 98 %, and the median


class Column(NamedTuple):
    """What a column of a context holds."""

    feature: int  # of the record that it belongs to
    cause: Cause  # VALUE, PAST, LEVEL or SPREAD
    is_code: bool = False  # whether it holds category codes


class Nearby(NamedTuple):
    """What replaces the values of a record. A feature has all of its columns replaced together."""

    instead: Float  # (w,) values of the rows nearest in the other features
    base: Float  # (w,) values of the rows nearest in all features


class Surroundings:
    """Context rows (n, w), raw units, NaN = missing, and their columns (w,). What it computes once, it keeps.

    near: which of the rows (n,) count as near ones; None: all. The usual ranges are of all rows.
    Rows are compared by their ranks, column by column: so no unit and no far value counts for more than another, and
    sums are of whole numbers, the same bits on every machine.
    """

    def __init__(self, rows: Float, columns: Sequence[Column], near: NDArray[np.bool_] | None = None) -> None:
        self.rows, self.columns = rows, tuple(columns)
        self._near = np.ones(len(rows), dtype=bool) if near is None else near
        self.features = np.array([column.feature for column in self.columns], dtype=np.int64)
        self.is_code = np.array([column.is_code for column in self.columns], dtype=bool)

    @cached_property
    def _candidates(self) -> Float:
        """The near rows side by side (w, m), at most MOST_ROWS, evenly spread over the context."""
        at = np.flatnonzero(self._near)
        at = at[np.arange(min(len(at), MOST_ROWS)) * len(at) // max(1, min(len(at), MOST_ROWS))]
        return np.ascontiguousarray(self.rows[at].T)

    @cached_property
    def _ranks(self) -> Int:
        """Twice the mid-ranks (w, m) of the candidates; in the middle where a value is missing."""
        return np.stack([_ranks(column, np.sort(column)) for column in self._candidates])

    @cached_property
    def _order(self) -> Float:
        """The candidates' values (w, m) in the order in which the middle one is looked for: codes by their counts."""
        order = self._candidates.copy()
        for column in np.flatnonzero(self.is_code):
            _, where, counts = np.unique(order[column], return_inverse=True, return_counts=True)
            order[column] = np.where(np.isnan(order[column]), np.nan, counts[where])
        return order

    @cached_property
    def usual(self) -> Float:
        """(3, w): the smallest value of the central 98 % of each column, its median, and the largest; NaN for codes."""
        found = np.full((3, len(self.columns)), np.nan)
        for column in np.flatnonzero(~self.is_code):
            values = np.sort(self.rows[:, column])
            values = values[: len(values) - int(np.isnan(values).sum())]
            if len(values):
                found[:, column] = values[[int(share * (len(values) - 1) + 0.5) for share in USUAL]]
        return found

    def frequency(self, column: int, code: float) -> float:
        """The share of the rows with a value in this column that have this code; NaN without such rows."""
        values = self.rows[:, column]
        n = int((~np.isnan(values)).sum())
        return float((values == code).sum()) / n if n else np.nan

    def nearby(self, row: Float) -> Nearby:
        """The counterfactual values for a record (w,). A value of its own that is missing tells nothing of nearness."""
        candidates = self._candidates
        w, m = candidates.shape
        apart = np.abs(self._ranks - self._rank_of(row)[:, None])
        apart[self.is_code] = m * (candidates[self.is_code] != row[self.is_code, None])
        apart[np.isnan(row)] = 0
        of_feature = np.zeros((int(self.features.max()) + 1, m), dtype=np.int64)
        np.add.at(of_feature, self.features, apart)
        total = of_feature.sum(axis=0)
        unknown = np.isnan(candidates) * (2 * m * w + 1)  # rows without a value come last
        keys = (total - of_feature)[self.features] + unknown
        return Nearby(self._middle(keys), self._middle(np.broadcast_to(total, (w, m))))

    def _rank_of(self, row: Float) -> Int:
        candidates, m = self._candidates, self._candidates.shape[1]
        n_missing = np.isnan(candidates).sum(axis=1)
        below = (candidates < row[:, None]).sum(axis=1)
        upto = (candidates <= row[:, None]).sum(axis=1)
        ranks: Int = (below + upto) * m // np.maximum(m - n_missing, 1)
        return np.where(np.isnan(row) | (n_missing == m), m, ranks)

    def _middle(self, keys: Int) -> Float:
        """The middle values (w,) of the NEAREST rows with the smallest keys (w, m) >= 0, of equal ones the first."""
        w, m = keys.shape
        k = min(NEAREST, m)
        at = np.sort(np.partition(keys * m + np.arange(m), k - 1, axis=1)[:, :k], axis=1) % m
        each = np.arange(w)[:, None]
        order = self._order[each, at]
        middle = np.maximum((~np.isnan(order)).sum(axis=1) - 1, 0) // 2
        chosen = np.argsort(order, axis=1, kind="stable")[np.arange(w), middle]
        values: Float = self._candidates[np.arange(w), at[np.arange(w), chosen]]
        return values


def _ranks(values: Float, ordered: Float) -> Int:
    """Twice the mid-ranks (m,) of values among ordered ones (m,), on a scale from 0 to 2 m; m where it is missing."""
    m, n = len(ordered), len(ordered) - int(np.isnan(ordered).sum())
    known = ordered[:n]
    both = np.searchsorted(known, values, "left") + np.searchsorted(known, values, "right")
    return np.where(np.isnan(values), m, both * m // max(n, 1)).astype(np.int64)
