"""Rules of iCalendar, against dateutil; and what they may not say."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.records.recurrence import DAYS, WEEKDAYS, days_in, repetitions

BERLIN = ZoneInfo("Europe/Berlin")
HOUR, LAST = timedelta(hours=1), datetime(2030, 1, 1)


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    some = st.lists(st.integers(low, high).filter(bool), min_size=1, max_size=4)
    return some.map(lambda its: ",".join(map(str, its)))


@st.composite
def rules(draw: st.DrawFn) -> str:
    freq = draw(st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]))
    by_month = freq in ("MONTHLY", "YEARLY")
    # dateutil wants both of them where plain days and counted ones are mixed
    nth = draw(st.sampled_from([[""], ["1", "-1", "+2"]])) if by_month else [""]
    days = st.lists(st.builds(str.__add__, st.sampled_from(nth), st.sampled_from(WEEKDAYS)), min_size=1, max_size=5)
    parts = {
        "INTERVAL": st.integers(1, 5).map(str),
        "COUNT": st.sampled_from(["1", "7"]),
        "UNTIL": st.sampled_from(["20270310T120000", "20270310T003000Z", "20280229", "19900101"]),
        "BYMONTH": numbers(1, 12),
        "BYDAY": days.map(",".join),
        **({"BYMONTHDAY": numbers(-31, 31), "BYSETPOS": numbers(-5, 5)} if by_month else {}),
        "BYHOUR": st.just("7"),
        "WKST": st.just("SU"),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(parts)), unique=True, max_size=4))
    chosen = [name for name in chosen if name != "COUNT" or "UNTIL" not in chosen]
    return ";".join([f"FREQ={freq}", *(f"{name}={draw(parts[name])}" for name in chosen)])


def by_dateutil(rule: str, start: datetime) -> list[datetime]:
    def local(match: re.Match[str]) -> str:
        until = datetime.strptime(match[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        return f"UNTIL={until.astimezone(BERLIN):%Y%m%dT%H%M%S}"

    limited = rule if "UNTIL" in rule else f"{rule};UNTIL={LAST:%Y%m%dT%H%M%S}" if "COUNT" not in rule else rule
    found = rrulestr(re.sub(r"UNTIL=(\d{8}T\d{6})Z", local, limited), dtstart=start)
    return list(takewhile(lambda one: one < LAST, found))


def by_days(rule: str, start: datetime) -> list[datetime]:
    found, at = repetitions(rule, start, BERLIN, HOUR)
    every = [datetime.combine(day, at) for day in days_in(found, 0, len(DAYS)).tolist()]
    return [one for one in every if one < LAST]


@settings(max_examples=40, deadline=None)
@given(rules(), st.integers(0, 800 * 1440))
def test_days_are_those_of_another_implementation(rule: str, minutes: int) -> None:
    start = datetime(2025, 1, 1) + timedelta(minutes=minutes)
    found = by_days(rule, start)
    if found:  # else the other one looks for one until the year 9999
        assert found == by_dateutil(rule, start)


@pytest.mark.parametrize(
    "rule",
    [
        *("", "FREQ=SECONDLY", "INTERVAL=1"),
        *(f"FREQ=DAILY;{more}" for more in ("INTERVAL=0", "INTERVAL=-1", "COUNT=999999999", "BYSECOND=0,1,2,3")),
        *(f"FREQ=DAILY;{more}" for more in ("BYHOUR=1,2", "BYHOUR=24", "FREQ=WEEKLY", "UNTIL=99991231T235959Z")),
        *(f"FREQ=DAILY;{more}" for more in ("UNTIL=20260231", "BYEASTER=1", "BYDAY=", "BYDAY=\u0661MO", "\n")),
        *(f"FREQ=DAILY;{more}" for more in ("BYMONTH=" + ",".join(["1"] * 40), ";" * 400, "\nRRULE:FREQ=DAILY")),
    ],
)
def test_what_would_hang_or_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"not supported|FREQ|hour|does not match|day"):
        repetitions(rule, datetime(2026, 1, 1), BERLIN, HOUR)


def test_a_rule_that_never_takes_place_is_found_out_at_once() -> None:
    began = time.process_time()
    for rule in ("FREQ=DAILY;INTERVAL=7;BYDAY=TU", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"):
        assert not repetitions(rule, datetime(1970, 1, 1), UTC, HOUR)[0].any()
    assert time.process_time() - began < 20
