from __future__ import annotations

from itertools import pairwise
from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.detector.memory import Memory
from fomo_stream.detector.series import HALF_LIFE

MAX_KEYS = 4
SMALL = settings(max_examples=60)
weights = st.sampled_from([0.0, 1 / 3, 0.5, 0.9])
logit = st.floats(-20, 20) | st.just(float("nan"))
# a logit, the number of its series, and whether the series begins
streams = st.lists(st.tuples(logit, st.integers(0, MAX_KEYS), st.sampled_from([False] * 4 + [True])), max_size=40)
Stream = list[tuple[float, int, bool]]


def arrays(stream: Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits, slots, begins = zip(*stream, strict=True) if stream else ((), (), ())
    return np.array(logits, float), np.array(slots, np.int64), np.array(begins, bool)


def naive(stream: Stream, weight: float) -> list[float]:
    """From all earlier records of the series, for every record again."""
    out = []
    for i, (own, slot, _) in enumerate(stream):
        begun = max((j for j in range(i + 1) if stream[j][1] == slot and stream[j][2]), default=0)
        earlier = [logit for logit, other, _ in stream[begun:i] if other == slot and logit == logit]
        shares = [0.5 ** (age / HALF_LIFE) for age in range(len(earlier))]
        if earlier and own == own:
            past = np.dot(shares, earlier[::-1]) / sum(shares)
            out.append((1 - weight) * own + weight * past)
        else:
            out.append(own)
    return out


def remember(memory: Memory, stream: Stream, cuts: list[int]) -> np.ndarray:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return np.concatenate([memory.remember(*arrays(stream[a:b])) for a, b in pairwise(edges)])


cuts = st.lists(st.integers(0, 40), max_size=5)


@SMALL
@given(streams, weights, cuts)
def test_a_remembered_logit_has_a_share_of_the_earlier_ones_of_its_series(
    stream: Stream, weight: float, cuts: list[int]
) -> None:
    found = remember(Memory(weight, MAX_KEYS), stream, cuts)
    np.testing.assert_allclose(found, naive(stream, weight), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found, remember(Memory(weight, MAX_KEYS), stream, []))  # bit for bit


@SMALL
@given(streams, streams, weights)
def test_peeking_shows_what_comes_and_remembers_nothing(before: Stream, after: Stream, weight: float) -> None:
    memory = Memory(weight, MAX_KEYS)
    remember(memory, before, [])
    state = memory.copy().changes()
    seen = memory.peek(*arrays(after))
    assert memory.copy().changes() == state
    np.testing.assert_array_equal(memory.remember(*arrays(after)), seen)


@SMALL
@given(streams, streams, weights)
def test_a_replay_is_as_if_the_last_records_were_the_first(before: Stream, last: Stream, weight: float) -> None:
    """Of series that have records among them; the others stay as they are."""
    memory, fresh = Memory(weight, MAX_KEYS), Memory(weight, MAX_KEYS)
    remember(memory, before, [])
    state = memory._sums["sums"].copy()
    found = memory.replay(*arrays(last))
    np.testing.assert_array_equal(found, fresh.remember(*arrays(last)))
    seen = np.unique(arrays(last)[1])
    np.testing.assert_array_equal(memory._sums["sums"][seen], fresh._sums["sums"][seen])
    others = np.setdiff1d(np.arange(MAX_KEYS + 1), seen)
    np.testing.assert_array_equal(memory._sums["sums"][others], state[others])


@SMALL
@given(streams, streams, streams, weights)
def test_a_copy_and_a_recovered_memory_go_on_alike_on_their_own(
    first: Stream, before: Stream, after: Stream, weight: float
) -> None:
    one, recovered = Memory(weight, MAX_KEYS), Memory(weight, MAX_KEYS)
    log = one.changes()
    for stream in (first, before):
        remember(one, stream, [])
        log |= one.changes()
    assert one.changes() == {}
    recovered.recover(cast(dict[str, bytes], log))
    copied = one.copy()
    expected = one.remember(*arrays(after))
    np.testing.assert_array_equal(recovered.remember(*arrays(after)), expected)
    np.testing.assert_array_equal(copied.remember(*arrays(after)), expected)
    assert one.copy().changes() == copied.copy().changes() == recovered.copy().changes()


def test_a_run_of_outliers_ranks_above_a_lone_one() -> None:
    logits = np.zeros(40)
    logits[10], logits[20:26] = 4.0, 4.0
    found = Memory(1 / 3).remember(logits, np.zeros(40, np.int64), np.zeros(40, bool))
    assert found[21] > found[10]
    assert (np.diff(found[20:26]) > 0).all()
    assert found[35] < 0.2  # and it fades
