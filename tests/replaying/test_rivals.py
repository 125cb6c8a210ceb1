"""Detectors beside our own: rivals that score a row only by the rows before it, and our own with other settings."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from traceback import format_exception
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.rarity import is_calibrated
from fomo_stream.errors import ConfigError
from fomo_stream.replaying.blocks import BlockJudgement
from fomo_stream.replaying.detectors.rivals import (
    KNOWN_RIVALS,
    CompleteRows,
    ConformalAlerts,
    NearestNeighbours,
    Rival,
    check_rivals,
)
from fomo_stream.replaying.detectors.variants import variants
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.sources import load

Float = NDArray[np.float64]

CONFIG = DetectorConfig(context_size=100, min_context=20, alert_rate=0.05, calibration_size=60)
MODULE = """
    import numpy as np

    class Distance:
        '''PySAD: the distance to the mean of the rows so far.'''
        def __init__(self, n_features):
            self.total, self.n = np.zeros(n_features), 0
        def score_partial(self, X):
            return np.array([np.abs(X - self.total / max(1, self.n)).sum()])
        def fit_partial(self, X, y=None):
            self.total, self.n = self.total + X, self.n + 1
            return self

    class Largest:
        '''Takes and gives arrays; missing values stay missing.'''
        def judge(self, rows):
            rows -= 0.0  # in place: the rows are its own copy
            return np.abs(np.nan_to_num(rows)).max(axis=1)

    class Strict:
        def __init__(self): self.rows = 0
        def score_one(self, x):
            self.rows += 1
            if self.rows > 5:
                raise OSError("the  disk\\nis full")
            return None if self.rows < 3 else 0.5
        def learn_one(self, x): pass

    class Wrong:
        def judge(self, rows): return rows

    class Nothing: pass
    def needs_path(path): return Largest()
    def gives_nothing(): return Nothing()
    def seeded(seed=None): return Seeded(seed)
    class Seeded(Largest):
        def __init__(self, seed): self.seed = seed
        def judge(self, rows): return np.full(len(rows), float(self.seed))
    number = 5
"""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current directory, with a module of detectors in it."""
    path = tmp_path_factory.mktemp("rivals")
    (path / "rivals_here.py").write_text(dedent(MODULE))
    (path / "rivals_broken.py").write_text("raise RuntimeError('no licence')")
    before = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        sys.path[:] = [entry for entry in sys.path if entry]  # as the console script leaves it
        yield path
    sys.path[:] = before


def rows_of(n: int, n_features: int = 3, seed: int = 0) -> Float:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, n_features)) * [1.0, 20.0, 0.1][:n_features] + 5.0
    rows[rng.random(rows.shape) < 0.05] = np.nan
    return rows


def rival(spec: str, n_features: int = 3, config: DetectorConfig = CONFIG) -> Rival:
    return Rival(spec, [f"x{i}" for i in range(n_features)], config, ())


def judged(one: Rival, rows: Float, splits: list[int]) -> BlockJudgement:
    parts = [one.judge(part) for part in np.split(rows, splits)]
    return BlockJudgement(np.concatenate([p.score for p in parts]), np.concatenate([p.alert for p in parts]))


def splits_of(n: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, n), max_size=8).map(sorted)


@given(
    spec=st.sampled_from(["knn", "river.OneClassSVM", "rivals_here:Distance"]),
    splits=splits_of(300),
    seed=st.integers(0, 1000),
)
def test_judgements_do_not_depend_on_how_rows_are_split(spec: str, splits: list[int], seed: int) -> None:
    """So no score depends on a later row."""
    rows = rows_of(300, seed=seed)
    rows[:, 0], rows[50, 1:] = 0.1, 1e308  # a constant column, and huge values
    whole, split = judged(rival(spec), rows, []), judged(rival(spec), rows, splits)
    np.testing.assert_array_equal(whole.score, split.score)
    assert np.isfinite(whole.score[20:]).all()
    np.testing.assert_array_equal(whole.alert, split.alert)


def test_scores_of_river_are_those_of_its_recommended_pipelines() -> None:
    from river import anomaly, preprocessing

    rows = rows_of(600)
    whole = CompleteRows(3).complete(rows)
    pipelines = {
        "river.HalfSpaceTrees": preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(seed=CONFIG.seed),
        "river.OneClassSVM": preprocessing.StandardScaler() | anomaly.OneClassSVM(),
    }
    for spec, pipeline in pipelines.items():
        expected = np.empty(len(rows))
        for i, row in enumerate(whole.tolist()):
            record = dict(zip(["x0", "x1", "x2"], row, strict=True))
            expected[i] = pipeline.score_one(record)
            pipeline.learn_one(record)
        found = rival(spec).judge(rows).score
        unscored = 250 if spec == "river.HalfSpaceTrees" else 0
        assert np.isnan(found[:unscored]).all()
        assert (expected[:unscored] == 0).all()  # those that are left out say nothing
        np.testing.assert_array_equal(found[unscored:], expected[unscored:])


@given(seed=st.integers(0, 1000), size=st.integers(10, 60), n=st.integers(1, 120))
def test_neighbours_are_those_that_scikit_learn_finds(seed: int, size: int, n: int) -> None:
    config = DetectorConfig(context_size=size, min_context=10)
    rows = CompleteRows(3).complete(rows_of(n, seed=seed))
    found = NearestNeighbours(3, config).judge(rows)
    assert np.isnan(found[:10]).all()
    for i in range(10, n, 4):
        step = i // STEP * STEP
        known = rows[max(0, step - size) : step]
        mean, scale = (known.mean(axis=0), known.std(axis=0)) if step else (np.zeros(3), np.ones(3))
        scaled = (rows - mean) / np.where(scale > 0, scale, 1)
        index = NearestNeighbors(n_neighbors=5).fit(scaled[max(0, i - size) : i])
        assert found[i] == pytest.approx(index.kneighbors(scaled[i : i + 1])[0].mean())


@given(
    scores=st.lists(st.one_of(st.integers(0, 5).map(float), st.just(np.nan)), max_size=300),
    size=st.integers(1, 80),
    data=st.data(),
)
def test_alerts_compare_with_the_scores_before_the_last_step(
    scores: list[float], size: int, data: st.DataObject
) -> None:
    config = DetectorConfig(alert_rate=0.5, calibration_size=size)
    every = np.array(scores)
    own = ConformalAlerts(config)
    parts = [own.judge(part) for part in np.split(every, data.draw(splits_of(len(every))))]
    alert = np.concatenate([j.alert for j in parts])
    for i, score in enumerate(scores):
        before = every[: i // STEP * STEP]
        window = before[~np.isnan(before)][-config.window_size :]
        if np.isnan(score):
            assert not alert[i]
            continue
        p_value = (1 + (window >= score).sum()) / (len(window) + 1)
        assert alert[i] == (is_calibrated(len(window), 0.5) and p_value <= 0.5)


def test_missing_values_are_the_mean_of_those_before_and_a_category_is_how_often_it_came_before() -> None:
    rows = np.array([[np.nan, 7.0], [2.0, 7.0], [np.nan, 9.0], [4.0, 7.0], [np.nan, np.nan], [1.0, 9.0]])
    whole = CompleteRows(2, categorical=[1])
    filled = np.concatenate([whole.complete(rows[:2]), whole.complete(rows[2:])])
    shares = [0.0, 1.0, 0.0, 2 / 3, (0.0 + 1.0 + 0.0 + 2 / 3) / 4, 1 / 4]
    np.testing.assert_allclose(filled.T, [[0.0, 2.0, 2.0, 4.0, 3.0, 1.0], shares])


def test_a_factory_gets_the_seed_and_may_have_no_score_yet() -> None:
    config = DetectorConfig(seed=12)
    assert rival("rivals_here:seeded", config=config).judge(rows_of(3)).score.tolist() == [12.0] * 3
    assert np.isnan(rival("rivals_here:Strict").judge(rows_of(4)).score).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("knm", "unknown detector; did you mean knn?; or write module:factory"),
        ("isolation", "name knn, river.HalfSpaceTrees, river.OneClassSVM; or write module:factory"),
        ("rivals_broken:make", "cannot be imported: RuntimeError: no licence"),
        ("rivals_here:Distanc", "cannot be imported: AttributeError: module 'rivals_here' has no attribute 'Distanc'"),
        ("rivals_here:number", "is not a function or class that makes a detector"),
    ],
)
def test_mistakes_are_found_before_anything_is_made(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^[^\n]*{spec}[^\n]*{re.escape(words)}[^\n]*$"):
        check_rivals([spec])


def test_good_names_are_accepted_and_each_only_once() -> None:
    check_rivals([*KNOWN_RIVALS, "rivals_here:Distance", "rivals_here:gives_nothing", "river.anomaly:HalfSpaceTrees"])
    with pytest.raises(ConfigError, match="names knn twice"):
        check_rivals(["knn", "knn"])
    with pytest.raises(ConfigError, match="gives a Nothing, which has none of the methods score_one/learn_one"):
        rival("rivals_here:gives_nothing")
    with pytest.raises(ConfigError, match=r"needs_path failed: TypeError: .* missing 1 required .*; leave it out"):
        rival("rivals_here:needs_path")


def test_a_rival_that_fails_is_named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    one = rival("rivals_here:Strict")
    one.judge(rows_of(3))
    monkeypatch.setattr(logging.getLogger("fomo_stream"), "propagate", True)
    with caplog.at_level("DEBUG", logger="fomo_stream"), pytest.raises(ConfigError) as error:
        one.judge(rows_of(3))
    words = "rivals_here:Strict failed among records 4 to 6 of a partition: OSError at rivals_here.py:"
    assert str(error.value).startswith(words)
    shown = "".join(format_exception(error.value))
    assert "is full" not in shown  # an error may hold values of a record
    assert "is full" in caplog.text
    with pytest.raises(ConfigError, match="partition: scores of 4 rows have the shape"):
        rival("rivals_here:Wrong").judge(rows_of(4))


# --- our own settings, side by side ---------------------------------------------------------------------------


def named(*grid: str, **flags: Any) -> dict[str, ReplaySettings]:
    return dict(variants(load(ReplaySettings, {"file": "rows.csv", "grid": grid, **flags})))


def test_all_combinations_but_the_settings_themselves() -> None:
    found = named("alert_rate=0.01,0.001", "context-size=1000,5000")
    assert {name: (s.alert_rate, s.context_size) for name, s in found.items()} == {
        "alert_rate=0.01 context_size=5000": (0.01, 5000),
        "alert_rate=0.001 context_size=1000": (0.001, 1000),
        "alert_rate=0.001 context_size=5000": (0.001, 5000),
    }
    assert named() == {}
    found = named("views=fast,trimmed+recent,past", seed="3", lags="3")
    assert [variant.views for variant in found.values()] == [("fast",), ("trimmed", "recent"), ("past",)]
    by_hand = load(ReplaySettings, {"file": "rows.csv", "views": "trimmed,recent", "seed": "3", "lags": "3"})
    assert found["views=trimmed+recent"].detector_config() == by_hand.detector_config()
    assert named("context_size=100")["context_size=100"].min_context == 100  # the warm-up follows, unless it is given
    with pytest.raises(ConfigError, match=r"--min-context \(200\) is larger than --context-size \(100\)"):
        named("context_size=100", min_context="200")


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("alert_rte=0.1", "it does not take this setting; did you mean alert_rate?"),
        ("features=a,b", "replay once for each value of others"),
        ("alert_rate=2", "--alert-rate 2: input should be less than or equal to 0.5"),
        ("views=past", "the view past needs --lags"),
        ("alert_rate", "write a setting and its values, such as alert_rate=0.01,0.001"),
        ("seed=1 seed=2", "names seed twice"),
        ("seed=" + ",".join(map(str, range(33))), "names 33 combinations; at most 32"),
    ],
)
def test_mistakes_in_a_grid_are_explained_in_one_sentence(grid: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--grid[^\n]*{re.escape(words)}[^\n]*$"):
        named(grid)
