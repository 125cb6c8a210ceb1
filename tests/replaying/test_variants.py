"""Our own settings, side by side."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.detectors.variants import NAMES, variants
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.sources import load


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


@given(
    rates=st.lists(st.sampled_from(["0.1", "0.02", "5e-3", "0.3"]), min_size=1, max_size=4, unique=True),
    seeds=st.lists(st.integers(0, 9).map(str), min_size=1, max_size=4, unique=True),
)
def test_a_variant_is_the_settings_with_the_flags_given(rates: list[str], seeds: list[str]) -> None:
    found = named(f"alert_rate={','.join(rates)}", f"seed={','.join(seeds)}", admit="all", lags="2")
    assert len(found) == len(rates) * len(seeds)
    for variant, (rate, seed) in zip(found.values(), product(rates, seeds), strict=True):
        given_by_hand = load(
            ReplaySettings, {"file": "rows.csv", "alert_rate": rate, "seed": seed, "admit": "all", "lags": "2"}
        )
        assert variant.detector_config() == given_by_hand.detector_config()
        assert [getattr(variant, name) for name in NAMES] == [getattr(given_by_hand, name) for name in NAMES]


def test_several_views_are_joined_by_a_plus() -> None:
    found = named("views=fast,trimmed+recent,past", lags="3")
    assert {name: s.views for name, s in found.items()} == {
        "views=fast": ("fast",),
        "views=trimmed+recent": ("trimmed", "recent"),
        "views=past": ("past",),
    }


def test_the_warm_up_follows_the_context_unless_it_is_given() -> None:
    assert named("context_size=100")["context_size=100"].min_context == 100
    assert named("context_size=1000", context_size="150")["context_size=1000"].min_context == 200
    with pytest.raises(ConfigError, match=r"--min-context \(200\) is larger than --context-size \(100\)"):
        named("context_size=100", min_context="200")


def test_a_variant_knows_which_flags_are_given() -> None:
    (variant,) = named("alert_rate=0.2", seed="1").values()
    assert variant.is_given("seed")
    assert not variant.is_given("lags")


def test_the_environment_does_not_replace_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(ReplaySettings, {"file": "rows.csv", "grid": ("seed=4",)})
    monkeypatch.setenv("FOMO_ALERT_RATE", "0.2")
    ((_, variant),) = variants(loaded)
    assert variant.alert_rate == 0.01


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("alert_rte=0.1", "it takes no such setting; did you mean alert_rate?"),
        ("topic=a,b", "it takes no such setting; it may name alert_rate, context_size"),
        ("features=a,b", "replay once for each value of others"),
        ("alert_rate=2", "--alert-rate 2: input should be less than or equal to 0.5"),
        ("alert_rate=often", "--alert-rate often: input should be a valid number"),
        ("context_size=5001", "--context-size 5001: input should be less than or equal to 5000"),
        ("views=nonsense", "there is no view nonsense"),
        ("views=past", "the view past needs --lags"),
        ("alert_rate", "write a setting and its values, such as alert_rate=0.01,0.001"),
        ("alert_rate=", "write a setting and its values"),
        ("seed=1 seed=2", "names seed twice"),
        ("seed=" + ",".join(map(str, range(33))), "names 33 combinations, at most 32"),
    ],
)
def test_mistakes_are_explained_in_one_sentence(grid: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        named(grid)
    assert str(error.value).startswith("--grid")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
