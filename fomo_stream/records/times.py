"""Times of records: numbers since 1970 in any usual unit, digits such as 20261001120000, and text in ISO 8601 or
another form of one meaning; and their places in cycles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any

from fomo_stream.errors import SchemaError
from fomo_stream.records.schema import is_number_text, number_of

# Seconds of the year 5138 are milliseconds of 1973; the same holds between the other units.
_UNITS = ((1e11, 1000.0), (1e14, 1.0), (1e17, 1e-3), (math.inf, 1e-6))  # largest number, milliseconds of 1
_DIGITS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}  # as seconds or ms, these are of 1970, 1976 and 2600
# Numbers of days: the smallest and largest, the day 0, and the program that counts so.
_DAYS = (
    (20_000, 80_000, datetime(1899, 12, 30), "a spreadsheet"),
    (700_000, 780_000, datetime(1, 1, 1), "MATLAB"),  # whose day 0 is 367 days before that
)
_PLAUSIBLE_TIMES = datetime(1990, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
# Numbers of other years mostly count from another day: ticks of .NET would be of 1990, seconds of Apple of 1993.
_PLAUSIBLE_NUMBERS = datetime(2000, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
_MAX_MS = 2**62
END_MS = 7_289_654_400_000  # of the year 2200
_MAX_NUMBER = 1e300
_MIN_STEPS = 10  # steps from time to time; fewer may fall by chance


# Forms in which no other day can be read, unlike 03/01/2026, which is in March or in January.
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ENDS = ("uary", "ruary", "ch", "il", "", "e", "y", "ust", "t(?:ember)?", "ober", "ember", "ember")
_WORDS = "|".join(f"{month}(?:{end})?" for month, end in zip(_MONTHS, _ENDS, strict=True))
_NAME, _DAY, _YEAR = rf"(?P<month>{_WORDS})\.?", r"(?P<day>\d{1,2})", r"(?P<year>\d{4})"
_SECONDS = r"(?::(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?)?"
_CLOCK = rf"(?P<hour>\d{{1,2}}):(?P<minute>\d\d){_SECONDS}(?: ?(?P<half>[ap])\.?m\.?)?"
_ZONE = r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d)(?: UTC)?)?"
_DATES = (
    rf"{_YEAR}(?P<sign>[-/.])(?P<month>\d{{1,2}})(?P=sign){_DAY}",
    rf"{_DAY}\.(?P<month>\d{{1,2}})\.{_YEAR}",
    rf"(?:[a-z]{{3}}, )?{_DAY}(?P<sign>[-/ ]){_NAME}(?P=sign){_YEAR}",  # also of web servers, HTTP and mail
    rf"{_NAME} {_DAY},? {_YEAR}",
)
_FORMS = (
    *(re.compile(rf"{date}(?:(?:T|:|,? ){_CLOCK}{_ZONE})?", re.IGNORECASE | re.ASCII) for date in _DATES),
    re.compile(rf"[a-z]{{3}} {_NAME} +{_DAY} {_CLOCK}{_ZONE} {_YEAR}", re.IGNORECASE | re.ASCII),  # of `date` and ctime
)
_AMBIGUOUS = re.compile(r"\d{1,2}[-/]\d{1,2}[-/](?:\d\d){1,2}(?: .*)?")
_MAX_TEXT = 50  # characters of a time


def is_time(value: Any) -> bool:
    """Return whether a value is text with a date, or a date and a time, in ISO 8601 or another form of one meaning."""
    return _moment_of(value) is not None


def _moment_of(value: Any) -> datetime | None:
    """Return the time that text says, or None.

    >>> _moment_of("1.10.2026 2:00 PM") == _moment_of("Thu, 01 Oct 2026 14:00:00") == _moment_of("2026/10/01 14:00")
    True
    """
    if not isinstance(value, str) or len(text := value.strip()) > _MAX_TEXT:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        found = next((match for form in _FORMS if (match := form.fullmatch(text))), None)
        return _moment_in(found) if found else None
    return moment if not is_number_text(text) or len(text) == len("20261001") else None  # no other number is a date


def _moment_in(match: re.Match[str]) -> datetime | None:
    """Return the time of a match of one of `_FORMS`; None: there is no such day or hour."""
    part, name, zone = match.groupdict(), match["month"].lower(), match["zone"] or ""
    half, hour = part["half"], int(part["hour"] or 0)
    if half:
        hour = hour % 12 + 12 * (half in "pP") if 1 <= hour <= 12 else 99
    month = int(name) if name.isdigit() else _MONTHS.index(name[:3]) + 1
    clock = f"{hour:02}:{part['minute'] or '00'}:{part['second'] or '00'}.{(part['part'] or '').ljust(6, '0')[:6]}"
    try:
        return datetime.fromisoformat(
            f"{part['year']}-{month:02}-{int(part['day']):02}T{clock}{'Z' if zone.isalpha() else zone}"
        )
    except ValueError:
        return None


def digits_of_time(number: float) -> datetime | None:
    """Return the time in the digits of a number such as 20261001, 202610011200 or 20261001120000; else None."""
    if number % 1:  # also of NaN
        return None
    form = _DIGITS.get(len(digits := f"{number:.0f}"))
    if form is None or digits[:2] not in ("19", "20"):
        return None
    try:
        return datetime.strptime(digits, form)
    except ValueError:
        return None


def to_milliseconds(value: Any, zone: tzinfo = UTC) -> int | None:
    """Return a time as milliseconds since 1970; None if it is not a time. zone: of text and digits without one. The
    magnitude of a number shows its unit: s, ms, us or ns.

    >>> to_milliseconds(1759276800.25), to_milliseconds("2025-10-01T02:00+02:00"), to_milliseconds("1759276800000")
    (1759276800250, 1759276800000, 1759276800000)
    """
    moment = _moment_of(value)
    number = math.nan if moment or isinstance(value, bool) else number_of(value)
    moment = moment or digits_of_time(number)
    if moment is not None:
        return round((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp() * 1000)
    if not abs(number) < _MAX_NUMBER:
        return None
    unit = next(unit for largest, unit in _UNITS if abs(number) < largest)
    return None if abs(number * unit) >= _MAX_MS else round(number * unit)


def check_times(field: str, values: Sequence[Any], zone: tzinfo) -> Iterator[str]:
    """Yield sentences about properties of the times of the first records that a user may not expect.

    Raises SchemaError if none can be read, or if they are numbers of days.
    """
    times = [time for value in values if (time := to_milliseconds(value, zone)) is not None]
    first = next((str(value)[:40] for value in values if value is not None), "nothing")
    if not times:
        if _AMBIGUOUS.fullmatch(first.strip()):
            why = f"--time {field}: day and month of {first!r} may be in either order"
            raise SchemaError(why, "write the year first, or the month as a word")
        raise SchemaError(
            f"--time {field}: {first!r} is not a time; it has to be a number since 1970 (s, ms, us or ns), or ISO 8601"
        )
    numbers = [number for value in values if (number := number_of(value)) == number]
    for low, high, begin, program in _DAYS:
        if numbers and low <= min(numbers) and max(numbers) <= high:
            day = begin + timedelta(days=numbers[0] - (367 if low > 80_000 else 0))
            raise SchemaError(
                f"--time {field}: {first} looks like days as {program} counts them (then it is {day:%Y-%m-%d %H:%M}), "
                "not like seconds since 1970",
                "write the times in ISO 8601, or as seconds",
            )
    is_number = bool(numbers) and digits_of_time(numbers[0]) is None
    begin, end = _PLAUSIBLE_NUMBERS if is_number else _PLAUSIBLE_TIMES
    if known_time(times[0]) is None or not begin <= (read := _moment(times[0])) < end:
        shown = "a time before 1970 or after 2200" if known_time(times[0]) is None else f"{read:%Y-%m-%dT%H:%M:%SZ}"
        yield f"the first time in {field}, {first}, is read as {shown}"
    yield from backward_notes(field, times)


def backward_notes(field: str, times: Sequence[int]) -> Iterator[str]:
    """Yield a sentence if times of records run backwards."""
    steps = [after - before for before, after in pairwise(times)]
    if len(steps) >= _MIN_STEPS and sum(step < 0 for step in steps) > 0.6 * len(steps):
        yield (
            f"the times in {field} run backwards: the newest record is first, but each record is compared with those "
            "before it; sort the file by time"
        )


def _moment(time: int) -> datetime:
    return datetime.fromtimestamp(time / 1000.0, UTC)


def known_time(time: int | None) -> int | None:
    """Return a time in milliseconds since 1970; None outside the years 1970 to 2200, as for -1, often a missing time.

    >>> known_time(1759276800000), known_time(-1), known_time(10**15)
    (1759276800000, None, None)
    """
    return time if time is not None and 0 <= time < END_MS else None


# --- places in the day, the week and the year ----------------------------------------------------------------------


def cycles_of(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the cycles (successive bins, kinds of such cycles) that hour, weekday and month name together.

    >>> cycles_of(["weekday", "hour"]), cycles_of(["month", "hour"])
    (((24, 1), (168, 1)), ((24, 1), (24, 12)))
    """
    cycles = []
    inner = 1
    for name, bins in (("hour", 24), ("weekday", 7)):
        if name in names:
            inner *= bins
            cycles.append((inner, 1))
    if "month" in names:
        cycles.append((inner, 12) if cycles else (12, 1))
    return tuple(cycles)


def places_at(time: int | None, names: Sequence[str], zone: tzinfo) -> list[float]:
    """Return the position of a time (ms since 1970) in each of these cycles, in bins; NaN if it is not a `known_time`.

    The clocks are those of the zone: in a cycle of hours 3 a.m. is 3 a.m. in summer and in winter.
    """
    if (time := known_time(time)) is None:
        return [math.nan] * len(cycles_of(names))
    local = datetime.fromtimestamp(time / 1000.0, zone)
    hour = local.hour + local.minute / 60.0 + local.second / 3600.0
    places, place, inner = [], 0.0, 1
    if "hour" in names:
        places.append(place := hour)
        inner = 24
    if "weekday" in names:
        places.append(place := local.weekday() * inner + (place if inner > 1 else hour / 24.0))
        inner *= 7
    if "month" in names:
        places.append((local.month - 1) * inner + place if inner > 1 else local.month - 1 + (local.day - 1) / 31.0)
    return places
