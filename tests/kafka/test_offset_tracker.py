"""The offset that may be committed, as a property."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.partition.labels import OffsetTracker


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
