"""Comparisons of methods: ranks, Wilcoxon tests and scoreboards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, wilcoxon

from pretrain.evaluation.comparison import (
    FEWEST_FOR_A_TEST,
    average_ranks,
    one_sided_p,
    scoreboard,
    wilcoxon_p_values,
)
from pretrain.evaluation.runs import Run


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


def test_a_baseline_that_always_wins_gets_a_small_p_and_equals_get_none() -> None:
    ours = np.arange(10.0)
    assert one_sided_p(ours + 1, ours) < 0.05
    assert one_sided_p(ours - 1, ours) > 0.95
    assert np.isnan(one_sided_p(ours, ours))


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
    board, failed = scoreboard(runs, "auroc", groups=["MVTec"])
    assert (board.datasets, failed) == (["MVTec", "plain"], ["gone"])
    assert board.mean.tolist() == [[65.0, 70.0], [50.0, 50.0]]
    assert board.ranks().tolist() == [[2.0, 1.0], [1.5, 1.5]]  # a thousandth of a point is a tie
    assert list(wilcoxon_p_values(board, "x")) == ["y"]
