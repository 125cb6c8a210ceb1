"""The copula prior: samplers compared with theory; outliers break the dependence and keep the marginals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, kstest, spearmanr

from pretrain.priors.copulas import (
    CopulaConfig,
    CopulaFamilies,
    CopulaShares,
    clayton_scores,
    copula_tables,
    gaussian_scores,
    gumbel_scores,
    student_scores,
)
from pretrain.priors.draws import Draws
from pretrain.priors.marginals import GRAINS, WARPS, MarginalConfig

KINDS = tuple(CopulaShares.__dataclass_fields__)
PLAIN = MarginalConfig(**{name: float(name in ("plain", "continuous")) for name in WARPS + GRAINS})
ROWS = 4000


def only(kind: str) -> CopulaShares:
    return CopulaShares(**{name: float(name == kind) for name in KINDS})


def family(name: str) -> CopulaFamilies:
    return CopulaFamilies(**{n: float(n == name) for n in CopulaFamilies.__dataclass_fields__})


def pair(r: float) -> torch.Tensor:
    """Loadings (1, 1, 1, 2) of two features of correlation r."""
    return torch.tensor([[[[math.sqrt(abs(r)), math.copysign(math.sqrt(abs(r)), r)]]]])


@given(seed=st.integers(0, 2**40), r=st.floats(-0.95, 0.95), degrees=st.floats(1.0, 50.0))
def test_kendalls_tau_of_gaussian_and_student_copulas_is_that_of_theory(seed: int, r: float, degrees: float) -> None:
    draws = Draws(seed)
    gaussian = gaussian_scores(pair(r), torch.zeros(1, ROWS, dtype=torch.long), draws)
    for scores in (gaussian[0], student_scores(gaussian, torch.tensor([degrees]), draws)[0]):
        assert abs(kendalltau(scores[:, 0], scores[:, 1]).statistic - 2 / math.pi * math.asin(r)) < 0.05


@given(seed=st.integers(0, 2**40), tau=st.floats(0.02, 0.97))
def test_kendalls_tau_of_archimedean_copulas_is_that_asked_for(seed: int, tau: float) -> None:
    # Clayton's is theta / (theta + 2), Gumbel's 1 - 1 / theta; both samplers take tau itself
    for sample in (clayton_scores, gumbel_scores):
        scores = sample(torch.tensor([[tau]]), torch.zeros(1, 2, dtype=torch.long), ROWS, Draws(seed))[0]
        assert abs(kendalltau(scores[:, 0], scores[:, 1]).statistic - tau) < 0.05


@given(seed=st.integers(0, 2**40), tau=st.floats(0.02, 0.97), degrees=st.floats(2.0, 50.0))
def test_scores_of_every_family_are_standard_normal_feature_by_feature(seed: int, tau: float, degrees: float) -> None:
    draws, groups = Draws(seed), torch.zeros(1, 2, dtype=torch.long)
    gaussian = gaussian_scores(pair(tau), torch.zeros(1, ROWS, dtype=torch.long), draws)
    student = student_scores(gaussian, torch.tensor([degrees]), draws)
    archimedean = [f(torch.tensor([[tau]]), groups, ROWS, draws) for f in (clayton_scores, gumbel_scores)]
    for scores in (gaussian, student, *archimedean):
        assert scores.isfinite().all()
        for column in scores[0].T:
            assert kstest(column.numpy(), "norm").statistic < 0.045


def corners(scores: torch.Tensor) -> tuple[float, float]:
    """How often both of two features are below, and both above, their 5 % tails."""
    low, high = (scores < -1.645).all(-1), (scores > 1.645).all(-1)
    return float(low.float().mean()), float(high.float().mean())


def test_clayton_binds_the_lower_tail_gumbel_the_upper_and_student_both() -> None:
    tau, groups, draws = torch.tensor([[0.5]]), torch.zeros(1, 2, dtype=torch.long), Draws(0)
    low, high = corners(clayton_scores(tau, groups, 20_000, draws)[0])
    assert low > 3 * high
    low, high = corners(gumbel_scores(tau, groups, 20_000, draws)[0])
    assert high > 1.5 * low
    gaussian = gaussian_scores(pair(0.3), torch.zeros(1, 20_000, dtype=torch.long), draws)
    plain, heavy = corners(gaussian[0]), corners(student_scores(gaussian, torch.tensor([1.5]), draws)[0])
    assert min(heavy) > 1.5 * max(plain)


def test_groups_of_features_are_independent_of_each_other() -> None:
    groups = torch.tensor([[0, 1, 0, 1]])
    for sample in (clayton_scores, gumbel_scores):
        scores = sample(torch.tensor([[0.6, 0.8]]), groups, ROWS, Draws(1))[0]
        tau = [[kendalltau(scores[:, i], scores[:, j]).statistic for j in range(4)] for i in range(4)]
        assert abs(tau[0][2] - 0.6) < 0.05
        assert abs(tau[1][3] - 0.8) < 0.05
        assert abs(tau[0][1]) < 0.05
        assert abs(tau[2][3]) < 0.05


def test_each_class_has_a_dependence_of_its_own() -> None:
    classes = (torch.arange(2 * ROWS) % 2)[None]
    scores = gaussian_scores(torch.cat([pair(0.8), pair(-0.5)], 1), classes, Draws(0))[0].numpy()
    assert abs(np.corrcoef(scores[::2].T)[0, 1] - 0.8) < 0.05
    assert abs(np.corrcoef(scores[1::2].T)[0, 1] + 0.5) < 0.05


@pytest.mark.parametrize(
    ("name", "kind"), zip(CopulaFamilies.__dataclass_fields__, ["reflected", "dependency"] * 2, strict=True)
)
def test_outliers_of_copulas_keep_their_marginals_and_break_the_joint(name: str, kind: str) -> None:
    width: Any = {"max_features": 6, "min_features": 6, "wide_share": 0.0, "typical_features": 6.0}
    joint: Any = {"single_class": 1.0, "factors": (1, 1), "dependence": (0.9, 0.95), "independent_share": 0.0}
    plain: Any = {"feature_spread": 0.0, "hidden": 0.0, "odd_inliers": (1e-9, 1e-9), "marginals": PLAIN}
    config = CopulaConfig(families=family(name), shares=only(kind), **width, **joint, **plain)
    tables = copula_tables(config, Draws(3), 8, 2000, 1000)
    broken = []
    for b in range(8):
        usual, strange = tables.inliers[b].numpy(), tables.outliers[b].numpy()
        for d in range(6):
            # student scores are a little off the normal law, symmetrically: marginals are kept all the same
            assert kstest(usual[:, d], strange[:, d]).statistic < 0.09
        broken.append(np.abs(spearmanr(usual).statistic - spearmanr(strange).statistic).max())
    assert np.mean(broken) > 0.3
