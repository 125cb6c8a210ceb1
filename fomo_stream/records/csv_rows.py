"""The rows of CSV, one line or several; after a quote that is not closed, reading goes on at the next line."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from fomo_stream.errors import RecordError
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.records.lines import LineSource
from fomo_stream.wording import counted

QUOTE = '"'
_LEAST_BETWEEN = 2  # lines like rows within a quoted cell, from which on a quote is taken to be missing


class Row(NamedTuple):
    """One row: its cells, or the error in it. A blank line has no cells and no error."""

    number: int  # of its first line, counted from 1
    last: int  # number of its last line
    cells: list[str]
    error: RecordError | None


class CsvRows:
    """The rows of the lines of a source, as they arrive and in constant memory.

    A quoted cell may hold line breaks, up to `MAX_RECORD_BYTES` in all. Where a quote is not closed (the input or the
    limit ends it, text follows the closing quote, or lines that look like rows are inside), its line is an error, and
    the lines after it are read again. Cells in another encoding than UTF-8 are kept, as surrogates.
    """

    def __init__(self, source: LineSource, delimiter: str) -> None:
        self._source, self._delimiter = source, delimiter
        self._blank = " \t\r\n".replace(delimiter, "")
        self._again: deque[tuple[int, str]] = deque()  # lines to read once more
        # No row continues beyond its line up to this one, so no line is looked at more than three times.
        self._alone_until = 0
        self.width: int | None = None  # cells of a row; None: any number

    @property
    def drained(self) -> bool:
        """True when the next row would have to wait for more input."""
        return not self._again and self._source.drained

    def __iter__(self) -> CsvRows:
        return self

    def __next__(self) -> Row:
        taken = self._take()
        if taken is None:
            raise StopIteration
        number, text = taken
        if len(text) > MAX_RECORD_BYTES:
            size = f"the row has more than {MAX_RECORD_BYTES} bytes"
            return Row(number, number, self._pieces(text), RecordError("too_large", size))
        if QUOTE in text:
            return self._quoted(number, text)
        if not text.strip(self._blank):
            return Row(number, number, [], None)
        cells = self._pieces(text)
        if "\r" in text.rstrip("\r\n"):
            return Row(number, number, cells, RecordError("not_csv", "the row has a carriage return inside"))
        return self._checked(number, number, cells)

    def _take(self) -> tuple[int, str] | None:
        """The next line with its number; None at the end."""
        if self._again:
            return self._again.popleft()
        raw = next(self._source, None)
        return None if raw is None else (self._source.number, raw.decode("utf-8", "surrogateescape") + "\n")

    def _quoted(self, number: int, text: str) -> Row:
        """The row that begins in this line, which has a quote."""
        lines = [(number, text)]
        is_cut = False

        def feed() -> Iterator[str]:
            nonlocal is_cut
            yield text
            size = len(text)
            while number > self._alone_until and size <= MAX_RECORD_BYTES and (line := self._take()) is not None:
                lines.append(line)
                size += len(line[1])
                yield line[1]
            is_cut = True

        try:
            cells = next(csv.reader(feed(), delimiter=self._delimiter, strict=True))
        except csv.Error:
            if len(lines) == 1:
                return self._lenient(number, text)
            return self._unclosed(lines, lines[-1][0] - (not is_cut))
        if self._holds_rows(lines):
            return self._unclosed(lines, lines[-1][0] - 1)
        return self._checked(number, lines[-1][0], cells)

    def _lenient(self, number: int, text: str) -> Row:
        """A row of one line with a quote in an unusual place."""
        is_open = False

        def feed() -> Iterator[str]:
            nonlocal is_open
            yield text
            is_open = True

        try:
            cells = next(csv.reader(feed(), delimiter=self._delimiter))
        except csv.Error as error:
            message = f"the row is not CSV: {str(error).partition(' - ')[0]}"  # without the advice to programmers
            return Row(number, number, self._pieces(text), RecordError("not_csv", message))
        return self._unclosed([(number, text)], number) if is_open else self._checked(number, number, cells)

    def _unclosed(self, lines: list[tuple[int, str]], alone_until: int) -> Row:
        """The error of the first line; the others are read again, up to line `alone_until` one by one."""
        (number, text), *others = lines
        self._again.extendleft(reversed(others))
        self._alone_until = max(self._alone_until, alone_until)
        message = "the row is not CSV: a quote opens and is not closed"
        return Row(number, number, self._pieces(text), RecordError("not_csv", message))

    def _holds_rows(self, lines: list[tuple[int, str]]) -> bool:
        """Whether the lines inside a quoted cell all look like rows, so that its quotes belong to two cells."""
        between = [text for _, text in lines[1:-1]]
        if self.width is None or self.width < 2 or len(between) < _LEAST_BETWEEN:
            return False
        return all(text.count(self._delimiter) + 1 == self.width for text in between)

    def _checked(self, number: int, last: int, cells: list[str]) -> Row:
        if self.width is None or len(cells) == self.width:
            return Row(number, last, cells, None)
        message = f"the row has {counted(len(cells), 'cell')}, the header has {self.width}"
        if last > number:
            message += f"; it goes on to line {last}: is a quote missing?"
        return Row(number, last, cells, RecordError("ragged", message))

    def _pieces(self, text: str) -> list[str]:
        return text.rstrip("\r\n").split(self._delimiter)
