"""How far a redrive has come: each letter is handled once, whatever reasons the runs are about."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.admin.redrive import Position


class Run(NamedTuple):
    """A run over a topic that has grown by letters of these reasons, which ends after so many letters at the latest."""

    new: list[str]
    reasons: list[str]
    most: int


REASONS = st.sets(st.sampled_from("abcd")).map(sorted)
RUNS = st.lists(st.builds(Run, st.lists(st.sampled_from("abc"), max_size=4), REASONS, st.integers(0, 6)), max_size=6)
ALL = 100  # more letters than there are


def run_all(runs: list[Run], batch: int = 2) -> tuple[list[str], list[int], Position]:
    """The topic, the offsets that were sent, and the last position. batch: letters in a transaction."""
    topic: list[str] = []
    committed = TopicPartition("t", 0, OFFSET_INVALID)
    sent: list[int] = []
    for new, reasons, most in runs:
        topic += new
        position = Position.committed(committed, 0, len(topic))
        todo = [n for n in range(position.first(reasons), len(topic)) if not position.is_done(topic[n], n)]
        batches = [todo[i : min(i + batch, most)] for i in range(0, min(len(todo), most), batch)]
        for numbers in [*batches, *([[]] if most >= len(todo) else [])]:  # the last one reaches the end of the topic
            sent += [n for n in numbers if not reasons or topic[n] in reasons]
            position = position.advanced(numbers[-1] + 1 if numbers else len(topic), reasons)
            committed = position.as_offset("t", 0)
    return topic, sent, Position.committed(committed, 0, len(topic))


@given(RUNS, REASONS)
def test_each_letter_that_was_asked_for_is_sent_once_and_in_the_end_all(runs: list[Run], reasons: list[str]) -> None:
    topic, sent, position = run_all([*runs, Run([], reasons, ALL)])
    assert {n for n, reason in enumerate(topic) if not reasons or reason in reasons} <= set(sent)
    assert len(set(sent)) == len(sent)
    assert position.first(reasons) == len(topic)  # the same run again reads nothing
    topic, sent, position = run_all([*runs, Run([], [], ALL)])
    assert sorted(sent) == list(range(len(topic)))
    assert position == Position(len(topic))  # nothing more to remember


@pytest.mark.parametrize("metadata", ["", "x", "3", "[1]", '{"a": null}'])
def test_an_offset_set_by_another_tool_counts_for_all_letters(metadata: str) -> None:
    assert Position.committed(TopicPartition("t", 0, 5, metadata), 0, 9) == Position(5)


def test_a_recreated_topic_is_read_from_its_beginning() -> None:
    assert Position.committed(TopicPartition("t", 0, 50), 3, 9) == Position(3)
    assert Position.committed(TopicPartition("t", 0, 5, '{"a": 20}'), 3, 9) == Position(3)
