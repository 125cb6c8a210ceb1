"""Derivations, as users write them for features computed by key: `count(10m)`, `sum(amount, 24h)`, `new(device)`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from fomo_stream.wording import did_you_mean, seconds_of

MAX_WINDOW_S = 366 * 86_400  # of a window
# By function: an example; how many fields it has; whether they are categories; has a window; needs times.
FUNCTIONS = {
    "count": ("count(10m)", 0, False, True, True),
    "gap": ("gap()", 0, False, False, True),
    "sum": ("sum(amount, 24h)", 1, False, True, True),
    "mean": ("mean(amount, 7d)", 1, False, True, True),
    "distinct": ("distinct(merchant, 24h)", 1, True, True, True),
    "new": ("new(device)", 1, True, False, False),
    "share": ("share(category)", 1, True, False, False),
    "rate": ("rate(bytes)", 1, False, False, True),
    "speed": ("speed(lat, lon)", 2, False, False, True),
    "change": ("change(temperature)", 1, False, False, False),
    "ratio": ("ratio(errors, requests)", 2, False, False, False),
}
_PART = re.compile(r"(?:[^,()]|\((?:[^()]|\([^()]*\))*\)|[()])+")  # up to a comma that is not between parentheses


class Derivation(NamedTuple):
    """A feature that is computed from fields of a record, and mostly from earlier records of its key."""

    name: str  # of the feature
    function: str
    fields: tuple[str, ...]  # its inputs
    window_ms: int  # 0: it has none

    @property
    def takes_categories(self) -> bool:
        """Return whether every scalar is an input; else only numbers are."""
        return bool(FUNCTIONS[self.function][2])

    @property
    def is_timed(self) -> bool:
        """Return whether it needs the times of records."""
        return bool(FUNCTIONS[self.function][4])


def split_at_commas(text: str) -> list[str]:
    """Split a text at the commas that are not between parentheses.

    >>> split_at_commas("count(10m), sum(amount, 24h)")
    ['count(10m)', 'sum(amount, 24h)']
    """
    return [part for piece in _PART.findall(text) if (part := piece.strip())]


def split_derivations(value: Any) -> Any:
    """Return texts with commas as a tuple of their parts; another value stays unchanged."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        return value
    return tuple(part for text in texts for part in split_at_commas(text))


def parse_derivation(text: str) -> Derivation:
    """Read one derivation. Raises ValueError.

    >>> parse_derivation(" sum( amount,24h )")
    Derivation(name='sum(amount,24h)', function='sum', fields=('amount',), window_ms=86400000)
    """
    shown, match = text.strip()[:60], re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    function = match[1] if match else ""
    if text.count("(") != text.count(")"):
        raise ValueError(f"{shown}: a parenthesis is missing")
    if match is None or function not in FUNCTIONS:
        hint = did_you_mean(function, FUNCTIONS) or f"; write {', '.join(form for form, *_ in FUNCTIONS.values())}"
        raise ValueError(f"{shown}: there is no such function{hint}")
    form, n_fields, _, has_window, _ = FUNCTIONS[function]
    arguments = split_at_commas(match[2] or "")
    if len(arguments) != n_fields + has_window:
        raise ValueError(f"{shown}: write it as {form}")
    window_ms = 0
    if has_window:
        try:
            window_ms = round(1000 * seconds_of(arguments[-1]))
        except ValueError as error:
            raise ValueError(f"{shown}: {arguments[-1][:20]} is not a duration; {error}") from None
        if not 1000 <= window_ms <= 1000 * MAX_WINDOW_S:
            raise ValueError(f"{shown}: a window has at least 1s and at most {MAX_WINDOW_S // 86_400}d")
    return Derivation(f"{function}({','.join(arguments)})", function, tuple(arguments[:n_fields]), window_ms)


def parse_derivations(texts: Iterable[str]) -> tuple[Derivation, ...]:
    """Read several derivations. Raises ValueError, also if two mean the same."""
    derivations = tuple(map(parse_derivation, texts))
    meant = [derivation[1:] for derivation in derivations]
    if twice := [derivation.name for derivation in derivations if meant.count(derivation[1:]) > 1]:
        raise ValueError(f"{' and '.join(dict.fromkeys(twice))}: give each feature once"[:200])
    return derivations
