"""Times of records: numbers since 1970, in any usual unit, and text in ISO 8601."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from numbers import Real
from typing import Any

from fomo_stream.records.inference import is_time
from fomo_stream.records.schema import is_number_text

# Seconds of the year 5138 are milliseconds of 1973; the same holds between the other units.
_UNITS = ((1e11, 1000.0), (1e14, 1.0), (1e17, 1e-3), (math.inf, 1e-6))  # largest number, milliseconds of 1
_MOST_MS = 2**62
_LARGEST = 1e300


def to_milliseconds(value: Any) -> int | None:
    """A time as milliseconds since 1970, None if it is no time. Text without a zone is UTC; a number is in s, ms, us or
    ns, whichever its magnitude fits.

    >>> to_milliseconds(1759276800.25), to_milliseconds("2025-10-01T02:00+02:00"), to_milliseconds("1759276800000")
    (1759276800250, 1759276800000, 1759276800000)
    """
    if is_time(value):
        moment = datetime.fromisoformat(value.strip())
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    number = _number(value)
    if number is None:
        return None
    unit = next(unit for largest, unit in _UNITS if abs(number) < largest)
    return None if abs(number * unit) >= _MOST_MS else round(number * unit)


def _number(value: Any) -> float | None:
    """A number, perhaps as text; None for anything else, and for a date of eight digits."""
    if is_number_text(value):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return float(value) if -_LARGEST < value < _LARGEST else None  # type: ignore[operator]  # numbers.Real promises no order
