"""Times of records: numbers since 1970, in any usual unit, and text in ISO 8601; and their places in cycles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from fomo_stream.records.schema import is_number_text, number_of

# Seconds of the year 5138 are milliseconds of 1973; the same holds between the other units.
_UNITS = ((1e11, 1000.0), (1e14, 1.0), (1e17, 1e-3), (math.inf, 1e-6))  # largest number, milliseconds of 1
_MOST_MS = 2**62
END_MS = 7_289_654_400_000  # of the year 2200
_LARGEST = 1e300


def is_time(value: Any) -> bool:
    """Whether a value is text with a date, perhaps with a time, in ISO 8601."""
    if not isinstance(value, str):
        return False
    try:
        datetime.fromisoformat(value.strip())
    except ValueError:
        return False
    return not is_number_text(value) or len(value.strip()) == len("20261001")  # another number is none


def to_milliseconds(value: Any) -> int | None:
    """A time as milliseconds since 1970, None if it is no time. Text without a zone is UTC; a number is in s, ms, us or
    ns, whichever its magnitude fits.

    >>> to_milliseconds(1759276800.25), to_milliseconds("2025-10-01T02:00+02:00"), to_milliseconds("1759276800000")
    (1759276800250, 1759276800000, 1759276800000)
    """
    if is_time(value):
        moment = datetime.fromisoformat(value.strip())
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    number = math.nan if isinstance(value, bool) else number_of(value)
    if not abs(number) < _LARGEST:
        return None
    unit = next(unit for largest, unit in _UNITS if abs(number) < largest)
    return None if abs(number * unit) >= _MOST_MS else round(number * unit)


def known_time(time: int | None) -> int | None:
    """A time in milliseconds since 1970; None if it is outside of the years 1970 to 2200, as -1, which often stands for
    none: such a time says nothing of when a record was made.

    >>> known_time(1759276800000), known_time(-1), known_time(10**15)
    (1759276800000, None, None)
    """
    return time if time is not None and 0 <= time < END_MS else None


# --- places in the day, the week and the year ----------------------------------------------------------------------


def cycles_of(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """The cycles (bins that follow each other, kinds of such cycles) that hour, weekday and month name together.

    >>> cycles_of(["weekday", "hour"]), cycles_of(["month", "hour"])
    (((24, 1), (168, 1)), ((24, 1), (24, 12)))
    """
    found = []
    inner = 1
    for name, bins in (("hour", 24), ("weekday", 7)):
        if name in names:
            inner *= bins
            found.append((inner, 1))
    if "month" in names:
        found.append((inner, 12) if found else (12, 1))
    return tuple(found)


def places_at(time: int | None, names: Sequence[str], zone: tzinfo) -> list[float]:
    """The place of a time (milliseconds since 1970) in each of these cycles, in bins; NaN if it is no `known_time`.

    The clocks are those of the zone: in a cycle of hours 3 a.m. is 3 a.m. in summer and in winter.
    """
    if (time := known_time(time)) is None:
        return [math.nan] * len(cycles_of(names))
    local = datetime.fromtimestamp(time / 1000.0, zone)
    hour = local.hour + local.minute / 60.0 + local.second / 3600.0
    found, place, inner = [], 0.0, 1
    if "hour" in names:
        found.append(place := hour)
        inner = 24
    if "weekday" in names:
        found.append(place := local.weekday() * inner + (place if inner > 1 else hour / 24.0))
        inner *= 7
    if "month" in names:
        found.append((local.month - 1) * inner + place if inner > 1 else local.month - 1 + (local.day - 1) / 31.0)
    return found
