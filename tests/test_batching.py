"""Micro-batches and the offsets that may be committed, as properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.batching import MicroBatch, OffsetTracker


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


@given(st.lists(st.integers(0, 1000), unique=True, min_size=1).map(sorted), st.randoms(use_true_random=False))
def test_nothing_unfinished_is_ever_below_the_committable_offset(offsets: list[int], random: object) -> None:
    tracker = OffsetTracker()
    for offset in offsets:
        tracker.open(offset)
    order = list(offsets)
    random.shuffle(order)  # type: ignore[attr-defined]
    unfinished = set(offsets)
    for offset in order:
        tracker.close(offset)
        unfinished.remove(offset)
        finished_before = [o for o in offsets if o < min(unfinished, default=offsets[-1] + 1)]
        assert tracker.committable == (finished_before[-1] + 1 if finished_before else None)
        assert len(tracker) == len(offsets) - len(finished_before)
    assert tracker.committable == offsets[-1] + 1
