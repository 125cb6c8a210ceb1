"""Parquet files, by pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from fomo_stream.errors import ConfigError, RecordError, SchemaError

Chunk = list[dict[str, Any] | RecordError]


class ParquetTable:
    """A Parquet file. Memory is bounded by one of its row groups.

    Structs are nested fields, lists stay lists. Dates and times become ISO 8601 text, decimals numbers, bytes text, so
    that every record can be written as JSON.
    """

    def __init__(self, path: Path, chunk: int) -> None:
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError:
            raise ConfigError(
                f"reading {path} needs pyarrow, which is not installed; pip install 'fomo-stream[parquet]'"
            ) from None
        self._type, self._path, self._chunk = ParquetFile, path, chunk
        with self._open() as file:
            names = file.schema_arrow.names
            self.columns: tuple[str, ...] | None = tuple(names)
            self.count: int = file.metadata.num_rows
            self._groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SchemaError(f"{path} has two columns named {twice[0]!r}; give each column its own name")

    def chunks(self, start: int) -> Iterator[Chunk]:
        group = 0
        while group < len(self._groups) and start >= self._groups[group]:
            start -= self._groups[group]
            group += 1
        if group == len(self._groups):
            return
        with self._open() as file:
            names = file.schema_arrow.names
            groups = list(range(group, len(self._groups)))
            for batch in file.iter_batches(self._chunk, row_groups=groups, use_threads=False):
                n = len(batch)
                part = batch.slice(min(start, n)) if start else batch
                start -= min(start, n)
                if len(part):
                    columns = [_values(column) for column in part.columns]
                    yield [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    @contextmanager
    def _open(self) -> Iterator[Any]:
        from pyarrow import ArrowException

        try:
            with self._type(self._path, pre_buffer=False) as file:
                yield file
        except (ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0].rstrip(". ")
            raise ConfigError(f"cannot read {self._path} as Parquet: {reason}") from None


def _values(column: Any) -> list[Any]:
    """The values of one column, as JSON can hold them."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        column = column.cast(pa.string())
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_float16(kind):
        column = column.cast(pa.float32())
    elif not (
        pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.null()
    ):
        return [_plain(value) for value in column.to_pylist()]
    if pa.types.is_primitive(column.type) and not column.null_count:  # pyarrow's own loop is slow before version 20
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return values
    return list(column.to_pylist())


def _plain(value: Any) -> Any:
    """A nested value, as JSON can hold it."""
    if isinstance(value, dict):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
