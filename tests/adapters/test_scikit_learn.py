from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fomo_stream import ZeroShotDetector
from fomo_stream.errors import CheckpointError
from fomo_stream.model.checkpoint import save_model
from fomo_stream.model.zero_shot import ModelConfig, ZeroShotModel


@parametrize_with_checks([ZeroShotDetector()])  # type: ignore[untyped-decorator]
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.fixture
def inliers() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(400, 5))


def test_far_rows_are_outliers_and_near_ones_are_not(inliers: np.ndarray) -> None:
    detector = ZeroShotDetector().fit(inliers)
    rng = np.random.default_rng(1)
    assert (detector.predict(rng.normal(size=(100, 5))) == 1).mean() > 0.9
    assert (detector.predict(rng.normal(size=(100, 5)) + 6) == -1).all()


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_alert_rate_of_the_training_rows_are_called_outliers(inliers: np.ndarray, rate: float) -> None:
    predicted = ZeroShotDetector(alert_rate=rate).fit_predict(inliers)
    assert (predicted == -1).mean() == pytest.approx(rate, abs=1.5 / len(inliers))


def test_members_are_averaged_and_seeded(inliers: np.ndarray) -> None:
    queries = np.random.default_rng(2).normal(size=(30, 5))
    one = ZeroShotDetector(n_members=4, random_state=3).fit(inliers).score_samples(queries)
    again = ZeroShotDetector(n_members=4, random_state=3).fit(inliers).score_samples(queries)
    single = ZeroShotDetector(random_state=3).fit(inliers).score_samples(queries)
    np.testing.assert_array_equal(one, again)
    assert np.corrcoef(one, single)[0, 1] > 0.5
    assert not np.allclose(one, single)


def test_more_rows_than_the_context_holds_are_sampled(inliers: np.ndarray) -> None:
    detector = ZeroShotDetector(context_size=50, random_state=0).fit(inliers)
    assert [len(m.rows) for m in detector.members_] == [50]


def test_missing_values_are_scored(inliers: np.ndarray) -> None:
    holes = inliers.copy()
    holes[::3, 1] = np.nan
    scores = ZeroShotDetector().fit(holes).score_samples([[0, np.nan, 0, 0, 0], [9, np.nan, 9, 9, 9]])
    assert scores[0] > scores[1]


def test_pickle_does_not_carry_weights_or_encodings() -> None:
    inliers = np.random.default_rng(0).normal(size=(1000, 5))
    detector = ZeroShotDetector().fit(inliers)
    data = pickle.dumps(detector)
    assert len(data) < 4 * inliers.nbytes
    queries = np.random.default_rng(1).normal(size=(20, 5))
    np.testing.assert_array_equal(pickle.loads(data).score_samples(queries), detector.score_samples(queries))


def test_works_in_a_pipeline(inliers: np.ndarray) -> None:
    assert make_pipeline(StandardScaler(), ZeroShotDetector()).fit(inliers).predict([[9.0] * 5]).tolist() == [-1]


def test_unknown_model_is_a_clear_error(inliers: np.ndarray) -> None:
    with pytest.raises(CheckpointError, match="no model named"):
        ZeroShotDetector(model="nonsense").fit(inliers)


def test_wider_data_than_the_model_takes_is_split_over_members(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "narrow.safetensors"
    config = ModelConfig(raw_features=4, evidence=False, fusion=False, layers=1, width=8, heads=2, routers=3)
    save_model(ZeroShotModel(config), path)
    inliers = np.random.default_rng(0).normal(size=(50, 10))
    detector = ZeroShotDetector(model=str(path), n_members=6, random_state=0).fit(inliers)
    assert all(len(member.columns) <= 4 for member in detector.members_)
    assert len(set(np.concatenate([member.columns for member in detector.members_]).tolist())) > 4
    assert np.isfinite(detector.score_samples(inliers + 1)).all()
    explained = detector.explain(10 * np.eye(10), top=10)
    assert len({one["feature"] for reasons in explained for one in reasons}) > 4


def test_progress_is_printed_for_each_view(capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3))
    quiet, loud = (ZeroShotDetector(n_members=2, random_state=0, verbose=verbose).fit(rows) for verbose in (0, 1))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[ZeroShotDetector] view 1 of 2, 50 rows x 3 features, after ")
    assert len(lines) == 2
    np.testing.assert_array_equal(quiet.score_samples(rows), loud.score_samples(rows))
