"""Data in memory as a table of records: a DataFrame, an array, or a list of dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import RecordError, SchemaError

CHUNK = 1024  # records that are made at once

Fields = dict[str, Any]


class MemoryTable:
    """Rows of a pandas DataFrame, of an array (n, d), or of a sequence of dictionaries; values as JSON can hold them.

    An array's columns are column_1, column_2 and so on. `time` is the field that the DatetimeIndex of a DataFrame
    becomes, None where there is no such index; `label` is the field that `labels` (n,) becomes. Raises SchemaError, in
    one sentence, for data of another shape.
    """

    def __init__(self, data: Any, labels: Any = None) -> None:
        self._data = data
        self._extra: dict[str, list[Any]] = {}
        self.time: str | None = None
        self.label: str | None = None
        self.columns: tuple[str, ...] | None = None
        if hasattr(data, "iloc") and hasattr(data, "columns"):
            self.name, self._rows, index = "DataFrame", self._of_frame, data.index
            self.columns = _distinct([str(name) for name in data.columns], "the DataFrame")
            if index.dtype.kind == "M" or hasattr(index, "tz"):
                self.time = self._add(str(index.name or "time"), list(map(plain, index)))
        elif isinstance(data, np.ndarray):
            if data.ndim != 2 or data.dtype.kind not in "biuf":
                raise SchemaError(
                    f"an array of {data.dtype} of shape {data.shape} has no rows of numbers; give (records, features)"
                )
            self.name, self._rows = "array", self._of_array
            self.columns = tuple(f"column_{i}" for i in range(1, data.shape[1] + 1))
        elif isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
            strange = next((one for one in data if not isinstance(one, Mapping)), None)
            if strange is not None:
                raise SchemaError(f"records are dictionaries, not {type(strange).__name__}; give a list of them")
            self.name, self._rows = "list", self._of_list
        else:
            raise SchemaError(
                f"cannot replay a {type(data).__name__}; give a path, a DataFrame, an array (records, features) or a "
                "list of dictionaries, or name a topic by topic="
            )
        if not len(data):
            raise SchemaError(f"the {self.name} has no rows; there is nothing to replay")
        if labels is not None:
            self.label = self._add("label", self._checked(labels))

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._data)

    def chunks(self, start: int) -> Iterator[list[Fields | RecordError]]:
        """The records from number `start` on, counted from 0."""
        for at in range(start, self.count, CHUNK):
            part = slice(at, at + CHUNK)
            rows = self._rows(part)
            if self._extra:
                values = zip(*(column[part] for column in self._extra.values()), strict=True)
                rows = [row | dict(zip(self._extra, one, strict=True)) for row, one in zip(rows, values, strict=True)]
            yield [*rows]

    def _add(self, name: str, values: list[Any]) -> str:
        """Add a field with a value for each row; returns its name, which no other field has."""
        taken: Collection[str] = (
            self.columns if self.columns is not None else {key for row in self._data for key in row}
        )
        while name in taken or name in self._extra:
            name += "_"
        self._extra[name] = values
        if self.columns is not None:
            self.columns = (*self.columns, name)
        return name

    def _checked(self, labels: Any) -> list[Any]:
        values = np.asarray(labels)
        if values.shape != (self.count,):
            raise SchemaError(f"labels have the shape {values.shape}; the {self.name} needs ({self.count},)")
        return [plain(value) for value in values.tolist()]

    def _of_frame(self, part: slice) -> list[Fields]:
        frame = self._data.iloc[part]
        names = [str(name) for name in frame.columns]
        columns = [_listed(frame.iloc[:, i].to_numpy()) for i in range(len(names))]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _of_array(self, part: slice) -> list[Fields]:
        names = [f"column_{i}" for i in range(1, self._data.shape[1] + 1)]
        columns = [_listed(column) for column in self._data[part].T]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _of_list(self, part: slice) -> list[Fields]:
        return [plain(row) for row in self._data[part]]


def plain(value: Any) -> Any:
    """A value as JSON can hold it: None for NaN and what is missing, ISO 8601 text for a time.

    >>> plain([np.int64(3), float("nan"), datetime(2026, 10, 1)])
    [3, None, '2026-10-01T00:00:00']
    """
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value == value else None
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(part) for part in value]
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else str(np.datetime_as_string(value))
    if isinstance(value, (datetime, date)):
        return value.isoformat() if value == value else None  # NaT differs from itself
    return None if str(value) in ("NaT", "<NA>") else str(value)


def _listed(values: NDArray[Any]) -> list[Any]:
    listed: list[Any] = values.tolist() if values.dtype.kind != "M" else list(values)
    if values.dtype.kind in "biu":
        return listed
    if values.dtype.kind == "f":
        return [value if value == value else None for value in listed]
    return [plain(value) for value in listed]


def _distinct(names: list[str], where: str) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"{where} has two columns named {twice!r}; give each column its own name")
    return tuple(names)
