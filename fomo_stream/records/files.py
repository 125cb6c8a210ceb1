"""Reading files of records: CSV and JSON lines, as they arrive and in constant memory."""

from __future__ import annotations

import csv
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from fomo_stream.errors import ConfigError, RecordError, SchemaError
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.records.json_codec import decode
from fomo_stream.records.schema import Schema

BLOCK = 1000  # records of a file that become rows at once
Format = Literal["csv", "jsonl"]
_FORMATS: dict[str, Format] = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"
}  # fmt: skip
_CHUNK_BYTES = 2**20  # asked of a stream in one read


class LineSource:
    """The lines of a binary stream as they arrive, in memory bounded by one line of `MAX_RECORD_BYTES`.

    `drained` is True when the next line would have to wait for more input, so results should be written now.
    A line that is too long is cut just above the limit, so that decoding it reports `too_large`.
    """

    def __init__(self, stream: BinaryIO) -> None:
        # A pipe's read1 returns what is there now; a plain read would wait for the whole chunk.
        self._read = getattr(stream, "read1", stream.read)
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._skipping = False
        self._ended = False
        self.number = 0  # of the last line taken, counted from 1

    @property
    def drained(self) -> bool:
        return not self._lines

    def __iter__(self) -> LineSource:
        return self

    def __next__(self) -> bytes:
        self._fill()
        if not self._lines:
            raise StopIteration
        self.number += 1
        return self._lines.popleft()

    def peek(self) -> bytes:
        """The next line that is not blank, without taking it; empty at the end. Blank lines are skipped."""
        self._fill()
        while self._lines and not self._lines[0].strip(b"\xef\xbb\xbf \t\r\n"):
            next(self)
            self._fill()
        return self._lines[0] if self._lines else b""

    def _fill(self) -> None:
        while not self._lines and not self._ended:
            chunk = self._read(_CHUNK_BYTES)
            self._ended = not chunk
            *complete, self._rest = (self._rest + chunk).split(b"\n")
            if self._ended and self._rest:
                complete.append(self._rest)
            if complete and self._skipping:
                complete.pop(0)
                self._skipping = False
            if self._skipping:
                self._rest = b""
            elif len(self._rest) > MAX_RECORD_BYTES and not self._ended:
                complete.append(self._rest[: MAX_RECORD_BYTES + 1])
                self._rest, self._skipping = b"", True
            self._lines.extend(complete)


@dataclass(frozen=True, slots=True)
class Line:
    """One record of a file, or the error in it. raw: the line as read, or the cells of a CSV row."""

    number: int  # counted from 1
    raw: bytes | list[str]
    record: dict[str, Any] | None
    error: RecordError | None = None


class RecordFile:
    """CSV or JSON lines, read as they arrive and in constant memory; iterating gives one `Line` per record.

    format: csv, jsonl or auto (recognised by the ending of the name, else by the first character). text: columns whose
    cells stay text, so that 007 is not 7. CSV needs a line of column names, which also shows the delimiter: comma,
    semicolon or tab. Blank lines are skipped. Raises SchemaError if the input is empty or has no usable header.
    """

    def __init__(
        self, stream: BinaryIO, format: str = "auto", name: str = "the input", text: Collection[str] = ()
    ) -> None:
        self.name = name
        self._text = text
        self._source = LineSource(stream)
        first = self._source.peek()
        if not first:
            raise SchemaError(f"{name} is empty; it must be CSV with a line of column names, or JSON lines")
        by_content: Format = "jsonl" if first.lstrip(b"\xef\xbb\xbf \t")[:1] in (b"{", b"[") else "csv"
        self.format = format if format != "auto" else _FORMATS.get(Path(name).suffix.lower(), by_content)
        self.header: list[str] = []
        self.delimiter = ","
        if self.format == "csv":
            self._read_header(first)

    @property
    def drained(self) -> bool:
        """True when the next record would have to wait for more input."""
        return self._source.drained

    def __iter__(self) -> Iterator[Line]:
        return self._csv_lines() if self.format == "csv" else self._json_lines()

    def _json_lines(self) -> Iterator[Line]:
        for raw in self._source:
            if not raw.strip():
                continue
            number = self._source.number
            try:
                yield Line(number, raw, decode(raw))
            except RecordError as error:
                yield Line(number, raw, None, error)

    def _read_header(self, first: bytes) -> None:
        self.delimiter = max(",;\t", key=lambda mark: first.count(mark.encode()))
        # Cells in another encoding than UTF-8 pass through unchanged, as surrogates.
        texts = ((raw + b"\n").decode("utf-8", "surrogateescape") for raw in self._source)
        self._reader = csv.reader(texts, delimiter=self.delimiter)
        try:
            header = next(self._reader)
        except csv.Error as error:
            raise SchemaError(f"{self.name} has no readable line of column names: {_plain(error)}") from None
        header[0] = header[0].removeprefix("\ufeff")
        if all(not isinstance(_cell(text), str) for text in header):
            raise SchemaError(f"{self.name} starts with numbers; add a first line that names the columns")
        self.header = [text.strip() or f"column_{i}" for i, text in enumerate(header, 1)]
        commonest, count = Counter(self.header).most_common(1)[0]
        if count > 1:
            raise SchemaError(f"{self.name} has two columns named {commonest!r}; give each column its own name")
        self._parsers = [_text_cell if name in self._text else _cell for name in self.header]

    def _csv_lines(self) -> Iterator[Line]:
        width = len(self.header)
        while True:
            number = self._source.number + 1
            try:
                cells = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                message = f"the row is not CSV: {_plain(error)}" + self._span(number)
                yield Line(number, [], None, RecordError("not_csv", message))
                continue
            if len(cells) == width:
                values = [parse(cell) for parse, cell in zip(self._parsers, cells, strict=True)]
                yield Line(number, cells, dict(zip(self.header, values, strict=True)))
            elif cells:
                message = f"the row has {len(cells)} cells, the header has {width}" + self._span(number)
                yield Line(number, cells, None, RecordError("ragged", message))

    def _span(self, number: int) -> str:
        last = self._source.number
        return f"; it goes on to line {last}: is a quote missing?" if last > number else ""


def _plain(error: csv.Error) -> str:
    return str(error).partition(" - ")[0]  # without the advice to programmers


def _cell(text: str) -> float | bool | str | None:
    """A CSV cell as a value: a number, True, False, text, or None if it is blank."""
    try:
        if "_" not in text:  # float() would read 1_000 as a number
            return float(text)
    except ValueError:
        pass
    text = text.strip()
    return {"": None, "true": True, "false": False}.get(text.lower(), text)


def _text_cell(text: str) -> str | None:
    return text.strip() or None


def read_records(stream: BinaryIO, name: str = "the input", text: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The records of a file of CSV or JSON lines, one at a time; see `RecordFile`.

    Raises SchemaError with the line number at the first line that is not a record.
    """
    for line in RecordFile(stream, name=name, text=text):
        if line.record is None:
            raise SchemaError(f"{name} line {line.number}: {line.error}; correct or remove that line")
        yield line.record


def open_records(path: str | Path) -> BinaryIO:
    """Open a file of records. Raises ConfigError if it cannot be read."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from None


def read_rows(path: str | Path, schema: Schema) -> np.ndarray:
    """(n_rows, n_features) float64: the rows of a file of trusted records, for a warm start.

    Rows without a value of any feature are left out. Raises ConfigError if the file cannot be read, SchemaError if a
    line is not a record or no row has a feature of `schema`.
    """
    blocks = []
    with open_records(path) as stream:
        records = read_records(stream, name=str(path), text=schema.categorical)
        while block := list(islice(records, BLOCK)):
            rows = schema.rows(block)
            blocks.append(rows[~np.isnan(rows).all(axis=1)])
    rows = np.concatenate(blocks) if blocks else np.empty((0, len(schema.features)))
    if not len(rows):
        wanted = ", ".join(schema.features[:10])
        raise SchemaError(f"no row of {path} has a value of any of the features {wanted}; check their names")
    return rows
