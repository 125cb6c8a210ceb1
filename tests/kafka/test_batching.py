"""Micro-batches, as properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.partition.record import MicroBatch


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
