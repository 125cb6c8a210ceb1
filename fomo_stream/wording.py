"""Texts for people: cleaned texts of others, counts, quantities, aligned tables, and hints for misspelt names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
DURATIONS = "write a number and a unit: 90s, 30m, 12h, 7d or 2w"
_CALL = re.compile(r"[@!](?=[^\W\d])|<[@!#&]+(?=\w)|:(?=//)|\bwww\.", re.IGNORECASE)  # what calls people, or is a link


def clean(text: str, mark: str = "\N{REPLACEMENT CHARACTER}", *, for_chats: bool = False) -> str:
    """Return a text of others, such as a key or the name of a column, on one line without control characters.

    The result can neither change a terminal, nor forge lines, nor change the direction of writing. mark: replaces
    control characters. for_chats: the text cannot mention people or become a link in a chat or a mail, either.

    >>> clean("pump\\n7\\x1b[31m"), clean("<!channel> @all https://x.example", for_chats=True)
    ('pump 7\N{REPLACEMENT CHARACTER}[31m', '<! channel> @ all https: //x.example')
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c.isspace() else mark for c in text)
    return _CALL.sub(r"\g<0> ", text) if for_chats else text


def clean_lines(text: str) -> str:
    """Return a text of several lines with each line cleaned."""
    return "\n".join(map(clean, text.split("\n")))


def counted(n: int, noun: str) -> str:
    """Return a count with its noun: `1 row`, `2 rows`, `1,200 rows`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def exact(number: float) -> str:
    """Return all digits of a number, in the shortest form: `-9999`, `0.1`."""
    return repr(number).removesuffix(".0")


def did_you_mean(word: str, candidates: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean X?` if one of the names resembles `word`, else an empty string. prefix: put before X.

    >>> did_you_mean("Temp", ["load", "temp"])
    '; did you mean temp?'
    """
    names = {name.lower().lstrip("-"): name for name in candidates}  # dashes would make all flags resemble each other
    if "bootstrap" in names:
        names["broker"] = names["bootstrap"]  # some tools call it so
    close = difflib.get_close_matches(word.lower().lstrip("-"), names, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{names[close[0]]}?" if close else ""


def aligned(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Return rows as lines with aligned columns and clean cells; `right`: columns that are aligned to the right.

    >>> aligned([("topic", "lag"), ("sensors", "7")], right=[1])
    ['topic    lag', 'sensors    7']
    """
    if not rows:
        return []
    rows = [list(map(clean, row)) for row in rows]
    to_right = set(right)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i in to_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as text, with runs as ranges.

    >>> ranges([0, 1, 2, 5, 7, 8]), ranges([])
    ('0-2, 5, 7-8', '')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def in_bytes(count: float) -> str:
    """Return a number of bytes with its unit.

    >>> in_bytes(900), in_bytes(1536), in_bytes(3 << 30)
    ('900 B', '1.5 KiB', '3.0 GiB')
    """
    power = next((i for i in range(4) if count < 1024 ** (i + 1)), 4)
    return f"{count:.0f} B" if not power else f"{count / 1024**power:.1f} {' KMGT'[power]}iB"


def seconds_of(text: str) -> float:
    """Return the seconds of a duration that a user has written. Raises ValueError.

    >>> seconds_of("90s"), seconds_of("1.5h")
    (90.0, 5400.0)
    """
    if not re.fullmatch(r"\d+(\.\d+)?[smhdw]", text, re.ASCII):
        raise ValueError(DURATIONS)
    return float(text[:-1]) * SECONDS[text[-1]]


def in_time(seconds: float) -> str:
    """Return a duration as text, with the unit that suits it.

    >>> in_time(0.4), in_time(119), in_time(4000), in_time(200_000)
    ('0 s', '119 s', '67 min', '56 h')
    """
    for unit, length, limit_s in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 259_200)):
        if seconds < limit_s:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
