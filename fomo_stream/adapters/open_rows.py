"""Rows of numbers from dicts, frames and arrays whose features come and go; warns of values that do not count."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.adapters.columns import Columns, is_column, is_frame
from fomo_stream.detector.categories import MISSING_TEXTS, category_code
from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_FEATURES
from fomo_stream.records.schema import numbers

Float = NDArray[np.float64]
SHOWN = 5  # features that a warning names


class Unread:
    """Warns once of each: numbers given as text; records without any value that counts; records of unknown features."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    @property
    def wants_values(self) -> bool:
        """Whether `values` can still warn."""
        return not {"text", "values"} <= self._warned

    def values(self, cells: Iterable[tuple[int, Hashable, Any]], empty: NDArray[np.bool_]) -> None:
        """Warn of values that should perhaps have been read.

        cells: row, feature and value of those that count as missing; empty: (n,), which rows have no value that counts.
        A row with numbers that are text is only warned of as such.
        """
        if not self.wants_values:
            return
        texts: dict[Hashable, None] = {}
        rows: set[int] = set()  # those with numbers that are text
        others: list[tuple[int, Hashable, str]] = []
        for row, name, value in cells:
            if isinstance(value, str) and _is_number(value):
                texts[name] = None
                rows.add(row)
            elif empty[row] and _is_given(value):
                others.append((row, name, "text" if isinstance(value, str) else type(value).__name__))
        kinds = {name: f"{name!r} ({kind})" for row, name, kind in others if row not in rows}
        if texts:
            converters = _listed([f"{name!r}: float" for name in texts])
            self._warn(
                "text",
                f"numbers that are text count as missing, in {_listed(list(map(repr, texts)))}; convert them first, as "
                f"stream.iter_csv does with converters={{{converters}}}, or name these features in categorical",
            )
        if kinds:
            self._warn(
                "values",
                "a record without any number or category gets no score and is not learned; it has "
                f"{_listed(list(kinds.values()))}: turn these into numbers, or name them in categorical",
            )

    def unknown(self, names: Iterable[Hashable], known: Iterable[Hashable]) -> None:
        """Warn of a record that has only features, `names`, that are not known."""
        given, learned = (_listed(list(map(repr, some))) for some in (names, known))
        self._warn("names", f"a record gets no score, as all its features are unknown: {given}; known are {learned}")

    def _warn(self, kind: str, message: str) -> None:
        """Warn of what the user's code does: the warning has its line, not one of this package."""
        if kind in self._warned:
            return
        self._warned.add(kind)
        frame, level = sys._getframe(0), 1
        while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "fomo_stream":
            frame, level = frame.f_back, level + 1
        warnings.warn(f"FoMoDetector: {message}", stacklevel=level)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_given(value: Any) -> bool:
    """Whether a value that is not read is more than a mark of a missing one: None, NaN, NA, an infinity, blank text."""
    if value is None or isinstance(value, (Real, Decimal)):
        return False
    return str(value).strip() not in MISSING_TEXTS


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:SHOWN]) + (", ..." if len(words) > SHOWN else "")


_NO_MISTAKE = frozenset({float, np.float64, type(None)})  # types whose missing values are NaN, infinities and None


class OpenRows:
    """Makes rows of records whose features may come and go; the columns of a new feature come after all others.

    It knows up to MAX_FEATURES features and ignores further ones. A `Schema` is not used here, because features can be
    added later, and names are not paths.
    """

    def __init__(self, categorical: Collection[Hashable]) -> None:
        # Categorical features come first, so that their columns are known before they are seen.
        self._columns: dict[Any, int] = {name: i for i, name in enumerate(dict.fromkeys(categorical))}
        self._n_codes = len(self._columns)
        self._unread = Unread()

    @property
    def width(self) -> int:
        """Columns of a row: the features known now."""
        return len(self._columns)

    @property
    def names(self) -> list[Any]:
        """The feature of each column."""
        return list(self._columns)

    @property
    def categorical(self) -> tuple[int, ...]:
        """The columns that hold category codes."""
        return tuple(range(self._n_codes))

    def rows(self, X: Any, learn: bool = False) -> Float:
        """Rows (n, width) of a frame, an array (n, d), or a sequence of dicts; NaN = missing.

        learn: whether features not seen before become known. Raises SchemaError for anything else. Warns as `Unread`.
        """
        if _is_table(X):
            return self._from_columns(Columns(X), learn)
        return self._from_dicts(_checked(X), learn)

    def values(self, X: Any) -> list[Mapping[Any, Any]]:
        """The values of each record, by feature, as they were given."""
        if _is_table(X):
            table = Columns(X)
            cells = [table.cells(at) for at in range(len(table.names))]
            return [dict(zip(table.names, [column[i] for column in cells], strict=True)) for i in range(table.rows)]
        return list(_checked(X))

    def _from_dicts(self, records: Sequence[Mapping[Any, Any]], learn: bool) -> Float:
        if learn:
            self._add({name for record in records for name in record})
        cells: list[Any] = []
        for record in records:
            row = list(map(record.get, self._columns))
            row[: self._n_codes] = map(category_code, row[: self._n_codes])
            cells += row
        rows = numbers(cells).reshape(len(records), len(self._columns))
        is_missing = np.isnan(rows)
        if is_missing.any():
            self._warn_of_dicts(records, cells, is_missing)
        return rows

    def _warn_of_dicts(
        self, records: Sequence[Mapping[Any, Any]], cells: list[Any], is_missing: NDArray[np.bool_]
    ) -> None:
        """cells: the values of the records, row by row; is_missing: (n, width), which of them do not count."""
        names, empty = self.names, np.asarray(is_missing.all(axis=1))
        if self._unread.wants_values:
            places = [at for at in np.flatnonzero(is_missing).tolist() if type(cells[at]) not in _NO_MISTAKE]
            self._unread.values([(at // self.width, names[at % self.width], cells[at]) for at in places], empty)
        for at in np.flatnonzero(empty).tolist():
            if records[at] and not self._columns.keys() & records[at].keys():
                self._unread.unknown(records[at], names)

    def _from_columns(self, table: Columns, learn: bool) -> Float:
        if learn:
            self._add(table.names)
        rows = np.full((table.rows, len(self._columns)), np.nan)
        read: list[tuple[int, list[Any]]] = []  # columns whose type is not one of numbers
        for at, name in enumerate(table.names):
            column = self._columns.get(name)
            if column is None:
                continue
            if column < self._n_codes:
                rows[:, column] = table.codes(at)
            else:
                given = table.numbers(at)
                if given is None:
                    read.append((column, table.cells(at)))
                    given = numbers(read[-1][1])
                rows[:, column] = given
        rows[np.isinf(rows)] = np.nan
        names = self.names
        if read and self._unread.wants_values:
            missing = ((at, cells, np.flatnonzero(np.isnan(rows[:, at])).tolist()) for at, cells in read)
            unread = ((i, names[at], cells[i]) for at, cells, places in missing for i in places)
            self._unread.values(unread, ~has_values(rows))
        if self.width and table.rows and table.names and not self._columns.keys() & set(table.names):
            self._unread.unknown(table.names, names)
        return rows

    def _add(self, names: Iterable[Any]) -> None:
        for name in sorted(set(names) - self._columns.keys(), key=_sortable):
            if len(self._columns) < MAX_FEATURES:
                self._columns[name] = len(self._columns)


def readable_twice(X: Any) -> Any:
    """The same input as for `OpenRows.rows`; the records of an iterator as a list. Raises SchemaError."""
    return X if _is_table(X) else _checked(X)


def _checked(records: Any) -> Sequence[Mapping[Any, Any]]:
    """Records, if they are dicts."""
    is_several = isinstance(records, Iterable) and not isinstance(records, (str, Mapping))
    if not isinstance(records, (list, tuple)) and (not is_several or is_column(records)):
        raise SchemaError(f"records are a frame, an array (n, d) or a list of dicts, not one {type(records).__name__}")
    found = list(records)
    for record in found:
        if not isinstance(record, Mapping):
            kind = f"{type(record).__name__}{'; its to_dict() is one' if is_column(record) else ''}"
            raise SchemaError(f"a record is a dict of values by feature, not {kind}")
    return found


def _is_table(X: Any) -> bool:
    return is_frame(X) or (isinstance(X, np.ndarray) and X.shape != (0,))


def has_values(rows: Float) -> NDArray[np.bool_]:
    """Whether each of rows (n, d) has any value."""
    return np.asarray(~np.isnan(rows).all(axis=1))


def _sortable(name: Any) -> tuple[str, Any]:
    """A key that sorts names of all types."""
    return type(name).__name__, name if isinstance(name, (str, int, float)) else repr(name)
