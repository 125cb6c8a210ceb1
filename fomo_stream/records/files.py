"""Reading files of records: CSV, JSON lines and Avro, as they arrive and in constant memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from fomo_stream.errors import ConfigError, RecordError, SchemaError, needs_extra
from fomo_stream.records.cells import cell_reader
from fomo_stream.records.csv_rows import BLANKS, CsvRows
from fomo_stream.records.dialect import dialect_of
from fomo_stream.records.json_codec import decode
from fomo_stream.records.lines import BLANK_BYTES, LineSource, Note, discard_note, plain_text
from fomo_stream.records.schema import Schema
from fomo_stream.wording import counted

BLOCK_RECORDS = 1000  # records of a file that become rows together
SAMPLE_LINES, LARGE_SAMPLE_LINES = 200, 1000  # show the dialect of CSV; the large one if a comma is ambiguous
SAMPLE_BYTES = 2**20  # of these lines
Format = Literal["csv", "jsonl", "avro"]
FORMATS: dict[str, Format] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
}
FORMAT_HINT = "it must be CSV with rows under a line of column names, JSON lines or Avro; see --format"
JSON_HINT = "each line must be one JSON object, as jq -c . writes them; CSV of another name needs --format csv"
AVRO_MARK = b"Obj\x01"  # first bytes of an Avro file


@dataclass(frozen=True, slots=True)
class Line:
    """One record of a file, or its error, or neither: a blank line, or in CSV one that describes the columns.

    number, last: its first and last line, counted from 1, or in Avro the number of the record. raw: the line as read,
    or the cells of a CSV row.
    """

    number: int
    raw: bytes | list[str]
    record: dict[str, Any] | None
    error: RecordError | None = None
    last: int = 0

    @property
    def is_blank(self) -> bool:
        return self.record is None and self.error is None

    @property
    def lines(self) -> int:
        """Return how many lines it has."""
        return max(1, self.last - self.number + 1)


class RecordFile:
    """CSV, JSON lines or Avro, read as they arrive and in constant memory; iterating gives one `Line` per record.

    format: csv, jsonl, avro or auto: Avro by the ending of the name or its first bytes; JSON lines if the first line is
    a JSON object, else by the ending of the name, else by the first character. text: columns whose cells stay text, so
    that 007 is not 7. CSV needs a line of column names.
    decimal: the mark in numbers of CSV, point or comma; delimiter: of its cells; skip_lines: the number of lines above
    the names. auto, or None: see `dialect_of`. Raises SchemaError if
    the input is empty or has no usable header.
    """

    def __init__(
        self,
        stream: BinaryIO,
        format: str = "auto",
        name: str = "the input",
        text: Collection[str] = (),
        decimal: str = "auto",
        note: Note = discard_note,
        delimiter: str = "auto",
        skip_lines: int | None = None,
    ) -> None:
        self.name, self.delimiter = name, ","
        # By column: the number of text cells so far, and of numbers with more around them; with the first of each.
        self.texts: dict[str, tuple[int, str]] = {}
        self.with_more: dict[str, tuple[int, str]] = {}
        self._text, self._note = text, note
        self.header: list[str] = []  # names of the columns
        self._avro: Iterator[dict[str, Any] | RecordError] | None = None
        if format == "avro" or (format == "auto" and (name.lower().endswith(".avro") or _begins_as_avro(stream))):
            self.format, self.blank_before, self._avro = "avro", 0, _open_avro(stream, name)
            return
        self._source = LineSource(plain_text(stream, name))
        first = self._source.peek()
        if not first:
            raise SchemaError(f"{name} is empty", FORMAT_HINT)
        self.format = format if format != "auto" else text_format(name, first, note)
        self.blank_before = self._source.number  # blank lines before the header, or before the first record of JSON
        if self.format == "csv":
            self._read_header(delimiter, decimal, skip_lines)

    @property
    def drained(self) -> bool:
        """True when the next record would have to wait for more input."""
        if self._avro is not None:  # its blocks are complete
            return False
        return (self._rows if self.format == "csv" else self._source).drained

    def __iter__(self) -> Iterator[Line]:
        if self._avro is not None:
            return self._avro_lines(self._avro)
        return self._csv_lines() if self.format == "csv" else self._json_lines()

    def _avro_lines(self, records: Iterator[dict[str, Any] | RecordError]) -> Iterator[Line]:
        number = 0
        try:
            for number, record in enumerate(records, 1):
                yield Line(number, b"", *((None, record) if isinstance(record, RecordError) else (record,)))
        except RecordError as error:
            raise ConfigError(f"cannot read {self.name} after record {number}: {error}") from None

    def _json_lines(self) -> Iterator[Line]:
        for number in range(1, self.blank_before + 1):
            yield Line(number, b"", None)
        for raw in self._source:
            number = self._source.number
            if not raw.strip(BLANK_BYTES):
                yield Line(number, b"", None)
                continue
            try:
                yield Line(number, raw, decode(raw))
            except RecordError as error:
                yield Line(number, raw, None, error)

    def _read_header(self, delimiter: str, decimal: str, skip_lines: int | None) -> None:
        while self._source.number < (skip_lines or 0):
            next(self._source, None)
            if not self._source.ahead(1, 1):
                has = counted(self._source.number, "line")
                raise SchemaError(f"{self.name} has {has}; --skip-lines {skip_lines} leaves none")
        for n in (SAMPLE_LINES, LARGE_SAMPLE_LINES):
            lines = self._source.ahead(n, SAMPLE_BYTES)
            dialect = dialect_of(lines, self._source.number + 1, self.name, delimiter, decimal, skip_lines, self._text)
            if dialect.is_certain:
                break
        while self._source.number < dialect.line - 1:
            next(self._source)
        self.blank_before, self._skipped = self._source.number, dialect.skipped
        # Blanks would not show an empty cell of a result.
        self.delimiter = "," if dialect.delimiter == BLANKS else dialect.delimiter
        self._rows = CsvRows(self._source, dialect.delimiter)
        next(self._rows)  # the names
        self.header = list(dialect.names)
        self._rows.width, self._rows.ends_empty = len(self.header), dialect.ends_empty
        self._cells = [
            (lambda text: text.strip() or None)
            if name in self._text
            else cell_reader(form, partial(count_cell, self.texts, name), partial(count_cell, self.with_more, name))
            for name, form in zip(self.header, dialect.forms, strict=True)
        ]
        for text in dialect.notes:
            self._note(text)

    def _csv_lines(self) -> Iterator[Line]:
        for number, last, cells, error in self._rows:
            if error is not None:
                yield Line(number, cells, None, error, last)
            elif not cells or number in self._skipped:
                yield Line(number, cells, None, None, last)
            else:
                values = [read(cell) for read, cell in zip(self._cells, cells, strict=True)]
                yield Line(number, cells, dict(zip(self.header, values, strict=True)), None, last)


def _begins_as_avro(stream: BinaryIO) -> bool:
    """Peek at the first bytes of a file or a pipe; read and seek back in another stream."""
    look = getattr(stream, "peek", None)
    if look is not None:
        return bool(look(len(AVRO_MARK))[: len(AVRO_MARK)] == AVRO_MARK)
    first = stream.read(len(AVRO_MARK))
    stream.seek(-len(first), 1)
    return first == AVRO_MARK


def _open_avro(stream: BinaryIO, name: str) -> Iterator[dict[str, Any] | RecordError]:
    with needs_extra(f"reading {name}"):
        from fomo_stream.records.avro_file import read_container
    try:
        return read_container(stream)
    except RecordError as error:
        raise SchemaError(f"cannot read {name}: {error}") from None


def text_format(name: str, first: bytes, note: Note = discard_note) -> Format:
    """Return the format of a text file by its name, also a packed one, and its first line that is not blank."""
    path = Path(name.lower())
    named = FORMATS.get((path.with_suffix("") if path.suffix in (".gz", ".zst") else path).suffix)
    if named != "csv":
        return named or ("jsonl" if first.lstrip(BLANK_BYTES)[:1] in (b"{", b"[") else "csv")
    try:
        decode(first)
    except RecordError:
        return "csv"
    note(f"{name} is read as JSON lines")
    return "jsonl"


def count_cell(counts: dict[str, tuple[int, str]], name: str, cell: str) -> None:
    """Count a cell of a column, and keep the first one."""
    count, first = counts.get(name, (0, cell))
    counts[name] = count + 1, first


def trusted_records(file: RecordFile) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, without blank lines.

    Raises SchemaError with the line number at the first line that is not a record.
    """
    for line in file:
        if line.error is not None:
            raise SchemaError(f"{file.name} line {line.number}: {line.error}; correct or remove that line")
        if line.record is not None:
            yield line.record


def open_records(path: str | Path) -> BinaryIO:
    """Open a file of records. Raises ConfigError if it cannot be read."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from None


def read_rows(path: str | Path, schema: Schema) -> np.ndarray:
    """Read a file of trusted records as rows (n_rows, n_features), float64, for a warm start.

    Rows without a value of any feature are left out. Raises ConfigError if the file cannot be read, SchemaError if a
    line is not a record or no row has a feature of `schema`.
    """
    blocks = []
    with open_records(path) as stream:
        records = trusted_records(RecordFile(stream, name=str(path), text=schema.categorical))
        while block := list(islice(records, BLOCK_RECORDS)):
            rows = schema.rows(block)
            blocks.append(rows[~np.isnan(rows).all(axis=1)])
    rows = np.concatenate(blocks) if blocks else np.empty((0, len(schema.features)))
    if not len(rows):
        requested = ", ".join(schema.features[:10])
        raise SchemaError(f"no row of {path} has a value of any of the features {requested}; check their names")
    return rows
