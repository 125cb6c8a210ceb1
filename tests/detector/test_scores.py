"""Scores, p-values, alerts and severity, also of streams; logits that remember those before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from plain_judge import PlainJudge, Record, share_above
from streams import CONFIG, KEYS, MODEL, ROWS, detector, stream

from fomo_stream.detector.alerts import Memory, greedy_keys
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.keys import Keys
from fomo_stream.detector.rarity import HALF_LIFE as LONG
from fomo_stream.detector.rarity import Rarity, is_calibrated, own_p_values, p_values
from fomo_stream.detector.results import Results, Scores, Status
from fomo_stream.detector.series import MEMORY
from fomo_stream.detector.step.follow import HALF_LIFE
from fomo_stream.model.checkpoint import shared_model

# --- calibration

# such that some are equal, and some nearly
logits = st.floats(-1e4, 1e4) | st.floats(-14, 32) | st.sampled_from([0.0, 1.0, 1.0 + 1e-6, 2.0])
exact = logits.map(lambda logit: round(64 * logit) / 64)  # no rounding decides in which bin one is
scores = st.integers(0, 50).flatmap(lambda n: arrays(np.float64, n, elements=st.floats(-10, 10)))


@given(scores, scores)
def test_p_values_agree_with_counting(logits: np.ndarray, reference: np.ndarray) -> None:
    counted = [(1 + sum(r >= s for r in reference)) / (len(reference) + 1) for s in logits]
    np.testing.assert_allclose(p_values(logits, np.sort(reference)), counted)


@given(scores)
def test_a_score_among_all_has_the_p_value_against_the_others(logits: np.ndarray) -> None:
    others = [p_values(logits[[i]], np.sort(np.delete(logits, i)))[0] for i in range(len(logits))]
    np.testing.assert_array_equal(own_p_values(logits), np.array(others))


@given(st.integers(0, 2000), st.floats(1e-4, 0.5))
def test_calibrated_means_that_the_rate_is_reachable(n: int, rate: float) -> None:
    smallest = p_values(np.array([1.0]), np.zeros(n))[0]
    assert is_calibrated(n, rate) == (smallest <= rate * (1 + 1e-9))


# --- the long run


steps = st.lists(st.lists(exact, max_size=40), max_size=6)


def counted(steps: list[list[float]]) -> tuple[Rarity, list[float], list[int]]:
    """Rarity after these steps, all logits, and how many steps ago each came."""
    rarity = Rarity()
    for step in steps:
        rarity.add(np.array(step), np.zeros(len(step), np.int64))
        rarity.step()
    flat = [logit for step in steps for logit in step]
    return rarity, flat, [len(steps) - i for i, step in enumerate(steps) for _ in step]


@given(steps, st.lists(exact, max_size=30))
def test_rarity_is_the_decayed_share_of_earlier_logits_above(steps: list[list[float]], asked: list[float]) -> None:
    rarity, earlier, ages = counted(steps)
    expected = [share_above(x, earlier, ages) for x in asked]
    for one in (rarity, rarity.copy()):
        np.testing.assert_allclose(one.above(np.array(asked)), expected, rtol=1e-9)


@given(steps, st.lists(logits, max_size=50))
def test_a_larger_logit_is_rarer_however_large(steps: list[list[float]], asked: list[float]) -> None:
    apart = np.unique(np.round(asked, 6))
    found = counted(steps)[0].above(apart)
    assert ((found > 0) & (found < 1)).all()
    assert (np.diff(1.0 - found) > 0).all()


@given(steps, st.lists(exact, max_size=10), st.integers(0, 5), st.lists(exact, max_size=30))
def test_what_is_taken_back_was_never_there(
    steps: list[list[float]], extra: list[float], at: int, asked: list[float]
) -> None:
    at = min(at, len(steps))
    with_extra = [*steps[:at], *([steps[at] + extra] if at < len(steps) else []), *steps[at + 1 :]]
    rarity = counted(with_extra)[0]
    if at < len(steps):
        rarity.add(np.array(extra), np.full(len(extra), len(steps) - at), -1.0)
    expected = counted(steps)[0].above(np.array(asked))
    np.testing.assert_allclose(rarity.above(np.array(asked)), expected, rtol=1e-9)


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


@pytest.mark.parametrize("rate", [0.1, 0.02])
def test_scores_and_alerts_follow_from_the_logits_by_the_documented_rules(rate: float) -> None:
    n, config = 1000, replace(CONFIG, alert_rate=rate, own_contexts=0)
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
    ("rate", "views"),
    [(0.005, "fast"), (0.01, "default"), (0.05, "default"), pytest.param(0.001, "default", marks=pytest.mark.slow)],
)
def test_of_ordinary_records_at_most_the_alert_rate_alerts(rate: float, views: str) -> None:
    n = 8000 if rate > 0.001 else 40_000
    rows = np.random.default_rng(0).standard_t(4, size=(n, 3))
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


def test_after_a_label_an_outlier_is_no_standard_for_others() -> None:
    rows = np.random.default_rng(0).normal(size=(1500, 3))
    rows[1000:1040] += 6
    probe = np.array([[5.0, 5.0, 5.0]])
    one, told = detector(QUICK), detector(QUICK)
    for each in (one, told):
        each.process(rows)
    told.feedback(np.arange(1000, 1040), np.ones(40, dtype=bool))
    before, after = (each.score_rows(probe) for each in (one, told))
    assert after.p_value[0] < before.p_value[0]
    for each in (one, told):
        each.process(rows[:1])
    before, after = (each.score_rows(probe) for each in (one, told))
    assert after.score[0] > before.score[0]


@given(st.sampled_from([5, 300, 2000]), st.sampled_from([0.01, 0.1]))
def test_first_records_can_be_outliers_once_they_are_enough_for_the_alert_rate(n: int, rate: float) -> None:
    found = first_of(n, rate)
    has_enough = rate * (n + 1) >= 1
    assert ((found.severity >= 2) == found.outlier).all()
    assert has_enough or not found.outlier.any()
    assert set(found.status) == {Status.OK if has_enough else Status.CALIBRATING}


@pytest.mark.parametrize("far", [{}, {100: 10}, {20: -10, 50: 10, 80: -10, 110: 10, 140: -10, 170: 10}])
@pytest.mark.parametrize("seed", range(3))
def test_of_the_first_records_those_far_outside_are_outliers_however_many(seed: int, far: dict[int, float]) -> None:
    rows = np.random.default_rng(seed).normal(size=(200, 3))
    rows[list(far), 0] += list(far.values())
    one = Detector(shared_model(), 3, DetectorConfig())
    one.process(rows)
    found = set(np.flatnonzero(one.cross_scored().outlier).tolist())
    assert found >= far.keys()
    assert len(found) <= len(far) + 1


@pytest.mark.parametrize("seed", range(3))
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


@given(st.integers(0, 30), st.integers(1, 5))
def test_a_logit_is_the_mean_of_the_views_or_that_of_the_key_and_has_the_same_bits_whatever_is_beside(
    n: int, views: int
) -> None:
    rng = np.random.default_rng(n)
    by_view, by_key = rng.normal(size=(n, views)) * 1e3, rng.normal(size=n) * 1e3
    by_key[rng.random(n) < 0.3] = np.nan
    found = Scores.combined(by_view, by_key)
    np.testing.assert_allclose(found, np.fmax(by_view.mean(1), by_key) if n else [], rtol=1e-9, atol=1e-9)
    each = zip(by_view[:, None], by_key[:, None], strict=True)
    np.testing.assert_array_equal(found, [Scores.combined(*row)[0] for row in each])


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


@pytest.mark.parametrize("views", ["default", "fast"])
def test_where_nothing_ever_changes_nothing_is_odd(views: str) -> None:
    results = detector(replace(QUICK, views=(views,))).process(np.tile([1.0, 20.0, -0.3], (1000, 1)))
    assert not results.outlier.any()
    assert results.p_value[-1] > 0.5


@given(st.integers(0, 2**32 - 1), st.integers(0, 60))
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


# --- memory

MAX_KEYS = 4
weights = st.sampled_from([0.0, 1 / 3, 0.5, 0.9])
logit = st.floats(-20, 20) | st.just(float("nan"))
# a logit, the number of its series, and whether the series begins
streams = st.lists(st.tuples(logit, st.integers(0, MAX_KEYS), st.sampled_from([False] * 4 + [True])), max_size=40)
Stream = list[tuple[float, int, bool]]


def memory(weight: float) -> Memory:
    """With rows for all series."""
    keys = Keys(MAX_KEYS, MEMORY)
    for number in range(MAX_KEYS):
        keys.take(bytes([number]) * 16, 1)
    return Memory(weight, keys)


def columns_of(stream: Stream) -> tuple[Scores, np.ndarray, np.ndarray]:
    logits, slots, begins = zip(*stream, strict=True) if stream else ((), (), ())
    return scores_of(np.array(logits, float)), np.array(slots, np.int64), np.array(begins, bool)


def scores_of(logits: np.ndarray) -> Scores:
    return Scores.of(logits[:, None], np.ones(len(logits), np.int64), np.ones(len(logits)))


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


def remember(one: Memory, stream: Stream, cuts: list[int]) -> np.ndarray:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return np.concatenate([one.remember(*columns_of(stream[a:b])) for a, b in pairwise(edges)])


cuts = st.lists(st.integers(0, 40), max_size=5)


@given(streams, weights, cuts)
def test_a_remembered_logit_has_a_share_of_the_earlier_ones_of_its_series(
    stream: Stream, weight: float, cuts: list[int]
) -> None:
    found = remember(memory(weight), stream, cuts)
    np.testing.assert_allclose(found, naive(stream, weight), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found, remember(memory(weight), stream, []))  # bit for bit


def test_a_run_of_outliers_ranks_above_a_lone_one() -> None:
    logits = np.zeros(40)
    logits[10], logits[20:26] = 4.0, 4.0
    found = memory(1 / 3).remember(scores_of(logits), np.zeros(40, np.int64), np.zeros(40, bool))
    assert found[21] > found[10]
    assert (np.diff(found[20:26]) > 0).all()
    assert found[35] < 0.2  # and it fades


# --- one key among many


def fleet(n_wild: int, n: int = 4500) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Records of 100 devices, 8 of which have one fault each, and `n_wild` of 1,000 of one that is always wild."""
    rng = np.random.default_rng(3)
    rows, keys = rng.normal(size=(n, 3)), rng.integers(0, 100, n)
    wild = np.flatnonzero(rng.random(n) < n_wild / 1000)
    rows[wild], keys[wild] = 30 * rng.normal(size=(len(wild), 3)), 100
    faults = rng.choice(np.arange(n // 2, n, 100), 8, replace=False)
    rows[faults], keys[faults] = rng.normal(size=(8, 3)), rng.integers(0, 100, 8)
    rows[faults, rng.integers(0, 3, 8)] += 20
    return rows, [f"device-{key}" for key in keys], faults


def test_a_key_that_is_always_wild_hides_no_fault_of_another() -> None:
    rows, keys, faults = fleet(0)
    assert detector(DetectorConfig()).process(rows, keys).outlier[faults].sum() >= 7
    rows, keys, faults = fleet(100)
    whole, state = detector(DetectorConfig()).process(rows, keys), detector(DetectorConfig())
    assert whole.outlier[faults].sum() >= 7
    # neither batches nor a restart change anything
    parts = [state.process(rows[:2201], keys[:2201])]
    restored = detector(DetectorConfig())
    restored.recover({name: value for name, value in state.changes().items() if value is not None})
    parts += [restored.process(rows[at : at + 100], keys[at : at + 100]) for at in range(2201, len(rows), 100)]
    np.testing.assert_array_equal(Results.concatenate(parts).outlier, whole.outlier)
    np.testing.assert_array_equal(Results.concatenate(parts).p_value, whole.p_value)


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
