"""Scores, p-values, alerts and severity, also of streams; logits that remember those before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from plain_judge import PlainJudge, Record, share_above
from streams import CONFIG, KEYS, MODEL, ROWS, detector, stream

from fomo_stream.detector.alerts import greedy_keys
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.rarity import HALF_LIFE as LONG
from fomo_stream.detector.rarity import Rarity, own_p_values, p_values
from fomo_stream.detector.results import Results, Status
from fomo_stream.model.checkpoint import shared_model

# --- calibration

# such that some are equal, and some nearly
logits = st.floats(-1e4, 1e4) | st.floats(-14, 32) | st.sampled_from([0.0, 1.0, 1.0 + 1e-6, 2.0])
scores = st.integers(0, 50).flatmap(lambda n: arrays(np.float64, n, elements=st.floats(-10, 10)))


@given(scores, scores)
def test_p_values_agree_with_counting(logits: np.ndarray, reference: np.ndarray) -> None:
    counted = [(1 + sum(r >= s for r in reference)) / (len(reference) + 1) for s in logits]
    np.testing.assert_allclose(p_values(logits, np.sort(reference)), counted)


@given(scores)
def test_a_score_among_all_has_the_p_value_against_the_others(logits: np.ndarray) -> None:
    others = [p_values(logits[[i]], np.sort(np.delete(logits, i)))[0] for i in range(len(logits))]
    np.testing.assert_array_equal(own_p_values(logits), np.array(others))


# --- the long run


@given(st.lists(st.lists(logits, max_size=40), max_size=6), st.lists(logits, max_size=50))
def test_a_larger_logit_is_rarer_however_large(steps: list[list[float]], asked: list[float]) -> None:
    rarity, apart = Rarity(), np.unique(np.round(asked, 6))
    for step in steps:
        rarity.add(np.array(step), np.zeros(len(step), np.int64))
        rarity.step()
    found = rarity.above(apart)
    assert ((found > 0) & (found < 1)).all()
    assert (np.diff(1.0 - found) > 0).all()


def test_weights_that_grow_for_millions_of_records_change_no_share() -> None:
    rarity, logits = Rarity(), np.linspace(-2, 9, STEP)
    for _ in range(20 * int(LONG) // STEP):
        rarity.step()
    rarity.add(logits, np.zeros(STEP, np.int64))
    for _ in range(21 * int(LONG) // STEP):
        rarity.step()
    expected = [share_above(x, logits.tolist(), [21 * int(LONG) // STEP] * STEP) for x in (0.0, 5.0)]
    np.testing.assert_allclose(rarity.above(np.array([0.0, 5.0])), expected, rtol=1e-6)
    assert rarity.weight < 2**21


# --- alerts


def records_of(results: Results) -> list[Record]:
    """These records, before they are judged."""
    columns = results.logit, results.by_view, results.by_key, results.series, results.begins
    return [Record(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]


def test_scores_and_alerts_follow_from_the_logits_by_the_documented_rules() -> None:
    n, config = 400, replace(CONFIG, alert_rate=0.02, own_contexts=0)
    one = Detector(MODEL, 2, config)
    one.process(ROWS[:8], KEYS[:8])
    plain = PlainJudge(config)
    plain.first(records_of(one.cross_scored()))
    results = one.process(ROWS[8 : 8 + n], KEYS[8 : 8 + n])
    found = [plain.judge(record) for record in records_of(results)]
    np.testing.assert_allclose(results.remembered_logit, [one.remembered for one in found], atol=1e-9)
    np.testing.assert_allclose(results.score, [one.score for one in found], atol=1e-9)
    np.testing.assert_allclose(results.p_value, [one.p_value for one in found])
    assert results.outlier.tolist() == [one.outlier for one in found]
    assert results.severity.tolist() == (severity := [one.severity for one in found])
    assert len(set(severity)) > 2


@pytest.mark.parametrize(
    ("rate", "views", "kind"),
    [
        (0.005, "fast", "heavy tails"),
        (0.05, "default", "rounded"),
        pytest.param(0.001, "default", "heavy tails", marks=pytest.mark.slow),
    ],
)
def test_of_ordinary_records_at_most_the_alert_rate_alerts(rate: float, views: str, kind: str) -> None:
    n = 6000 if rate > 0.001 else 40_000
    rng = np.random.default_rng(0)
    rows = rng.standard_t(4, size=(n, 3)) if kind == "heavy tails" else np.round(rng.normal(size=(n, 3)), 1)
    rows[-1] = 1000  # beyond all others: an alert at each rate
    outlier = detector(DetectorConfig(context_size=200, alert_rate=rate, views=(views,))).process(rows).outlier
    assert outlier[-1]
    assert outlier[:-1].sum() <= rate * n


def test_an_extreme_alerts_whatever_came_before_it_and_is_first_by_score() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 3)) * np.where(rng.random((3000, 1)) < 0.05, 4, 1)  # weak outliers, one in twenty
    extremes = [1000, 1500, 2000, 2500, 2900]
    rows[extremes, [0, 1, 2, 0, 1]] = [40.0, 40.0, 40.0, -40.0, -40.0]
    results = detector(QUICK).process(rows)
    assert results.outlier[extremes].all()
    assert set(np.argsort(-np.nan_to_num(results.score))[:5]) == set(extremes)


def test_no_score_is_one_however_far_a_record_is() -> None:
    one = Detector(MODEL, 2, DetectorConfig(context_size=50, min_context=50, views=("all",)))
    one.process(np.random.default_rng(0).normal(size=(600, 2)))
    score = one.process(np.array([[1e20, 0.0], [1e30, 1e30]])).score
    assert ((score > 0.99) & (score < 1)).all()


@given(st.sampled_from([5, 300, 2000]), st.sampled_from([0.01, 0.1]))
def test_first_records_can_be_outliers_once_they_are_enough_for_the_alert_rate(n: int, rate: float) -> None:
    found = first_of(n, rate)
    has_enough = rate * (n + 1) >= 1
    assert ((found.severity >= 2) == found.outlier).all()
    assert has_enough or not found.outlier.any()
    assert set(found.status) == {Status.OK if has_enough else Status.CALIBRATING}


@pytest.mark.parametrize("far", [{}, {100: 10}, {20: -10, 50: 10, 80: -10, 110: 10, 140: -10, 170: 10}])
def test_of_the_first_records_those_far_outside_are_outliers_however_many(far: dict[int, float]) -> None:
    rows = np.random.default_rng(len(far)).normal(size=(200, 3))
    rows[list(far), 0] += list(far.values())
    one = Detector(shared_model(), 3, DetectorConfig())
    one.process(rows)
    found = set(np.flatnonzero(one.cross_scored().outlier).tolist())
    assert found >= far.keys()
    assert len(found) <= len(far) + 1


@pytest.mark.parametrize("seed", range(2))
def test_a_young_stream_finds_what_is_far_outside_and_little_else(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, planted = rng.normal(size=(400, 3)), [210, 300, 390]
    rows[planted, 1] += 8
    walk = np.zeros((400, 3))  # records that follow each other closely say less of what is usual
    for i in range(1, 400):
        walk[i] = 0.95 * walk[i - 1] + rng.normal(size=3)
    outlier, of_walk = (detector(DetectorConfig()).process(each).outlier for each in (rows, walk))
    assert outlier[planted].all()
    assert outlier.sum() <= 7
    assert of_walk.sum() <= 8


def test_in_a_constant_stream_a_change_is_an_outlier_and_the_usual_values_after_it_are_none() -> None:
    rows = np.full((600, 3), [5.0, 7.0, 0.1])
    rows[[400, 500], 1] = 8.0
    assert np.flatnonzero(detector(DetectorConfig()).process(rows).outlier).tolist() == [400, 500]


@cache
def first_of(n: int, rate: float) -> Results:
    one = Detector(MODEL, 2, DetectorConfig(context_size=max(n, 4), min_context=n, alert_rate=rate, views=("all",)))
    one.process(np.random.default_rng(0).normal(size=(n, 2)))
    return one.cross_scored()


# --- streams

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
    assert score.max() > 0.9
    assert (score > 0.95).mean() <= 0.08
    assert (score > 0.99).mean() <= 0.025


def test_where_records_are_equal_a_new_context_makes_none_of_them_odd() -> None:
    rows = np.random.default_rng(0).choice([0.0, 1.0, 5.0], size=(3000, 1)) * np.ones((1, 3))
    score = detector(QUICK).process(rows).score
    assert (score[np.isfinite(score)] > 0.95).mean() <= 0.06


@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 7, 40]))
def test_between_two_steps_a_record_with_both_logits_higher_has_a_higher_score(seed: int, before: int) -> None:
    one = established(before)
    rows = np.random.default_rng(seed).normal(size=(STEP, 3)) * 3
    found = one.score_rows(rows[: one.room])
    order = np.argsort(found.remembered_logit)
    own, remembered, score = (values[order] for values in (found.logit, found.remembered_logit, found.score))
    higher = (own[:, None] < own) & (remembered[:, None] < remembered - 1e-6)
    assert (score[:, None] < score)[higher].all()


@cache
def established(more: int) -> Detector:
    """A detector after some records; it is only asked."""
    one = detector()
    one.process(stream(200 + more))
    return one


# --- one key among many


def fleet(n: int, seed: int) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Records of 100 devices, 8 of which have one fault each, and one in ten of a device that is always wild."""
    rng = np.random.default_rng(seed)
    rows, keys = rng.normal(size=(n, 3)), rng.integers(0, 100, n)
    wild = np.flatnonzero(rng.random(n) < 0.1)
    rows[wild], keys[wild] = 30 * rng.normal(size=(len(wild), 3)), 100
    faults = rng.choice(np.arange(n // 2, n, 100), 8, replace=False)
    rows[faults], keys[faults] = rng.normal(size=(8, 3)), rng.integers(0, 100, 8)
    rows[faults, rng.integers(0, 3, 8)] += 20
    return rows, [f"device-{key}" for key in keys], faults


def test_a_key_that_is_always_wild_hides_few_faults_of_others() -> None:
    n = 4500
    rows, keys, faults = fleet(n, 4)
    one, restored, later = detector(DetectorConfig()), detector(DetectorConfig()), slice(n // 2, n)
    one.process(rows[: n // 2], keys[: n // 2])
    restored.recover({name: value for name, value in one.changes().items() if value is not None})
    outlier = one.process(rows[later], keys[later]).outlier
    assert outlier[faults - n // 2].sum() >= 6  # 0 to 3 of 8 would be found
    np.testing.assert_array_equal(restored.process(rows[later], keys[later]).outlier, outlier)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 10, 50, 2000]), st.sampled_from([0.001, 0.01, 0.1]))
def test_no_key_is_greedy_that_is_like_the_others(seed: int, n_keys: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    logits, series = rng.normal(size=3000), rng.integers(1, n_keys + 1, 3000)
    assert len(greedy_keys(logits, series, rate)) == 0
    assert len(greedy_keys(logits + 9 * (series == 1), np.zeros(3000, np.int64), rate)) == 0  # without keys
    if n_keys > 3:
        wild = rng.random(3000) < 0.1
        series[wild], logits[wild] = 9999, logits[wild] + 9
        assert greedy_keys(logits, series, rate).tolist() == [9999]
