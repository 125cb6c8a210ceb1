"""CSV: its rows, one line or several, and its cells as values."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from fomo_stream.errors import RecordError
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.records.lines import LineSource
from fomo_stream.wording import counted

QUOTE = '"'


class Row(NamedTuple):
    """One row: its cells, or the error in it. A blank line has no cells and no error."""

    number: int  # of its first line, counted from 1
    last: int  # number of its last line
    cells: list[str]
    error: RecordError | None


class CsvRows:
    """The rows of the lines of a source, as they arrive and in constant memory.

    A quoted cell may hold line breaks, up to `MAX_RECORD_BYTES` in all. Where a quote is not closed (the input or the
    limit ends it, text follows the closing quote, or the row gets a wrong number of cells), its line is an error, and
    the lines after it are read again. Lines that are not UTF-8 are read as Windows-1252.
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
            return self._bad(number, text, "too_large", f"the row has more than {MAX_RECORD_BYTES} bytes")
        if QUOTE in text:
            return self._quoted(number, text)
        if not text.strip(self._blank):
            return Row(number, number, [], None)
        if "\r" in text.rstrip("\r\n"):
            return self._bad(number, text, "not_csv", "the row has a carriage return inside")
        return self._checked(number, text, self._pieces(text))

    def _take(self) -> tuple[int, str] | None:
        """The next line with its number; None at the end."""
        if self._again:
            return self._again.popleft()
        raw = next(self._source, None)
        return None if raw is None else (self._source.number, decoded(raw) + "\n")

    def _quoted(self, number: int, text: str) -> Row:
        """The row that begins in this line, which has a quote."""
        others: list[tuple[int, str]] = []

        def feed() -> Iterator[str]:
            yield text
            size = len(text)
            while number > self._alone_until and size <= MAX_RECORD_BYTES and (line := self._take()) is not None:
                others.append(line)
                size += len(line[1])
                yield line[1]

        try:
            cells = next(csv.reader(feed(), delimiter=self._delimiter, strict=True))
        except csv.Error:
            cells = None
        if cells is not None and not others:
            return self._checked(number, text, cells)
        if cells is not None and self.width in (None, len(cells)):
            return Row(number, others[-1][0], cells, None)
        self._again.extendleft(reversed(others))
        if others:
            self._alone_until = max(self._alone_until, others[-1][0] - 1)
        return self._bad(number, text, "not_csv", "the row is not CSV: a quote is missing, or at a wrong place")

    def _checked(self, number: int, text: str, cells: list[str]) -> Row:
        if self.width in (None, len(cells)):
            return Row(number, number, cells, None)
        has = f"the row has {counted(len(cells), 'cell')}, the header has {self.width}"
        return self._bad(number, text, "ragged", has)

    def _bad(self, number: int, text: str, reason: str, message: str) -> Row:
        return Row(number, number, self._pieces(text), RecordError(reason, message))

    def _pieces(self, text: str) -> list[str]:
        return text.rstrip("\r\n").split(self._delimiter)


def decoded(line: bytes) -> str:
    """A line as text: UTF-8, or else Windows-1252, which Excel writes in most of Europe and America."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("cp1252", "replace")


# --- cells ---------------------------------------------------------------------------------------------------

Mark = Literal["point", "comma"]  # what stands before the fraction of a number
Value = float | bool | str | None

# Separators of thousands besides points and commas: spaces, as in France, and apostrophes, as in Switzerland.
_BETWEEN = " '\u00a0\u2009\u202f\u2019"
_GROUPED = re.compile(rf"([+-]?[1-9]\d{{0,2}})([{_BETWEEN}])(\d{{3}}(?:\2\d{{3}})*)([.,]\d+)?", re.ASCII)
_THOUSANDS_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)
# 1.234 and 1.234,5; 12,5 and ,5
_WITH_COMMA = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?|\d*,\d+)(?:[eE][+-]?\d+)?", re.ASCII)

# Words for a missing value: those of pandas, and the marks and errors that spreadsheets write.
MISSING = frozenset(
    [
        *("", "na", "n/a", "#n/a", "#na", "<na>", "null", "none", "-nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
        *("-", "--", "?", "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!"),
    ]
)
_WORDS: dict[str, bool | None] = {**dict.fromkeys(MISSING), "true": True, "false": False}


def number_in(text: str, mark: Mark) -> float | None:
    """The number in `text`, with this mark before its fraction; None if it is none."""
    text = text.strip().replace("\u2212", "-")  # the minus sign of typography
    if grouped := _GROUPED.fullmatch(text):
        text = grouped[1] + grouped[3].replace(grouped[2], "") + (grouped[4] or "")
    if mark == "comma" and ("," in text or "." in text):
        return float(text.replace(".", "").replace(",", ".")) if _WITH_COMMA.fullmatch(text) else None
    if "," in text:
        return float(text.replace(",", "")) if _THOUSANDS_POINT.fullmatch(text) else None
    try:
        return None if "_" in text else float(text)  # float() would read 1_000 as a number
    except ValueError:
        return None


def cell_reader(mark: Mark, is_text: Callable[[str], None]) -> Callable[[str], Value]:
    """A function that reads a CSV cell as a number, True, False, text, or None where a value is missing.

    is_text is called with each cell that is none of the others. Where numbers have decimal commas, it is called for a
    number with a point, too, which counts as missing: it may be a mistake.
    """
    is_comma = mark == "comma"

    def read(text: str) -> Value:
        try:  # fast where it can be
            if "_" not in text and not (is_comma and ("," in text or "." in text)):
                return float(text)
        except ValueError:
            pass
        stripped = text.strip()
        lower = stripped.lower()
        if lower in _WORDS:
            return _WORDS[lower]
        value = number_in(stripped, mark)
        if value is None:
            is_text(stripped)
            return None if is_comma and number_in(stripped, "point") is not None else stripped
        return value

    return read
