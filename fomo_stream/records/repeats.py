"""The days of a rule of iCalendar (RFC 5545, `FREQ=WEEKLY;BYDAY=SU`), found for all days at once: none takes long."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fomo_stream.limits import FIRST_YEAR, LAST_YEAR

EPOCH = date(FIRST_YEAR, 1, 1).toordinal()
DAYS = np.arange(f"{FIRST_YEAR}-01-01", f"{LAST_YEAR + 1}-01-01", dtype="M8[D]")
LONGEST = 300  # characters of a rule
MOST_AT_ONCE = 8  # repetitions that are open together
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
PARTS = {  # what it may say
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
    """On which of DAYS (in bits), and when on them, a rule takes place that begins at `start`, on the clocks of a zone.

    length: of a repetition. Raises ValueError for what a rule may not say, or if too many are open together.
    """
    pairs = [part.partition("=")[::2] for part in rule.upper().split(";")]
    parts = dict(pairs)
    if len(rule) > LONGEST or len(parts) < len(pairs) or "FREQ" not in parts:
        raise ValueError(f"it has FREQ, no part twice, and at most {LONGEST} characters")
    if odd := [f"{name[:20]}={its[:40]}" for name, its in pairs if not re.fullmatch(PARTS.get(name, "-"), its)]:
        raise ValueError(f"{odd[0]} is not supported")

    def numbers(name: str, *default: int) -> list[int]:
        return [int(one) for one in parts[name].split(",")] if name in parts else [*default]

    clock = (("BYHOUR", start.hour), ("BYMINUTE", start.minute), ("BYSECOND", start.second))
    hour, minute, second = (numbers(*one)[0] for one in clock)
    at = time(hour, minute, second)
    freq, is_plain = parts["FREQ"], "BYDAY" not in parts and "BYMONTHDAY" not in parts  # on the day of its start
    month_days = numbers("BYMONTHDAY", *[start.day][: is_plain and freq in ("MONTHLY", "YEARLY")])
    months = numbers("BYMONTH", *[start.month][: is_plain and freq == "YEARLY"])
    week_days = parts.get("BYDAY", WEEKDAYS[start.weekday()] if is_plain and freq == "WEEKLY" else "")
    units = {unit: DAYS.astype(f"M8[{unit}]") for unit in "DMY"}
    day, month, year = (one.astype(np.int64) for one in units.values())
    week = (day + 3 - WEEKDAYS.index(parts.get("WKST", "MO"))) // 7
    period = {"DAILY": day, "WEEKLY": week, "MONTHLY": month, "YEARLY": year}[freq]
    first = min(max(0, start.toordinal() - EPOCH), len(DAYS) - 1)
    found = (period - period[first]) % numbers("INTERVAL", 1)[0] == 0
    if months:
        found &= np.isin(month % 12 + 1, months)
    if month_days:
        found &= np.isin(_place(units["M"], 1), month_days) | np.isin(_place(units["M"], -1), month_days)
    if week_days:
        of_unit, is_one = units["Y" if freq == "YEARLY" and not months else "M"], np.zeros(len(DAYS), dtype=bool)
        for name in week_days.split(","):
            nth = int(name[:-2] or 0) if freq in ("MONTHLY", "YEARLY") else 0
            is_nth = (np.abs(_place(of_unit, nth)) + 6) // 7 == abs(nth) if nth else True
            is_one |= ((day + 3) % 7 == WEEKDAYS.index(name[-2:])) & is_nth
        found &= is_one
    if "BYSETPOS" in parts:
        its = period[found]
        rank, from_end = (np.arange(len(its)) - np.searchsorted(its, its, side) for side in ("left", "right"))
        found[found] = np.isin(rank + 1, numbers("BYSETPOS")) | np.isin(from_end, numbers("BYSETPOS"))
    found[: first + (at < start.replace(microsecond=0).time())] = False
    if text := parts.get("UNTIL"):
        until = datetime.strptime(text.rstrip("Z"), "%Y%m%dT%H%M%S" if "T" in text else "%Y%m%d")
        until = until.replace(tzinfo=UTC).astimezone(zone) if text.endswith("Z") else until
        found[max(0, until.toordinal() - EPOCH + (at <= until.time())) :] = False
    found[np.flatnonzero(found)[numbers("COUNT", len(DAYS))[0] :]] = False
    days = DAYS[found]
    if (days[MOST_AT_ONCE:] - days[:-MOST_AT_ONCE] <= np.timedelta64(length)).any():
        raise ValueError(f"more than {MOST_AT_ONCE} repetitions are open at a time")
    return np.packbits(found), at


def _place(of_unit: NDArray[np.datetime64], sign: int) -> NDArray[np.int64]:
    """The places of DAYS in their months, or years: from 1, or from the end, from -1, by the sign."""
    return np.asarray((DAYS - (of_unit + (sign < 0)).astype(DAYS.dtype)).astype(np.int64) + (sign > 0), np.int64)


def days_in(found: NDArray[np.uint8], first: int, stop: int) -> NDArray[np.datetime64]:
    """Those of DAYS from about `first` to `stop`, in days since 1970, that are among some (in bits)."""
    first, stop = max(0, first) // 8, max(0, stop) // 8 + 1
    return np.asarray(DAYS[8 * first + np.flatnonzero(np.unpackbits(found[first:stop]))])
