from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operations import Operations
from pipelines import Lazy
from streams import SMALL, assert_same_results, compacted, detector, keys_of, stream

from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results, Status
from fomo_stream.errors import ConfigError, SchemaError, StateError
from fomo_stream.model.checkpoint import load_torch_model, shared_model
from fomo_stream.model.scoring import cross_scores
from fomo_stream.model.zero_shot import GPU_TILE


@settings(max_examples=8)
@given(st.lists(st.integers(1, 80), min_size=1, max_size=5), st.integers(0, 99), st.booleans())
def test_results_do_not_depend_on_how_records_are_batched(sizes: list[int], seed: int, restarts: bool) -> None:
    """Values are missing or far off, keys are new, come again, or have contexts of their own."""
    n, config = sum(sizes), replace(SMALL, own_contexts=2)
    rows, keys = stream(n, seed), keys_of(n, seed)
    rows[5::60, seed % 3] = 3.4e38
    keys[::7] = [f"new {i}" for i in range(len(keys[::7]))]
    whole = detector(config).process(rows, keys)
    parts, one, log = [], detector(config), dict[str, bytes]()
    for part in np.split(np.arange(n), np.cumsum(sizes)[:-1]):
        parts.append(one.process(rows[part], [keys[i] for i in part]))
        if restarts:
            log = compacted([*log.items(), *one.changes().items()])
            one = detector(config)
            one.recover(log)
    assert_same_results(whole, Results.concatenate(parts))


def test_large_tiles_are_filled_with_the_next_records_and_change_no_result() -> None:
    """As on a GPU. Some keys have contexts of their own, values are missing, and one of the columns is a category."""
    n, config = 108, replace(SMALL, views=("fast",), own_contexts=2, keys=4, refresh=1.0)
    rows, keys, rng = stream(n, 1), [str(i // 2 % (3 + i // 100)) for i in range(n)], np.random.default_rng(1)
    rows[:, 2] = rng.integers(0, 4, n)
    rows[rng.random(rows.shape) < 0.05] = np.nan
    model = load_torch_model("streams", "cpu")
    model.tile = GPU_TILE
    found, operations = [], []
    for size in (n, 6):
        one = Detector(model, 3, config, categorical=(2,))
        with Operations() as counted:
            parts = [one.process(rows[i : i + size], keys[i : i + size]) for i in range(0, n, size)]
        found.append(Results.concatenate(parts))
        operations.append(counted.number)
    assert_same_results(found[0], found[1])
    assert 2 * operations[0] < operations[1]


def test_a_detector_says_when_it_would_have_to_wait() -> None:
    go = threading.Event()
    rows = stream(200, 1)
    with ThreadPoolExecutor(1) as executor:
        one = Detector(shared_model(), 3, SMALL, executor)
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
    n, config, executor = 800, replace(SMALL, own_contexts=own_contexts), Lazy()
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


def test_several_threads_can_score_at_once() -> None:
    """Also while verdicts have not taken effect yet."""
    one, rows, keys = detector(), stream(900), keys_of(900)
    one.process(rows[:500], keys[:500])
    one.feedback(np.arange(450, 500), np.arange(50) % 2 == 0)
    parts = [slice(first, first + 100) for first in range(500, 900, 100)] * 10
    expected = [one.copy().score_rows(rows[part], keys[part]) for part in parts[:4]]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda part: one.score_rows(rows[part], keys[part]), parts))
    for scored, alone in zip(found, expected * 10, strict=True):
        assert_same_results(scored, alone)


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


def test_a_seed_context_scores_the_first_record_and_may_have_more_rows_than_the_history_has_scores() -> None:
    config = DetectorConfig(context_size=500, min_context=20, views=("all",))
    rows = np.random.default_rng(0).normal(size=(3 * config.history_scores, 2))
    one = Detector(shared_model(), 2, config)
    one.seed_context(rows)
    assert 0 < len(one.cross_scored()) < 500  # those whose scores are known
    scored = one.process(np.vstack([rows[:50], [[8.0, 8.0]]]))
    assert scored.status[0] is not Status.WARMING_UP
    assert scored.logit.argmax() == 50
    with pytest.raises(StateError, match="before the first record"):
        one.seed_context(rows)


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
    assert len(one.cross_scored()) == 10
    scored, of_other = one.process(rows[10:], keys[10:]), other.process(rows[10:], keys[10:])
    assert np.isfinite(scored.score).all()
    assert_same_results(scored, of_other)
    with pytest.raises(SchemaError, match="at least 4"):
        detector().flush_warm_up()
    with pytest.raises(SchemaError, match="3 features"):
        one.process(np.zeros((5, 4)))


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


@pytest.mark.parametrize(
    ("name", "value"), [("min_context", 2000), ("alert_rate", 0.0), ("seed", None), ("lags", 1.5), ("memory", "0.5")]
)
def test_impossible_settings_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        DetectorConfig(**{name: value})
