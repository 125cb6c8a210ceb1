"""Files of NumPy arrays (npz)."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError, RecordError, SchemaError

NAMES = "names"


class NpzTable:
    """Rows of the array `X` (n, d), or of the only array with two dimensions; the whole array is loaded.

    names: array (d,) of texts, else column_1, column_2 and so on. extra: arrays (n,) that are fields, too, such as a
    label or a time. Arrays of Python objects are refused: loading them could run code.
    """

    def __init__(self, path: Path, chunk: int, extra: Collection[str] = ()) -> None:
        self._chunk = chunk
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in _wanted(archive.files, extra)}
        except (OSError, BadZipFile, EOFError, ValueError, zlib.error) as error:
            raise ConfigError(f"cannot read {path} as npz: {getattr(error, 'strerror', None) or error}") from None
        matrix = _matrix_name(path, arrays)
        self._rows: NDArray[Any] = arrays[matrix]
        self.count, width = self._rows.shape
        if not self.count:
            raise SchemaError(f"array {matrix} of {path} has no rows")
        names = _column_names(path, arrays.get(NAMES), width)
        own = {name: array for name, array in arrays.items() if array.shape == (self.count,) and name != NAMES}
        self._extra = {name: own[name] for name in extra if name in own and name not in names}
        for name, kinds in ((matrix, "biuf"), *((name, "biufUSM") for name in self._extra)):
            if arrays[name].dtype.kind not in kinds:
                raise SchemaError(f"array {name} of {path} has the type {arrays[name].dtype}; save it as numbers")
        self.columns: tuple[str, ...] | None = (*names, *self._extra)

    def chunks(self, start: int) -> Iterator[list[dict[str, Any] | RecordError]]:
        assert self.columns is not None
        for at in range(start, self.count, self._chunk):
            part = slice(at, at + self._chunk)
            values = [*self._rows[part].T.tolist(), *(_listed(array[part]) for array in self._extra.values())]
            yield [dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True)]


def _wanted(files: Collection[str], extra: Collection[str]) -> list[str]:
    """The arrays to load: without X, any may be the matrix."""
    return [name for name in files if "X" not in files or name in ("X", NAMES, *extra)]


def _matrix_name(path: Path, arrays: dict[str, NDArray[Any]]) -> str:
    found = [name for name, array in arrays.items() if array.ndim == 2]
    if "X" in found:
        return "X"
    if len(found) != 1:
        has = f"has {len(found)} arrays of two dimensions" if found else "has no array of two dimensions"
        raise SchemaError(f"{path} {has}; save the rows as array X, one column per feature")
    return found[0]


def _column_names(path: Path, names: NDArray[Any] | None, width: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"column_{i}" for i in range(1, width + 1))
    if names.shape != (width,) or names.dtype.kind not in "US":
        raise SchemaError(f"array names of {path} must have one text for each of the {width} columns")
    listed = _listed(names)
    if twice := [name for name in listed if listed.count(name) > 1]:
        raise SchemaError(f"{path} has two columns named {twice[0]!r}; give each column its own name")
    return tuple(listed)


def _listed(values: NDArray[Any]) -> list[Any]:
    """The values of an array with one dimension, as JSON can hold them."""
    if values.dtype.kind == "M":
        texts: list[Any] = np.datetime_as_string(values).tolist()
        return [None if text == "NaT" else text for text in texts]
    if values.dtype.kind == "S":
        return [text.decode(errors="replace") for text in values.tolist()]
    return list(values.tolist())
