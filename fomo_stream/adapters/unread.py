"""Warnings of values that are given as data, but count as missing."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Hashable, Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.categories import MISSING_TEXTS

SHOWN = 5  # features that a warning names


class Unread:
    """Warns once of each: numbers given as text; records without any value that counts; records of unknown features."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    @property
    def wants_values(self) -> bool:
        """Whether `values` can still warn."""
        return not {"text", "values"} <= self._warned

    def values(self, cells: Iterable[tuple[int, Hashable, Any]], empty: NDArray[np.bool_]) -> None:
        """Warn of values that should perhaps have been read.

        cells: row, feature and value of those that count as missing; empty: (n,), which rows have no value that counts.
        A row with numbers that are text is only warned of as such.
        """
        if not self.wants_values:
            return
        texts: dict[Hashable, None] = {}
        rows: set[int] = set()  # those with numbers that are text
        others: list[tuple[int, Hashable, str]] = []
        for row, name, value in cells:
            if isinstance(value, str) and _is_number(value):
                texts[name] = None
                rows.add(row)
            elif empty[row] and _is_given(value):
                others.append((row, name, "text" if isinstance(value, str) else type(value).__name__))
        kinds = {name: f"{name!r} ({kind})" for row, name, kind in others if row not in rows}
        if texts:
            converters = _listed([f"{name!r}: float" for name in texts])
            self._warn(
                "text",
                f"numbers that are text count as missing, in {_listed(list(map(repr, texts)))}; convert them first, as "
                f"stream.iter_csv does with converters={{{converters}}}, or name these features in categorical",
            )
        if kinds:
            self._warn(
                "values",
                "a record without any number or category gets no score and is not learned; it has "
                f"{_listed(list(kinds.values()))}: turn these into numbers, or name them in categorical",
            )

    def unknown(self, names: Iterable[Hashable], known: Iterable[Hashable]) -> None:
        """Warn of a record that has only features, `names`, that are not known."""
        given, learned = (_listed(list(map(repr, some))) for some in (names, known))
        self._warn("names", f"a record gets no score, as all its features are unknown: {given}; known are {learned}")

    def _warn(self, kind: str, message: str) -> None:
        """Warn of what the user's code does: the warning has its line, not one of this package."""
        if kind in self._warned:
            return
        self._warned.add(kind)
        frame, level = sys._getframe(0), 1
        while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "fomo_stream":
            frame, level = frame.f_back, level + 1
        warnings.warn(f"FoMoDetector: {message}", stacklevel=level)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_given(value: Any) -> bool:
    """Whether a value that is not read is more than a mark of a missing one: None, NaN, NA, an infinity, blank text."""
    if value is None or isinstance(value, (Real, Decimal)):
        return False
    return str(value).strip() not in MISSING_TEXTS


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:SHOWN]) + (", ..." if len(words) > SHOWN else "")
