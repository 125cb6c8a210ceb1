"""Numbers in text, with decimal points or decimal commas, and which of the two a file has."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from fomo_stream.errors import SchemaError

Mark = Literal["point", "comma"]  # what stands before the fraction of a number
Value = float | bool | str | None

SAMPLE = 100  # rows that are looked at, from the first one whose meaning depends on the mark
_MOST_TEXT = 0.1  # share of a column's cells that are no numbers, up to which the others are evidence
# Separators of thousands besides points and commas: spaces, as in France, and apostrophes, as in Switzerland. The last
# two are bytes of cp1252.
_BETWEEN = " '\u00a0\u2009\u202f\u2019\udca0\udc92"
_GROUPED = re.compile(rf"([+-]?[1-9]\d{{0,2}})([{_BETWEEN}])(\d{{3}}(?:\2\d{{3}})*)([.,]\d+)?", re.ASCII)
_THOUSANDS_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)
_WITH_COMMA = re.compile(
    r"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?|\d*,\d+)(?:[eE][+-]?\d+)?", re.ASCII
)  # 1.234 and 1.234,5; 12,5 and ,5

# Words for a missing value: those of pandas, and the marks and errors that spreadsheets write.
MISSING = frozenset(
    [
        *("", "na", "n/a", "#n/a", "#na", "<na>", "null", "none", "-nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
        *("-", "--", "?", "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!"),
    ]
)
_WORDS: dict[str, bool | None] = {**dict.fromkeys(MISSING), "true": True, "false": False}


class Kind(Enum):
    """What a cell says about the mark."""

    SAME = auto()  # a number with the same value for both
    POINT = auto()  # a number only with a decimal point
    COMMA = auto()  # a number only with a decimal comma
    EITHER = auto()  # a number for both, with different values: 1,234 or 1.234
    TEXT = auto()  # no number


def point_number(text: str) -> float | None:
    """The number in `text`, as in 1234.5 or 1,234.5; None if it is none.

    >>> [point_number(text) for text in ("12.5", "1,234.5", "1 234.5", "1,234", "12,5")]
    [12.5, 1234.5, 1234.5, 1234.0, None]
    """
    text = _usual(text)
    if "," in text:
        return float(text.replace(",", "")) if _THOUSANDS_POINT.fullmatch(text) else None
    return _plain(text)


def comma_number(text: str) -> float | None:
    """The number in `text`, as in 1234,5 or 1.234,5; None if it is none.

    >>> [comma_number(text) for text in ("12,5", "1.234,5", "1 234,5", "1,234", "12.5")]
    [12.5, 1234.5, 1234.5, 1.234, None]
    """
    text = _usual(text)
    if "," in text or "." in text:
        found = _WITH_COMMA.fullmatch(text)
        return float(found[0].replace(".", "").replace(",", ".")) if found else None
    return _plain(text)


def _usual(text: str) -> str:
    """A number as programs write it: with the minus sign of ASCII, without spaces or apostrophes between thousands."""
    text = text.strip().replace("\u2212", "-")
    found = _GROUPED.fullmatch(text)
    return found[1] + found[3].replace(found[2], "") + (found[4] or "") if found else text


def _plain(text: str) -> float | None:
    text = _usual(text)
    try:
        return None if "_" in text else float(text)  # float() would read 1_000 as a number
    except ValueError:
        return None


def kind_of(text: str) -> Kind:
    """What a cell says about the mark."""
    point, comma = point_number(text), comma_number(text)
    if point is None or comma is None:
        return Kind.POINT if point is not None else Kind.COMMA if comma is not None else Kind.TEXT
    return Kind.EITHER if point != comma and ("," in text or "." in text) else Kind.SAME


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value."""
    return text.strip().lower() in MISSING


def cell_reader(mark: Mark | None, is_text: Callable[[str], None]) -> Callable[[str], Value]:
    """A function that reads a CSV cell as a number, True, False, text, or None where a value is missing.

    mark: None reads numbers with decimal points and without separators of thousands. is_text is called with each cell
    that is none of the others.
    """
    number = {"point": point_number, "comma": comma_number, None: _plain}[mark]
    is_comma = mark == "comma"

    def read(text: str) -> Value:
        try:
            if "_" not in text and not (is_comma and ("," in text or "." in text)):
                return float(text)
        except ValueError:
            pass
        stripped = text.strip()
        lower = stripped.lower()
        if lower in _WORDS:
            return _WORDS[lower]
        value = number(stripped)
        if value is None:
            is_text(stripped)
            return stripped
        return value

    return read


@dataclass
class _Column:
    """What the cells of a column say about the mark."""

    name: str
    cells: int = 0
    text: int = 0
    point: str = ""  # the first cell of each kind
    comma: str = ""
    either: str = ""  # one with a comma, if there is any
    whole: str = ""  # the first with 100 to 999 and no mark: thousands are possible where others are like 1.234

    def add(self, cell: str) -> None:
        self.cells += 1
        kind = kind_of(cell)
        if kind is Kind.TEXT:
            self.text += 1
        elif kind is Kind.POINT:
            self.point = self.point or cell
        elif kind is Kind.COMMA:
            self.comma = self.comma or cell
        elif kind is Kind.EITHER and "," not in self.either:
            self.either = cell if not self.either or "," in cell else self.either
        elif kind is Kind.SAME and len(cell.strip().lstrip("+-")) == 3 and cell.strip().lstrip("+-").isdecimal():
            self.whole = self.whole or cell.strip()

    @property
    def has_numbers(self) -> bool:
        return self.text <= _MOST_TEXT * self.cells


def matters(cells: Sequence[str], delimiter: str) -> bool:
    """Whether a row's numbers depend on the mark. Where commas separate cells, points are decimal points."""
    return any(
        kind_of(cell) not in (Kind.TEXT, Kind.SAME)
        for cell in cells
        if "," in cell or ("." in cell and delimiter != ",")
    )


def decide(
    rows: Sequence[Sequence[str]], names: Sequence[str], text: Collection[str], delimiter: str
) -> tuple[Mark, frozenset[str]]:
    """The mark that these rows show, and columns whose commas do not separate thousands.

    text: names of columns that hold no numbers. Every other column whose cells are numbers counts alike. Cells such as
    1,234 are not decisive; alone, they have a decimal comma where semicolons separate cells, which is done because of
    decimal commas, and separate thousands where commas do. Raises SchemaError if the columns contradict each other, or
    if only such cells are there, between tabs; or if every cell with a mark is like 1.234 and others are like 754,
    except in a file with commas. Where commas separate cells, points win.
    """
    columns = [_Column(name) for name in names]
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            if column.name not in text and not is_missing(cell):
                column.add(cell)
    numeric = [column for column in columns if column.has_numbers]
    commas = [column for column in numeric if column.comma and not column.point]
    points = [column for column in numeric if column.point and not column.comma]
    unclear = [one for one in numeric if "," in one.either and not one.comma and not one.point]
    if commas and points and delimiter != ",":
        one, other = commas[0], points[0]
        raise SchemaError(
            f"column {one.name} has decimal commas ({one.comma}), and {other.name} has decimal points ({other.point})"
        )
    if unclear and not commas and not points and delimiter not in ",;":
        raise SchemaError(
            f"column {unclear[0].name} has numbers such as {unclear[0].either}, and nothing shows whether their comma "
            "separates decimals or thousands"
        )
    mixed = [one for one in numeric if one.either and "," not in one.either and one.whole and not one.point]
    if mixed and not commas and not points and not unclear and delimiter != ",":
        raise SchemaError(
            f"column {mixed[0].name} has numbers such as {mixed[0].either} beside {mixed[0].whole}, and nothing shows "
            "whether their point separates decimals or thousands"
        )
    if not points and (commas or (unclear and delimiter == ";")):
        return "comma", frozenset()
    return "point", frozenset(one.name for one in columns if one.comma or not one.has_numbers)
