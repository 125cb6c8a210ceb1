"""Categories as numbers: a code that identifies a value, and a rarity that a detector can compare.

Rows hold codes: floats that are equal for equal categories and have no other meaning. Every context counts the codes of
its own rows and replaces each by its rarity. So rarity follows the context as it changes, and a category that the
context does not have is rarer than all that it has.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

MISSING_TEXTS = frozenset({"", "nan", "NaN", "inf", "-inf", "NaT", "<NA>"})  # as Python, NumPy and pandas write it
LONGEST_KEPT = 200  # characters: longer texts are hashed each time, so that the cache stays small
LONGEST_NUMBER = 24  # characters of the longest float in text form
MAX_BITS = 8192  # of an integer as decimals: Python refuses to write thousands of digits


def category_code(value: Any) -> float:
    """A stable code of a category: an integer in [0, 2**53), exact as a float; NaN where there is no category.

    Values are one category when they are written the same way: 404, 404.0 and "404"; True, "true" and "True". Spaces
    around a text are ignored, every other difference counts: "DE" is not "de", "01" is not "1". None, NaN, infinities,
    blank text, lists and objects are missing. Two categories share a code with a probability of 1e-16.

    >>> category_code(404) == category_code(404.0) == category_code("404")
    True
    >>> category_code("DE") == category_code("de"), category_code(None)
    (False, nan)
    """
    if value is None or isinstance(value, (list, dict)):
        return math.nan
    if not isinstance(value, str):
        value = hex(value) if isinstance(value, int) and value.bit_length() > MAX_BITS else str(value)
    return _kept_code(value) if len(value) <= LONGEST_KEPT else _code(value)


def _code(text: str) -> float:
    text = text.strip()
    if text in MISSING_TEXTS:
        return math.nan
    if len(text) <= LONGEST_NUMBER:
        text = _normal(text)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") >> 11)


_kept_code = lru_cache(maxsize=10_000)(_code)


def _normal(text: str) -> str:
    """The text in JSON form: booleans in lower case, whole floats as integers."""
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() and repr(number) == text else text


@dataclass(frozen=True)
class Frequencies:
    """The frequency of each category in a context, and the rarities computed from it."""

    columns: tuple[int, ...]  # the columns that hold category codes
    _known: tuple[tuple[Float, Float], ...]  # for each column: its codes, ascending, and their counts

    @classmethod
    def fit(cls, rows: Float, columns: Sequence[int]) -> Frequencies:
        """Count the codes in `columns` of context rows (n, d); NaN is missing."""
        known = []
        for column in columns:
            codes, counts = np.unique(rows[:, column], return_counts=True)
            present = ~np.isnan(codes)
            known.append((codes[present], counts[present].astype(np.float64)))
        return cls(tuple(columns), tuple(known))

    def encode(self, rows: Float) -> Float:
        """A copy of rows (q, d) in which the codes are rarities, in standard deviations; NaN stays NaN.

        A category of share p gets sqrt(1 / p - 1): the distance of its indicator variables from their mean, measured
        by their covariance (the chi-square distance of correspondence analysis, Greenacre 1984). So it is on the scale
        of a z-score: 1 for one of two equal categories, 10 for one in a hundred rows. The share is (c + 1/2) / (n + 1)
        where c of n other rows with a value have the category (Krichevsky & Trofimov 1981).

        For a category that the context has, one of its rows is left out: the row itself, or, of a new row, another one.
        So new rows and those of the context get the same rarity for the same category. Were they to differ a little, a
        column of two equal categories would have new rows far from all of the context, on the scale of its spread.
        A category that no row has gets sqrt(2 n + 1), larger than any other, even if all others are equally frequent.
        Where most rows have a category of their own, such as an identifier, it is nearly the same as theirs.
        """
        encoded = np.array(rows, dtype=np.float64)
        for column, (codes, counts) in zip(self.columns, self._known, strict=True):
            wanted = encoded[:, column]
            if len(codes):
                at = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
                count = np.where(codes[at] == wanted, counts[at], 0.0)
            else:
                count = np.zeros(len(wanted))
            total = counts.sum()
            share = np.where(count > 0, (count - 0.5) / max(total, 1.0), 0.5 / (total + 1.0))
            encoded[:, column] = np.where(np.isnan(wanted), np.nan, np.sqrt(1.0 / share - 1.0))
        return encoded
