"""Rows of CSV, each of one line or several."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from fomo_stream.errors import RecordError
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.records.lines import LineSource
from fomo_stream.wording import counted

QUOTE = '"'
BLANKS = "blanks"  # as a delimiter: one blank or several; the first and the last ones of a line separate nothing
csv.field_size_limit(MAX_RECORD_BYTES)  # a row has no more; the default is 131,072 characters


class Row(NamedTuple):
    """One row: its cells, or the error in it. A blank line has no cells and no error."""

    number: int  # of its first line, counted from 1
    last: int  # number of its last line
    cells: list[str]
    error: RecordError | None


class CsvRows:
    """The rows of the lines of a source, as they arrive and in constant memory.

    A quote may follow a delimiter and blanks. A quoted cell may hold line breaks, up to `MAX_RECORD_BYTES` in all.
    Where a quote is not closed (the input or the limit ends it, text follows the closing quote, or the row gets a wrong
    number of cells), its line is an error, and the lines after it are read again. Lines that are not UTF-8 are read as
    Windows-1252.
    """

    def __init__(self, source: LineSource, delimiter: str) -> None:
        self._source, self._by_blanks = source, delimiter == BLANKS
        self._delimiter = " " if self._by_blanks else delimiter
        self._blank = " \t\r\n" if self._by_blanks else " \t\r\n".replace(delimiter, "")
        self._pushed_back: deque[tuple[int, str]] = deque()  # lines to read again
        # Rows that begin up to this line are read alone. So missing quotes cost at most three reads of each line.
        self._alone_until = 0
        self.width: int | None = None  # cells of a row; None: any number
        self.ends_empty = False  # whether a delimiter stands behind the last cell of each row

    @property
    def drained(self) -> bool:
        """True when the next row would have to wait for more input."""
        return not self._pushed_back and self._source.drained

    def __iter__(self) -> CsvRows:
        return self

    def __next__(self) -> Row:
        taken = self._take()
        if taken is None:
            raise StopIteration
        number, text = taken
        if len(text) > MAX_RECORD_BYTES:
            return self._bad(number, text, "too_large", f"the row has more than {MAX_RECORD_BYTES} bytes")
        if QUOTE in text:
            return self._quoted(number, text)
        if not text.strip(self._blank):
            return Row(number, number, [], None)
        if "\r" in text.rstrip("\r\n"):
            return self._bad(number, text, "not_csv", "the row has a carriage return inside")
        return self._checked(number, text, self._pieces(text))

    def _take(self) -> tuple[int, str] | None:
        """Return the next line with its number; None at the end."""
        if self._pushed_back:
            return self._pushed_back.popleft()
        raw = next(self._source, None)
        return None if raw is None else (self._source.number, decoded(raw) + "\n")

    def _quoted(self, number: int, text: str) -> Row:
        """Return the row that begins in this line, which has a quote."""
        others: list[tuple[int, str]] = []

        def feed() -> Iterator[str]:
            yield text
            size = len(text)
            while number > self._alone_until and size <= MAX_RECORD_BYTES and (line := self._take()) is not None:
                others.append(line)
                size += len(line[1])
                yield line[1]

        try:
            skips = self._by_blanks or self._delimiter != " "
            cells = next(csv.reader(feed(), delimiter=self._delimiter, strict=True, skipinitialspace=skips))
        except csv.Error:
            cells = None
        if cells is None and not others:  # a quote behind a blank may belong to a text: 1, "Anna" Ltd
            with suppress(csv.Error):
                cells = next(csv.reader([text], delimiter=self._delimiter, strict=True))
        if cells is not None and not others:
            return self._checked(number, text, cells)
        if cells is not None and self.width in (None, len(cells := self._ended(cells))):
            return Row(number, others[-1][0], cells, None)
        self._pushed_back.extendleft(reversed(others))
        if others:
            self._alone_until = max(self._alone_until, others[-1][0] - 1)
        return self._bad(number, text, "not_csv", "the row is not CSV: a quote is missing, or at a wrong place")

    def _checked(self, number: int, text: str, cells: list[str]) -> Row:
        cells = self._ended(cells)
        if self.width in (None, len(cells)):
            return Row(number, number, cells, None)
        has = f"the row has {counted(len(cells), 'cell')}, the header has {self.width}"
        return self._bad(number, text, "ragged", has)

    def _ended(self, cells: list[str]) -> list[str]:
        ends_empty = self.ends_empty or self._by_blanks
        return cells[:-1] if ends_empty and cells and not cells[-1].strip() else cells

    def _bad(self, number: int, text: str, reason: str, message: str) -> Row:
        return Row(number, number, self._pieces(text), RecordError(reason, message))

    def _pieces(self, text: str) -> list[str]:
        if self._by_blanks:
            return [piece for piece in text.strip(" \t\r\n").split(" ") if piece]
        return text.rstrip("\r\n").split(self._delimiter)


def decoded(line: bytes) -> str:
    """Return a line as text: UTF-8, or else Windows-1252, which Excel writes in most of Europe and America."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("cp1252", "replace")
