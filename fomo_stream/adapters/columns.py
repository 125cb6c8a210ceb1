"""Reads frames and arrays of users, column by column, or as rows of numbers where the columns are fixed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import date, time, timedelta
from functools import cached_property
from math import isnan
from numbers import Integral, Real
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray

from fomo_stream.errors import FomoWarning, SchemaError
from fomo_stream.records.category_codes import category_code, is_mostly_rare
from fomo_stream.records.inference import MISLEADING, RARE_VALUES, READ_AS_NUMBERS, is_missing, misleading_columns
from fomo_stream.records.schema import is_number_text
from fomo_stream.records.times import is_time
from fomo_stream.wording import counted

Float = NDArray[np.float64]


def is_frame(X: Any) -> bool:
    """Return whether X is a frame of pandas or polars, or a table of pyarrow. Raises SchemaError for a LazyFrame."""
    if isinstance(X, (list, tuple, np.ndarray)):  # narwhals gives the same answer, but takes 50 us
        return False
    if nw.dependencies.is_pandas_dataframe(X):
        return True
    if nw.dependencies.is_polars_lazyframe(X):
        raise SchemaError("a LazyFrame has no rows yet; collect() it first")
    return bool(nw.dependencies.is_into_dataframe(X))


def is_column(X: Any) -> bool:
    """Return whether X is a Series of pandas or polars, or a column of a table of pyarrow."""
    return bool(nw.dependencies.is_into_series(X))


def unmasked(X: Any) -> Any:
    """Return X, with NaN in the masked cells of a masked array. Raises SchemaError for a record array."""
    if isinstance(X, np.ndarray) and X.dtype.names is not None:
        raise SchemaError("X is a record array; give a frame, as pandas.DataFrame(X), or an array (n, d)")
    if not isinstance(X, np.ma.MaskedArray):
        return X
    if X.dtype.kind in "mM":
        filling: Any = np.array("NaT", X.dtype)
        return X.filled(filling)
    dtype: Any = np.float64 if X.dtype.kind in "fiub" else object
    return np.ma.asarray(X.astype(dtype)).filled(np.nan)


_NUMERIC = "fiub"  # the numeric kinds of NumPy types
_SAME_NAME = "two columns have the same name; rename one of them"


class Columns:
    """The columns of a frame or of an array (n, d). The names of an array's columns are their positions.

    Raises SchemaError for an array of another shape, and for a frame with two columns of one name.
    """

    def __init__(self, X: Any) -> None:
        self.names: list[Hashable]
        self._frame = X if is_frame(X) else None
        if self._frame is not None:
            self.names = X.columns.tolist() if self._is_pandas else list(self._wrapped.columns)
            self.rows = len(X)
            if len(set(self.names)) < len(self.names):
                raise SchemaError(_SAME_NAME)
            return
        self._array = np.asarray(unmasked(X))
        if self._array.ndim != 2:
            raise SchemaError(f"expected an array (n, d), got one of shape {self._array.shape}")
        self.rows, d = self._array.shape
        self.names = list(range(d))

    @property
    def frame(self) -> nw.DataFrame[Any] | None:
        """The frame; None for an array."""
        return None if self._frame is None else self._wrapped

    @property
    def _is_pandas(self) -> bool:
        return nw.dependencies.is_pandas_dataframe(self._frame)

    @cached_property
    def _wrapped(self) -> nw.DataFrame[Any]:
        try:
            return nw.from_native(self._frame, eager_only=True)
        except DuplicateError:
            raise SchemaError(_SAME_NAME) from None

    @cached_property
    def _series(self) -> list[Any]:
        return list(self._wrapped.iter_columns())

    @cached_property
    def _matrix(self) -> Float | None:
        """The rows (n, d) of a numeric array, or of a pandas frame with only numeric columns; None for others.

        Reading column by column, through narwhals, takes 20 times as long.
        """
        if self._frame is None:
            return self._array.astype(np.float64, copy=False) if self._array.dtype.kind in _NUMERIC else None
        types = self._frame.dtypes if self._is_pandas else [None]
        is_plain = all(isinstance(dtype, np.dtype) and dtype.kind in _NUMERIC for dtype in types)
        return np.asarray(self._frame.to_numpy(np.float64)) if is_plain else None

    def numbers(self, column: int) -> Float | None:
        """Return a column (n,), NaN = missing, if its type is numeric or boolean; else None."""
        if self._matrix is not None:
            return self._matrix[:, column]
        dtype = None if self._frame is None else self._series[column].dtype
        if dtype is None or not (dtype.is_numeric() or dtype == nw.Boolean):
            return None
        return np.array(self._series[column].cast(nw.Float64).to_numpy(), dtype=np.float64)

    def cells(self, column: int) -> list[Any]:
        """Return the values (n,) of a column."""
        if self._frame is not None:
            return list(self._series[column].to_list())
        # `tolist` would turn times in nanoseconds into integers
        return list(self._array[:, column] if self.is_temporal(column) else self._array[:, column].tolist())

    def records(self) -> list[dict[Hashable, Any]]:
        """Return the values of each row by name."""
        rows = zip(*map(self.cells, range(len(self.names))), strict=True) if self.names else [()] * self.rows
        return [dict(zip(self.names, cells, strict=True)) for cells in rows]

    def codes(self, column: int) -> Float:
        """Return the category codes (n,) of a column."""
        return np.array(list(map(category_code, self.cells(column))), dtype=np.float64)

    def is_temporal(self, column: int) -> bool:
        """Return whether a column has a type for dates, times or durations."""
        if self._frame is None:
            return self._array.dtype.kind in "mM"
        return bool(self._series[column].dtype.is_temporal())


def note_of_empty(names: Sequence[Hashable], rows: Float) -> str | None:
    """Return a warning about the columns of rows (n, d) that have no value, if there are any."""
    empty = [repr(names[j]) for j in np.flatnonzero(np.isnan(rows).all(axis=0)).tolist()]
    return f"columns without any value are not scored: {first_words(empty)}; leave them out" if empty else None


def has_values(rows: Float) -> NDArray[np.bool_]:
    """Return whether each of rows (n, d) has any value."""
    return np.asarray(~np.isnan(rows).all(axis=1))


def is_complete(rows: Float) -> bool:
    """Return whether no cell of rows (n, d) of finite numbers is missing. For few rows this is the fastest test."""
    return not isnan(np.vdot(rows, rows))


DATES = (date, time, timedelta, np.datetime64, np.timedelta64)  # a datetime is a date
MISSING_TEXTS_OF_PANDAS = ("<NA>", "NaT")  # as pandas writes it
MAX_LISTED = 5  # features that a warning names
REMEDY = "turn it into numbers, name it in categorical, or leave it out"


def table_columns(X: Any, has_codes: bool) -> Columns | None:
    """Return the columns of X if each has to be checked; None for an array of numbers, or for X that is not a table.

    has_codes: whether columns of X are categorical. Raises SchemaError for a list of dicts, a Series and a LazyFrame.
    """
    if is_frame(X):
        return Columns(X)
    if is_column(X):
        raise SchemaError(
            "X is one Series; give a frame or an array of rows. One row of a frame is frame[i : i + 1], one column "
            "is frame[[name]]"
        )
    if isinstance(X, (list, tuple)):
        if X and isinstance(X[0], Mapping):
            raise SchemaError("X is a list of dicts; give a frame, as pandas.DataFrame(X), or an array")
        X = _object_array(X)
    is_array = isinstance(X, np.ndarray) and X.ndim == 2
    return Columns(X) if is_array and (has_codes or X.dtype.kind not in "fiubc") else None


def _object_array(rows: Sequence[Any]) -> Any:
    """Return rows as an array of cells, each of its own type; rows of several lengths stay unchanged."""
    try:
        return np.array(rows, dtype=object)
    except ValueError:  # rows of several lengths
        return rows


def categorical_positions(categorical: Sequence[Any] | None, names: Sequence[Hashable]) -> tuple[int, ...]:
    """Return the positions of the columns that `categorical` names, ascending: texts are names, integers are positions.

    A mask has a truth value for each column. Raises SchemaError for a column that X lacks.
    """
    columns, named = set(), [] if categorical is None else list(categorical)
    if named and all(isinstance(column, (bool, np.bool_)) for column in named):
        if len(named) != len(names):
            raise SchemaError(
                f"categorical has {counted(len(named), 'truth value')}, X {counted(len(names), 'column')}"
            )
        return tuple(np.flatnonzero(named).tolist())
    for column in named:
        if isinstance(column, Integral):
            position = int(column)
            if not -len(names) <= position < len(names):
                raise SchemaError(f"categorical column {position} is not in X, which has {len(names)} columns")
            columns.add(position % len(names))
        elif column in names:
            columns.add(names.index(column))
        else:
            raise SchemaError(f"categorical column {column!r} is not in X; give names of its columns, or positions")
    return tuple(sorted(columns))


def first_words(words: Sequence[Any]) -> str:
    """Return the first words as text, for a warning."""
    return ", ".join(map(str, words[:MAX_LISTED])) + (", ..." if len(words) > MAX_LISTED else "")


def warn(who: str, message: str) -> None:
    """Warn with the line of the user's code, instead of a line of this package or of scikit-learn."""
    frame, level = sys._getframe(0), 1
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in ("fomo_stream", "sklearn"):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{who}: {message}", FomoWarning, stacklevel=level)


def note_of_misleading(names: Sequence[Hashable], rows: Float, special: Collection[int], remedy: str) -> str | None:
    """Return a warning about misleading columns of rows (n, d), if there are any; see `misleading_columns`."""
    columns = misleading_columns(names, rows, special)
    return f"columns that may mislead: {first_words(columns)}; {MISLEADING}; {remedy}" if columns else None


def numeric_rows(columns: Columns, codes: Collection[int]) -> tuple[Float, list[str]]:
    """Return rows (n, d) of numbers, NaN = missing, and warnings. The columns `codes` become category codes.

    Columns whose texts are all numbers are read. Outside the columns `codes`, raises SchemaError, with the name of the
    column, for dates and other text, and TypeError for other objects.
    """
    rows = np.empty((columns.rows, len(columns.names)))
    texts, rare = [], []
    for position, name in enumerate(columns.names):
        if position in codes:
            rows[:, position] = columns.codes(position)
            if is_mostly_rare(rows[:, position]):
                rare.append(repr(name))
            continue
        if columns.is_temporal(position):
            raise _dates_error(name)
        values = columns.numbers(position)
        if values is None:
            cells = columns.cells(position)
            values = np.array([_cell_number(cell, name) for cell in cells])
            if any(map(is_number_text, cells)):
                texts.append(repr(name))
        rows[:, position] = values
    notes = [f"{READ_AS_NUMBERS}: {first_words(texts)}"] if texts else []
    return rows, notes + ([f"{RARE_VALUES}: {first_words(rare)}; leave them out"] if rare else [])


def _cell_number(cell: Any, name: Hashable) -> float:
    """Return the number in a cell of a column without a numeric type."""
    if is_missing(cell) or (not isinstance(cell, (Real, str, bytes)) and str(cell) in MISSING_TEXTS_OF_PANDAS):
        return np.nan
    if is_number_text(cell):
        return float(cell)
    if is_time(cell):
        raise _dates_error(name)
    if isinstance(cell, (str, bytes)):
        raise SchemaError(f"column {name!r} holds text; {REMEDY}")
    if isinstance(cell, DATES):
        raise _dates_error(name)
    try:
        return float(cell)
    except OverflowError:
        raise SchemaError(f"column {name!r} holds an integer that is too large for a float") from None
    except TypeError as error:
        raise TypeError(f"{error}, in column {name!r}; {REMEDY}") from None


def _dates_error(name: Hashable) -> SchemaError:
    return SchemaError(f"column {name!r} holds dates or times; {REMEDY}; seconds or the hour of the day are numbers")
