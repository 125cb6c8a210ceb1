"""Ranking metrics, compared with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tasks import method, quiet, task
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from pretrain.evaluation.ranking_metrics import ranking_metrics
from pretrain.evaluation.runs import Pending, run_all

SMALL = settings(max_examples=40)


@SMALL
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 60), levels=st.integers(1, 6), weight=st.floats(0.1, 30.0))
def test_metrics_agree_with_scikit_learn_on_ties_and_weights(seed: int, rows: int, levels: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) < rng.integers(1, rows)).astype(np.int64)
    scores = rng.integers(0, levels, rows).astype(float)
    found = ranking_metrics(labels, scores, 1.5, weight)
    weights = np.where(labels == 1, weight, 1.5)
    assert found.auroc == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    assert found.aupr == pytest.approx(average_precision_score(labels, scores, sample_weight=weights))


@SMALL
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 60))
def test_f1_without_ties_or_weights_is_that_of_the_true_number_of_flags(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) < rng.integers(1, rows)).astype(np.int64)
    scores = rng.permutation(rows).astype(float)
    flags = scores >= np.sort(scores)[-labels.sum()]
    assert ranking_metrics(labels, scores).f1 == pytest.approx(f1_score(labels, flags))


@SMALL
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 12), copies=st.integers(2, 5), levels=st.integers(1, 6))
def test_a_weight_counts_like_so_many_copies_of_a_row(seed: int, rows: int, copies: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) < rng.integers(1, rows)).astype(np.int64)
    scores = rng.integers(0, levels, rows).astype(float)
    times = np.where(labels == 1, 1, copies)
    weighted = ranking_metrics(labels, scores, inlier_weight=copies)
    assert weighted == pytest.approx(ranking_metrics(labels.repeat(times), scores.repeat(times)))


def test_constant_scores_are_worth_chance_and_perfect_ones_everything(tmp_path: Path) -> None:
    labels = (np.arange(100) < 7).astype(np.int64)
    assert ranking_metrics(labels, np.zeros(100)) == pytest.approx((0.5, 0.07, 0.07))
    methods = {"perfect": method(lambda x: x[:, 0]), "reversed": method(lambda x: -x[:, 0])}
    perfect, backwards = run_all([Pending("made", 0, task)], methods, tmp_path / "r.csv", 60, 60, quiet)
    assert (perfect.auroc, perfect.aupr, perfect.f1) == (100.0, 100.0, 100.0)
    assert (backwards.auroc, backwards.f1) == (0.0, 0.0)
