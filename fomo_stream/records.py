"""Records in and out: decode JSON, encode the scored record, read files of records.

What arrives is never trusted: any bytes give a dict or a `RecordError`, and what was decoded can be encoded.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
import orjson

from fomo_stream.errors import ConfigError, RecordError, SchemaError
from fomo_stream.schema import Schema, infer_schema
from fomo_stream.scored import Severity

if TYPE_CHECKING:
    from fomo_stream.detector import Scored

__all__ = [
    "RecordFile",
    "Schema",
    "decode",
    "encode",
    "infer_schema",
    "open_records",
    "read_records",
    "read_rows",
    "result_of",
]

MAX_RECORD_BYTES = 2**20  # as Kafka's own default
BLOCK = 1000  # records of a file that are turned into rows at once
MAX_DEPTH = 200  # orjson writes at most 254 levels; beyond this nothing is an event

# orjson reads integers beyond 64 bits as floats, silently; such records take the slower, exact way.
_LONG_INTEGER = re.compile(rb"(?<![.0-9])[0-9]{19}").search


# --- decode and encode


def decode(value: bytes | None, max_bytes: int = MAX_RECORD_BYTES) -> dict[str, Any]:
    """Decode one JSON object; ``NaN`` and ``Infinity``, as ordinary JSON writers print them, are accepted.

    Raises nothing but RecordError: with reason tombstone, too_large, not_utf8, not_json or not_an_object.

    >>> decode(b'{"flow": 3.5, "motor": {"rpm": NaN}}')
    {'flow': 3.5, 'motor': {'rpm': nan}}
    """
    if value is None:
        raise RecordError("tombstone", "the record has no value (a tombstone); there is nothing to score")
    if len(value) > max_bytes:
        raise RecordError("too_large", f"the record has {len(value)} bytes; at most {max_bytes} are decoded")
    try:
        record = _decode_exactly(value) if _LONG_INTEGER(value) else orjson.loads(value)
    except orjson.JSONDecodeError:
        record = _decode_exactly(value)
    if not isinstance(record, dict):
        kind = {list: "an array", str: "a string", type(None): "null"}.get(type(record), "a bare value")
        raise RecordError("not_an_object", f"the record is {kind}; a JSON object with named fields is needed")
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH and _deeper_than(record, MAX_DEPTH):
        raise RecordError("not_json", f"the record is nested more than {MAX_DEPTH} levels deep")
    return record


def _decode_exactly(value: bytes) -> Any:
    """The standard library's decoder: slower, but it reads NaN, lone surrogates and integers of any size."""
    try:
        text = value.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError("not_utf8", f"the record is not UTF-8 text (byte {error.start})") from None
    try:
        return json.loads(text, parse_int=_parse_int)
    except RecursionError:
        raise RecordError("not_json", f"the record is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        where = f": {error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise RecordError("not_json", f"the record is not JSON{where}") from None


def _parse_int(digits: str) -> int | float:
    # Python refuses to read thousands of digits (a denial-of-service guard); no float holds them either.
    return int(digits) if len(digits) <= 4000 else math.inf


def _deeper_than(record: dict[str, Any], limit: int) -> bool:
    level: list[Any] = [record]
    for _ in range(limit):
        children = [c for node in level for c in (node.values() if isinstance(node, dict) else node)]
        level = [child for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return True


def encode(
    record: Mapping[str, Any], result: Mapping[str, Any], field: str = "fomo", scores_only: bool = False
) -> bytes:
    """The record's own fields where they were and `result` under `field`, as one line of JSON.

    A field of that name that the record already has is replaced: the output carries this run's result.
    Non-finite numbers become null, because JSON cannot write them. `scores_only` leaves the record out.
    """
    output = {field: result} if scores_only else {**record, field: result}
    try:
        return orjson.dumps(output)
    except TypeError:  # integers beyond 64 bits, lone surrogates: the standard library can write both
        return json.dumps(_finite(output), separators=(",", ":")).encode("ascii")


def _finite(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _finite(child) for key, child in node.items()}
    if isinstance(node, (list, tuple)):
        return [_finite(child) for child in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node


_SEVERITIES = [None, *(severity.name.lower() for severity in Severity if severity)]


def result_of(scored: Scored, i: int, model: str, source: Mapping[str, Any] | None, missing: int) -> dict[str, Any]:
    """Row `i` of `scored` as the JSON-ready object of the output record; NaN becomes None.

    source: topic, partition, offset and timestamp (milliseconds since 1970, or None) of the record, or None
    for a record that does not come from a topic. missing: how many features it has no value of.
    """
    return {
        **(source or {}),
        "score": _or_none(float(scored.score[i])),
        "logit": _or_none(float(scored.logit[i])),
        "p_value": _or_none(float(scored.p_value[i])),
        "outlier": bool(scored.outlier[i]),
        "severity": _SEVERITIES[scored.severity[i]],
        "missing": missing,
        "model": model,
        "generation": int(scored.generation[i]),
        "regime": int(scored.regime[i]),
        "status": str(scored.status[i]),
    }


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None


# --- files

Format = Literal["csv", "jsonl"]
_FORMATS: dict[str, Format] = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"
}  # fmt: skip
_CHUNK_BYTES = 1 << 20


class LineSource:
    """The lines of a binary stream as they arrive, in memory bounded by one line of `MAX_RECORD_BYTES`.

    `drained` is True when the next line would have to wait for more input: the moment to hand on results.
    A line that is too long is cut just beyond the limit, so that decoding it reports `too_large`.
    """

    def __init__(self, stream: BinaryIO) -> None:
        # A pipe's read1 returns what is there now; a plain read would wait for the whole chunk.
        self._read = getattr(stream, "read1", stream.read)
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._skipping = False
        self._ended = False
        self.number = 0  # of the line last taken, counted from 1

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
        """The first line with something in it, without taking it; empty at the end of the input."""
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
    """One record of a file, or what is wrong with it; `raw` is what stood there: a line, or cells."""

    number: int  # counted from 1
    raw: bytes | list[str]
    record: dict[str, Any] | None
    error: RecordError | None = None


class RecordFile:
    """CSV or JSON lines, read as they arrive and in constant memory; iterating gives one `Line` per record.

    `format` is csv, jsonl or auto (told by the name's ending, else by the first character). CSV needs a line
    of column names; comma, semicolon and tab are told apart by it. Blank lines are passed over. In the columns `text`
    cells stay what they are, so that 007 is not 7. Raises SchemaError when the input is empty or has no usable header.
    """

    def __init__(
        self, stream: BinaryIO, format: str = "auto", name: str = "the input", text: Collection[str] = ()
    ) -> None:
        self.name = name
        self._text = text
        self._source = LineSource(stream)
        first = self._source.peek()
        if not first:
            raise SchemaError(f"{name} is empty; CSV with a line of column names, or JSON lines, is needed")
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
        # Cells in another encoding than UTF-8 pass through unharmed as surrogates.
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
    """A CSV cell as a record's value: a number where it is one, None where it is blank."""
    try:
        if "_" not in text:  # float() would read 1_000 as a number
            return float(text)
    except ValueError:
        pass
    text = text.strip()
    return {"": None, "true": True, "false": False}.get(text.lower(), text)


def _text_cell(text: str) -> str | None:
    return text.strip() or None


def read_records(
    stream: BinaryIO, format: str = "auto", name: str = "the input", text: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """The records of a file of CSV or JSON lines, one at a time; see `RecordFile`.

    Raises SchemaError, naming the line, at the first one that is not a record.
    """
    for line in RecordFile(stream, format, name, text):
        if line.record is None:
            raise SchemaError(f"{name} line {line.number}: {line.error}; correct or remove that line")
        yield line.record


def open_records(path: str | Path) -> BinaryIO:
    """Open a file of records, or raise ConfigError saying why it cannot be read."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from None


def read_rows(path: str | Path, schema: Schema) -> np.ndarray:
    """(n_rows, n_features) float64: the rows of a file of trusted records, for a warm start.

    Rows without any feature are left out. Raises ConfigError when the file cannot be read, SchemaError when a
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
