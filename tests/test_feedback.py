"""Labels: what they may say, which record they find, when they are due, and when their offset may be committed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.errors import RecordError
from fomo_stream.feedback import Label, LabelQueue, RecordIndex, parse_label


def parse(value: Any, key: bytes | None = None, partition: int = 3) -> Label:
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return parse_label(raw, key, partition, "sensors", "fomo")


# --- what a label says


@pytest.mark.parametrize(
    ("value", "key", "expected"),
    [
        ({"partition": 3, "offset": 812, "outlier": True}, None, Label(812, None, True)),
        ({"offset": 0, "outlier": False}, b"p7", Label(0, None, False)),
        ({"key": "p7", "outlier": True}, b"other", Label(None, b"p7", True)),
        ({"key": "Füße", "partition": 3, "outlier": True}, None, Label(None, "Füße".encode(), True)),
        ({"outlier": False}, b"\xff\x00", Label(None, b"\xff\x00", False)),
        (
            {"flow": 3.5, "fomo": {"topic": "sensors", "partition": 3, "offset": 9, "outlier": False}, "outlier": True},
            b"p7",
            Label(9, None, True),
        ),
        # The fields of an output that was sent back are the record's own, whatever they are called.
        ({"key": 5, "offset": -1, "fomo": {"partition": 3, "offset": 9}, "outlier": True}, None, Label(9, None, True)),
        ({"fomo": "no result", "offset": 4, "outlier": True}, None, Label(4, None, True)),
    ],
)
def test_a_label_names_its_record_in_one_of_several_ways(value: Any, key: bytes | None, expected: Label) -> None:
    assert parse(value, key) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "tombstone"),
        (b"\xff", "not UTF-8"),
        ([1], "an array"),
        ({"offset": 1}, '"outlier": true'),
        ({"offset": 1, "outlier": 1}, '"outlier": true'),
        ({"fomo": {"offset": 9, "outlier": True}}, '"outlier": true'),  # an output as it was, without a verdict
        ({"outlier": True}, "names no record"),
        ({"offset": "1", "outlier": True}, '"offset" must be'),
        ({"offset": True, "outlier": True}, '"offset" must be'),
        ({"offset": -1, "outlier": True}, '"offset" must be'),
        ({"key": 7, "outlier": True}, '"key" must be'),
        ({"partition": "3", "offset": 1, "outlier": True}, '"partition" must be'),
        ({"partition": 4, "offset": 1, "outlier": True}, "produce it to partition 4"),
        ({"fomo": {"topic": "pumps", "offset": 1}, "outlier": True}, "another topic than sensors"),
    ],
)
def test_what_is_no_label_is_refused_with_the_reason(value: Any, words: str) -> None:
    with pytest.raises(RecordError) as error:
        parse(value)
    assert error.value.reason == "bad_feedback"
    assert words in str(error.value)


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=3)),
    lambda child: st.dictionaries(st.sampled_from(["outlier", "offset", "partition", "key", "fomo", "topic"]), child),
    max_leaves=8,
)


@given(st.one_of(st.binary(max_size=20), anything.map(lambda value: json.dumps(value).encode())), st.binary())
def test_any_bytes_are_a_label_or_refused(value: bytes, key: bytes) -> None:
    reason, label = "bad_feedback", None
    try:
        label = parse(value, key)
    except RecordError as error:
        reason = error.reason
    assert reason == "bad_feedback"
    if label is not None:
        assert isinstance(label.outlier, bool)
        assert (label.offset is None) != (label.key is None)


# --- which record it finds


@settings(deadline=None)
@given(
    st.integers(0, 8),
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, b"a", b"b", b"c"])), max_size=30),
)
def test_the_last_records_are_found_and_no_others(capacity: int, steps: list[tuple[int, bytes | None]]) -> None:
    index, offset, seen = RecordIndex(capacity), -1, []
    for number, (gap, key) in enumerate(steps, start=100):
        offset += gap
        index.add(number, offset, key)
        seen.append((number, offset, key))
        kept = seen[-capacity:] if capacity else []
        assert len(index) == len(kept)
        by_offset = {at: (n, at) for n, at, _ in kept}
        by_key = {k: (n, at) for n, at, k in kept}
        assert all(index.find(Label(at, None, True)) == by_offset.get(at) for at in range(offset + 2))
        assert all(index.find(Label(None, k, True)) == by_key.get(k) for k in (b"a", b"b", b"c"))


# --- when it is due


def score(index: RecordIndex, offset: int) -> None:
    index.add(offset, offset, None)
    index.position = offset + 1


def test_a_label_waits_until_its_record_is_behind() -> None:
    index, queue = RecordIndex(10), LabelQueue()
    for at, offset in enumerate((2, 0)):
        queue.open(at)
        queue.add(at, Label(offset, None, True))
    assert queue.take_due(index) is None
    score(index, 0)
    score(index, 1)
    first = queue.take_due(index)
    assert first is not None
    assert (first.takes_effect, first.labels) == (2, [(1, 0, True)])
    assert queue.take_due(index) is None
    score(index, 2)
    second = queue.take_due(index)
    assert second is not None
    assert (second.takes_effect, second.labels, len(queue)) == (3, [(0, 2, True)], 0)


events = st.lists(
    st.one_of(
        st.just("score"),
        st.tuples(st.just("label"), st.integers(0, 12), st.booleans()),
        st.just("take"),
        st.just("acknowledge"),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(events, st.integers(1, 12))
def test_labels_take_effect_behind_their_record_once_and_are_committed_after_it(what: list[Any], capacity: int) -> None:
    """However records, labels and acknowledgements are interleaved."""
    index, queue = RecordIndex(capacity), LabelQueue()
    position = read = 0
    asked: dict[int, tuple[int, bool]] = {}
    effect: dict[int, int] = {}  # of labels on remembered records, by their offset
    too_late: set[int] = set()
    unrecorded = []
    for event in [*what, *["score"] * 13, "take", "acknowledge"]:
        if event == "score":
            score(index, position)
            position += 1
        elif event == "take":
            verdicts = queue.take_due(index)
            if verdicts is not None:
                due = [at for at, (offset, _) in asked.items() if offset < position]
                due = [at for at in due if at not in effect and at not in too_late]
                taken = {at: (offset, outlier) for at, offset, outlier in verdicts.labels}
                assert [at for at, _, _ in verdicts.labels] == sorted(taken)
                assert taken == {at: asked[at] for at in due if asked[at][0] >= position - capacity}
                assert verdicts.too_late == len(due) - len(taken)
                assert verdicts.takes_effect == position
                effect |= dict.fromkeys(taken, position)
                too_late |= set(due) - set(taken)
                unrecorded.append(verdicts)
        elif event == "acknowledge":
            while unrecorded:
                queue.recorded(unrecorded.pop())
        else:
            asked[read] = event[1:]
            queue.open(read)
            queue.add(read, Label(event[1], None, event[2]))
            read += 1
        done = position // 2  # outputs acknowledged so far
        waits = {at for verdicts in unrecorded for at, _, _ in verdicts.labels}
        finished = too_late | {at for at, since in effect.items() if since <= done and at not in waits}
        contiguous = next(at for at in range(read + 1) if at not in finished)
        assert queue.settle(done) == (contiguous or None)
    assert queue.settle(position) == (read or None)
    assert len(queue) == 0


@settings(deadline=None)
@given(st.permutations(range(8)), st.lists(st.integers(0, 7)), st.integers(0, 8))
def test_order_and_repetition_of_labels_do_not_matter(order: list[int], again: list[int], scored_before: int) -> None:
    index, queue = RecordIndex(8), LabelQueue()
    verdict = {offset: offset % 3 == 0 for offset in range(8)}
    given_so_far: dict[int, bool] = {}

    def take() -> None:
        verdicts = queue.take_due(index)
        for _, offset, outlier in verdicts.labels if verdicts else ():
            given_so_far[offset] = outlier

    for offset in range(scored_before):
        score(index, offset)
    for at, offset in enumerate([*order, *again]):
        queue.open(at)
        queue.add(at, Label(offset, None, verdict[offset]))
        take()
    for offset in range(scored_before, 8):
        score(index, offset)
        take()
    assert given_so_far == verdict


def test_of_two_verdicts_on_one_record_the_later_counts_even_if_both_waited() -> None:
    index, queue = RecordIndex(8), LabelQueue()
    for at, outlier in enumerate((True, False, True, False)):
        queue.open(at)
        queue.add(at, Label(None, b"p7", outlier) if at % 2 else Label(5, None, outlier))
    index.add(0, 5, b"p7")
    index.position = 6
    verdicts = queue.take_due(index)
    assert verdicts is not None
    assert [label[2] for label in verdicts.labels] == [True, False, True, False]
    assert verdicts.numbers == [0, 0, 0, 0]
