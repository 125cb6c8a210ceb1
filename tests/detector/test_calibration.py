from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fomo_stream.detector.calibration import (
    AlertThreshold,
    ScoreScale,
    is_calibrated,
    most_above,
    own_p_values,
    p_values,
    scores_among,
)

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


@given(st.lists(logits, max_size=20), st.lists(logits, max_size=20))
def test_a_score_does_not_depend_on_the_logits_beside_it(found: list[float], reference: list[float]) -> None:
    window = np.sort(reference)
    one_by_one = [scores_among(np.array([logit]), window)[0] for logit in found]
    np.testing.assert_array_equal(scores_among(np.array(found), window), one_by_one)


@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_exchangeable_records_alert_at_the_asked_rate(rate: float) -> None:
    rng = np.random.default_rng(0)
    realised = np.mean(
        [(p_values(rng.normal(size=50), np.sort(rng.normal(size=999))) <= rate).mean() for _ in range(400)]
    )
    assert realised == pytest.approx(rate, rel=0.1)


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


@given(st.integers(0, 5), st.integers(0, 5))
def test_an_alert_weighs_as_much_as_the_records_that_one_should_come_in(a: int, b: int) -> None:
    threshold = AlertThreshold(0.02, 2000)
    threshold.update(a, 50 * a)
    threshold.update(0, 50 * b)
    assert threshold.log_factor == pytest.approx(threshold.RATE * b)


@pytest.mark.parametrize("rate", [0.001, 0.05])
def test_however_long_nothing_alerts_the_threshold_is_at_most_ten_times_the_rate(rate: float) -> None:
    threshold = AlertThreshold(rate, 2000)
    threshold.update(0, 10_000_000)
    assert threshold.value == pytest.approx(10 * rate)


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


@given(steps, st.integers(1, 3000))
def test_after_a_burst_the_scores_rise_to_where_they_were(high: list[int], window_size: int) -> None:
    scale, scores = scale_after(high, window_size), np.array([0.1, 0.9, 0.99])
    assert scale.share >= min(scale.SHARE, 1 / (window_size + 1))
    for _ in range(40):  # some 1,300 ordinary records, none of them high
        scale.update(0, 32)
    np.testing.assert_allclose(scale.scaled(scores), scores, rtol=1e-12)
