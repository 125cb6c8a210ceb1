"""Codes of categories: numbers that identify values, so that rows of floats can hold them."""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

MISSING_TEXTS = frozenset({"", "nan", "NaN", "inf", "-inf", "NaT", "<NA>"})  # as Python, NumPy and pandas write it
MAX_CACHED_LENGTH = 200  # characters: longer texts are hashed each time, so that the cache stays small
MIN_JUDGED_VALUES = 50  # values that show whether a field has categories
MAX_NUMBER_LENGTH = 24  # characters of the longest float in text form
MAX_DECIMAL_BITS = 8192  # of an integer as decimals: Python refuses to write thousands of digits


def category_code(value: Any) -> float:
    """Return a stable code of a category: an integer in [0, 2**53), exact as a float; NaN for a missing one.

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
        value = hex(value) if isinstance(value, int) and value.bit_length() > MAX_DECIMAL_BITS else str(value)
    return _cached_code(value) if len(value) <= MAX_CACHED_LENGTH else _computed_code(value)


def is_mostly_rare(codes: Float) -> bool:
    """Return whether most of the values with these codes (n,) occur at most twice, as names and sessions do.

    With fewer than MIN_JUDGED_VALUES values it is False.
    """
    codes = codes[~np.isnan(codes)]
    _, place, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return len(codes) >= MIN_JUDGED_VALUES and float(np.mean(counts[place] <= 2)) > 0.5


def _computed_code(text: str) -> float:
    text = text.strip()
    if text in MISSING_TEXTS:
        return math.nan
    if len(text) <= MAX_NUMBER_LENGTH:
        text = _json_form(text)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") >> 11)


_cached_code = lru_cache(maxsize=10_000)(_computed_code)


def _json_form(text: str) -> str:
    """Return the text in JSON form: booleans in lower case, whole floats as integers."""
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() and repr(number) == text else text
