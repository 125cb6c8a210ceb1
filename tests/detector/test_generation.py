"""What a generation adds to a model: trimming, extremes, and votes of its context."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from streams import detector

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.generation import Ranges, confidence, vote
from fomo_stream.model.checkpoint import shared_model

# --- trimming


@pytest.mark.parametrize("first", [0, 850])
def test_a_burst_is_left_out_of_the_trimmed_context(first: int) -> None:
    """However near its records are to each other: each is judged by the context before it. In the first context each is
    judged by the other half of it."""
    one = Detector(shared_model(), 2, DetectorConfig())
    rows = np.random.default_rng(first).normal(size=(1500, 2))
    burst = np.arange(first, first + 100)
    rows[burst] = rows[burst] * 0.01 + 5
    one.process(rows)
    context = one.inspect().generations
    assert np.isin(burst, context["all"].numbers).sum() > 50
    assert np.isin(burst, context["trimmed"].numbers).mean() < 0.3


# --- extremes

value = st.sampled_from([np.nan, 0.0, 1.0]) | st.integers(-50, 50).map(float)  # ties, and missing ones
contexts = st.tuples(st.integers(2, 20), st.integers(1, 3)).flatmap(lambda shape: arrays(float, shape, elements=value))


def naive(context: np.ndarray, row: np.ndarray, middle: float = 1.0) -> float:
    """The largest distance beyond a feature's range, feature by feature."""
    most = 0.0
    for values, x in zip(context.T, row, strict=True):
        known = sorted(values[~np.isnan(values)])
        known = known[int((1 - middle) / 2 * len(known)) :][: len(known) - 2 * int((1 - middle) / 2 * len(known))]
        if not known or known[0] == known[-1] or np.isnan(x):
            continue
        low, high = known[0], known[-1]
        most = max(most, (low - x) / (high - low), (x - high) / (high - low))
    return float(np.log1p(most))


@given(contexts, st.data())
def test_beyond_is_the_distance_from_the_range_in_widths_of_it(context: np.ndarray, data: st.DataObject) -> None:
    rows = data.draw(arrays(float, (5, context.shape[1]), elements=value | st.floats(-1e6, 1e6)))
    np.testing.assert_allclose(Ranges.of(context).beyond(rows), [naive(context, row) for row in rows], atol=1e-12)
    assert (Ranges.of(context).beyond(context) == 0).all()


@given(contexts, st.floats(0.1, 0.9))
def test_the_range_of_the_values_in_the_middle_leaves_out_as_many_on_each_side(
    context: np.ndarray, middle: float
) -> None:
    expected = [naive(context, row, middle) for row in context]
    for found in (Ranges.of(context, middle).beyond(context), Ranges.of(context, middle).beyond_others(context)):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@given(contexts)
def test_rows_of_the_context_are_compared_with_the_others(context: np.ndarray) -> None:
    """As if the ranges were computed again without the row."""
    expected = [naive(np.delete(context, i, axis=0), row) for i, row in enumerate(context)]
    np.testing.assert_allclose(Ranges.of(context).beyond_others(context), expected, atol=1e-12)


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.integers(3, 20), st.floats(50, 1e6), st.booleans())
def test_a_record_far_beyond_everything_ranks_above_one_that_is_odd_in_many_features(
    seed: int, d: int, far: float, above: bool
) -> None:
    rng = np.random.default_rng(seed)
    config = DetectorConfig(context_size=300, min_context=300, memory=0.0, views=("fast",))
    one = Detector(shared_model(), d, config)
    one.process(rng.normal(size=(320, d)))
    extreme, odd = rng.normal(size=d), rng.choice([-10.0, 10.0], d)  # odd in all of them
    extreme[rng.integers(d)] = far if above else -far
    found = one.score_rows(np.array([extreme, odd]))
    assert found.logit[0] > found.logit[1]
    further = extreme * 10
    assert one.score_rows(further[None]).logit[0] > found.logit[0] + 2  # a model alone adds about 1


# --- confidence

shares = st.integers(1, 5001).map(lambda rank: rank / 5001)  # the p-values of a context of 5,000 rows


@given(shares, shares)
def test_a_rarer_record_is_more_odd_to_a_context(one: float, other: float) -> None:
    a, b = vote(np.array([min(one, other), max(one, other)]))
    assert -1 < b <= a < 1
    assert vote(np.array([0.05]))[0] == 0


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6))
def test_confidence_is_full_where_all_agree_and_none_where_they_contradict_each_other(said: list[float]) -> None:
    votes = [np.array([one, 1.0, -1.0]) for one in said]
    found = confidence(votes)
    assert 0 <= found[0] <= 1
    np.testing.assert_array_equal(found[1:], 1.0)
    np.testing.assert_allclose(confidence([*votes, *(-one for one in votes)]), 0.0, atol=1e-12)


def test_confidence_is_low_while_the_views_disagree_on_a_shift() -> None:
    rows = np.random.default_rng(0).normal(size=(2400, 3))
    rows[1200:] += 4
    one = detector(DetectorConfig(context_size=300, recent_every=64))
    found = one.process(rows).confidence
    before, dispute, after = found[1000:1200].mean(), found[1500:1700].mean(), found[-200:].mean()
    assert dispute < 0.8 * min(before, after)
