"""Tables of records: files of CSV, JSON lines, Avro, Parquet or npz, and data in memory, read in chunks of records.

A table has `columns`, the fields that a record can have (None: each record names its own), `count`, the maximum number
of records, and `chunks()`, which yields all records, with an error where one cannot be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError

from fomo_stream.errors import ConfigError, RecordError, SchemaError, needs_extra
from fomo_stream.records.arrays import open_arrays
from fomo_stream.records.files import AVRO_MARK, FORMATS, RecordFile, open_records, text_format
from fomo_stream.records.lines import LineSource, Note, discard_note, plain_text
from fomo_stream.replaying.report_files import json_value, none_for_nan
from fomo_stream.wording import did_you_mean

CHUNK = 1024  # records that are read at once

Fields = dict[str, Any]
FileFormat = Literal["csv", "jsonl", "avro", "parquet", "npz"]

_ENDINGS: dict[str, FileFormat] = {".parquet": "parquet", ".pq": "parquet", ".npz": "npz", ".avro": "avro"}
_MARKS: dict[bytes, FileFormat] = {b"PAR1": "parquet", b"PK\x03\x04": "npz", AVRO_MARK: "avro"}  # first bytes
_NAMES = "names"  # array of an npz file with the names of the columns
_PLAIN = frozenset((str, int, bool, float))


def format_of(path: Path, format: str, note: Note = discard_note) -> FileFormat:
    """Return the format of a file: the given one, else by its name or first bytes, else that of `text_format`.

    Raises ConfigError if it is not a file that can be read repeatedly, SchemaError for an unknown format.
    """
    if not path.exists():
        raise ConfigError(f"there is no file {path}; check --file")
    if not path.is_file():
        raise ConfigError(f"{path} is not a regular file; a replay may read it more than once, so save it as a file")
    if format in get_args(FileFormat):
        return cast(FileFormat, format)
    ending = path.suffix.lower()
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    with open_records(path) as stream:
        mark = stream.read(4)
        if mark in _MARKS and ending not in FORMATS:
            return _MARKS[mark]
        stream.seek(0)
        return text_format(str(path), LineSource(plain_text(stream, str(path))).peek(), note)


def open_table(
    path: Path, format: FileFormat, text: Collection[str] = (), extra: Collection[str] = (), **csv: Any
) -> Table:
    """Open a file as a table. text: columns of CSV that stay text; extra: arrays of npz that are also fields.

    csv: delimiter, decimal and skip_lines, as in `RecordFile`. Raises SchemaError or ConfigError if it is empty,
    damaged or of another format.
    """
    if format == "parquet":
        return ParquetTable(path)
    return ColumnTable(_arrays(path, extra)) if format == "npz" else TextTable(path, format, text, csv)


def check_columns(table: Table, name: str, fields: Collection[str]) -> None:
    """Raise ConfigError if a table with fixed columns lacks one of these fields."""
    columns = table.columns
    for field in fields if columns is not None else ():
        if not any(field == column or field.startswith(column + ".") for column in columns or ()):
            raise ConfigError(f"{name} has no column {field}{did_you_mean(field, columns or ())}")


class TextTable:
    """CSV or JSON lines, plain or compressed by gzip, or an Avro file."""

    def __init__(self, path: Path, format: FileFormat, text: Collection[str], csv: Mapping[str, Any]) -> None:
        self._path, self._options = path, {"format": format, "name": str(path), "text": text, **csv}
        self.notes: list[str] = []
        with open_records(path) as stream:
            header = RecordFile(stream, note=self.notes.append, **self._options).header
        self.columns = tuple(header) if format == "csv" else None

    @cached_property
    def count(self) -> int:
        with open_records(self._path) as stream:
            if self._options["format"] == "avro":
                from fomo_stream.records.avro_file import count_in_container

                return count_in_container(stream)
            return sum(1 for _ in LineSource(plain_text(stream, str(self._path)))) - (self.columns is not None)

    def chunks(self) -> Iterator[list[Fields | RecordError]]:
        with open_records(self._path) as stream:
            lines = (line for line in RecordFile(stream, **self._options) if not line.is_blank)
            while block := list(islice(lines, CHUNK)):
                errors = {line.number: line.error for line in block if line.error is not None}
                located = {n: RecordError(error.reason, f"line {n}: {error}") for n, error in errors.items()}
                yield [located.get(line.number) or line.record or {} for line in block]


class ColumnTable:
    """Records in columns of equal length: arrays (n,) of NumPy, lists, or series of narwhals."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self.columns: tuple[str, ...] | None = tuple(columns)
        self.count = len(next(iter(columns.values())))

    def chunks(self) -> Iterator[list[Fields]]:
        for start in range(0, self.count, CHUNK):
            yield _records(self._columns, (column[start : start + CHUNK] for column in self._columns.values()))


class RowTable:
    columns = None

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows, self.count = rows, len(rows)

    def chunks(self) -> Iterator[list[Fields]]:
        for start in range(0, self.count, CHUNK):
            yield [json_value(row, none_for_nan) for row in self._rows[start : start + CHUNK]]


class ParquetTable:
    """A Parquet file, read by pyarrow, which is optional. Memory is bounded by one of its row groups.

    Structs are nested fields, lists stay lists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as file:
            self.columns: tuple[str, ...] | None = _checked_distinct(file.schema_arrow.names, str(path))
            self.count: int = file.metadata.num_rows

    def chunks(self) -> Iterator[list[Fields]]:
        with self._open() as file:
            for batch in file.iter_batches(CHUNK, use_threads=False):
                yield _records(batch.schema.names, map(_without_nanoseconds, batch.columns))

    @contextmanager
    def _open(self) -> Iterator[Any]:
        with needs_extra(f"reading {self._path}", "parquet"):
            from pyarrow import ArrowException
            from pyarrow.parquet import ParquetFile
        try:
            with ParquetFile(self._path, pre_buffer=False) as file:
                yield file
        except (ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0].rstrip(". ")
            raise ConfigError(f"cannot read {self._path} as Parquet: {reason}") from None


Table = TextTable | ColumnTable | RowTable | ParquetTable


def _without_nanoseconds(column: Any) -> Any:
    """Return an arrow array with times as text and durations in microseconds, because Python lacks nanoseconds."""
    import pyarrow as pa

    if pa.types.is_duration(column.type):
        return column.cast(pa.duration("us"), safe=False)
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) else column


def _arrays(path: Path, extra: Collection[str]) -> dict[str, Any]:
    """Return the columns of a file of NumPy arrays: those of `X` (n, d), or of the only matrix, and the arrays `extra`.

    The array `names` (d,) has their names, else they are column_1, column_2 and so on. extra: names of arrays (n,) that
    are also columns, such as a label or a time. Arrays of Python objects are refused: loading them could run code.
    """
    with open_arrays(path) as archive:
        needed = {"X", _NAMES, *extra} if "X" in archive.files else set(archive.files)
        arrays = {name: archive[name] for name in archive.files if name in needed}
    matrices = [name for name, array in arrays.items() if array.ndim == 2]
    if len(matrices) != 1 and "X" not in matrices:
        has = f"{len(matrices)} arrays" if matrices else "no array"
        raise SchemaError(f"{path} has {has} of two dimensions; save the rows as array X, one column per feature")
    rows = arrays[matrix := "X" if "X" in matrices else matrices[0]]
    if not len(rows):
        raise SchemaError(f"array {matrix} of {path} has no rows")
    names = arrays.get(_NAMES, np.array([f"column_{i}" for i in range(1, rows.shape[1] + 1)], str))
    if names.shape != rows.shape[1:] or names.dtype.kind not in "US":
        raise SchemaError(f"array names of {path} must have one text for each of the {rows.shape[1]} columns")
    columns = dict(zip(_checked_distinct(_json_values(names), str(path)), rows.T, strict=True))
    fields = {name: arrays[name] for name in extra if name in arrays and name not in columns}
    fields = {name: array for name, array in fields.items() if array.shape == rows.shape[:1]}
    for name, array in {matrix: rows, **fields}.items():
        if array.dtype.kind not in ("biuf" if name == matrix else "biufUSM"):
            raise SchemaError(f"array {name} of {path} has the type {array.dtype}; save it as numbers")
    return columns | fields


class InMemory(NamedTuple):
    """Data in memory as a table; `time` and `label` are the fields with the time and the label, if it has them."""

    table: Table
    name: str  # its type, in a word
    time: str | None = None
    label: str | None = None


def in_memory(data: Any, labels: Any = None) -> InMemory:
    """Return a DataFrame, an array (n, d), or a sequence of dictionaries as a table.

    The columns of an array are column_1, column_2 and so on. A DatetimeIndex becomes a field with the time, and
    `labels` (n,) a field with the label. Raises SchemaError, in one sentence, for data of another shape.
    """
    columns: dict[str, Any] = {}
    rows: Sequence[Mapping[str, Any]] = ()
    time = label = None
    if nw.dependencies.is_into_dataframe(data):
        name = "DataFrame"
        try:
            frame = nw.from_native(data, eager_only=True)
        except DuplicateError:
            raise SchemaError("the DataFrame has two columns of one name; give each column its own name") from None
        names = _checked_distinct(list(map(str, frame.columns)), "the DataFrame")
        columns = {column: frame[:, i] for i, column in enumerate(names)}
        index: Any = getattr(data, "index", None)
        if getattr(getattr(index, "dtype", None), "kind", "") == "M":
            time = _unused_name(str(index.name or "time"), columns)
            columns[time] = list(index)
    elif isinstance(data, np.ndarray):
        if data.ndim != 2 or data.dtype.kind not in "biuf":
            raise SchemaError(
                f"an array of {data.dtype} of shape {data.shape} has no rows of numbers; give (records, features)"
            )
        name, columns = "array", {f"column_{i}": column for i, column in enumerate(data.T, 1)}
    elif isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        if (other := next((row for row in data if not isinstance(row, Mapping)), None)) is not None:
            raise SchemaError(f"records are dictionaries, not {type(other).__name__}; give a list of them")
        name, rows = "list", data
    else:
        raise SchemaError(
            f"cannot replay a {type(data).__name__}; give a path, a DataFrame, an array (records, features) or a "
            "list of dictionaries, or name a topic by topic="
        )
    if not len(data):
        raise SchemaError(f"the {name} has no rows; there is nothing to replay")
    if labels is not None:
        verdicts = np.asarray(labels)
        if verdicts.shape != (len(data),):
            raise SchemaError(f"labels have the shape {verdicts.shape}; the {name} needs ({len(data)},)")
        label = _unused_name("label", columns or {key for row in rows for key in row})
        if columns:
            columns[label] = verdicts
        rows = [{**row, label: verdict} for row, verdict in zip(rows, verdicts, strict=False)]
    return InMemory(ColumnTable(columns) if columns else RowTable(rows), name, time, label)


def _unused_name(name: str, taken: Collection[str]) -> str:
    """Return the name, made longer until it differs from all others."""
    while name in taken:
        name += "_"
    return name


def _checked_distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SchemaError(f"{where} has two columns named {repeated[0]!r}; give each column its own name")
    return tuple(names)


def _records(names: Iterable[str], columns: Iterable[Any]) -> list[Fields]:
    names = list(names)
    return [dict(zip(names, row, strict=True)) for row in zip(*map(_json_values, columns), strict=True)]


def _json_values(column: Any) -> list[Any]:
    """Return the values of a column as JSON can hold them."""
    if isinstance(column, np.ndarray):
        values: list[Any] = list(column) if column.dtype.kind in "Mm" else column.tolist()
    else:
        values = next((getattr(column, way)() for way in ("to_list", "to_pylist") if hasattr(column, way)), column)
    return [value if type(value) in _PLAIN and value == value else json_value(value, none_for_nan) for value in values]
