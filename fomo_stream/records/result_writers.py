"""Writers of records with their results, as JSON lines or as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from fomo_stream.records.files import Line, RecordFile
from fomo_stream.records.json_codec import encode
from fomo_stream.records.result import Result

CSV_FIELDS = (
    *("score", "remembered_logit", "logit", "p_value", "outlier", "severity", "confidence", "missing", "generation"),
    *("status", "incident", "surprise"),
)
FORMER_FIELDS = ("regime",)  # of files of earlier versions
PLACE_FIELDS = ("line",)  # of records whose line in the output is another one than in the input
EXPLAINED_FIELDS = ("reasons", "explanation")  # of records that are explained
REFERENCE_FIELDS = ("reference_logit",)  # where there is a reference
RULED_FIELDS = ("suppressed", "rule")  # where there are rules, or windows of maintenance


def csv_columns(field: str) -> list[str]:
    """Return all columns of a CSV file that can hold results, for the result field `field`."""
    optional = *PLACE_FIELDS, *RULED_FIELDS, *REFERENCE_FIELDS, *EXPLAINED_FIELDS, *FORMER_FIELDS
    return [f"{field}_{name}" for name in (*CSV_FIELDS, *optional)]


@dataclass(frozen=True, slots=True)
class OutputForm:
    """Options of the output: a record, and its result under `field`."""

    field: str = "fomo"
    scores_only: bool = False  # without the record
    is_explained: bool = False  # CSV: with columns for reasons
    outliers_only: bool = False  # each with the number of its line in the input
    is_ruled: bool = False  # CSV: with columns for rules
    has_reference: bool = False  # CSV: with a column for it


class JsonWriter:
    """Write each record with its result under the field `field`; a malformed line becomes the text `raw`."""

    def __init__(self, out: BinaryIO, table: RecordFile, form: OutputForm) -> None:
        self._out, self._form = out, form

    def write(self, lines: Sequence[Line], results: Sequence[Result]) -> None:
        """Write these lines; a blank one stays blank."""
        for line, result in _selected(lines, results, self._form):
            if line.is_blank:
                self._out.write(b"\n")
                continue
            record = line.record
            if record is None:
                record = {"raw": bytes(line.raw).decode(errors="replace")} if isinstance(line.raw, bytes) else {}
            self._out.write(encode(record, result, self._form.field, self._form.scores_only) + b"\n")
        self._out.flush()


class CsvWriter:
    """Write each row's cells unchanged, then those of the result; they replace those of an earlier run.

    Lines above the header become blank, so that each record keeps its line.
    A malformed row is filled to fit the header, or its last cells become one.
    """

    def __init__(self, out: BinaryIO, table: RecordFile, form: OutputForm) -> None:
        self._out, self._form, self._delimiter, self._width = out, form, table.delimiter, len(table.header)
        self._fields = CSV_FIELDS + PLACE_FIELDS * form.outliers_only + RULED_FIELDS * form.is_ruled
        self._fields += REFERENCE_FIELDS * form.has_reference + EXPLAINED_FIELDS * form.is_explained
        earlier = csv_columns(form.field)
        self._kept = [] if form.scores_only else [i for i, name in enumerate(table.header) if name not in earlier]
        self._text = _LineBuffer()
        # With this end of lines, cells with a carriage return are quoted, too.
        self._csv = csv.writer(self._text, delimiter=table.delimiter, lineterminator=_LineBuffer.END)
        if not form.outliers_only:
            self._text.append("\n" * table.blank_before)
        self._csv.writerow([table.header[i] for i in self._kept] + [f"{form.field}_{name}" for name in self._fields])

    def write(self, lines: Sequence[Line], results: Sequence[Result]) -> None:
        """Write these lines; a blank one stays blank."""
        for line, result in _selected(lines, results, self._form):
            if not line.raw:
                self._text.append("\n")
            else:
                values = ["" if line.is_blank else _csv_cell(result.get(name)) for name in self._fields]
                self._csv.writerow(self._cells(line) + values)
        self._out.write("".join(self._text).encode("utf-8", "replace"))
        self._out.flush()
        self._text.clear()

    def _cells(self, line: Line) -> list[str]:
        cells = [str(cell) for cell in line.raw]
        if len(cells) != self._width:
            cells[self._width - 1 :] = [self._delimiter.join(cells[self._width - 1 :])]
            cells += [""] * (self._width - len(cells))
        return [cells[i] for i in self._kept]


class _LineBuffer(list[str]):
    """The lines written by a csv.writer."""

    END = "\r\n"

    def write(self, text: str) -> None:
        self.append(text.removesuffix(self.END) + "\n")


def _selected(lines: Sequence[Line], results: Sequence[Result], form: OutputForm) -> Iterator[tuple[Line, Result]]:
    pairs = zip(lines, results, strict=True)
    if not form.outliers_only:
        return pairs
    return ((line, result | {"line": line.number}) for line, result in pairs if result["outlier"])


def _csv_cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        names = (reason.get(role) for reason in value for role in ("feature", "with"))
        return "; ".join(dict.fromkeys(name for name in names if name is not None))
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)
