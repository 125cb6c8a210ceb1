"""Comparing methods: measures of rankings, ranks over datasets, and tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, wilcoxon
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from pretrain.evaluation.comparison import (
    FEWEST_FOR_A_TEST,
    PROFILE_END,
    average_ranks,
    one_sided_p,
    performance_profiles,
    scoreboard,
    wilcoxon_p_values,
)
from pretrain.evaluation.ranking_metrics import ranking_metrics
from pretrain.evaluation.runs import Run
from pretrain.training.loader import auroc


@given(seed=st.integers(0, 2**32), rows=st.integers(2, 60), levels=st.integers(1, 6), weight=st.floats(0.1, 30.0))
def test_metrics_agree_with_scikit_learn_on_ties_and_weights(seed: int, rows: int, levels: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) < rng.integers(1, rows)).astype(np.int64)
    scores = rng.integers(0, levels, rows).astype(float)
    found = ranking_metrics(labels, scores, 1.5, weight)
    weights = np.where(labels == 1, weight, 1.5)
    assert found.auroc == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    assert found.aupr == pytest.approx(average_precision_score(labels, scores, sample_weight=weights))


@given(seed=st.integers(0, 2**32), rows=st.integers(2, 60))
def test_f1_without_ties_or_weights_is_that_of_the_true_number_of_flags(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) < rng.integers(1, rows)).astype(np.int64)
    scores = rng.permutation(rows).astype(float)
    flags = scores >= np.sort(scores)[-labels.sum()]
    assert ranking_metrics(labels, scores).f1 == pytest.approx(f1_score(labels, flags))
    chance = labels.mean()
    assert ranking_metrics(labels, np.zeros(rows)) == pytest.approx((0.5, chance, chance))


@given(seed=st.integers(0, 2**32), rows=st.integers(2, 12), copies=st.integers(2, 5), levels=st.integers(1, 6))
def test_a_weight_counts_like_so_many_copies_of_a_row(seed: int, rows: int, copies: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) < rng.integers(1, rows)).astype(np.int64)
    scores = rng.integers(0, levels, rows).astype(float)
    times = np.where(labels == 1, 1, copies)
    weighted = ranking_metrics(labels, scores, inlier_weight=copies)
    assert weighted == pytest.approx(ranking_metrics(labels.repeat(times), scores.repeat(times)))


@given(seed=st.integers(0, 2**32), datasets=st.integers(1, 12), methods=st.integers(1, 6), levels=st.integers(2, 20))
def test_the_best_has_rank_one_and_ties_share_their_ranks(seed: int, datasets: int, methods: int, levels: int) -> None:
    values = np.random.default_rng(seed).integers(0, levels, (datasets, methods)).astype(float)
    for row, ranks in zip(values, average_ranks(values), strict=True):
        assert ranks.tolist() == (methods + 1 - rankdata(row)).tolist()


@given(seed=st.integers(0, 2**32), datasets=st.integers(FEWEST_FOR_A_TEST, 20))
def test_wilcoxon_is_one_sided_in_favour_of_the_baseline(seed: int, datasets: int) -> None:
    rng = np.random.default_rng(seed)
    ours = rng.permutation(datasets).astype(float)
    baseline = ours + (rng.permutation(datasets) + 1) * rng.choice([-1.0, 1.0], datasets)
    assert one_sided_p(baseline, ours) == pytest.approx(wilcoxon(baseline - ours, alternative="greater").pvalue)
    # by its definition, where nothing ties: the chance that random signs give as large a sum of ranks
    signs = np.array(np.meshgrid(*[[0, 1]] * min(datasets, 10))).reshape(min(datasets, 10), -1)
    if datasets <= 10:
        gap = baseline - ours
        size = rankdata(np.abs(gap))
        assert one_sided_p(baseline, ours) == pytest.approx((size @ signs >= size[gap > 0].sum()).mean())


def test_a_few_datasets_decide_nothing() -> None:
    """With one that differs p would be 1, "ours is better"; four cannot reach 0.05 for a baseline that always wins."""
    ours = np.arange(10.0)
    for gap in (1.0, -1.0):
        differ = np.where(np.arange(10) < FEWEST_FOR_A_TEST - 1, gap, 0.0)
        assert np.isnan(one_sided_p(ours + differ, ours))
    enough = np.where(np.arange(10) < FEWEST_FOR_A_TEST, np.arange(1.0, 11.0), 0.0)
    assert one_sided_p(ours + enough, ours) < 0.05


def made_run(dataset: str, seed: int, name: str, auroc: float, **more: Any) -> Run:
    return Run(dataset, seed, name, 60, 60, auroc=auroc, n_features=4, **more)


def test_scoreboard_averages_seeds_then_parts_and_leaves_out_failures() -> None:
    runs = [
        made_run("MVTec_a", 0, "x", 80.0),
        made_run("MVTec_a", 1, "x", 90.0),
        made_run("MVTec_b", 0, "x", 45.0),
        made_run("MVTec_a", 0, "y", 70.0),
        made_run("MVTec_b", 0, "y", 70.0),
        made_run("plain", 0, "x", 50.001),
        made_run("plain", 0, "y", 50.0),
        made_run("gone", 0, "x", 99.0),
        made_run("gone", 0, "y", float("nan"), error="ValueError: no"),
    ]
    board, failed = scoreboard(runs, "auroc", {"MVTec_a": "MVTec", "MVTec_b": "MVTec"})
    assert (board.datasets, failed) == (["MVTec", "plain"], ["gone"])
    assert board.mean.tolist() == [[65.0, 70.0], [50.0, 50.0]]
    assert board.ranks().tolist() == [[2.0, 1.0], [1.5, 1.5]]  # a thousandth of a point is a tie
    assert list(wilcoxon_p_values(board, "x")) == ["y"]


@given(seed=st.integers(0, 2**32), datasets=st.integers(1, 12), methods=st.integers(2, 6))
def test_the_area_of_a_performance_profile_is_that_below_its_steps(seed: int, datasets: int, methods: int) -> None:
    values = np.random.default_rng(seed).uniform(0, 100, (datasets, methods))
    values[:, 0] = 100.0
    ratios, areas = performance_profiles(values)
    assert areas[0] == 1.0  # the best everywhere
    tau = np.linspace(1, PROFILE_END, 4001)
    shares = (values.max(1)[:, None, None] / values[:, :, None] <= tau).mean(0)
    assert areas == pytest.approx(shares.mean(1), abs=1e-3)
    assert (np.diff(ratios, axis=0) >= 0).all()


@given(seed=st.integers(0, 2**32), rows=st.integers(2, 40), levels=st.integers(1, 5))
def test_auroc_in_training_counts_pairs_and_halves_ties(seed: int, rows: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    positives = int(rng.integers(1, rows))
    labels = np.stack([rng.permutation(np.r_[np.ones(positives), np.zeros(rows - positives)]) for _ in range(3)])
    scores = rng.integers(0, levels + 1, (3, rows, 2)).astype(float)
    found = auroc(torch.tensor(scores), torch.tensor(labels))
    for b in range(3):
        for c in range(2):
            gap = scores[b, labels[b] == 1, c][:, None] - scores[b, labels[b] == 0, c][None]
            assert found[b, c] == pytest.approx(((gap > 0) + 0.5 * (gap == 0)).mean())
    assert torch.allclose(auroc(torch.tensor(scores[..., 0]), torch.tensor(labels)), found[:, 0])
