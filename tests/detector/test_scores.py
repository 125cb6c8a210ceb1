"""Scores of streams, and scores that remember those before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from streams import SMALL, detector, stream

from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.series import HALF_LIFE, Memory

# --- scores

N, SETTLED = 8000, 5000  # records, and those after which a share is counted
QUICK = DetectorConfig(context_size=300)
Rows = NDArray[np.float64]
Course = Callable[[Rows, Rows], Rows]


def sudden_shift(noise: Rows, time: Rows) -> Rows:
    return noise + 5.0 * (time > 0.5)


def slow_ramp(noise: Rows, time: Rows) -> Rows:
    return noise + 5.0 * time


def growing_variance(noise: Rows, time: Rows) -> Rows:
    return noise * (1 + 2 * time)


def new_cluster(noise: Rows, time: Rows) -> Rows:
    fresh: Rows = (time > 0.4) * (np.arange(len(noise))[:, None] % 3 == 0)
    return noise + 8.0 * fresh


def season(noise: Rows, time: Rows) -> Rows:
    return noise + 3.0 * np.sin(2 * np.pi * N / 1000 * time)


def other_correlation(noise: Rows, time: Rows) -> Rows:
    correlation = 0.9 - 1.8 * time
    return np.hstack([noise[:, :1], correlation * noise[:, :1] + np.sqrt(1 - correlation**2) * noise[:, 1:]])


def random_walk(noise: Rows, time: Rows) -> Rows:
    return noise + np.cumsum(0.05 * np.random.default_rng(1).normal(size=noise.shape), axis=0)


@pytest.mark.parametrize(
    "drift",
    [sudden_shift, slow_ramp, growing_variance, new_cluster, season, other_correlation, random_walk],
    ids=lambda d: d.__name__,
)
def test_few_ordinary_records_of_a_moving_stream_have_a_score_above_95_percent(drift: Course) -> None:
    rows = drift(np.random.default_rng(0).normal(size=(N, 3)), np.linspace(0, 1, N)[:, None])
    score = detector(QUICK).process(rows).score[SETTLED:]
    assert 0.005 < (score > 0.95).mean() <= 0.06


def test_where_records_are_equal_a_new_context_makes_none_of_them_odd() -> None:
    rows = np.random.default_rng(0).choice([0.0, 1.0, 5.0], size=(3000, 1)) * np.ones((1, 3))
    score = detector(QUICK).process(rows).score
    assert (score[np.isfinite(score)] > 0.95).mean() <= 0.06


@pytest.mark.parametrize("views", ["default", "fast"])
def test_where_nothing_ever_changes_nothing_is_odd(views: str) -> None:
    results = detector(replace(QUICK, views=(views,))).process(np.tile([1.0, 20.0, -0.3], (1000, 1)))
    assert not results.outlier.any()
    assert results.p_value[-1] > 0.5


@given(st.integers(0, 2**32 - 1), st.integers(0, 60))
def test_between_two_steps_scores_are_in_the_order_of_the_remembered_logits(seed: int, before: int) -> None:
    one = established(before)
    rows = np.random.default_rng(seed).normal(size=(STEP, 3)) * 3
    found = one.score_rows(rows[: one.room])
    order = np.argsort(found.remembered_logit)
    assert (np.diff(found.score[order]) >= 0).all()
    assert (np.diff(found.score[order])[np.diff(found.remembered_logit[order]) > 1e-9] > 0).all()
    assert (found.score[found.outlier] >= 1 - SMALL.alert_rate).all()
    assert (found.score[~found.outlier] <= 1 - SMALL.alert_rate + 1e-12).all()


@cache
def established(more: int) -> Detector:
    """A detector after some records; it is only asked."""
    one = detector()
    one.process(stream(200 + more))
    return one


# --- memory

MAX_KEYS = 4
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


@given(streams, weights, cuts)
def test_a_remembered_logit_has_a_share_of_the_earlier_ones_of_its_series(
    stream: Stream, weight: float, cuts: list[int]
) -> None:
    found = remember(Memory(weight, MAX_KEYS), stream, cuts)
    np.testing.assert_allclose(found, naive(stream, weight), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found, remember(Memory(weight, MAX_KEYS), stream, []))  # bit for bit


@given(streams, streams, weights)
def test_peeking_shows_what_comes_and_remembers_nothing(before: Stream, after: Stream, weight: float) -> None:
    memory = Memory(weight, MAX_KEYS)
    remember(memory, before, [])
    state = memory.copy().changes()
    seen = memory.peek(*arrays(after))
    assert memory.copy().changes() == state
    np.testing.assert_array_equal(memory.remember(*arrays(after)), seen)


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


@given(streams, streams, streams, weights)
def test_a_copy_and_a_recovered_memory_go_on_alike_on_their_own(
    first: Stream, before: Stream, after: Stream, weight: float
) -> None:
    one, recovered = Memory(weight, MAX_KEYS), Memory(weight, MAX_KEYS)
    log = one.changes()
    for part in (first, before):
        remember(one, part, [])
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
