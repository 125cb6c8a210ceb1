"""The days of a rule of iCalendar (RFC 5545, `FREQ=WEEKLY;BYDAY=SU`).

They are computed for all days together, so the time for a rule is bounded.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fomo_stream.limits import FIRST_YEAR, LAST_YEAR

FIRST_ORDINAL = date(FIRST_YEAR, 1, 1).toordinal()
DAYS = np.arange(f"{FIRST_YEAR}-01-01", f"{LAST_YEAR + 1}-01-01", dtype="M8[D]")
MAX_RULE_LENGTH = 300  # characters of a rule
MAX_OPEN_REPETITIONS = 8  # repetitions that are open at a time
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
RULE_PARTS = {  # with their values as regular expressions
    "FREQ": "DAILY|WEEKLY|MONTHLY|YEARLY",
    **dict.fromkeys(("INTERVAL", "COUNT"), "[1-9][0-9]{0,2}"),
    **dict.fromkeys(("BYHOUR", "BYMINUTE", "BYSECOND"), "[0-9]{1,2}"),
    **dict.fromkeys(("BYMONTH", "BYMONTHDAY", "BYSETPOS"), "[+-]?[0-9]{1,3}(,[+-]?[0-9]{1,3}){0,30}"),
    "BYDAY": "([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)(,([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)){0,30}",
    "WKST": "|".join(WEEKDAYS),
    "UNTIL": "(19|2[0-9])[0-9]{6}(T[0-9]{6}Z?)?",
}


@lru_cache(maxsize=1000)
def repetitions(rule: str, start: datetime, zone: tzinfo, length: timedelta) -> tuple[NDArray[np.uint8], time]:
    """Return the DAYS of a rule that begins at `start`, as bits, and its time of day, on the clocks of a zone.

    length: of a repetition. Raises ValueError if a part is not valid, or if too many repetitions are open at a time.
    """
    pairs = [part.partition("=")[::2] for part in rule.upper().split(";")]
    parts = dict(pairs)
    if len(rule) > MAX_RULE_LENGTH or len(parts) < len(pairs) or "FREQ" not in parts:
        raise ValueError(f"it has FREQ, no part twice, and at most {MAX_RULE_LENGTH} characters")
    if odd := [f"{name[:20]}={text[:40]}" for name, text in pairs if not re.fullmatch(RULE_PARTS.get(name, "-"), text)]:
        raise ValueError(f"{odd[0]} is not supported")

    def numbers(name: str, *default: int) -> list[int]:
        return [int(number) for number in parts[name].split(",")] if name in parts else [*default]

    clock = (("BYHOUR", start.hour), ("BYMINUTE", start.minute), ("BYSECOND", start.second))
    hour, minute, second = (numbers(name, value)[0] for name, value in clock)
    clock_time = time(hour, minute, second)
    freq, is_plain = parts["FREQ"], "BYDAY" not in parts and "BYMONTHDAY" not in parts  # on the day of its start
    month_days = numbers("BYMONTHDAY", *[start.day][: is_plain and freq in ("MONTHLY", "YEARLY")])
    months = numbers("BYMONTH", *[start.month][: is_plain and freq == "YEARLY"])
    week_days = parts.get("BYDAY", WEEKDAYS[start.weekday()] if is_plain and freq == "WEEKLY" else "")
    units = {unit: DAYS.astype(f"M8[{unit}]") for unit in "DMY"}
    day, month, year = (dates.astype(np.int64) for dates in units.values())
    week = (day + 3 - WEEKDAYS.index(parts.get("WKST", "MO"))) // 7
    period = {"DAILY": day, "WEEKLY": week, "MONTHLY": month, "YEARLY": year}[freq]
    first = min(max(0, start.toordinal() - FIRST_ORDINAL), len(DAYS) - 1)
    is_day = (period - period[first]) % numbers("INTERVAL", 1)[0] == 0
    if months:
        is_day &= np.isin(month % 12 + 1, months)
    if month_days:
        is_day &= np.isin(_day_numbers(units["M"], 1), month_days) | np.isin(_day_numbers(units["M"], -1), month_days)
    if week_days:
        of_unit, is_listed = units["Y" if freq == "YEARLY" and not months else "M"], np.zeros(len(DAYS), dtype=bool)
        for name in week_days.split(","):
            nth = int(name[:-2] or 0) if freq in ("MONTHLY", "YEARLY") else 0
            is_nth = (np.abs(_day_numbers(of_unit, nth)) + 6) // 7 == abs(nth) if nth else True
            is_listed |= ((day + 3) % 7 == WEEKDAYS.index(name[-2:])) & is_nth
        is_day &= is_listed
    if "BYSETPOS" in parts:
        periods = period[is_day]
        order = np.arange(len(periods))
        rank, from_end = (order - np.searchsorted(periods, periods, side) for side in ("left", "right"))
        is_day[is_day] = np.isin(rank + 1, numbers("BYSETPOS")) | np.isin(from_end, numbers("BYSETPOS"))
    is_day[: first + (clock_time < start.replace(microsecond=0).time())] = False
    if text := parts.get("UNTIL"):
        until = datetime.strptime(text.rstrip("Z"), "%Y%m%dT%H%M%S" if "T" in text else "%Y%m%d")
        until = until.replace(tzinfo=UTC).astimezone(zone) if text.endswith("Z") else until
        is_day[max(0, until.toordinal() - FIRST_ORDINAL + (clock_time <= until.time())) :] = False
    is_day[np.flatnonzero(is_day)[numbers("COUNT", len(DAYS))[0] :]] = False
    days = DAYS[is_day]
    if (days[MAX_OPEN_REPETITIONS:] - days[:-MAX_OPEN_REPETITIONS] <= np.timedelta64(length)).any():
        raise ValueError(f"more than {MAX_OPEN_REPETITIONS} repetitions are open at a time")
    return np.packbits(is_day), clock_time


def _day_numbers(of_unit: NDArray[np.datetime64], sign: int) -> NDArray[np.int64]:
    """Return the numbers of DAYS in their months or years: from 1, or with a negative sign from the end, from -1."""
    return np.asarray((DAYS - (of_unit + (sign < 0)).astype(DAYS.dtype)).astype(np.int64) + (sign > 0), np.int64)


def days_in(bits: NDArray[np.uint8], first: int, stop: int) -> NDArray[np.datetime64]:
    """Return the DAYS of these bits from about `first` to `stop`, in days since 1970."""
    first, stop = max(0, first) // 8, max(0, stop) // 8 + 1
    return np.asarray(DAYS[8 * first + np.flatnonzero(np.unpackbits(bits[first:stop]))])
