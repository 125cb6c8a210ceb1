"""Labels: their content, the record that they find, the time when they are due, and their state after a restart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fomo_stream.errors import DamagedStateError, RecordError
from fomo_stream.partition.labels import Label, LabelQueue, RecordIndex, Verdict, parse_label


def parse(value: Any, key: bytes | None = None, partition: int = 3) -> Label:
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return parse_label(raw, key, partition, "sensors", "fomo")


# --- what a label says

OUTPUT = {"topic": "sensors", "partition": 3, "offset": 9, "outlier": False}


@pytest.mark.parametrize(
    ("value", "key", "expected"),
    [
        ({"offset": 0, "outlier": False}, b"p7", Verdict(0, None, False)),
        ({"key": "Füße", "partition": 3, "outlier": True}, b"other", Verdict(None, "Füße".encode(), True)),
        ({"outlier": False}, b"\xff\x00", Verdict(None, b"\xff\x00", False)),
        # The fields of an output that was sent back are the record's own, whatever they are called.
        ({"key": 5, "offset": -1, "fomo": OUTPUT, "outlier": True}, b"p7", Verdict(9, None, True)),
        ({"fomo": "no result", "offset": 4, "outlier": True}, None, Verdict(4, None, True)),
    ],
)
def test_a_label_can_name_its_record_in_several_ways(value: Any, key: bytes | None, expected: Label) -> None:
    assert parse(value, key) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "tombstone"),
        (b"\xff", "not UTF-8"),
        ([1], "an array"),
        ({"offset": 1, "outlier": 1}, '"outlier": true'),
        ({"fomo": {"offset": 9, "outlier": True}}, '"outlier": true'),  # an output as it was, without a verdict
        ({"outlier": True}, "names no record"),
        ({"offset": True, "outlier": True}, '"offset" must be'),
        ({"offset": -1, "outlier": True}, '"offset" must be'),
        ({"key": 7, "outlier": True}, '"key" must be'),
        ({"partition": "3", "offset": 1, "outlier": True}, '"partition" must be'),
        ({"partition": 4, "offset": 1, "outlier": True}, "produce it to partition 4"),
        ({"fomo": {"topic": "pumps", "offset": 1}, "outlier": True}, "another topic than sensors"),
        ({"maintenance": "x"}, "from: Field required"),
        ({"maintenance": "x", "from": "2026-01-02", "to": "2026-01-01"}, "it ends (2026-01-01 00:00:00) before"),
    ],
)
def test_an_invalid_label_is_refused_with_the_reason(value: Any, words: str) -> None:
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
    if isinstance(label, Verdict):
        assert isinstance(label.outlier, bool)
        assert (label.offset is None) != (label.key is None)


# --- which record it finds
@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, b"a", b"b", b"c"]), st.booleans()), max_size=60),
)
def test_the_last_records_are_found_and_no_others_whatever_is_recovered(
    capacity: int, steps: list[tuple[int, bytes | None, bool]]
) -> None:
    """The index is replaced, at any point, by one that is recovered from the entries written so far."""
    index, offset, seen = RecordIndex(capacity), -1, []
    log: dict[str, bytes | None] = {}
    for number, (gap, key, restart) in enumerate(steps, start=100):
        offset += gap
        index.add(number, offset, key)
        seen.append((number, offset, key))
        if restart:
            log |= index.changes("index")
            index = RecordIndex(capacity)
            index.recover({name: value for name, value in log.items() if value is not None}, "index", number + 1)
            assert index.changes("index") == {}
        kept = seen[-capacity:] if capacity else []
        assert len(index) == len(kept)
        by_offset = {at: (n, at) for n, at, _ in kept}
        by_key = {k: (n, at) for n, at, k in kept}
        assert all(index.find(Verdict(at, None, True)) == by_offset.get(at) for at in range(offset + 2))
        assert all(index.find(Verdict(None, k, True)) == by_key.get(k) for k in (b"a", b"b", b"c"))


def test_few_new_records_are_written_in_few_bytes() -> None:
    index = RecordIndex(5000)
    for number in range(6000):
        index.add(number, number, None)
    whole = sum(len(value or b"") for value in index.changes("index").values())
    index.add(6000, 6000, None)
    part = sum(len(value or b"") for value in index.changes("index").values())
    assert part <= whole / 100


# --- when it is due


events = st.lists(
    st.one_of(
        st.sampled_from(["score", "read", "read", "take", "restart", "bad"]),
        st.tuples(st.just("label"), st.integers(0, 12), st.booleans()),
    ),
    max_size=40,
)


@given(events, st.integers(1, 12))
@example([("label", 12, True), "bad", "read", "read", "restart"], 12)
def test_labels_take_effect_once_and_after_their_record(what: list[Any], capacity: int) -> None:
    """In any order of records, labels, invalid labels, and restarts, after which uncommitted ones are read again."""
    index, queue = RecordIndex(capacity), LabelQueue("F1")
    position = read = committed = 0
    topic: list[tuple[int, bool] | None] = []  # of feedback; None: no label
    finished: set[int] = set()
    written: dict[str, bytes] = {}
    for event in [*what, *["score"] * 13, *["read"] * len(what), "take", "restart"]:
        if event == "score":
            index.add(position, position, None)
            position += 1
        elif event == "read" and read < len(topic):
            label = topic[read]
            assert queue.open(read) == (read not in finished)
            if label is None:
                queue.close(read)
                finished.add(read)
            elif read not in finished:
                queue.add(read, Verdict(label[0], None, label[1]))
            read += 1
        elif event == "take":
            labels = {at: label for at, label in enumerate(topic[:read]) if label and at not in finished}
            due = {at: label for at, label in labels.items() if label[0] < position}
            remembered = [(at, *label) for at, label in due.items() if label[0] >= position - capacity]
            assert bool(queue.due(position)) == bool(due)
            verdicts = queue.take_due(index, position)
            assert (verdicts.labels, verdicts.too_late) == (remembered, len(due) - len(remembered))
            assert verdicts.numbers == [offset for _, offset, _ in remembered]
            assert verdicts.takes_effect == position
            finished |= due.keys()
        elif event == "restart":  # the committed offset and the entry survive it
            keep_up(written, queue)
            assert queue.changes("labels") == {}
            read = committed = queue.committable or committed
            queue = LabelQueue("F1")
            queue.recover(written, "labels")
        elif event != "read":
            topic.append(event[1:] if event != "bad" else None)
        first_unfinished = next(at for at in range(len(topic) + 1) if at not in finished)
        assert (queue.committable or committed) == min(first_unfinished, read)
    assert (len(queue), committed) == (0, len(topic))
    keep_up(written, queue)
    assert written == {}


def keep_up(written: dict[str, bytes], queue: LabelQueue) -> None:
    """Write the changes of the queue, as a compacted log would keep them."""
    for name, value in queue.changes("labels").items():
        if value is None:
            del written[name]
        else:
            written[name] = value


def test_labels_finished_in_another_topic_of_that_name_are_ignored() -> None:
    old = LabelQueue("F1")
    for at in range(3):
        old.open(at)
    old.close(2)
    written = {name: value for name, value in old.changes("labels").items() if value is not None}
    same, other = LabelQueue("F1"), LabelQueue("F2")
    for queue in (same, other):
        queue.recover(written, "labels")
    assert [same.open(at) for at in range(3)] == [True, True, False]
    assert all(other.open(at) for at in range(3))


@pytest.mark.parametrize("value", [b"{", b'{"topic_id": "F1", "finished": ["x"]}'])
def test_a_damaged_list_of_finished_labels_is_named(value: bytes) -> None:
    with pytest.raises(DamagedStateError, match="labels is not a list of offsets"):
        LabelQueue("F1").recover({"labels": value}, "labels")
