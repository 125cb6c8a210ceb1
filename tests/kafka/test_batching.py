"""Micro-batches and the offsets that may be committed, as properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.kafka.batching import MicroBatch, OffsetTracker, Patience


@given(
    size=st.integers(1, 10),
    age=st.floats(0, 1),
    steps=st.lists(st.floats(0, 0.5), max_size=50),
)
def test_every_item_leaves_once_in_order_and_no_batch_is_too_large(size: int, age: float, steps: list[float]) -> None:
    batch = MicroBatch[int](size, age)
    now, taken = 0.0, []
    for number, step in enumerate(steps):
        now += step
        full = batch.add(number, now)
        assert batch.is_due(now) >= full
        assert len(batch) <= size
        if batch.is_due(now):
            items = batch.take()
            assert len(items) == size if full else items
            taken += items
    assert taken + batch.take() == list(range(len(steps)))
    assert not batch.is_due(now + 2)


def test_a_batch_is_due_once_its_oldest_item_is_old_enough() -> None:
    batch = MicroBatch[str](size=10, age=0.02)
    batch.add("first", now=1.0)
    batch.add("second", now=1.019)
    assert not batch.is_due(now=1.0199)
    assert batch.is_due(now=1.02)
    batch.take()
    batch.add("third", now=5.0)
    assert not batch.is_due(now=5.01)


def test_what_is_left_of_a_batch_stays_due() -> None:
    batch = MicroBatch[str](size=2, age=0.02)
    for item in "abc":
        batch.add(item, now=1.0)
    assert batch.take(2) == ["a", "b"]
    assert batch.is_due(now=1.02)
    assert batch.take(2) == ["c"]
    assert not batch.is_due(now=1.02)


@given(st.lists(st.integers(0, 1000), unique=True, min_size=1).map(sorted), st.randoms(use_true_random=False))
def test_nothing_unfinished_is_ever_below_the_committable_offset(offsets: list[int], random: object) -> None:
    tracker = OffsetTracker()
    for offset in offsets:
        tracker.open(offset)
        assert tracker.last == offset
    order = list(offsets)
    random.shuffle(order)  # type: ignore[attr-defined]
    unfinished = set(offsets)
    for offset in order:
        tracker.close(offset)
        unfinished.remove(offset)
        finished_before = [o for o in offsets if o < min(unfinished, default=offsets[-1] + 1)]
        assert tracker.ahead == set(offsets) - unfinished - set(finished_before)
        assert tracker.committable == (finished_before[-1] + 1 if finished_before else None)
        assert len(tracker) == len(offsets) - len(finished_before)
    assert tracker.committable == offsets[-1] + 1


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
