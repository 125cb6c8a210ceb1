"""Frames and arrays as users have them, read column by column: numbers, cells of any type, and category codes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray

from fomo_stream.detector.categories import category_code
from fomo_stream.errors import SchemaError

Float = NDArray[np.float64]


def is_frame(X: Any) -> bool:
    """Whether X is a DataFrame of pandas or polars, or a table of pyarrow. Raises SchemaError for a LazyFrame."""
    if nw.dependencies.is_polars_lazyframe(X):
        raise SchemaError("a LazyFrame has no rows yet; collect() it first")
    return bool(nw.dependencies.is_into_dataframe(X))


def is_column(X: Any) -> bool:
    """Whether X is a Series of pandas or polars, or a column of a table of pyarrow."""
    return bool(nw.dependencies.is_into_series(X))


class Columns:
    """The columns of a frame or of an array (n, d). The names of an array's columns are their positions.

    Raises SchemaError for an array of another shape, and for a frame with two columns of one name.
    """

    def __init__(self, X: Any) -> None:
        self.names: list[Hashable]
        self._frame: nw.DataFrame[Any] | None = None
        if is_frame(X):
            try:
                self._frame = nw.from_native(X, eager_only=True)
                self.names, self.rows = list(self._frame.columns), len(X)
            except DuplicateError:
                raise SchemaError("two columns have the same name; rename one of them") from None
            return
        self._array = np.asarray(X)
        if self._array.ndim != 2:
            raise SchemaError(f"expected an array (n, d), got one of shape {self._array.shape}")
        self.rows, d = self._array.shape
        self.names = list(range(d))

    def numbers(self, at: int) -> Float | None:
        """Column `at` (n,), NaN = missing, if it is one of numbers or booleans by its type; else None."""
        if self._frame is None:
            column = self._array[:, at]
            return column.astype(np.float64) if column.dtype.kind in "fiub" else None
        series = self._frame[:, at]
        if not (series.dtype.is_numeric() or series.dtype == nw.Boolean):
            return None
        return np.array(series.cast(nw.Float64).to_numpy(), dtype=np.float64)

    def cells(self, at: int) -> list[Any]:
        """The values (n,) of column `at`."""
        return list(self._array[:, at].tolist() if self._frame is None else self._frame[:, at].to_list())

    def codes(self, at: int) -> Float:
        """The category codes (n,) of column `at`."""
        return np.array(list(map(category_code, self.cells(at))), dtype=np.float64)

    def is_temporal(self, at: int) -> bool:
        """Whether column `at` is one of dates, times or durations by its type."""
        if self._frame is None:
            return self._array.dtype.kind in "mM"
        return bool(self._frame[:, at].dtype.is_temporal())
