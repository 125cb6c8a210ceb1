from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import MODEL

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.series import Series
from fomo_stream.detector.views import DEFAULT, GROUPS, MAX_COLUMNS, VIEWS, fitting, named_views
from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.zero_shot import ZeroShotModel


@pytest.mark.parametrize("lags", [0, 3])
@pytest.mark.parametrize("n", [0, 5])
def test_views_look_at_the_record_its_past_or_its_movement(n: int, lags: int) -> None:
    rows = np.random.default_rng(0).normal(size=(n, 2))
    vectors = Series(2, lags).follow(rows).vectors
    for name in ("trimmed", "all", "recent"):
        np.testing.assert_array_equal(VIEWS[name].columns(vectors, lags, ()), rows)
    past = [
        np.vstack([np.full((min(lag, n), 2), np.nan), rows[: n - lag] if lag < n else rows[:0]])
        for lag in range(1, lags + 1)
    ]
    np.testing.assert_array_equal(VIEWS["past"].columns(vectors, lags, ()), np.hstack([rows, *past]))
    moved = np.hstack([vectors[:, -2], vectors[:, -1]])
    np.testing.assert_array_equal(VIEWS["movement"].columns(vectors, lags, ()), moved)


def test_names_of_groups_are_taken_apart_and_each_view_comes_once() -> None:
    assert named_views(["default"]) == DEFAULT
    assert named_views(["recent", "fast", "all", "recent"]) == ("trimmed", "all", "recent", "key")
    assert {view for group in GROUPS.values() for view in group} <= VIEWS.keys()
    for wrong in ([], ["all", "none"], ["ALL"]):
        with pytest.raises(
            ValueError, match=r"there is no view .*; name some of default, fast, events, trimmed, all, recent"
        ):
            named_views(wrong)


def test_views_of_a_configuration() -> None:
    assert DetectorConfig().wanted_views == DEFAULT
    assert DetectorConfig(lags=2).wanted_views == ("trimmed", "all", "recent", "movement", "past", "key")
    assert DetectorConfig(lags=2, views=("past", "all")).wanted_views == ("all", "past")
    assert DetectorConfig(admit="all").wanted_views == ("all", "recent", "movement", "key")
    assert DetectorConfig(views=("key",)).wanted_views == ("all", "key")  # new keys have no other
    assert DetectorConfig(admit="all", views=("trimmed",)).wanted_views == ("all",)
    assert DetectorConfig(admit="feedback", views=("fast",)).wanted_views == ("trimmed", "all", "key")
    assert DetectorConfig(views=("key_values",)).wanted_views == ("all", "key_values")
    with pytest.raises(ConfigError, match="one of the views key and key_values, not both"):
        DetectorConfig(views=("default", "events"))
    with pytest.raises(ConfigError, match="the view past needs lags"):
        DetectorConfig(views=("past",))
    with pytest.raises(ConfigError, match="there is no view x"):
        DetectorConfig(views=("x",))


@given(st.integers(1, 300), st.integers(0, 5), st.sampled_from([0, 100, 150, 500]))
def test_views_that_are_too_wide_are_left_out(d: int, lags: int, limit: int) -> None:
    names = [name for name in VIEWS if name != "past" or lags]
    views, left_out = fitting(names, d, lags, limit)
    widths = {name: view.n_vectors(lags) * d for name, view in VIEWS.items()}
    for name in names:
        widest = 300 if VIEWS[name].is_of_keys else MAX_COLUMNS
        most = limit or d if VIEWS[name].input == "record" else min(limit or widest, widest)
        assert (VIEWS[name] in views) == (widths[name] <= most)
    assert {view.view for view in left_out} == set(names) - {view.name for view in views}
    assert all(out.columns == widths[out.view] > out.limit for out in left_out)


def test_a_detector_says_which_views_it_leaves_out() -> None:
    config = DetectorConfig(context_size=20, min_context=10, lags=3)
    narrow, wide = Detector(MODEL, 50, config), Detector(MODEL, 101, config)
    assert [view.name for view in narrow.views] == ["trimmed", "all", "recent", "movement", "past", "key"]
    assert narrow.left_out == ()
    assert [view.name for view in wide.views] == ["trimmed", "all", "recent"]
    assert [(out.view, out.columns, out.limit) for out in wide.left_out] == [
        ("movement", 202, 200),
        ("past", 404, 200),
        ("key", 303, 300),
    ]
    found = wide.process(np.random.default_rng(0).normal(size=(40, 101)))
    assert found.by_view.shape == (40, 3)
    assert np.isfinite(found.logit[10:]).all()
    with pytest.raises(SchemaError, match=r"distance takes up to 200 features in the view movement, the rows have 202"):
        Detector(MODEL, 101, replace(config, views=("past", "movement")))


def test_pairs_of_categories_take_a_column_of_a_model_that_takes_so_many() -> None:
    config = ModelConfig(raw_features=8, evidence=False, fusion=False, layers=1, width=8, heads=2, routers=2)
    narrow = ZeroShotModel(config)
    rows = np.random.default_rng(0).integers(0, 3, (300, 8)).astype(float)
    for d, categorical in ((8, (1,)), (7, (1, 2))):
        scored = Detector(narrow, d, DetectorConfig(views=("all",)), categorical=categorical).process(rows[:, :d])
        assert np.isfinite(scored.logit[200:]).all()
    with pytest.raises(SchemaError, match="takes up to 7 features in the view trimmed, the rows have 8"):
        Detector(narrow, 8, categorical=(1, 2))
