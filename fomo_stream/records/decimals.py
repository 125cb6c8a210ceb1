"""The cells of CSV as values: numbers with decimal points or decimal commas, words for missing values, text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

Mark = Literal["point", "comma"]  # what stands before the fraction of a number
Value = float | bool | str | None

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


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value."""
    return text.strip().lower() in MISSING


def cell_reader(mark: Mark, is_text: Callable[[str], None]) -> Callable[[str], Value]:
    """A function that reads a CSV cell as a number, True, False, text, or None where a value is missing.

    is_text is called with each cell that is none of the others.
    """
    is_comma = mark == "comma"
    number = comma_number if is_comma else point_number

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
