"""Pieces of messages to the user: counts, and the name that a mistyped one may stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OTHER_NAMES = {"broker": "bootstrap"}  # what a setting is called elsewhere


def counted(n: int, noun: str) -> str:
    """`1 row`, `2 rows`, `1,200 rows`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean X?` if a known word resembles `word`, else an empty string. prefix: put before the known word.

    >>> did_you_mean("Temp", ["load", "temp"])
    '; did you mean temp?'
    """
    names = {name.lower().lstrip("-"): name for name in known}  # dashes would make all flags resemble each other
    names |= {other: names[name] for other, name in OTHER_NAMES.items() if name in names}
    close = difflib.get_close_matches(word.lower().lstrip("-"), names, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{names[close[0]]}?" if close else ""
