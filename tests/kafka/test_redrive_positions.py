"""How far a redrive has come: each letter is sent once, for whatever reasons the runs are made."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.kafka.redrive import RedrivePosition

RUNS = st.lists(
    st.tuples(st.text("abc", max_size=4), st.sets(st.sampled_from("abcd")).map(sorted), st.integers(0, 4)), max_size=6
)


@given(RUNS)
def test_positions_let_each_letter_through_once(runs: list[tuple[str, list[str], int]]) -> None:
    """Runs over a growing topic, each for some reasons (none: all), that end after their n-th letter at the latest."""
    topic = ""
    committed = TopicPartition("t", 0, OFFSET_INVALID)
    sent: list[int] = []
    for new, reasons, most in [*runs, ("", [], 100)]:
        topic += new
        position = RedrivePosition.committed(committed, 0, len(topic))
        looked_at = [n for n in range(position.first(reasons), len(topic)) if not position.is_done(topic[n], n)][:most]
        sent += [n for n in looked_at if not reasons or topic[n] in reasons]
        if len(looked_at) < most:
            committed = position.advanced(len(topic), reasons).as_offset("t", 0)
        elif looked_at:
            committed = position.advanced(looked_at[-1] + 1, reasons).as_offset("t", 0)
    assert sorted(sent) == list(range(len(topic)))


@pytest.mark.parametrize("metadata", ["", "x", "[]", '{"a": null}'])
def test_an_offset_set_by_another_tool_counts_for_all_reasons(metadata: str) -> None:
    assert RedrivePosition.committed(TopicPartition("t", 0, 5, metadata), 0, 9) == RedrivePosition(5)


def test_a_recreated_topic_is_read_from_its_beginning() -> None:
    assert RedrivePosition.committed(TopicPartition("t", 0, 50), 3, 9) == RedrivePosition(3)
    assert RedrivePosition.committed(TopicPartition("t", 0, 5, '{"a": 20}'), 3, 9) == RedrivePosition(3)
