"""Redrive: each letter is handled once, whatever reasons the runs are about, and every reason can be asked for."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

import fomo_stream
from fomo_stream.admin.redrive import RedriveProgress
from fomo_stream.errors import REASONS, UNKNOWN, TopicError


class Run(NamedTuple):
    """A run over a topic that has grown by letters of these reasons, which ends after so many letters at the latest."""

    new: list[str]
    reasons: list[str]
    most: int


ASKED = st.sets(st.sampled_from("abcd")).map(sorted)
RUNS = st.lists(st.builds(Run, st.lists(st.sampled_from("abc"), max_size=4), ASKED, st.integers(0, 6)), max_size=6)
ALL = 100  # more letters than there are


def run_all(runs: list[Run], batch: int = 2) -> tuple[list[str], list[int], RedriveProgress]:
    """The topic, the offsets that were sent, and the last position. batch: letters in a transaction."""
    topic: list[str] = []
    committed = TopicPartition("t", 0, OFFSET_INVALID)
    sent: list[int] = []
    for new, reasons, most in runs:
        topic += new
        position = RedriveProgress.committed(committed, 0, len(topic))
        todo = [n for n in range(position.first(reasons), len(topic)) if not position.is_done(topic[n], n)]
        batches = [todo[i : min(i + batch, most)] for i in range(0, min(len(todo), most), batch)]
        for numbers in [*batches, *([[]] if most >= len(todo) else [])]:  # the last one reaches the end of the topic
            sent += [n for n in numbers if not reasons or topic[n] in reasons]
            position = position.advanced(numbers[-1] + 1 if numbers else len(topic), reasons)
            committed = position.as_offset("t", 0)
    return topic, sent, RedriveProgress.committed(committed, 0, len(topic))


@given(RUNS, ASKED)
def test_each_letter_that_was_asked_for_is_sent_once_and_in_the_end_all(runs: list[Run], reasons: list[str]) -> None:
    topic, sent, position = run_all([*runs, Run([], reasons, ALL)])
    assert {n for n, reason in enumerate(topic) if not reasons or reason in reasons} <= set(sent)
    assert len(set(sent)) == len(sent)
    assert position.first(reasons) == len(topic)  # the same run again reads nothing
    topic, sent, position = run_all([*runs, Run([], [], ALL)])
    assert sorted(sent) == list(range(len(topic)))
    assert position == RedriveProgress(len(topic))  # nothing more to remember


@pytest.mark.parametrize("metadata", ["", "x", "3", "[1]", '{"a": null}'])
def test_an_offset_set_by_another_tool_counts_for_all_letters(metadata: str) -> None:
    assert RedriveProgress.committed(TopicPartition("t", 0, 5, metadata), 0, 9) == RedriveProgress(5)


@given(st.frozensets(st.integers(0, 999), max_size=100), st.integers(0, 999), ASKED)
def test_letters_that_were_left_are_the_only_ones_below_the_position_that_a_later_run_reads(
    left: frozenset[int], first: int, reasons: list[str]
) -> None:
    position = RedriveProgress.committed(RedriveProgress(5).advanced(1000, [], left).as_offset("t", 0), first, 1000)
    assert [n for n in range(1000) if not position.is_done("a", n)] == sorted(n for n in left if n >= first)
    assert position.first(reasons) == min([n for n in left if n >= first], default=1000)
    assert RedriveProgress.committed(position.as_offset("t", 0), first, 1000) == position


def test_many_letters_in_a_row_can_be_left_and_more_than_fit_are_an_error() -> None:
    every = frozenset(range(0, 200_000, 2))
    assert RedriveProgress.committed(RedriveProgress(200_000, {}, every).as_offset("t", 0), 0, 200_000).left == every
    draw = random.Random(1)
    with pytest.raises(TopicError, match=r"more dead letters of t\[0\] cannot be sent than can be remembered"):
        RedriveProgress(10**9, {}, frozenset(draw.randrange(10**9) for _ in range(10_000))).as_offset("t", 0)


def test_a_recreated_topic_is_read_from_its_beginning() -> None:
    for committed in (TopicPartition("t", 0, 50), TopicPartition("t", 0, 5, '{"a": 20}')):
        assert RedriveProgress.committed(committed, 3, 9) == RedriveProgress(3)


def test_every_reason_that_the_service_gives_can_be_asked_for() -> None:
    """Reasons are given as text, or by a name in capitals."""
    source = "\n".join(one.read_text() for one in Path(fomo_stream.__file__).parent.rglob("*.py"))
    calls = r"(?:RecordError\(|DeadLetter\(|dead_letter_reason\(item\.error, |reason = )"
    names = "|".join(re.findall(r"(?:RecordError|DeadLetter)\(([A-Z_]+),", source))
    given = {*re.findall(rf'{calls}"(\w+)"', source), *re.findall(rf'^(?:{names}) = "(\w+)"', source, re.MULTILINE)}
    assert given == set(REASONS) - {UNKNOWN}
