"""How far a redrive has come: each letter is sent once, whatever reasons and limits of attempts the runs have."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.admin.redrive_position import RedrivePosition


class Letter(NamedTuple):
    reason: str
    attempts: int


class Run(NamedTuple):
    """A run over a topic that has grown by `new`, which ends after it has seen so many letters at the latest."""

    new: list[Letter]
    reasons: list[str]
    limit: int
    most: int


LETTERS = st.builds(Letter, st.sampled_from("abc"), st.integers(0, 3))
REASONS = st.sets(st.sampled_from("abcd")).map(sorted)
NEW = st.lists(LETTERS, max_size=4)
RUNS = st.lists(st.builds(Run, NEW, REASONS, st.integers(1, 4), st.integers(0, 6)), max_size=6)
ALL = 100  # more letters, and more attempts, than there are


def run_all(runs: list[Run], batch: int = 2) -> tuple[list[Letter], list[int], RedrivePosition]:
    """The topic, the offsets that were sent, and the last position. batch: letters in a transaction."""
    topic: list[Letter] = []
    committed = TopicPartition("t", 0, OFFSET_INVALID)
    sent: list[int] = []
    for new, reasons, limit, most in runs:
        topic += new
        position = RedrivePosition.committed(committed, 0, len(topic))
        span = range(position.first(reasons, limit), len(topic))
        seen = [n for n in span if not position.is_done(*topic[n], n)]
        batches = [seen[i : min(i + batch, most)] for i in range(0, min(len(seen), most), batch)]
        for numbers in [*batches, *([[]] if most >= len(seen) else [])]:  # the last one reaches the end of the topic
            asked = [n for n in numbers if not reasons or topic[n].reason in reasons]
            held = [n for n in asked if topic[n].attempts >= limit]
            sent += [n for n in asked if n not in held]
            to = numbers[-1] + 1 if numbers else len(topic)
            position = position.advanced(to, reasons, limit, min(held, default=None))
            committed = position.as_offset("t", 0)
    return topic, sent, RedrivePosition.committed(committed, 0, len(topic))


@given(RUNS)
def test_each_letter_is_sent_once_and_in_the_end_all(runs: list[Run]) -> None:
    topic, sent, position = run_all([*runs, Run([], [], ALL, ALL)])
    assert sorted(sent) == list(range(len(topic)))
    assert position == RedrivePosition(len(topic))  # nothing more to remember


@given(RUNS, REASONS, st.integers(1, 4))
def test_a_run_sends_all_letters_it_was_asked_for(runs: list[Run], reasons: list[str], limit: int) -> None:
    topic, sent, position = run_all([*runs, Run([], reasons, limit, ALL)])
    asked = {n for n, one in enumerate(topic) if one.attempts < limit and (not reasons or one.reason in reasons)}
    assert asked <= set(sent)
    assert len(set(sent)) == len(sent)
    assert position.first(reasons, limit) == len(topic)  # the same run again reads nothing


@pytest.mark.parametrize("metadata", ["", "x", "{}", "[1]", '[["a", 1, null]]'])
def test_an_offset_set_by_another_tool_counts_for_all_letters(metadata: str) -> None:
    assert RedrivePosition.committed(TopicPartition("t", 0, 5, metadata), 0, 9) == RedrivePosition(5)


def test_a_recreated_topic_is_read_from_its_beginning() -> None:
    assert RedrivePosition.committed(TopicPartition("t", 0, 50), 3, 9) == RedrivePosition(3)
    assert RedrivePosition.committed(TopicPartition("t", 0, 5, '[["a", 1, 20]]'), 3, 9) == RedrivePosition(3)
