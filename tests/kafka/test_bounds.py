"""The words of a range: what is understood, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError
from fomo_stream.kafka.bounds import Bound, parse_bounds
from fomo_stream.records.moments import EPOCH, MILLISECOND

NOW = 1_790_000_000_000
times = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.timezones())


def parsed(from_: str = "", to: str = "", last: str = "") -> tuple[Bound, Bound]:
    return parse_bounds(from_, to, last, NOW)


@given(times)
def test_a_time_means_the_same_in_every_zone(moment: datetime) -> None:
    milliseconds = (moment - EPOCH) // MILLISECOND
    assert parsed(moment.isoformat())[0].time_ms == milliseconds
    assert parsed(to=moment.astimezone(UTC).replace(tzinfo=None).isoformat(" "))[1].time_ms == milliseconds


@pytest.mark.parametrize("text", ["yesterday", "-5", "1.5", "0:", "0:1,", "2026-13-01", "2026-10-01T25:00", "7d", "1y"])
def test_other_words_are_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--to .*: not understood; write a time \(2026-10-01"):
        parsed(to=text)
    if text != "7d":
        with pytest.raises(ConfigError, match=r"--last .*: not understood; .*7d"):
            parsed(last=text)


@pytest.mark.parametrize(
    ("from_", "to"), [("8", "7"), ("2026-10-02", "2026-10-01"), ("0:5,1:9", "1:8"), ("6", "0:5"), ("1:6", "5")]
)
def test_swapped_bounds_are_refused(from_: str, to: str) -> None:
    with pytest.raises(ConfigError, match=f"--from {from_} is after --to {to}; swap them"):
        parsed(from_, to)
    parsed(to, from_)


def test_an_offset_that_no_partition_has_and_a_partition_named_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="is not an offset"):
        parsed(str(2**63))
    with pytest.raises(ConfigError, match="named twice"):
        parsed("0:1,0:2")
