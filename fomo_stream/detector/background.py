"""The rows of a context as counterfactuals need them: the rows nearest to a record, and the usual range of a column."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.results import Cause

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

NEAREST = 5  # rows whose middle value replaces a value
MOST_ROWS = 1000  # rows among which the nearest ones are looked for
LOW, MIDDLE, HIGH = 0.01, 0.5, 0.99  # quantiles: the ends of the central 98 %, and the median


class Column(NamedTuple):
    """What a column of a context holds."""

    feature: int  # column of the record that it belongs to
    cause: Cause  # VALUE, PAST, LEVEL or SPREAD
    is_code: bool = False  # whether it holds category codes


class Background:
    """Context rows (n, w), raw units, NaN = missing, and their columns (w,). What it computes once, it keeps.

    A feature of the record has a column, several, or none. n_features: of the record; None: as the columns say.
    near: which of the rows (n,) count as near ones; None: all. The usual ranges are of all rows.
    """

    def __init__(
        self, rows: Float, columns: Sequence[Column], near: Bool | None = None, n_features: int | None = None
    ) -> None:
        self.rows, self.columns = rows, tuple(columns)
        self._near = np.ones(len(rows), dtype=bool) if near is None else near
        self.is_code = np.array([column.is_code for column in self.columns], dtype=bool)
        self.features = np.array([column.feature for column in self.columns], dtype=np.int64)
        self.n_features = int(self.features.max()) + 1 if n_features is None else n_features

    @cached_property
    def usual(self) -> Float:
        """(3, w): the smallest value of the central 98 % of each column, its median, and the largest; NaN for codes."""
        found = np.full((3, len(self.columns)), np.nan)
        for column in np.flatnonzero(~self.is_code):
            values = np.sort(self.rows[:, column])
            values = values[: len(values) - int(np.isnan(values).sum())]
            if len(values):
                found[:, column] = values[[int(share * (len(values) - 1) + 0.5) for share in (LOW, MIDDLE, HIGH)]]
        return found

    def frequency(self, column: int, code: float) -> float:
        """The share of the rows with a value in this column that have this code; NaN without such rows."""
        values = self.rows[:, column]
        n = int((~np.isnan(values)).sum())
        return float((values == code).sum()) / n if n else np.nan

    # -- near rows -----------------------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> Float:
        """The near rows side by side (w, m), at most MOST_ROWS, evenly spread over the context."""
        at = np.flatnonzero(self._near)
        m = min(len(at), MOST_ROWS)
        return np.ascontiguousarray(self.rows[at[np.arange(m) * len(at) // m]].T)

    @cached_property
    def lacking(self) -> Bool:
        """Whether a candidate lacks a value of a feature: (features, m)."""
        missing = np.isnan(self.candidates)
        return np.stack([missing[self.features == f].any(axis=0) for f in range(self.n_features)])

    @cached_property
    def order(self) -> Float:
        """Numbers (w, m) whose order tells which of several candidates is the middle one: of codes, their counts."""
        order = self.candidates.copy()
        for column in np.flatnonzero(self.is_code):
            _, where, counts = np.unique(order[column], return_inverse=True, return_counts=True)
            order[column] = np.where(np.isnan(order[column]), np.nan, counts[where])
        return order

    @cached_property
    def _known(self) -> Int:
        """How many candidates have a value of each column: (w,)."""
        known: Int = (~np.isnan(self.candidates)).sum(axis=1)
        return known

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

    def _scaled(self, places: Int, known: Int, missing: Bool) -> Int:
        """Twice the mid-ranks among the known candidates, on a scale from 0 to 2 m; m where a value is missing."""
        m = self.candidates.shape[1]
        scaled: Int = np.where(missing | (known == 0), m, places * m // np.maximum(known, 1))
        return scaled

    def apart(self, row: Float) -> NDArray[np.int32]:
        """How far a record (w,) is from each candidate in each feature: (features, m).

        Ranks are compared, column by column: so no unit and no far value counts for more than another, and sums are of
        whole numbers, the same on every machine. Of codes only counts whether they are equal. A value that is missing
        tells nothing.
        """
        m = self.candidates.shape[1]
        apart = np.abs(self._ranks - self.ranks(row).astype(np.int32)[:, None])
        apart[self.is_code] = m * (self.candidates[self.is_code] != row[self.is_code, None])
        apart[np.isnan(row)] = 0
        order, present, begins = self._by_feature
        summed = np.zeros((self.n_features, m), dtype=np.int32)
        summed[present] = np.add.reduceat(apart[order], begins, axis=0)
        return summed

    @cached_property
    def _by_feature(self) -> tuple[Int, Int, Int]:
        """The columns in the order of their features, the features that have any, and where each begins there."""
        order = np.argsort(self.features, kind="stable")
        present, begins = np.unique(self.features[order], return_index=True)
        return order, present, begins


class Neighbourhood:
    """The candidates of a context as seen from one record (w,)."""

    def __init__(self, background: Background, row: Float) -> None:
        self.background, self.row = background, row
        self._apart = background.apart(row)
        self._total = self._apart.sum(axis=0, dtype=np.int64)
        w = len(row)
        at = self._nearest(self._total[None])
        self.base = self._middle(np.arange(w), np.broadcast_to(at, (w, at.shape[1])))  # (w,) of the nearest rows

    @cached_property
    def strangeness(self) -> Float:
        """How far each value is from those of the nearest rows (w,), in widths of the usual range.

        Of a code: the share of the candidates that have more frequent ones.
        """
        of = self.background
        low, middle, high = of.usual
        value = np.where(np.isnan(self.row), middle, self.row)  # as the model sees it
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            found: Float = np.nan_to_num(np.abs(value - self.base) / (high - low))
        for column in np.flatnonzero(of.is_code):
            count = (of.candidates[column] == self.row[column]).sum()
            found[column] = (of.order[column] > count).mean()
        return found

    @cached_property
    def is_usual(self) -> Bool:
        """Whether each value is in the central 98 % of its column, or among the codes that 98 % have: (w,)."""
        low, _, high = self.background.usual
        codes = ~np.isnan(self.row) & (self.strangeness <= HIGH - LOW)
        return np.where(self.background.is_code, codes, (self.row >= low) & (self.row <= high))

    def without(self, groups: Int) -> Float:
        """The record with each group (k, s) of s features, by their positions, replaced: (k, w).

        By the middle ones of their values in the rows that are nearest in the other features, and have values.
        """
        of = self.background
        keys = self._total - self._apart[groups].sum(axis=1)
        at = self._nearest(keys + of.lacking[groups].any(axis=1) * (self._total.max() + 1))
        rows = np.repeat(self.row[None], len(groups), axis=0)
        where, column = np.nonzero((of.features == groups[:, :, None]).any(axis=1))
        rows[where, column] = self._middle(column, at[where])
        return rows

    def _nearest(self, keys: Int) -> Int:
        """The candidates (k, NEAREST) with the smallest keys (k, m) >= 0, of equal ones the first."""
        m = keys.shape[1]
        count = min(NEAREST, m)
        at: Int = np.sort(np.partition(keys * m + np.arange(m), count - 1, axis=1)[:, :count], axis=1) % m
        return at

    def _middle(self, columns: Int, at: Int) -> Float:
        """The middle values (c,) of columns (c,) in the candidates at (c, NEAREST), less the missing ones."""
        order = self.background.order[columns[:, None], at]
        middle = np.maximum((~np.isnan(order)).sum(axis=1) - 1, 0) // 2
        each = np.arange(len(columns))
        chosen = np.argsort(order, axis=1, kind="stable")[each, middle]
        values: Float = self.background.candidates[columns, at[each, chosen]]
        return values
