from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operations import Operations
from pipelines import Lazy
from streams import SMALL, assert_same_results, detector, keys_of, stream

from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results, Status
from fomo_stream.errors import ConfigError, SchemaError, StateError
from fomo_stream.model.checkpoint import load_torch_model, shared_model
from fomo_stream.model.scoring import cross_scores
from fomo_stream.model.zero_shot import GPU_TILE


@given(st.lists(st.integers(1, 90), min_size=1, max_size=8), st.integers(0, 99))
def test_results_do_not_depend_on_how_records_are_batched(sizes: list[int], seed: int) -> None:
    n = sum(sizes)
    rows, keys = stream(n, seed), keys_of(n, seed)
    whole = detector().process(rows, keys)
    parts, one = [], detector()
    for part in np.split(np.arange(n), np.cumsum(sizes)[:-1]):
        parts.append(one.process(rows[part], [keys[i] for i in part]))
    assert_same_results(whole, Results.concatenate(parts))


@pytest.mark.parametrize("size", [1, 7])
def test_results_do_not_depend_on_batches_while_keys_come(size: int) -> None:
    """Of half of the records the key is new, and of the others many have contexts of their own."""
    config, n = replace(SMALL, own_contexts=2), 1000
    rows = stream(n, 1)
    keys = [f"new {i}" if i % 2 and i < 400 else str(i // 2 % 3) for i in range(n)]
    one, whole = detector(config), detector(config).process(rows, keys)
    parts = [one.process(rows[i : i + size], keys[i : i + size]) for i in range(0, n, size)]
    assert_same_results(whole, Results.concatenate(parts))


def test_large_tiles_are_filled_with_the_next_records_and_change_no_result() -> None:
    """As on a GPU. Some keys have contexts of their own, values are missing, and one of the columns is a category."""
    n, config = 320, replace(SMALL, own_contexts=2, keys=4, refresh=1.0)
    rows, keys, rng = stream(n, 1), [str(i // 2 % (3 + i // 200)) for i in range(n)], np.random.default_rng(1)
    rows[:, 2] = rng.integers(0, 4, n)
    rows[rng.random(rows.shape) < 0.05] = np.nan
    model = load_torch_model("streams", "cpu")
    model.tile = GPU_TILE
    found, operations = [], []
    for size in (n, 15):
        one = Detector(model, 3, config, categorical=(2,))
        with Operations() as counted:
            parts = [one.process(rows[i : i + size], keys[i : i + size]) for i in range(0, n, size)]
        found.append(Results.concatenate(parts))
        operations.append(counted.number)
    assert_same_results(found[0], found[1])
    assert 2 * operations[0] < operations[1]


def test_a_copy_goes_on_alike_and_on_its_own() -> None:
    rows = stream(300)
    one = detector()
    one.process(rows[:150])
    before = one.copy()
    after = one.process(rows[150:])
    assert_same_results(before.copy().process(rows[150:]), after)
    assert_same_results(before.process(rows[150:]), after)


@pytest.mark.parametrize("lag", [8, 32])
def test_a_detector_says_when_it_would_have_to_wait(lag: int) -> None:
    go = threading.Event()
    rows = stream(200, 1)
    with ThreadPoolExecutor(1) as executor:
        one = Detector(shared_model(), 3, replace(SMALL, lag=lag), executor)
        one.process(stream(21))  # the first generations are there
        executor.submit(go.wait, 60)  # the next build has to queue behind this
        try:
            taken = 0
            while one.n_ready([None]):
                one.process(rows[taken : taken + 1])
                taken += 1
            assert 0 < taken < len(rows)
        finally:
            go.set()
        one.process(rows[taken : taken + 1])
        assert one.n_ready([None])


@pytest.mark.parametrize("own_contexts", [0, 2])
def test_no_record_that_is_ready_waits(own_contexts: int) -> None:
    """Also not for a generation that the records before it bring about."""
    n, config, executor = 1500, replace(SMALL, own_contexts=own_contexts), Lazy()
    rows, keys = stream(n, 1), [str(i % 3) for i in range(n)]
    one, parts, at, sizes = Detector(shared_model(), 3, config, executor), [], 0, set()
    while at < n:
        if size := one.n_ready(keys[at : at + 200]):
            parts.append(one.process(rows[at : at + size], keys[at : at + size]))
            at += size
            sizes.add(size)
        else:
            executor.work()
    assert_same_results(detector(config).process(rows, keys), Results.concatenate(parts))
    assert (max(sizes) > STEP + config.lag) == bool(own_contexts)  # the partition learns few records of such keys


def test_a_background_build_changes_nothing() -> None:
    rows = stream(600)
    with ThreadPoolExecutor(1) as executor:
        background = Detector(shared_model(), 3, SMALL, executor)
        assert_same_results(detector().process(rows), background.process(rows))
    assert background.generation > 3


def test_several_threads_can_score_at_once() -> None:
    """Also while verdicts have not taken effect yet."""
    one, rows, keys = detector(), stream(900), keys_of(900)
    one.process(rows[:500], keys[:500])
    one.feedback(np.arange(450, 500), np.arange(50) % 2 == 0)
    parts = [slice(first, first + 100) for first in range(500, 900, 100)] * 20
    expected = [one.copy().score_rows(rows[part], keys[part]) for part in parts[:4]]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda part: one.score_rows(rows[part], keys[part]), parts))
    for scored, alone in zip(found, expected * 20, strict=True):
        assert_same_results(scored, alone)


def test_nothing_alerts_before_the_alert_rate_is_reachable() -> None:
    config = DetectorConfig(context_size=60, min_context=20, lag=8, alert_rate=0.005)
    scored = detector(config).process(stream(600))
    calibrating = np.array([s is Status.CALIBRATING for s in scored.status])
    assert calibrating.any()
    assert not scored.outlier[calibrating].any()
    assert scored.status[-1] is Status.OK
    assert (scored.p_value[calibrating] > 0.005).all()


@pytest.mark.parametrize("kind", ["binary", "dice", "rounded"])
def test_alert_rate_holds_block_by_block_whatever_the_values(kind: str) -> None:
    rng = np.random.default_rng(1)
    rows = {
        "binary": rng.integers(0, 2, (2100, 2)).astype(float),
        "dice": rng.integers(1, 7, (2100, 1)).astype(float),
        "rounded": np.round(rng.normal(size=(2100, 2)), 1),
    }[kind]
    scored = Detector(shared_model(), rows.shape[1], DetectorConfig(context_size=200)).process(rows)
    blocks = scored.outlier[200:].reshape(-1, 950).mean(1)
    assert (blocks < 0.03).all(), blocks


def test_cross_scores_stand_for_the_warm_up_rows() -> None:
    one, rows = detector(replace(SMALL, views=("all",))), np.random.default_rng(0).normal(size=(20, 3))
    assert len(one.cross_scored()) == 0
    one.process(rows)
    crossed = one.cross_scored()
    assert len(crossed) == 20
    assert np.isfinite(crossed.logit).all()
    assert (crossed.logit >= cross_scores(shared_model(), rows)).all()  # leave-one-out alone would be too low
    assert (crossed.p_value > 0).all()
    one.process(rows[:1])
    assert len(one.cross_scored()) == 0


def test_a_seed_context_may_have_more_rows_than_the_history_has_scores() -> None:
    config = DetectorConfig(context_size=500, min_context=20, views=("all",))
    rows = np.random.default_rng(0).normal(size=(3 * config.history_scores, 2))
    one = Detector(shared_model(), 2, config)
    one.seed_context(rows)
    assert 0 < len(one.cross_scored()) < 500  # those whose scores are known
    assert one.process(np.vstack([rows[:50], [[8.0, 8.0]]])).logit.argmax() == 50


def test_seeded_detector_scores_the_first_record() -> None:
    one = detector()
    one.seed_context(stream(30))
    assert one.process(stream(1, 1)).status[0] is not Status.WARMING_UP
    with pytest.raises(StateError, match="before the first record"):
        one.seed_context(stream(30))


def test_short_input_can_end_its_warm_up() -> None:
    one = detector()
    one.process(stream(7))
    one.flush_warm_up()
    assert len(one.cross_scored()) == 7
    with pytest.raises(SchemaError, match="at least 4"):
        detector().flush_warm_up()


def test_the_warm_up_ends_at_once_whatever_was_asked_before() -> None:
    one, other, rows, keys = detector(), detector(), stream(60), keys_of(60)
    for each in (one, other):
        each.process(rows[:10], keys[:10])
    apart = one.score_independent(rows[10:], keys[10:])
    assert not apart.series.any()
    assert not apart.begins.any()
    one.score_rows(rows[10:], keys[10:])
    for each in (one, other):
        each.flush_warm_up()
    scored, of_other = one.process(rows[10:], keys[10:]), other.process(rows[10:], keys[10:])
    assert np.isfinite(scored.score).all()
    assert_same_results(scored, of_other)


@pytest.mark.parametrize("kind", ["constant", "duplicates", "huge", "missing"])
def test_degenerate_streams_give_finite_scores(kind: str) -> None:
    rng = np.random.default_rng(0)
    rows = {
        "constant": np.full((200, 3), 5.0),
        "duplicates": np.repeat(rng.normal(size=(3, 3)), 67, axis=0),
        "huge": rng.choice([1e308, -1e308, 0.0, 1.0], size=(200, 3)),
        "missing": np.full((200, 3), np.nan),
    }[kind]
    scored = detector().process(rows)
    assert np.isfinite(scored.logit[20:]).all()
    assert ((scored.score[20:] >= 0) & (scored.score[20:] <= 1)).all()


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(SchemaError, match="3 features"):
        detector().process(np.zeros((5, 4)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_context", 2000),
        ("alert_rate", 0.0),
        ("context_size", 9999),
        ("refresh", 2),
        ("seed", -1),
        ("seed", None),
        ("lags", 1.5),
        ("reasons", "3"),
        ("memory", "0.5"),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        DetectorConfig(**{name: value})
