"""Writing records with their results, as JSON lines or as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, BinaryIO

from fomo_stream.records.files import Line, RecordFile
from fomo_stream.records.json_codec import encode
from fomo_stream.records.result import Result

CSV_FIELDS = (
    "score",
    "remembered_logit",
    "logit",
    "p_value",
    "outlier",
    "severity",
    "confidence",
    "missing",
    "generation",
    "regime",
    "status",
)


def csv_columns(field: str) -> list[str]:
    """The columns of a CSV file that hold results, for the result field `field`."""
    return [f"{field}_{name}" for name in CSV_FIELDS]


class JsonWriter:
    """Writes each record with its result under the field `field`; a malformed line becomes the text `raw`."""

    def __init__(self, out: BinaryIO, table: RecordFile, field: str, scores_only: bool) -> None:
        self._out, self._field, self._scores_only = out, field, scores_only

    def write(self, lines: Sequence[Line], results: Sequence[Result]) -> None:
        for line, result in zip(lines, results, strict=True):
            record = line.record
            if record is None:
                record = {"raw": bytes(line.raw).decode(errors="replace")} if isinstance(line.raw, bytes) else {}
            self._out.write(encode(record, result, self._field, self._scores_only) + b"\n")
        self._out.flush()


class CsvWriter:
    """Writes each row's cells unchanged, then the result's; a malformed row is cut or filled to fit the header.

    Result columns of an earlier run are replaced.
    """

    def __init__(self, out: BinaryIO, table: RecordFile, field: str, scores_only: bool) -> None:
        self._out = out
        columns = csv_columns(field)
        self._kept = [] if scores_only else [i for i, name in enumerate(table.header) if name not in columns]
        self._text = io.StringIO()
        self._csv = csv.writer(self._text, delimiter=table.delimiter, lineterminator="\n")
        self._csv.writerow([table.header[i] for i in self._kept] + columns)

    def write(self, lines: Sequence[Line], results: Sequence[Result]) -> None:
        for line, result in zip(lines, results, strict=True):
            cells = [str(line.raw[i]) if i < len(line.raw) else "" for i in self._kept]
            self._csv.writerow(cells + [_csv_cell(result[name]) for name in CSV_FIELDS])
        self._out.write(self._text.getvalue().encode("utf-8", "surrogateescape"))
        self._out.flush()
        self._text.seek(0)
        self._text.truncate()


def _csv_cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)
