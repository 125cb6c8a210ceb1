"""Rows of numbers from dicts, frames and arrays whose features come and go: the input of `FoMoDetector`."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    def categorical(self) -> tuple[int, ...]:
        """The columns that hold category codes."""
        return tuple(range(self._n_codes))

    def rows(self, X: Any, learn: bool = False) -> Float:
        """Rows (n, width) of a DataFrame, an array (n, d), or a sequence of dicts; NaN = missing.

        learn: whether features not seen before become known.
        """
        if hasattr(X, "columns"):  # a DataFrame
            return self._from_table(list(X.columns), X.to_numpy(dtype=object), learn)
        if isinstance(X, np.ndarray):
            if X.ndim != 2:
                raise SchemaError(f"expected an array (n, d), got one of shape {X.shape}")
            return self._from_table(list(range(X.shape[1])), X, learn)
        return self._from_dicts(X, learn)

    def _from_dicts(self, records: Sequence[Mapping[Any, Any]], learn: bool) -> Float:
        if learn:
            self._add({name for record in records for name in record})
        cells: list[Any] = []
        for record in records:
            row = list(map(record.get, self._columns))
            row[: self._n_codes] = map(category_code, row[: self._n_codes])
            cells += row
        return numbers(cells).reshape(len(records), len(self._columns))

    def _from_table(self, names: list[Any], cells: NDArray[Any], learn: bool) -> Float:
        if learn:
            self._add(names)
        values = np.full((len(cells), len(self._columns)), np.nan)
        for name, given in zip(names, cells.T, strict=True):
            column = self._columns.get(name)
            if column is None:
                continue
            if column < self._n_codes:
                values[:, column] = list(map(category_code, given.tolist()))
            else:
                is_numeric = given.dtype.kind in "fiub"
                values[:, column] = given if is_numeric else numbers(given.tolist())
        values[np.isinf(values)] = np.nan
        return values

    def _add(self, names: Iterable[Any]) -> None:
        for name in sorted(set(names) - self._columns.keys(), key=lambda n: (type(n).__name__, n)):
            if len(self._columns) < MAX_FEATURES:
                self._columns[name] = len(self._columns)
