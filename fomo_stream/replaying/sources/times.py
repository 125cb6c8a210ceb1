"""Times in files: numbers of seconds or milliseconds since 1970, or ISO 8601 text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from numbers import Real
from statistics import median
from typing import Any

# Seconds of the year 5138 are milliseconds of 1973; the same holds between the other units.
_UNITS = ((1e11, 1000.0), (1e14, 1.0), (1e17, 1e-3), (math.inf, 1e-6))  # largest number, milliseconds of 1
_MOST_MS = 2**62


def milliseconds_of_one(values: Iterable[Any]) -> float:
    """The unit of the numbers in a file, in milliseconds, by the magnitude of the first ones.

    >>> milliseconds_of_one([1759276800, None]), milliseconds_of_one([1759276800000.0]), milliseconds_of_one([])
    (1000.0, 1.0, 1.0)
    """
    numbers = [abs(float(value)) for value in values if _is_number(value)]
    if not numbers:
        return 1.0
    size = median(numbers)
    return next(unit for largest, unit in _UNITS if size < largest)


def to_milliseconds(value: Any, unit: float) -> int | None:
    """A time as milliseconds since 1970, None if it is no time. unit: of numbers; text without a zone is UTC.

    >>> to_milliseconds(1759276800.25, 1000.0), to_milliseconds("2025-10-01T02:00+02:00", 1.0)
    (1759276800250, 1759276800000)
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if not _is_number(value):
        return None
    found = value * unit
    return round(found) if abs(found) < _MOST_MS else None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return not isinstance(value, float) or math.isfinite(value)
