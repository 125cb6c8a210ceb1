"""Formats of files: CSV, JSON lines, Parquet and npz, each read in chunks of records from any record on."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from fomo_stream.errors import ConfigError, RecordError
from fomo_stream.records.files import FORMATS, RecordFile, text_format
from fomo_stream.records.lines import LineSource, Note, plain_text, silent
from fomo_stream.replaying.sources.npz import NpzTable
from fomo_stream.replaying.sources.parquet import ParquetTable
from fomo_stream.wording import did_you_mean

CHUNK = 1024  # records that are read at once
COUNTED_BYTES = 1 << 20  # of a file whose lines are counted, at once

Fields = dict[str, Any]
Chunk = list[Fields | RecordError]
FileFormat = Literal["csv", "jsonl", "parquet", "npz"]

_ENDINGS: dict[str, FileFormat] = {".parquet": "parquet", ".pq": "parquet", ".npz": "npz"}
_MARKS: dict[bytes, FileFormat] = {b"PAR1": "parquet", b"PK\x03\x04": "npz"}  # first bytes
_GZIP = b"\x1f\x8b"


class Table(Protocol):
    """A file of records in one format."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The fields that a record can have; None: each record names its own."""
        ...

    @property
    def count(self) -> int:
        """How many records it has at most."""
        ...

    def chunks(self, start: int) -> Iterator[Chunk]:
        """The records from number `start` on, counted from 0; an error where one cannot be read."""
        ...


def format_of(path: Path, format: str, note: Note = silent) -> FileFormat:
    """The format of a file: as given, else Parquet or npz by its name, or by its first bytes, else as `text_format`.

    Raises ConfigError if it is no file that can be read again and again, SchemaError if it is neither of these.
    """
    if not path.exists():
        raise ConfigError(f"there is no file {path}; check --file")
    if not path.is_file():
        raise ConfigError(f"{path} is not a regular file; a replay may read it more than once, so save it as a file")
    if format in ("csv", "jsonl", "parquet", "npz"):
        return format  # type: ignore[return-value]
    ending = path.suffix.lower()
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if ending not in FORMATS:
        with open_file(path) as stream:
            mark = stream.read(4)
        if mark in _MARKS:
            return _MARKS[mark]
    with open_file(path) as stream:
        return text_format(str(path), LineSource(plain_text(stream, str(path))).peek(), note)


def open_table(
    path: Path, format: FileFormat, text: Collection[str], extra: Collection[str], decimal: str = "auto"
) -> Table:
    """A file as a table. text: columns of CSV that stay text; extra: arrays of npz that are fields, too.

    decimal: as in `RecordFile`. Raises SchemaError or ConfigError if it is empty, damaged or of another format.
    """
    if format == "parquet":
        return ParquetTable(path, CHUNK)
    if format == "npz":
        return NpzTable(path, CHUNK, extra)
    return TextTable(path, format, text, decimal)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file, also one that gzip has compressed. Raises ConfigError if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            is_gzip = stream.read(2) == _GZIP
            stream.seek(0)
            with gzip.open(stream, "rb") if is_gzip else nullcontext(stream) as found:
                yield found  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path}: {why}; check the file and its permissions") from None


class TextTable:
    """CSV or JSON lines, perhaps compressed by gzip."""

    def __init__(self, path: Path, format: FileFormat, text: Collection[str], decimal: str) -> None:
        self._path, self._format, self._text, self._decimal = path, format, text, decimal
        with open_file(path) as stream:
            table = self._open(stream)
            self.columns = tuple(table.header) if format == "csv" else None
        self._count: int | None = None

    @property
    def count(self) -> int:
        if self._count is None:
            lines, last = 0, b"\n"
            with open_file(self._path) as stream:
                while block := stream.read(COUNTED_BYTES):
                    lines, last = lines + block.count(b"\n"), block[-1:]
            self._count = lines + (last != b"\n") - (self._format == "csv")
        return self._count

    def chunks(self, start: int) -> Iterator[Chunk]:
        with open_file(self._path) as stream:
            lines = islice((line for line in self._open(stream) if not line.is_blank), start, None)
            while block := list(islice(lines, CHUNK)):
                yield [line.record if line.record is not None else _error(line.error, line.number) for line in block]

    def _open(self, stream: BinaryIO) -> RecordFile:
        return RecordFile(stream, self._format, str(self._path), self._text, self._decimal)


def _error(error: RecordError | None, number: int) -> RecordError:
    reason = error.reason if error is not None else "not_json"
    return RecordError(reason, f"line {number}: {error}")


def check_columns(table: Table, name: str, fields: Collection[str]) -> None:
    """Raise ConfigError if a table with fixed columns lacks one of these fields."""
    columns = table.columns
    if columns is None:
        return
    for field in fields:
        if not any(field == column or field.startswith(column + ".") for column in columns):
            raise ConfigError(f"{name} has no column {field}{did_you_mean(field, columns)}")
