"""What is usual for a key: its rows, and what a detector says of records that are odd for their key alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import assert_same_results, compacted

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.keys import UNKEYED, Keys, digest_of
from fomo_stream.detector.relative import Pooled, within_keys
from fomo_stream.detector.results import Results
from fomo_stream.detector.series import Series
from fomo_stream.detector.step.follow import LEVEL_COUNTS, MAX_SPREADS, SPREAD_COUNTS
from fomo_stream.detector.step.follow import USUAL_HALF_LIFE as HALF_LIFE
from fomo_stream.model.checkpoint import shared_model

Float = np.ndarray


# --- rows of keys


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=120), st.integers(1, 12))
def test_rows_follow_their_keys_through_forgetting_commits_and_recoveries(
    uses: list[tuple[int, bool]], most: int
) -> None:
    columns = [("number", "i8")]
    keys, log = Keys(most, columns), list(Keys(most, columns).changes("k").items())
    expected: dict[int, int] = {}  # the last used one last
    for i, (key, ends) in enumerate(uses, 1):
        slot = keys.take(digest_of(str(key)), i)
        assert int(keys.column("number", np.array([slot]))[0]) == expected.pop(key, 0)
        expected[key] = i
        keys.write(np.array([slot]), number=i)
        if ends:
            keys.forget()
            for old in list(expected)[: len(expected) - most] if len(expected) > most else []:
                del expected[old]
            log += keys.changes("k").items()
            again = Keys(most, columns)
            again.recover(compacted(log), "k", len(keys))
            assert again.changes("k") == {}
            assert again.copy().changes("k") == keys.copy().changes("k")
            keys = again
    found = {key: keys.find(digest_of(str(key))) for key in range(31)}
    assert {key for key, slot in found.items() if slot is not None} == set(expected)
    slots = [slot for slot in found.values() if slot is not None]
    assert len(set(slots)) == len(slots)
    assert UNKEYED not in slots


# --- what is usual for a key


def one_key(values: Float, pooled: Pooled) -> tuple[Float, Float]:
    """Expected level and spread of the scores of each of values (n,), by the formulas of the docstring, from all
    values before, for a key alone."""
    scores, expected = pooled.scores(values[:, None])[:, 0], []
    taken: list[float] = []
    for score in scores.tolist():
        shares = 0.5 ** (np.arange(len(taken))[::-1] / HALF_LIFE)
        n = float(shares.sum())
        level = float(np.dot(shares, taken) / n) if taken else 0.0
        variance = float(np.dot(shares, (np.array(taken) - level) ** 2) / n) if taken else 0.0
        known = n / (n + LEVEL_COUNTS)
        spread = (n * variance + SPREAD_COUNTS * pooled.within[0]) / (n + SPREAD_COUNTS)
        spread = np.sqrt(spread * (1 + 1 / (n + 1)) + (1 - known) ** 2)
        expected.append((known * level, spread))
        taken.append(float(np.clip(score, known * level - MAX_SPREADS * spread, known * level + MAX_SPREADS * spread)))
    found = np.array(expected)
    return found[:, 0], found[:, 1]


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.lists(st.integers(0, 120), max_size=3))
def test_what_is_usual_for_a_key_is_that_of_its_values_before_shrunk_to_that_of_all(
    seed: int, n_keys: int, cuts: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    which = rng.integers(0, n_keys, 120)
    values = np.exp(rng.normal(size=(120, 1)) + which[:, None])
    values[rng.random(120) < 0.05] *= 1000
    series = Series(1)
    series.follow(np.ones((1, 1)), ["other"])
    series.learn_scale((np.sort(np.exp(rng.normal(size=300) * 2)),))
    assert series.pooled is not None
    series.follow(np.exp(rng.normal(size=(60, 1))), [f"other {key}" for key in range(60)])  # keys are alike
    edges = [0, *sorted(cuts), 120]
    keys = [f"key {key}" for key in which]
    parts = [series.follow(values[a:b], keys[a:b]) for a, b in pairwise(edges)]
    usual, relative = (np.concatenate([getattr(part, name) for part in parts]) for name in ("usual", "relative"))
    for key in range(n_keys):
        of_key = np.flatnonzero(which == key)
        known = of_key[1:]  # nothing is known before the first
        assert np.isnan(relative[of_key[:1]]).all()
        level, spread = one_key(values[of_key, 0], series.pooled)
        np.testing.assert_allclose(usual[known, 0, 0], level[1:], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(usual[known, 1, 0], spread[1:], rtol=1e-3, atol=1e-3)
        scores = series.pooled.scores(values[known])[:, 0]
        np.testing.assert_allclose(relative[known, 0, 0], (scores - level[1:]) / spread[1:], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("factor", [0.85, 1.1, 3.0])  # the last one is another scale
def test_what_is_usual_for_a_key_stays_when_the_scale_is_learned_again(factor: float) -> None:
    rng = np.random.default_rng(0)
    series, sample = Series(1), np.sort(np.exp(rng.normal(size=300) * 2))
    series.follow(np.ones((1, 1)), ["other"])
    series.learn_scale((sample,))
    series.follow(rng.normal(20, 0.2, (200, 1)), ["key"] * 200)

    def usual() -> float:
        assert series.pooled is not None
        return float(series.pooled.raw(series.keys.column("level", series.keys.in_use[-1:]))[0, 0])

    before = usual()
    series.learn_scale((sample * factor,))
    assert usual() == pytest.approx(before, rel=1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 500))
def test_scores_keep_the_order_and_lead_back_to_the_values(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice([np.exp(rng.normal(size=n) * 3), np.round(rng.normal(size=n)) - 5.0][seed % 2], n))
    pooled = Pooled.fit((sample, np.zeros(0)), np.ones(2))
    of_sample = pooled.scores(np.stack([sample, sample], axis=1))[:, 0]
    assert abs(of_sample.mean()) < 1e-6
    assert of_sample.std() == pytest.approx(1.0) or (sample == sample[0]).all()
    asked = np.sort(np.concatenate([sample, sample * 1.01, 100 * sample, -sample, [0.0, 1e60, -1e60]]))
    scores = pooled.scores(np.stack([asked, asked], axis=1))
    assert np.isfinite(scores).all()
    assert (np.diff(scores, axis=0) >= 0).all()
    near = np.abs(asked) < 1e6
    np.testing.assert_allclose(pooled.raw(scores)[near, 0], asked[near], rtol=1e-6, atol=1e-6)


def test_the_spread_within_keys_is_estimated_from_all_of_them() -> None:
    rng = np.random.default_rng(0)
    count = rng.integers(1, 40, (500, 1)).astype(np.uint8)
    variance = np.array([[rng.normal(scale=0.2, size=n).var()] for n in count[:, 0]], np.float32)
    assert within_keys(count, variance, np.ones(1))[0] == pytest.approx(0.04, rel=0.1)
    assert within_keys(count[:0], variance[:0], np.ones(1))[0] == 0.5  # what is assumed


# --- detectors

CONFIG = DetectorConfig(min_context=200)
LEVELS = np.exp(np.random.default_rng(9).normal(3.3, 0.9, 300))  # usual amounts of keys
CHEAP = np.flatnonzero(LEVELS < 20)


def payments(n: int, seed: int = 0) -> tuple[Float, list[str]]:
    """Amounts that are usual for their key, beside a column that tells nothing."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, len(LEVELS), n)
    amounts = LEVELS[which] * np.exp(0.2 * rng.normal(size=n))
    return np.column_stack([amounts, rng.normal(size=n)]), [f"u{key}" for key in which]


def scored(rows: Float, keys: list[str] | None, config: DetectorConfig = CONFIG) -> tuple[Detector, Results]:
    one = Detector(shared_model(), rows.shape[1], config)
    return one, one.process(rows, keys)


def test_a_record_that_is_odd_for_its_key_alone_is_an_outlier_and_its_reason_says_so() -> None:
    n = 5000
    rows, keys = payments(n)
    is_cheap = np.isin([int(key[1:]) for key in keys], CHEAP)
    at = np.array([first + int(is_cheap[first:].argmax()) for first in range(3500, n - 100, 150)])
    rows[at, 0] *= 10  # usual, for others
    one, found = scored(rows, keys, DetectorConfig(min_context=200, explain="alerts"))
    without = scored(rows, None)[1]
    assert found.outlier[at].mean() >= 0.9
    assert without.outlier[at].mean() <= 0.2
    assert np.delete(found.outlier, at)[1000:].mean() <= 0.01
    assert (found.by_key[at] >= found.logit[at]).mean() >= 0.9
    told = [found.reasons[i] for i in at if found.outlier[i]]
    first = [reasons[0] for reasons in told if reasons]
    named = [reason for reason in first if (reason.scope, reason.feature) == ("key", 0)]
    assert len(named) >= 0.9 * len(at)
    for reason in named:
        assert reason.low < reason.median < reason.high < reason.value
        assert reason.median < 25
    assert one.summary.keys == len(set(keys))


def test_values_of_keys_alone_are_compared_alike_by_both_backends_and_in_parts() -> None:
    n = 900
    rows, keys = payments(n, seed=5)
    rows[::17, 0], rows[700, 0] = np.nan, -9999.0
    config = replace(CONFIG, views=("events",), own_contexts=2)
    whole, torch = (Detector(shared_model(*backend), 2, config) for backend in ((), ("streams", "cpu", "torch")))
    found = whole.process(rows, keys)
    differences = np.abs(torch.process(rows[:600], keys[:600]).logit - found.logit[:600])[200:]
    assert differences.max() < 1e-3
    assert np.quantile(differences, 0.99) < 1e-6
    assert np.isfinite(found.by_key[-300:]).mean() > 0.8
    one = Detector(shared_model(), 2, config)
    parts = [one.process(rows[at : at + 17], keys[at : at + 17]) for at in range(0, n, 17)]
    assert_same_results(Results.concatenate(parts), found)


def test_what_is_odd_for_all_is_odd_for_every_key() -> None:
    rows, keys = payments(1500, seed=1)
    at = np.arange(750, 1500, 150)
    rows[at, 1] = [12.0, 18.0, 27.0, 40.0, 60.0]
    assert scored(rows, keys)[1].outlier[at].mean() >= 0.9


def test_a_copy_before_the_first_record_knows_its_own_keys() -> None:
    rows, keys = payments(1500, seed=4)
    rows[1400] *= 1000  # an alert is remembered with its key
    one = Detector(shared_model(), 2, CONFIG)
    twin, found = one.staggered(0), one.process(rows, keys)
    assert found.outlier[1400]
    assert_same_results(found, twin.process(rows, keys))


def test_odd_values_of_a_device_are_found_whatever_the_order_of_the_devices() -> None:
    rng, device, levels = np.random.default_rng(1), np.repeat(np.arange(5), 400), np.array([100, -50, 400, 0, -300])
    rows = np.column_stack([levels[device] + rng.normal(size=2000), rng.normal(5, 0.2, 2000)])
    planted = [680 + 405 * k for k in range(4)]
    rows[planted, 0] += 25
    for order in (np.arange(2000), np.argsort(np.arange(2000) % 400, kind="stable")):
        found = Detector(shared_model(), 2, CONFIG).process(rows[order], [f"d{k}" for k in device[order]]).outlier
        is_planted = np.isin(order, planted)
        assert found[is_planted].sum() >= 3
        assert found[~is_planted].sum() <= 20


def test_what_is_usual_for_a_big_key_is_not_odd_among_all_and_a_shift_of_all_keys_is_announced() -> None:
    rng = np.random.default_rng(0)
    user = rng.integers(1, 60, 4500)
    big = np.sort(rng.choice(np.arange(300, 4500), 24, replace=False))
    user[big] = 0
    amount = rng.lognormal(np.where(user == 0, 5.6, 3.0), 0.35)
    amount[2240], user[2240] = 3000.0, 5
    amount[2250:] *= 8.0
    one, rows, keys = Detector(shared_model(), 1, DetectorConfig()), amount[:, None], [f"u{k}" for k in user]
    before = one.process(rows[:2250], keys[:2250])
    assert one.shifts == 0
    found = Results.concatenate([before, one.process(rows[2250:], keys[2250:])])
    assert found.outlier[2240]
    assert found.outlier[big[big < 2240][6:]].sum() <= 1
    assert found.outlier[2250:2550].sum() >= 20
    assert one.shifts == 1


def test_a_value_that_is_odd_for_its_key_is_not_hidden_by_a_flag_that_is_rarely_one() -> None:
    rows, keys = payments(6000)
    rng = np.random.default_rng(2)
    flag, odd = rng.random(6000) < 0.02, np.sort(rng.choice(np.arange(3000, 6000), 20, replace=False))
    rows[odd, 0], flag[odd] = rows[odd, 0] * np.where(rng.random(20) < 0.5, 5, 1 / 5), False
    _, found = scored(np.column_stack([rows, flag]), keys, DetectorConfig(min_context=200, views=("events",)))
    flagged = found.by_key[3000:][flag[3000:]]
    assert (np.median(found.by_key[odd]) > flagged).mean() > 0.95
    assert found.outlier[odd].sum() >= 8
    assert found.outlier[flag].sum() <= 4
