"""Times of records, and their places in the day, the week and the year."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import SchemaError
from fomo_stream.records.times import check_times, cycles_of, places_at, to_milliseconds

BERLIN = ZoneInfo("Europe/Berlin")
NAMES = [["hour"], ["weekday"], ["month"], ["hour", "weekday"], ["hour", "month"], ["hour", "weekday", "month"]]


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)), st.sampled_from(NAMES))
def test_a_place_is_in_the_bin_of_the_clock(moment: datetime, names: list[str]) -> None:
    time = round(moment.replace(tzinfo=UTC).timestamp() * 1000)
    local = datetime.fromtimestamp(time / 1000, BERLIN)
    places, cycles = places_at(time, names, BERLIN), cycles_of(names)
    assert len(places) == len(cycles)
    for place, (inner, outer) in zip(places, cycles, strict=True):
        assert 0 <= place < inner * outer
    bin_of_last, inner = int(places[-1]), 1
    if "hour" in names:
        assert bin_of_last % 24 == local.hour
        inner = 24
    if "weekday" in names:
        assert bin_of_last // inner % 7 == local.weekday()
        inner *= 7
    if "month" in names:
        assert bin_of_last // inner == local.month - 1


def test_half_past_three_is_that_on_the_days_around_a_change_of_the_clocks() -> None:
    for day in (28, 29, 30):
        local = datetime(2026, 3, day, 15, 30, tzinfo=BERLIN)
        assert places_at(round(local.timestamp() * 1000), ["hour"], BERLIN) == [15.5]


def test_a_time_that_is_not_known_has_no_place() -> None:
    assert all(map(math.isnan, places_at(None, ["hour", "weekday"], UTC)))
    for time in (2**61, -1, -62_135_596_800_000, 253_402_300_799_000):
        assert all(map(math.isnan, places_at(time, ["hour"], UTC)))


moments = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))


@given(st.lists(moments, min_size=1, max_size=9), st.sampled_from([1, 1000, 10**6, 10**9]))
def test_numbers_of_every_unit_become_milliseconds(times: list[datetime], per_second: int) -> None:
    seconds = [round(one.timestamp()) for one in times]
    values = [one * per_second for one in seconds]
    for column in (values, list(map(str, values))):
        expected = [one * 1000 for one in seconds]
        assert [to_milliseconds(value) for value in column] == pytest.approx(expected, abs=1)


@given(moments, st.integers(-12, 12))
def test_text_becomes_milliseconds_whatever_its_zone(moment: datetime, hours: int) -> None:
    expected = round(moment.timestamp() * 1000)
    zoned = moment.astimezone(timezone(timedelta(hours=hours)))
    naive = moment.replace(tzinfo=None)
    for text in (zoned.isoformat(), str(naive), f" {naive.isoformat()}Z "):
        assert to_milliseconds(text) == expected


FORMS = [
    *("%Y/%m/%d %H:%M:%S", "%Y.%m.%d %H:%M:%S", "%Y-%m-%d %I:%M:%S %p", "%Y-%m-%d %H:%M:%S UTC", "%d.%m.%Y %H:%M:%S"),
    *("%d-%b-%Y %H:%M:%S", "%d %B %Y %H:%M:%S", "%B %d, %Y %I:%M:%S %p", "%d/%b/%Y:%H:%M:%S +0000"),
    *(
        "%a, %d %b %Y %H:%M:%S GMT",
        "%a %b %d %H:%M:%S %Y",
        "%a %b %d %H:%M:%S UTC %Y",
        "%Y-%m-%d %H:%M:%S.250 +0000 UTC",
    ),
]


@given(moments, st.sampled_from(FORMS))
def test_text_of_one_meaning_is_read_as_it_was_written(moment: datetime, form: str) -> None:
    moment = moment.replace(microsecond=250_000 * (".250" in form))
    assert to_milliseconds(moment.strftime(form)) == round(moment.timestamp() * 1000)
    day = form.partition(" %H")[0].partition(" %I")[0].partition(":")[0]
    if not day.startswith("%a"):
        midnight = datetime(moment.year, moment.month, moment.day, tzinfo=BERLIN)
        assert to_milliseconds(moment.strftime(day), BERLIN) == round(midnight.timestamp() * 1000)


@pytest.mark.parametrize(
    "text", ["31.02.2026", "2026/3/1 24:00", "5 maybe 2026", "2026-3-1 13:00 PM", "1.1.26", "mar, "]
)
def test_text_like_a_time_that_nobody_would_write_is_none(text: str) -> None:
    assert to_milliseconds(text) is None


@pytest.mark.parametrize("text", ["03/01/2026", "3/1/2026 12:00 AM", "03-01-2026 00:00:00", "1/3/26"])
def test_a_date_that_may_be_of_two_months_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(SchemaError, match=r"may be in either order; write the year first") as caught:
        list(check_times("at", [None, text], UTC))
    assert text in str(caught.value)


@pytest.mark.parametrize("value", [None, "", "yesterday", True, float("nan"), float("inf"), 10**30, 10**999, [1], {}])
def test_what_is_no_time_has_none(value: object) -> None:
    assert to_milliseconds(value) is None


@pytest.mark.parametrize(
    ("first", "shown"),
    [
        (638_471_520_000_000_000, "1990-"),  # ticks of .NET
        (2_403_302_000, "2046-"),  # the digits 24-03-30 20:00
        (2_460_400.5, "1970-"),  # a Julian day
        (1_759_276_800_000, ""),
        ("1995-01-01T12:00Z", ""),
    ],
)
def test_a_time_that_counts_from_another_day_is_shown(first: Any, shown: str) -> None:
    notes = list(check_times("at", [first], UTC))
    assert len(notes) == bool(shown)
    assert not shown or f"the first time in at, {first}, is read as {shown}" in notes[0]
