"""The dialect of a CSV file: its delimiter, its line of column names, and how each column writes numbers.

The first lines decide all of this together. A delimiter scores high if it cuts most lines into the same number of
cells (their pattern), and if most cells are numbers, times or words without another delimiter (their types), as in
"Wrangling Messy CSV Files by Detecting Row and Type Patterns" (van den Burg, Nazabal, Sutton, 2019).
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from fomo_stream.errors import SchemaError
from fomo_stream.records.cells import (
    DECIMAL_MARKS,
    MISSING,
    DecimalMark,
    Number,
    NumberForm,
    count_marks,
    parse_number,
    unit_of,
)
from fomo_stream.records.csv_rows import BLANKS, CsvRows, Row
from fomo_stream.records.lines import LineSource
from fomo_stream.records.times import is_time
from fomo_stream.wording import clean, counted

DELIMITERS = ",;\t|"
MAX_SKIPPED_LINES = 5  # lines between the names and the first record, such as those of units
CORRECTION = "say --delimiter, --skip-lines or --decimal if it is read wrongly"

_COMMENT = re.compile(r"\s*(#|%|//|--|!|\*|sep=)")
_SEP = re.compile(rb'"?sep=(.)"?\s*')  # as Excel writes it
_UNIT = re.compile(
    r"[\[(].*[\])]|[\w\u00b5\u00b0\u03a9]{1,4}/[\w\u00b2\u00b3^]{1,4}|%|\u00b0\w?|deg\s?\w?|[kKmMGT\u00b5u]?(W|Wh|V|VA|A|Hz|Pa|g|m|s|J|N|B|bar|ohm)|"
    r"[mMcC]?m|C|F|K|h|min|l|L|t|ppm|ppb|rpm|dB|m[23\u00b2\u00b3]|l|\u03a9|psi|TS|RN|UTC"
)
_MISFIT_FACTOR = 0.3  # factor of the score if no line of names has as many cells as the records
_ONE_COLUMN_SCORE = 0.2  # the score of a file with one column


@dataclass(frozen=True)
class Dialect:
    """The form of a CSV file. line: number of the line of names, from 1; skipped: numbers of lines without a record."""

    delimiter: str  # or BLANKS
    line: int
    names: tuple[str, ...]
    forms: tuple[NumberForm, ...]  # one for each column
    ends_empty: bool  # a delimiter stands behind the last cell of each row
    skipped: frozenset[int]
    notes: tuple[str, ...]
    is_certain: bool = True  # False: more lines may show what a comma in numbers means


def dialect_of(
    lines: Sequence[bytes], first: int, name: str, delimiter: str, decimal: str, skip: int | None, text: Collection[str]
) -> Dialect:
    """Return the dialect that the first lines of a file show.

    first: number of the first of these lines. delimiter, decimal: as requested, or auto; skip: lines above the names,
    None: to be found; text: columns that stay text. name: of the file, for notes and errors. Raises SchemaError if
    there is no usable line of names.
    """
    if delimiter != "auto":
        requested = [_Layout(lines, first, mark, skip) for mark in (delimiter, *[BLANKS] * (delimiter == " "))]
        return max(requested, key=lambda layout: layout.score).dialect(name, decimal, text)
    separator = _SEP.fullmatch(lines[0])
    present = [mark for mark in DELIMITERS if any(mark.encode() in line for line in lines)]
    tried = [separator[1].decode("latin-1")] if separator else present
    layouts = [_Layout(lines, first, mark, skip) for mark in tried]
    best = max(layouts, key=lambda layout: (layout.score, layout.is_one_column), default=None)
    if best is None or best.score < _ONE_COLUMN_SCORE:
        alone = _Layout(lines, first, next(mark for mark in (*DELIMITERS, "^") if mark not in present), skip)
        if best is None or (alone.is_one_column and alone.regular > best.regular * best.is_one_column):
            best = alone
    if separator is None and not (best.width > 1 and best.has_names):
        by_blanks = _Layout(lines, first, BLANKS, skip)
        # One column may have blanks between the thousands of its numbers, and a name with blanks.
        is_column = best.has_names and best.has_bare_numbers and best.header_line == by_blanks.header_line
        best = by_blanks if by_blanks.is_table and not is_column else best
    return best.dialect(name, decimal, text)


class _Layout:
    """The first lines, cut with one delimiter."""

    def __init__(self, lines: Sequence[bytes], first: int, delimiter: str, skip: int | None) -> None:
        self.delimiter, self._skip = delimiter, skip
        self._sign = " " if delimiter == BLANKS else delimiter
        rows = CsvRows(LineSource(io.BytesIO(b"\n".join(lines)).read), delimiter)
        shifted = [row._replace(number=row.number + first - 1, last=row.last + first - 1) for row in rows]
        self._broken = next((row for row in shifted if row.error is not None), None)
        self._rows = [row for row in shifted if row.cells and row.error is None and row.cells[0] != "sep="]
        if delimiter == BLANKS:  # a remark begins with its sign, also where a blank follows: # time load
            self._rows = [
                row._replace(cells=[" ".join(row.cells[:2]), *row.cells[2:]]) if row.cells[0] == "#" else row
                for row in self._rows
            ]
        if skip is not None:
            self._rows = [row for row in self._rows if row.number > skip]
        widths = Counter(len(row.cells) for row in self._rows)
        begins = len(self._rows[0].cells) if self._rows else 0
        self.width = max(widths, key=lambda width: (widths[width], width == begins, width), default=0)
        regular = [row for row in self._rows if len(row.cells) == self.width]
        for body in (regular[len(regular) // 2 :], regular[1:]):  # values may come late, or only at first
            types = [Counter(map(_cell_type, column)) for column in zip(*(row.cells for row in body), strict=True)]
            self._typed = [i for i, count in enumerate(types) if count["value"] and count["value"] >= count["text"]]
            if self._typed:
                break
        # A date may also be the name of a column of numbers.
        columns = [[row.cells[i] for row in regular] for i in range(self.width)]
        self._timed = {i for i in self._typed if 2 * sum(map(_is_only_a_time, columns[i])) > len(columns[i])}
        n_broken = sum(row.error is not None for row in shifted)
        self.regular = widths[self.width] / max(1, len(self._rows) + n_broken)  # share of the rows
        pattern = self.regular * (1 - 1 / max(1, self.width))
        self.ends_empty = False
        self.header, self._between = self._find_header()
        cells = [cell for row in regular for cell in row.cells if row is not self.header]
        others = set(DELIMITERS) - {delimiter}
        n_plain = sum(others.isdisjoint(cell) or _cell_type(cell) != "text" for cell in cells)
        self.score = (
            pattern
            * (n_plain / len(cells) if cells else len(self._rows) == 1) ** 2
            * (1.0 if self.has_names else _MISFIT_FACTOR)
        )

    @property
    def is_one_column(self) -> bool:
        """Return whether this may be one column under a name that no delimiter would cut."""
        return self.width == 1 and self.has_names and self._names[0] != "" and not set(DELIMITERS) & set(self._names[0])

    @property
    def header_line(self) -> int | None:
        """Return the number of the line of names."""
        return None if self.header is None else self.header.number

    @property
    def has_bare_numbers(self) -> bool:
        """Return whether all cells are numbers with nothing around them, or missing."""
        cells = [cell.strip() for row in self._rows if row is not self.header for cell in row.cells]
        numbers = [parse_number(cell) for cell in cells if cell.lower() not in MISSING]
        return all(number is not None and not number.before and not number.after for number in numbers)

    @property
    def is_table(self) -> bool:
        """Return whether most columns are of numbers and times, and all have names, or no line has names."""
        return (self.header is None or self.has_names) and 2 * len(self._typed) > self.width > 1

    @property
    def has_names(self) -> bool:
        """Return whether there is a line of names that fits the records."""
        return self.header is not None and len(self._names) == self.width

    @property
    def _names(self) -> list[str]:
        assert self.header is not None
        names = [re.sub(r"^#\s+", "", cell).strip() for cell in self.header.cells]
        return names[:-1] if len(names) == self.width + 1 and not names[-1] else names

    def _find_header(self) -> tuple[Row | None, list[Row]]:
        """Return the row of names, and the rows after it that are not records, such as those of units."""
        if not self._rows:
            return None, []
        begin = next((position for position, row in enumerate(self._rows) if self._is_record(row)), None)
        if self._skip is not None:
            above = self._rows[:1]
        elif begin is None or not self._typed:
            fitting = [row for row in self._rows if self._fits(row)]
            above = [row for row in fitting if not _is_remark(row)][:1] or fitting[:1]
        else:
            above = self._rows[:begin]
            if not above and self._is_numbered():
                above = self._rows[:1]
        # Without any other row, a remark has the names.
        above = [row for row in above if not _is_remark(row)] or above
        fitting = [row for row in above if self._fits(row) and any(map(str.strip, row.cells))]
        if fitting and _is_remark(fitting[0]):  # units repeat themselves
            plain = [(row, [cell.lstrip("# ") for cell in row.cells]) for row in fitting]
            names = [row for row, cells in plain if len({*cells}) == len(cells) and not _are_units(cells)]
            fitting = names[-1:] or fitting[-1:]
        if not fitting:
            return (above[-1] if above else None), []
        fullest = max(fitting, key=lambda row: len({cell for cell in row.cells if _cell_type(cell) == "text"}))
        named = [row for row in fitting if _are_names(row.cells[: self.width])] or [fullest]
        measured = [row for row in named if not _are_units(row.cells)] or named
        # One or two cells may also be a remark and its value; in columns of text, they may be a record.
        n = min(len(row.cells) for row in measured)
        header = measured[-1] if n == len(self._typed) <= 2 or self.delimiter == BLANKS else measured[0]
        if len(header.cells) == self.width - 1:
            self.ends_empty, self.width = True, self.width - 1
        end = len(self._rows) if begin is None else begin
        between = [
            row
            for row in self._rows[:end]
            if row.number > header.number and self._values(row)[0] == 0 < self._values(row)[1]
        ]
        return header, between if begin is not None and len(between) <= MAX_SKIPPED_LINES else []

    def _fits(self, row: Row) -> bool:
        """Return whether a row has as many cells as the records, if an empty last cell of either is left out."""
        n = len(row.cells)
        if n == self.width - 1:
            last = [full.cells[-1] for full in self._rows if len(full.cells) == self.width and not _is_remark(full)]
            return n > 0 and not any(map(str.strip, last))
        return n == self.width or (n == self.width + 1 and not row.cells[-1].strip())

    def _values(self, row: Row) -> tuple[int, int]:
        """Count the cells of a row in the columns of numbers and times: those with such values, and those with text."""
        cells = [(row.cells[column], column in self._timed) for column in self._typed if column < len(row.cells)]
        types = Counter("text" if not timed and _is_only_a_time(cell) else _cell_type(cell) for cell, timed in cells)
        return types["value"], types["text"]

    def _is_record(self, row: Row) -> bool:
        values, texts = self._values(row)
        return len(row.cells) == self.width and values > texts and not _is_remark(row)

    def _is_numbered(self) -> bool:
        """Return whether the first row numbers the columns: it alone has numbers that rise from cell to cell."""
        first, *rest = [row for row in self._rows if len(row.cells) == self.width]
        is_first = len(rest) > 1 and self.width > 1 and _are_rising(first.cells)
        return is_first and not any(_are_rising(row.cells) for row in rest)

    def dialect(self, name: str, decimal: str, text: Collection[str]) -> Dialect:
        """Return the dialect. Raises SchemaError if there is no usable line of names."""
        header = self.header
        if header is None or not self.has_names:
            raise SchemaError(*self._why_not(name, header))
        names = [cell or f"column_{i}" for i, cell in enumerate(self._names, 1)]
        twice = [repr(column) for column, count in Counter(names).items() if count > 1]
        if twice:
            raise SchemaError(
                f"{name} has several columns named {', '.join(twice[:5])} in line {header.number}, taken as its header",
                "give each its own name, or say --skip-lines or --delimiter",
            )
        between = {row.number for row in self._between}
        above = [row.number for row in self._rows if row.number < header.number]
        notes = []
        if above or between or not _are_names([column or "-" for column in names]):
            shown = clean(self._sign.join(header.cells))[:80]
            notes.append(f"line {header.number} of {name} is taken as the header: {shown}")
            if others := [*above, *sorted(between)]:
                listed = ", ".join(map(str, others[:10])) + (", ..." if len(others) > 10 else "")
                notes[-1] += f"; {'line' if len(others) == 1 else 'lines'} {listed} left out"
            notes[-1] += "; --skip-lines names another"
        if self.delimiter == BLANKS:
            notes.append(f"blanks separate the cells of {name}; if that is wrong, say --delimiter")
        forms, form_notes, is_certain = self._forms(names, name, decimal, text, {header.number, *between})
        return Dialect(
            self.delimiter, header.number, tuple(names), forms, self.ends_empty, frozenset(between),
            (*notes, *form_notes), is_certain,
        )  # fmt: skip

    def _why_not(self, name: str, header: Row | None) -> tuple[str, str]:
        """Return why the names cannot be used, and what to do."""
        if self._broken is not None and (header is None or self._broken.number < header.number):
            return f"{name} has no readable line of column names: {self._broken.error}", CORRECTION
        if header is None and not self._rows:
            return f"{name} has no line of column names", "add one"
        first = self._rows[0] if header is None else header
        shown = clean(self._sign.join(first.cells))[:60]
        if header is None:
            add = "add a first line that names the columns, or name the lines above it with --skip-lines"
            return f"{name} starts with numbers, not with a header: line {first.number} is {shown}", add
        has = counted(len(header.cells), "cell")
        return (
            f"line {header.number} of {name} is taken as the header, but it has {has} and most rows have "
            f"{self.width}: {shown}",
            "add the names that are lacking, leave out a trailing delimiter, or say --delimiter or --skip-lines",
        )

    def _forms(
        self, names: Sequence[str], name: str, decimal: str, text: Collection[str], no_records: Collection[int]
    ) -> tuple[tuple[NumberForm, ...], list[str], bool]:
        """Return the form of each column, notes about the forms, and whether they are certain."""
        rows = [row.cells for row in self._rows if len(row.cells) >= self.width and row.number not in no_records]
        rows = [row for row in rows if len(row) == self.width or not row[-1].strip()]
        columns = [
            [] if column in text else [parse_number(row[i]) for row in rows if row[i].strip().lower() not in MISSING]
            for i, column in enumerate(names)
        ]
        units, counts = [unit_of(numbers) for numbers in columns], [count_marks(numbers) for numbers in columns]
        own: list[DecimalMark | None] = [
            None if points == commas else "point" if points > commas else "comma" for points, commas, _ in counts
        ]
        votes = Counter(mark for mark in own if mark is not None)
        is_ambiguous = any(number is not None and _is_ambiguous(number) for numbers in columns for number in numbers)
        notes, is_certain = [], decimal != "auto"
        usual: DecimalMark = "comma" if votes["comma"] > votes["point"] else "point"
        if decimal in DECIMAL_MARKS:
            usual, own = ("comma" if decimal == "comma" else "point"), [None] * len(own)
        elif not votes and is_ambiguous:
            usual = "point" if self.delimiter == "," else "comma"
            other = DECIMAL_MARKS[usual == "point"]
            notes.append(
                f"a comma in the numbers of {name} may stand before the fraction or between thousands: it is read as "
                f"{'the first' if usual == 'comma' else 'the second'}; if that is wrong, say --decimal {other}"
            )
        else:
            is_certain = True
        if "comma" in own or (not votes and usual == "comma" and decimal == "auto"):
            notes.append(f"the numbers of {name} are read with decimal commas")
        forms = []
        for mark, unit, numbers in zip(own, units, columns, strict=True):
            n_plain = sum(number is not None and not number.before and not number.after for number in numbers)
            forms.append(NumberForm(mark or usual, *unit, 2 * n_plain > len(numbers)))
        with_unit = []
        for column, (before, after, others) in zip(names, units, strict=True):
            if before or after or others:
                converted = ", ".join(filter(None, others))
                with_unit.append(f"{column} ({before}{after}{f'; {converted} converted' if converted else ''})")
        if with_unit:
            notes.append(f"read without their unit: {', '.join(with_unit[:20])}")
        return tuple(forms), notes, is_certain


def _is_remark(row: Row) -> bool:
    return _COMMENT.match(row.cells[0]) is not None


def _is_ambiguous(number: Number) -> bool:
    """Return whether a comma of a number may be of either kind; 1.234 has no comma, and is read with its point."""
    point, comma = number.values
    return point is not None and comma is not None and abs(point) > abs(comma)


@lru_cache(maxsize=20_000)
def _is_only_a_time(cell: str) -> bool:
    """Return whether a cell is a time, and no number."""
    return is_time(cell) and parse_number(cell) is None


@lru_cache(maxsize=20_000)
def _cell_type(cell: str) -> str:
    """Return value (a number, a time, true or false), text, or nothing where a value is missing."""
    lower = cell.strip().lower()
    if lower in MISSING:
        return ""
    return "value" if lower in ("true", "false") or is_time(cell) or parse_number(cell) is not None else "text"


def _are_names(cells: Sequence[str]) -> bool:
    """Return whether the cells are different texts, and none is a value."""
    names = [cell.strip() for cell in cells]
    return len({*names}) == len(names) and all(_cell_type(text) == "text" for text in names)


def _are_units(cells: Sequence[str]) -> bool:
    named = [cell.strip() for cell in cells if cell.strip()]
    return 2 * sum(_UNIT.fullmatch(cell) is not None for cell in named) > len(named)


def _are_rising(cells: Sequence[str]) -> bool:
    """Return whether numbers rise from cell to cell; the first cell may be empty, as above the numbers of rows."""
    numbers = [parse_number(cell) for cell in cells[not cells[0].strip() :]]
    values = [number.values[0] for number in numbers if number is not None and number.values[0] is not None]
    return len(values) == len(numbers) > 0 and all(low < high for low, high in pairwise(values))
