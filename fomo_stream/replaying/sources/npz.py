"""Files of NumPy arrays (npz), read row by row from the archive."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError, RecordError, SchemaError

Chunk = list[dict[str, Any] | RecordError]
NAMES = "names"


@dataclass(frozen=True)
class _Header:
    """What the beginning of an array's file says."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return int(self.dtype.itemsize * np.prod(self.shape[1:], dtype=np.int64))


class NpzTable:
    """Rows of the array `X` (n, d), or of the only array with two dimensions.

    names: array (d,) of texts, else column_1, column_2 and so on. extra: arrays (n,) that are fields, too, such as a
    label or a time; the others are not read. Memory is constant, also for compressed files, except for a matrix in
    Fortran order, which is loaded as a whole. Arrays of Python objects are refused: loading them could run code.
    """

    def __init__(self, path: Path, chunk: int, extra: Collection[str] = ()) -> None:
        self._path, self._chunk = path, chunk
        with self._open() as archive:
            headers = {name.removesuffix(".npy"): self._header(archive, name) for name in archive.namelist()}
            self._matrix = self._find_matrix(headers)
            self.count, width = headers[self._matrix].shape
            self._names = self._read_names(archive, headers, width)
        arrays = {name for name, one in headers.items() if one.shape == (self.count,) and name != NAMES}
        self._extra = tuple(name for name in dict.fromkeys(extra) if name in arrays and name not in self._names)
        for name in (self._matrix, *self._extra):
            kinds = "biuf" if name == self._matrix else "biufUSM"
            if headers[name].dtype.kind not in kinds:
                raise SchemaError(f"array {name} of {path} has the type {headers[name].dtype}; save it as numbers")
        self.columns: tuple[str, ...] | None = (*self._names, *self._extra)
        self._headers = headers
        if not self.count:
            raise SchemaError(f"array {self._matrix} of {path} has no rows")

    def chunks(self, start: int) -> Iterator[Chunk]:
        with self._open() as archive:
            parts = [self._rows(archive, name, start) for name in (self._matrix, *self._extra)]
            for matrix, *extra in zip(*parts, strict=True):
                columns = [_listed(part) for part in extra]
                rows = (dict(zip(self._names, row, strict=True)) for row in matrix.tolist())
                if not columns:
                    yield list(rows)
                    continue
                values = zip(*columns, strict=True)
                yield [row | dict(zip(self._extra, one, strict=True)) for row, one in zip(rows, values, strict=True)]

    def _rows(self, archive: ZipFile, name: str, start: int) -> Iterator[NDArray[Any]]:
        """Rows `start` and so on of an array, up to `chunk` at a time."""
        header = self._headers[name]
        if header.is_fortran and len(header.shape) > 1:
            with archive.open(f"{name}.npy") as stream:
                whole = npy.read_array(stream, allow_pickle=False)
            for at in range(start, self.count, self._chunk):
                yield whole[at : at + self._chunk]
            return
        with archive.open(f"{name}.npy") as stream:
            _read_header(stream)
            stream.seek(start * header.row_bytes, 1)
            for at in range(start, self.count, self._chunk):
                size = min(self._chunk, self.count - at) * header.row_bytes
                data = stream.read(size)
                if len(data) < size:
                    raise EOFError(f"array {name} ends after {at} of {self.count} rows")
                yield np.frombuffer(data, header.dtype).reshape(-1, *header.shape[1:])

    def _find_matrix(self, headers: dict[str, _Header]) -> str:
        found = [name for name, one in headers.items() if len(one.shape) == 2]
        if "X" in found:
            return "X"
        if len(found) != 1:
            has = f"has {len(found)} arrays of two dimensions" if found else "has no array of two dimensions"
            raise SchemaError(f"{self._path} {has}; save the rows as array X, one column per feature")
        return found[0]

    def _read_names(self, archive: ZipFile, headers: dict[str, _Header], width: int) -> tuple[str, ...]:
        if NAMES not in headers:
            return tuple(f"column_{i}" for i in range(1, width + 1))
        if headers[NAMES].shape != (width,) or headers[NAMES].dtype.kind not in "US":
            raise SchemaError(f"array names of {self._path} must have one text for each of the {width} columns")
        with archive.open(f"{NAMES}.npy") as stream:
            names = _listed(npy.read_array(stream, allow_pickle=False))
        if len(set(names)) < width:
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaError(f"{self._path} has two columns named {twice!r}; give each column its own name")
        return tuple(names)

    def _header(self, archive: ZipFile, name: str) -> _Header:
        with archive.open(name) as stream:
            return _read_header(stream)

    @contextmanager
    def _open(self) -> Iterator[ZipFile]:
        try:
            with ZipFile(self._path) as archive:
                yield archive
        except SchemaError:  # is a ValueError, too
            raise
        except (OSError, BadZipFile, EOFError, ValueError, zlib.error) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot read {self._path} as npz: {why}") from None


def _read_header(stream: IO[bytes]) -> _Header:
    """Raises ValueError if this is no array."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    return _Header(*read(stream))


def _listed(values: NDArray[Any]) -> list[Any]:
    """The values of an array with one dimension, as JSON can hold them."""
    if values.dtype.kind == "M":
        texts: list[Any] = np.datetime_as_string(values).tolist()
        return [None if text == "NaT" else text for text in texts]
    if values.dtype.kind == "S":
        return [text.decode(errors="replace") for text in values.tolist()]
    return list(values.tolist())
