"""Times in files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.replaying.sources.times import milliseconds_of_one, to_milliseconds

moments = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))


@given(st.lists(moments, min_size=1, max_size=9), st.sampled_from([1, 1000, 10**6, 10**9]))
def test_numbers_of_every_unit_become_milliseconds(times: list[datetime], per_second: int) -> None:
    seconds = [round(one.timestamp()) for one in times]
    values = [one * per_second for one in seconds]
    unit = milliseconds_of_one([None, "x", *values])
    assert [to_milliseconds(value, unit) for value in values] == pytest.approx([one * 1000 for one in seconds], abs=1)


@given(moments, st.integers(-12, 12))
def test_text_becomes_milliseconds_whatever_its_zone(moment: datetime, hours: int) -> None:
    expected = round(moment.timestamp() * 1000)
    zoned = moment.astimezone(timezone(timedelta(hours=hours)))
    naive = moment.replace(tzinfo=None)
    for text in (zoned.isoformat(), str(naive), f" {naive.isoformat()}Z "):
        assert to_milliseconds(text, 1.0) == expected


@pytest.mark.parametrize("value", [None, "", "yesterday", True, float("nan"), float("inf"), 10**30, [1], {}])
def test_what_is_no_time_has_none(value: object) -> None:
    assert to_milliseconds(value, 1000.0) is None
