"""Scores, p-values, the alert threshold and severity; scores of streams; scores that remember those before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from streams import SMALL, detector, stream

from fomo_stream.detector.alerts import (
    Alerts,
    AlertThreshold,
    ScoreScale,
    is_calibrated,
    most_above,
    own_p_values,
    p_values,
    scores_among,
)
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Scores, Status
from fomo_stream.detector.series import HALF_LIFE, Memory

# --- calibration

# --- calibration

# such that some are equal, and some nearly
logits = st.floats(-1e4, 1e4) | st.sampled_from([0.0, 1.0, 1.0 + 1e-6, 2.0])
scores = st.integers(0, 50).flatmap(lambda n: arrays(np.float64, n, elements=st.floats(-10, 10)))


@given(scores, scores)
def test_p_values_agree_with_counting(logits: np.ndarray, reference: np.ndarray) -> None:
    counted = [(1 + sum(r >= s for r in reference)) / (len(reference) + 1) for s in logits]
    np.testing.assert_allclose(p_values(logits, np.sort(reference)), counted)


@given(scores)
def test_a_score_among_all_has_the_p_value_against_the_others(logits: np.ndarray) -> None:
    others = [p_values(logits[[i]], np.sort(np.delete(logits, i)))[0] for i in range(len(logits))]
    np.testing.assert_array_equal(own_p_values(logits), np.array(others))


@given(st.lists(logits, max_size=50), st.lists(logits, max_size=50))
def test_a_score_is_one_minus_the_p_value_to_within_a_step(found: list[float], reference: list[float]) -> None:
    window = np.sort(reference)
    score = scores_among(np.array(found), window)
    step = 1 / (len(window) + 1)
    assert ((score > 0) & (score < 1)).all()
    assert (np.abs(score - (1 - p_values(np.array(found), window))) <= step + 1e-12).all()


@given(st.lists(logits, max_size=50), st.lists(logits, max_size=50))
def test_a_larger_logit_has_a_larger_score(found: list[float], reference: list[float]) -> None:
    apart = np.unique(np.round(found, 6))  # 1e-6 of a step of a window of 2,000 is still a difference
    score = scores_among(apart, np.sort(reference))
    assert (np.diff(score) > 0).all()


@given(st.integers(0, 2000), st.floats(1e-4, 0.5))
def test_calibrated_means_that_the_rate_is_reachable(n: int, rate: float) -> None:
    smallest = p_values(np.array([1.0]), np.zeros(n))[0]
    assert is_calibrated(n, rate) == (smallest <= rate * (1 + 1e-9))


@pytest.mark.parametrize("inflation", [0.15, 0.4, 1.0, 2.5, 15.0])
def test_alerts_come_at_the_asked_rate_where_p_values_are_off(inflation: float) -> None:
    rng = np.random.default_rng(0)
    threshold, alerts = AlertThreshold(0.01, 2000), 0
    for _ in range(2000):
        n = int((rng.random(32) / inflation <= threshold.value).sum())
        threshold.update(n, 32)
        alerts += n
    assert alerts / 64_000 == pytest.approx(0.01, rel=0.1)


@given(st.lists(st.integers(0, 32), max_size=40))
def test_threshold_stays_within_its_bounds_and_is_back_after_silence(alerts: list[int]) -> None:
    threshold = AlertThreshold(0.01, 2000)
    for n in alerts:
        threshold.update(n, 32)
        assert 0.8 / 2001 <= threshold.value <= 0.1 * (1 + 1e-9)
    threshold.update(0, 200)  # records of silence are enough for the rarest to be an alert again
    assert threshold.value >= 1 / 2001 * (1 - 1e-9)


steps = st.lists(st.integers(0, 32), max_size=60)  # high scores among the 32 records of each step


def scale_after(high: list[int], window_size: int = 2000) -> ScoreScale:
    scale = ScoreScale(0.01, window_size)
    for n in high:
        scale.update(n, 32)
    return scale


@given(steps, st.lists(st.floats(1e-12, 1 - 1e-12), max_size=50))
def test_scaled_scores_keep_their_order_and_none_is_higher_than_before(high: list[int], found: list[float]) -> None:
    scores = np.unique(np.round(found, 12))
    scores = scores[(scores > 0) & (scores < 1)]
    scaled = scale_after(high).scaled(scores)
    assert ((scaled > 0) & (scaled < 1)).all()
    assert (np.diff(scaled) > 0).all()
    assert (scaled <= scores + 1e-15).all()


rates = st.sampled_from([1e-4, 0.01, 0.05, 0.2, 0.5])


@given(rates, steps, st.floats(0, 1) | st.sampled_from([0.95, 0.99]), st.lists(st.floats(0.01, 0.99), max_size=50))
def test_scores_above_the_cut_are_those_above_one_minus_the_alert_rate(
    rate: float, high: list[int], cut: float, found: list[float]
) -> None:
    scale = ScoreScale(rate, 2000)
    for n in high:
        scale.update(n, 32)
    scores = np.unique(np.round([*found, min(max(cut, 0.01), 0.99)], 6))
    scaled = scale.scaled(scores, cut)
    assert ((scaled > 0) & (scaled < 1)).all()
    assert (np.diff(scaled) > 0).all()
    np.testing.assert_array_less(1 - rate - 1e-12, scaled[scores > cut])
    np.testing.assert_array_less(scaled[scores <= cut], 1 - rate + 1e-12)


@given(st.floats(0, 2), scores)
def test_an_outlier_has_at_most_so_many_scores_above_it_as_its_p_value_says(
    threshold: float, found: np.ndarray
) -> None:
    reference = np.unique(found)
    least = np.array([-np.inf, *reference, np.inf])  # of each, all that are larger or equal are above it
    above = len(reference) - np.searchsorted(reference, least)
    small = p_values(least, reference) <= threshold
    assert most_above(threshold, len(reference)) == max(above[small], default=-1)


@pytest.mark.parametrize("inflation", [1.0, 1.7, 4.0, 15.0])
def test_a_twentieth_of_the_scores_is_above_95_percent_where_more_were(inflation: float) -> None:
    rng = np.random.default_rng(0)
    scale, n_high = ScoreScale(0.01, 2000), 0
    for _ in range(2000):
        high = int((scale.scaled(1 - rng.random(32) / inflation) > 0.95).sum())
        scale.update(high, 32)
        n_high += high
    assert 0.04 < n_high / 64_000 < 0.053  # with those before it has adapted


# --- results


def expected_severity(p: float, threshold: float) -> int:
    """By the documented limits: a tenth of the threshold, the threshold, and three times the threshold."""
    if p <= 0.1 * threshold:
        return 3
    if p <= threshold:
        return 2
    return 1 if p <= 3 * threshold else 0


@given(st.sampled_from([5, 300, 2000]), st.sampled_from([0.01, 0.1]), st.integers(0, 1000))
def test_severity_is_the_p_value_in_multiples_of_the_threshold(n: int, rate: float, n_alerts: int) -> None:
    alerts = Alerts(DetectorConfig(alert_rate=rate))
    alerts.threshold.update(n_alerts, 5000)
    scores = Scores.of(np.zeros((n, 2)), np.ones(n, np.int64), np.ones(n))
    found, has_enough = alerts.judge_first(scores, np.arange(float(n)), 1), rate * (n + 1) >= 1
    expected = [expected_severity(p, alerts.threshold.value) if has_enough else 0 for p in found.p_value.tolist()]
    assert found.severity.tolist() == expected
    assert found.outlier.tolist() == [severity >= 2 for severity in expected]
    assert set(found.status) == {Status.OK if has_enough else Status.CALIBRATING}


@given(st.integers(0, 30), st.integers(1, 5))
def test_the_mean_of_the_views_has_the_same_bits_whatever_rows_are_beside(n: int, views: int) -> None:
    by_view = np.random.default_rng(n).normal(size=(n, views)) * 1e3
    mean = Scores.mean(by_view)
    np.testing.assert_allclose(mean, by_view.mean(1) if n else [], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(mean, [Scores.mean(row[None])[0] for row in by_view])


# --- scores

# --- scores

N, SETTLED = 8000, 5000  # records, and those after which a share is counted
QUICK = DetectorConfig(context_size=300)
Rows = NDArray[np.float64]
Course = Callable[[Rows, Rows], Rows]


def sudden_shift(noise: Rows, time: Rows) -> Rows:
    return noise + 5.0 * (time > 0.5)


def slow_ramp(noise: Rows, time: Rows) -> Rows:
    return noise + 5.0 * time


def new_cluster(noise: Rows, time: Rows) -> Rows:
    fresh: Rows = (time > 0.4) * (np.arange(len(noise))[:, None] % 3 == 0)
    return noise + 8.0 * fresh


def random_walk(noise: Rows, time: Rows) -> Rows:
    return noise + np.cumsum(0.05 * np.random.default_rng(1).normal(size=noise.shape), axis=0)


@pytest.mark.parametrize(
    "drift",
    [
        random_walk,
        *(pytest.param(d, marks=pytest.mark.slow) for d in (sudden_shift, slow_ramp, new_cluster)),
    ],
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


def columns_of(stream: Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
    return np.concatenate([memory.remember(*columns_of(stream[a:b])) for a, b in pairwise(edges)])


cuts = st.lists(st.integers(0, 40), max_size=5)


@given(streams, weights, cuts)
def test_a_remembered_logit_has_a_share_of_the_earlier_ones_of_its_series(
    stream: Stream, weight: float, cuts: list[int]
) -> None:
    found = remember(Memory(weight, MAX_KEYS), stream, cuts)
    np.testing.assert_allclose(found, naive(stream, weight), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found, remember(Memory(weight, MAX_KEYS), stream, []))  # bit for bit


@given(streams, streams, weights)
def test_a_replay_is_as_if_the_last_records_were_the_first(before: Stream, last: Stream, weight: float) -> None:
    """Of series that have records among them; the others stay as they are."""
    memory, fresh = Memory(weight, MAX_KEYS), Memory(weight, MAX_KEYS)
    remember(memory, before, [])
    unchanged = memory.copy()
    found = memory.replay(*columns_of(last))
    np.testing.assert_array_equal(found, fresh.remember(*columns_of(last)))
    slots = np.arange(MAX_KEYS + 1)
    more, begins = np.ones(len(slots)), np.zeros(len(slots), dtype=bool)
    seen = np.isin(slots, columns_of(last)[1])
    expected = np.where(seen, fresh.remember(more, slots, begins), unchanged.remember(more, slots, begins))
    np.testing.assert_array_equal(memory.remember(more, slots, begins), expected)


def test_a_run_of_outliers_ranks_above_a_lone_one() -> None:
    logits = np.zeros(40)
    logits[10], logits[20:26] = 4.0, 4.0
    found = Memory(1 / 3).remember(logits, np.zeros(40, np.int64), np.zeros(40, bool))
    assert found[21] > found[10]
    assert (np.diff(found[20:26]) > 0).all()
    assert found[35] < 0.2  # and it fades
