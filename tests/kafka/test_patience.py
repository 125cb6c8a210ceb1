"""How long to wait for a sample, as properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.kafka.schema_search import Patience


@given(
    gap=st.floats(0.001, 10),
    wanted=st.integers(1, 300),
    seconds=st.floats(0.1, 60),
)
def test_a_slow_topic_gets_time_for_a_sample_and_a_fast_one_is_not_kept_waiting(
    gap: float, wanted: int, seconds: float
) -> None:
    patience = Patience(wanted, seconds)
    waiting, now = 1, 0.0
    while not patience.is_over(waiting, now):
        waiting += 1
        now += gap
    if waiting < min(wanted, 20):
        assert now >= 6 * seconds
    elif waiting < wanted:
        assert now >= min(6 * seconds, 19 * gap + seconds)
    assert now <= 6 * seconds + gap
    assert now <= max(0, 19 * gap) + seconds + gap


def test_patience_begins_anew_when_nothing_waits_any_more() -> None:
    patience = Patience(wanted=200, seconds=1)
    assert not patience.is_over(30, now=0.0)
    assert patience.is_over(30, now=1.0)
    assert not patience.is_over(0, now=1.0)
    assert not patience.is_over(30, now=1.5)
    assert patience.is_over(30, now=2.5)
