"""Rows of numbers from dicts, frames and arrays whose features come and go: the input of `FoMoDetector`."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.adapters.columns import Columns, is_frame
from fomo_stream.detector.categories import category_code
from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_FEATURES
from fomo_stream.records.schema import numbers

Float = NDArray[np.float64]


class OpenRows:
    """Makes rows of records whose features may come and go; the columns of a new feature come after all others.

    It knows up to MAX_FEATURES features and ignores further ones. A `RowReader` is not used here, because features can
    be added later, and names are not paths.
    """

    def __init__(self, categorical: Collection[Hashable]) -> None:
        # Categorical features come first, so that their columns are known before they are seen.
        self._columns: dict[Any, int] = {name: i for i, name in enumerate(dict.fromkeys(categorical))}
        self._n_codes = len(self._columns)

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

        learn: whether features not seen before become known. Raises SchemaError for anything else.
        """
        if is_frame(X) or (isinstance(X, np.ndarray) and X.shape != (0,)):
            return self._from_columns(Columns(X), learn)
        return self._from_dicts(_checked(X), learn)

    def values(self, X: Any) -> list[Mapping[Any, Any]]:
        """The values of each record, by feature, as they were given."""
        if is_frame(X) or (isinstance(X, np.ndarray) and X.shape != (0,)):
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
        return numbers(cells).reshape(len(records), len(self._columns))

    def _from_columns(self, table: Columns, learn: bool) -> Float:
        if learn:
            self._add(table.names)
        rows = np.full((table.rows, len(self._columns)), np.nan)
        for at, name in enumerate(table.names):
            column = self._columns.get(name)
            if column is None:
                continue
            if column < self._n_codes:
                rows[:, column] = table.codes(at)
            else:
                given = table.numbers(at)
                rows[:, column] = numbers(table.cells(at)) if given is None else given
        rows[np.isinf(rows)] = np.nan
        return rows

    def _add(self, names: Iterable[Any]) -> None:
        for name in sorted(set(names) - self._columns.keys(), key=_sortable):
            if len(self._columns) < MAX_FEATURES:
                self._columns[name] = len(self._columns)


def _checked(records: Any) -> Sequence[Mapping[Any, Any]]:
    """Records, if they are dicts."""
    found = list(records)
    for record in found:
        if not isinstance(record, Mapping):
            kind = type(record).__name__
            raise SchemaError(f"a record is a dict of values by feature, not {kind}; give a frame, an array or dicts")
    return found


def _sortable(name: Any) -> tuple[str, Any]:
    """A key that sorts names of all types."""
    return type(name).__name__, name if isinstance(name, (str, int, float)) else repr(name)
