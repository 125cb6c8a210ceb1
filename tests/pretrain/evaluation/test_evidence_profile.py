"""Evidence profiles: of priors, of real tables, and their report."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError
from fomo_stream.model.config import CHANNELS
from pretrain.__main__ import main
from pretrain.evaluation.evidence_profile import (
    FEWEST_TABLES,
    distance,
    prior_areas,
    profile_of,
    report_text,
    sampling_error,
    table_areas,
)
from pretrain.priors.draws import Draws
from pretrain.priors.gmm import GmmConfig, sample_gmm
from pretrain.priors.mixture import BatchSource, DataConfig

SMALL = DataConfig(max_features=6, batch=4, context_min=60, context_max=60, queries=40)


def areas(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.4, 0.99, size=(n, len(CHANNELS)))


def write_tables(directory: Path, count: int, seed: int = 0) -> list[str]:
    """Tables of the Gaussian-mixture prior, 160 inliers and 80 outliers each."""
    data = sample_gmm(GmmConfig(max_features=6), Draws(seed), count, 160, 80)
    names = [f"table-{i}" for i in range(count)]
    for i, name in enumerate(names):
        d = int(data.mixtures.n_features[i])
        X = np.concatenate([data.outliers[i, :, :d].numpy(), data.inliers[i, :, :d].numpy()])
        np.savez(directory / f"{name}.npz", X=X, y=np.repeat([1, 0], [80, 160]))
    return names


def test_profile_is_the_mean_over_datasets_less_the_mean_over_channels_in_points() -> None:
    found = areas(50)
    profile = profile_of(found)
    np.testing.assert_allclose(profile.offset, 100 * (found.mean(0) - found.mean()))
    assert profile.offset.sum() == pytest.approx(0, abs=1e-9)
    assert profile.level == pytest.approx(100 * found.mean())
    assert profile.best[2] == pytest.approx(100 * np.median(found.max(1)))


@given(n=st.integers(2, 40), seed=st.integers(0, 99))
def test_how_hard_each_dataset_is_does_not_touch_the_profile(n: int, seed: int) -> None:
    found = areas(n, seed)
    shift = np.random.default_rng(seed + 1).uniform(-0.3, 0.3, size=(n, 1))
    one, other = profile_of(found), profile_of(found + shift, low=-1, high=2)
    np.testing.assert_allclose(one.offset, other.offset, atol=1e-9)
    np.testing.assert_allclose(one.spread, other.spread, atol=1e-9)
    assert one.contrast == pytest.approx(other.contrast)


def test_datasets_outside_of_the_filter_count_as_hard_or_easy_and_nowhere_else() -> None:
    usual, hopeless, trivial = areas(20), np.full((3, len(CHANNELS)), 0.5), np.full((3, len(CHANNELS)), 1.0)
    all_of_them = profile_of(np.concatenate([hopeless, usual, trivial]), low=0.75, high=0.9985)
    alone = profile_of(usual)
    np.testing.assert_array_equal(all_of_them.offset, alone.offset)
    np.testing.assert_array_equal(all_of_them.spread, alone.spread)
    assert all_of_them.outside == pytest.approx(6 / 26)
    assert all_of_them.datasets == 26
    assert all_of_them.best[0] == pytest.approx(50)
    assert all_of_them.best[-1] == pytest.approx(100)


def test_profile_needs_datasets_within_the_filter() -> None:
    with pytest.raises(ConfigError, match="0 of 9 datasets"):
        profile_of(np.full((9, len(CHANNELS)), 0.5), low=0.75, high=0.9985)


def test_distance_is_the_root_mean_square_over_channels() -> None:
    one, other = profile_of(areas(30)), profile_of(areas(30, seed=1))
    assert distance(one, one) == 0
    assert distance(one, other) == distance(other, one)
    assert distance(one, other) == pytest.approx(np.linalg.norm(one.offset - other.offset) / np.sqrt(len(CHANNELS)))


def test_sampling_error_is_how_far_profiles_of_the_same_kind_lie_from_the_truth() -> None:
    truth = profile_of(areas(20_000))
    gaps = [distance(profile_of(areas(25, seed)), truth) for seed in range(1, 60)]
    errors = [sampling_error(profile_of(areas(25, seed))) for seed in range(1, 60)]
    assert np.sqrt(np.mean(np.square(gaps))) == pytest.approx(np.mean(errors), rel=0.05)


def test_several_splits_of_a_table_do_not_count_as_more_tables() -> None:
    found = areas(30)
    twice = profile_of(np.repeat(found, 2, axis=0), splits=2)
    assert sampling_error(twice) == pytest.approx(sampling_error(profile_of(found)), rel=0.02)
    assert twice.datasets == 60


def test_tables_drawn_from_a_prior_have_its_profile(tmp_path: Path) -> None:
    write_tables(tmp_path, 40)
    tables = profile_of(table_areas(tmp_path))
    mixtures = DataConfig(
        gmm_weight=1, causal_weight=0, max_features=6, batch=8, context_min=80, context_max=80, queries=160
    )
    prior = profile_of(prior_areas(BatchSource(mixtures, seed=1), 10))
    assert distance(prior, tables) < 2 * np.hypot(sampling_error(prior), sampling_error(tables))
    assert prior.level == pytest.approx(tables.level, abs=5)


def test_context_cap_splits_and_names_are_heeded(tmp_path: Path) -> None:
    names = write_tables(tmp_path, 6)
    assert table_areas(tmp_path, splits=2).shape == (12, len(CHANNELS))
    assert table_areas(tmp_path, names[:5]).shape == (5, len(CHANNELS))
    np.testing.assert_array_equal(table_areas(tmp_path, context=80), table_areas(tmp_path, context=1000))
    assert not np.array_equal(table_areas(tmp_path, context=80), table_areas(tmp_path, context=20))


def test_missing_values_in_tables_are_allowed(tmp_path: Path) -> None:
    for name in write_tables(tmp_path, 5):
        with np.load(tmp_path / f"{name}.npz") as table:
            X, y = table["X"], table["y"]
        X[::7, 0] = np.nan
        np.savez(tmp_path / f"{name}.npz", X=X, y=y)
    assert np.isfinite(table_areas(tmp_path)).all()


def test_few_tables_are_refused_because_their_profile_would_show_single_ones(tmp_path: Path) -> None:
    names = write_tables(tmp_path, FEWEST_TABLES)
    assert len(table_areas(tmp_path)) == FEWEST_TABLES
    with pytest.raises(ConfigError, match="it would say too much"):
        table_areas(tmp_path, names[1:], splits=3)


def test_report_shows_every_statistic_of_both_and_their_distance() -> None:
    prior, tables = profile_of(areas(30)), profile_of(areas(40, seed=1))
    text = report_text(prior, tables)
    for name in ("nearest", "ratio20", "density0.5", "mean_abs", "tail_max"):
        assert f"\n{name} " in text
    assert f"{distance(prior, tables):.2f} points" in text
    assert "difference" not in report_text(prior)


def test_command_prints_aggregates_and_nothing_about_a_single_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = write_tables(tmp_path, 6)
    arguments = ["profile", "--preset", "tiny", "--batches", "3", "--device", "cpu", "--tables", str(tmp_path)]
    assert main([*arguments, "--names", ",".join(names[1:])]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^datasets +6\.0 +10\.0 ", printed, re.MULTILINE)
    assert "distance of the profiles" in printed
    assert not any(name in printed for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batches", "0"], "--batches"),
        (["--tables", "nowhere"], "is no folder"),
        (["--tables", ".", "--names", "absent"], "has no table"),
    ],
)
def test_command_says_what_is_wrong(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "--preset", "tiny", "--batches", "1", "--device", "cpu", *arguments]) == 2
    assert message in capsys.readouterr().err
