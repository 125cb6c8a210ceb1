"""Cells of CSV as values: the numbers that a text can be, and the form in which a column writes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Set
from functools import lru_cache
from typing import Literal, NamedTuple

DecimalMark = Literal["point", "comma"]  # what stands before the fraction of a number
Value = float | bool | str | None
Report = Callable[[str], None]

DECIMAL_MARKS: tuple[DecimalMark, DecimalMark] = ("point", "comma")

# Separators of thousands besides points and commas: spaces, as in France, and apostrophes, as in Switzerland.
_THOUSANDS_SPACES = " '\u00a0\u2009\u202f\u2019"
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_GROUPED = re.compile(rf"([+-]?[1-9]\d{{0,2}})([{_THOUSANDS_SPACES}])(\d{{3}}(?:\2\d{{3}})*)([.,]\d+)?", re.ASCII)
# 1,234 and 1,234.5; 12,34,567 as in India
_THOUSANDS_POINT = re.compile(
    rf"[+-]?[1-9](?:\d{{0,2}}(?:,\d{{3}})+|\d?(?:,\d{{2}})+,\d{{3}})(?:\.\d*)?{_EXPONENT}", re.ASCII
)
# 1.234 and 1.234,5; 12,5 and ,5
_WITH_COMMA = re.compile(rf"[+-]?(?:[1-9]\d{{0,2}}(?:\.\d{{3}})+(?:,\d+)?|\d*,\d+){_EXPONENT}", re.ASCII)
_ADDRESS = re.compile(r"(?:(?:1\d\d|2[0-4]\d|25[0-5])(?:\.|$)){4}", re.ASCII)  # of a computer: 192.168.100.200
_NEGATIVE = re.compile(r"\(\s*([^-+()]+)\)|([^-+()]+)-")  # as accountants write: (80.00) and 80.00-
_FORTRAN = re.compile(r"([+-]?[\d.,]+)[dD]([+-]?\d{1,3})", re.ASCII)
_HEX = re.compile(r"[+-]?0[xX][0-9a-fA-F]{1,13}")  # longer ones name something

# Words for a missing value: those of pandas, databases and home automation, and what spreadsheets write.
MISSING = frozenset(
    [
        *("", "na", "n/a", "#n/a", "#na", "<na>", "null", "none", "-nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
        *("-", "--", "---", "?", "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!", "\u2013", "\u2014"),
        *("nan", "nat", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity", "\\n", "(null)", "nil", "n.a."),
        *("undefined", "unavailable", "missing", "nodata", "no data", ".", "*"),
    ]
)
_WORDS: dict[str, bool | None] = {**dict.fromkeys(MISSING), "true": True, "false": False}

_MONEY = r"[A-Z]{0,3}[$\u20a0-\u20bf\u00a3\u00a5]"
_LETTER = r"(?:[^\W\d_]|[\u00b5\u03bc\u03a9\u2126\u2103\u2109])"  # also a micro, an ohm, and degrees in one sign
# What stands around a number: money before it; behind it money, a unit, or a letter that says how good it is.
_WITH_UNIT = re.compile(
    rf"(?P<open>\(?)(?P<sign>[-+]?)(?P<before>{_MONEY}|[A-Z]{{3}}(?= ))?\s?(?P<number>[-+]?(?:\d|[.,]\d)"
    rf"(?:[\d.,]|[{_THOUSANDS_SPACES}](?=\d{{3}}(?!\d)))*(?:[eEdD][+-]?\d{{1,3}}(?![\w.,]))?)"
    rf"(?P<space>[ \u00a0\u202f]?)(?P<after>{_MONEY}|[%\u2030\u00b0\u00ba*\u2020][^\W\d_]?|{_LETTER}[^\s;|,()]{{0,9}})?"
    rf"(?P<end>-?\)?)",
    re.ASCII,
)
_LIMIT_SIGN = re.compile(r"(?:<=?|>=?|\u2264|\u2265|~|\u2248)\s*")  # before a number: it is below, above or about this
# Units that differ by a factor: a prefix, and what is measured.
_PREFIXES = {
    "n": 1e-9,
    **dict.fromkeys("u\u00b5\u03bc", 1e-6),
    "m": 1e-3,
    "c": 1e-2,
    "": 1.0,
    "h": 1e2,
    "k": 1e3,
    "K": 1e3,
}
_PREFIXES |= {"M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIXED = re.compile(
    "([numchkKMGT\u00b5\u03bc]|[KMGT]i)?([Bb](?:/s|ps)?|bit(?:/s)?|Wh?|VA|V|A|Hz|Pa|bar|g|m|s|J|l|L|N|\u03a9|\u2126)"
)
_THOUSANDS, _MILLIONS = frozenset("kK"), frozenset("MG")  # letters; alone they may be kelvins, metres or remarks
_MIN_UNIT_SHARE = 0.8  # share of the numbers of a column that have the same unit
_MIN_UNIT_CELLS = 5  # cells that show a unit


def number_in(text: str, mark: DecimalMark) -> float | None:
    """Return the number in `text`, with this mark before its fraction; None if it is not a number.

    >>> [number_in(text, "point") for text in ("1,234.5", "(80.00)", "50.00-", "45,00,000", "1.2D+03", "0x1F")]
    [1234.5, -80.0, -50.0, 4500000.0, 1200.0, 31.0]
    """
    text = (
        text.strip().replace("\u2212", "-").replace("\u2013", "-")
    )  # the minus of typography, the dash of word processors
    if text[-1:] in (")", "-") and (negative := _NEGATIVE.fullmatch(text)):
        value = number_in(negative[1] or negative[2], mark)
        return None if value is None else -value
    if grouped := _GROUPED.fullmatch(text):
        text = grouped[1] + grouped[3].replace(grouped[2], "") + (grouped[4] or "")
    elif fortran := _FORTRAN.fullmatch(text):
        text = f"{fortran[1]}e{fortran[2]}"
    if mark == "comma" and ("," in text or "." in text):
        is_number = _WITH_COMMA.fullmatch(text) and not _ADDRESS.fullmatch(text)
        return float(text.replace(".", "").replace(",", ".")) if is_number else None
    if "," in text:
        return float(text.replace(",", "")) if _THOUSANDS_POINT.fullmatch(text) else None
    if _HEX.fullmatch(text):
        return float(int(text, 16))
    try:
        return None if "_" in text else float(text)  # float() would read 1_000 as a number
    except ValueError:
        return None


class NumberForm(NamedTuple):
    """The form of the numbers of a column: the mark before the fraction, and the money or unit around them.

    units: other units that its cells have, which differ from this one by a factor. is_plain: most of its cells are
    numbers with nothing around them.
    """

    mark: DecimalMark = "point"
    before: str = ""
    after: str = ""
    units: tuple[str, ...] = ()
    is_plain: bool = False


class Number(NamedTuple):
    """A text as a number, read with each of the `DECIMAL_MARKS` (None: not a number then), and what is around it."""

    values: tuple[float | None, float | None]
    before: str = ""
    after: str = ""
    has_space: bool = False  # before the unit


def parse_number(text: str) -> Number | None:
    """Return the number that a cell may be; None if it is not a number in any form."""
    text = text.strip()
    point, comma = (number_in(text, mark) for mark in DECIMAL_MARKS)
    if point is not None or comma is not None:
        return Number((point, comma))
    text = text.replace("\u2212", "-").replace("\u2013", "-")
    if (match := _WITH_UNIT.fullmatch(text)) is None or not (match["before"] or match["after"]):
        return None
    core = f"{match['open']}{match['sign']}{match['number']}{match['end']}"
    point, comma = (number_in(core, mark) for mark in DECIMAL_MARKS)
    if point is None and comma is None:
        return None
    return Number((point, comma), match["before"] or "", match["after"] or "", bool(match["space"]))


def unit_of(numbers: Iterable[Number | None]) -> tuple[str, str, tuple[str, ...]]:
    """Return what nearly all numbers of a column have before and behind them, and other units that differ by a factor.

    Return nothing if it may belong to a name.
    """
    present = [number for number in numbers if number is not None]
    has_letters = _has_letters({number.after for number in present})
    families = [(number.before, _measured(number.after, has_letters)[0]) for number in present]
    family, count = Counter(families).most_common(1)[0] if families else (("", ""), 0)
    alike = [number for number, own in zip(present, families, strict=True) if own == family]
    after, *others = [unit for unit, _ in Counter(number.after for number in alike).most_common()] or [""]
    if not (family[0] or after or others) or count < max(_MIN_UNIT_CELLS, _MIN_UNIT_SHARE * len(present)):
        return "", "", ()
    # 12A may be the number of a house; 12.5A is a current
    values = [value for number in alike for value in number.values if value is not None]
    is_measured = any(number.has_space for number in alike) or any(value % 1 for value in values) or has_letters
    is_unit = family[0] or is_measured or not after[0].isalpha()
    return (family[0], after, tuple(others)) if is_unit else ("", "", ())


def _has_letters(units: Set[str]) -> bool:
    """Return whether letters mean thousands and millions among these units."""
    return not units.isdisjoint(_THOUSANDS) and not units.isdisjoint(_MILLIONS)


@lru_cache(maxsize=1000)
def _measured(unit: str, has_letters: bool) -> tuple[str, float]:
    """Return what a unit measures, and how much of it. has_letters: see `_has_letters`."""
    if has_letters and unit in ("", *_THOUSANDS, *_MILLIONS):
        return "", _PREFIXES[unit]
    match = _PREFIXED.fullmatch(unit)
    return (match[2], _PREFIXES[match[1] or ""]) if match else (unit, 1.0)


def count_marks(numbers: Iterable[Number | None]) -> tuple[int, int, int]:
    """Count the numbers that can only have a point, those that can only have a comma, and those that differ by it."""
    pairs = [number.values for number in numbers if number is not None]
    only = [sum(pair[column] is not None and pair[1 - column] is None for pair in pairs) for column in (0, 1)]
    return only[0], only[1], sum(None not in pair and pair[0] != pair[1] for pair in pairs)


def cell_reader(form: NumberForm, is_text: Report, has_more: Report) -> Callable[[str], Value]:
    """Return a function that reads a CSV cell as a number, True, False, text, or None where a value is missing.

    is_text is called with each cell that is text, and with each number that has another mark than its column, or a
    unit that does not fit: that counts as missing, because it may be a mistake. has_more is called with each number
    that has more around it, such as <0.05 and 44.1e, or not the unit of its column; this is read.
    """
    mark, before, after, units, is_plain = form
    is_comma, is_bare = mark == "comma", not after
    has_letters = _has_letters({after, *units})
    measured, size = _measured(after, has_letters)
    mark_index = DECIMAL_MARKS.index(mark)
    is_text_column = not (is_plain or before or after or units)

    def read(text: str) -> Value:
        if is_bare:
            try:  # fast where it can be
                if "_" not in text and not (is_comma and ("," in text or "." in text)):
                    return float(text)
            except ValueError:
                pass
        stripped = text.strip()
        lower = stripped.lower()
        if lower in _WORDS:
            return _WORDS[lower]
        if is_text_column and (value := number_in(stripped, mark)) is None:  # the only form that it can have
            is_text(stripped)
            return None if is_comma and number_in(stripped, "point") is not None else stripped
        limit = _LIMIT_SIGN.match(stripped) if is_plain else None
        number = parse_number(stripped[limit.end() :] if limit else stripped)
        if number is None:
            is_text(stripped)
            return stripped
        value = number.values[mark_index]
        own, own_size = _measured(number.after, has_letters)
        is_of_form = own == measured and number.before in ("", before)  # a sum is also valid without its sign
        # One letter may follow; more letters would be a unit, and K a thousand, and so another quantity.
        may_follow = number.after[1:] == "" and number.after not in ("%", "\u2030", *_THOUSANDS, *_MILLIONS)
        is_flagged = is_plain and not number.before and may_follow
        is_bare_number = not number.before and not number.after
        if value is None or not (is_of_form or is_flagged or is_bare_number):
            is_text(stripped)
            return None if is_comma and number_in(stripped, "point") is not None else stripped
        if limit or not is_of_form:
            has_more(stripped)
        return value * own_size / size if own_size != size and is_of_form else value

    return read
