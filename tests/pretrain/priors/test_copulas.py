"""The copula prior: samplers compared with theory; outliers change the dependence and keep the marginals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, kstest, spearmanr

from pretrain.priors import copulas
from pretrain.priors.copula_samplers import clayton_scores, gaussian_scores, gumbel_scores, student_scores
from pretrain.priors.copulas import (
    CopulaConfig,
    CopulaFamilies,
    CopulaShares,
    QuantileShapes,
    copula_batch,
    copula_tables,
)
from pretrain.priors.draws import Draws
from pretrain.priors.marginals import GRAINS, WARPS, MarginalConfig
from pretrain.training.evidence_batches import auroc, evidence_batch

SMALL = settings(max_examples=12)
KINDS = tuple(CopulaShares.__dataclass_fields__)
SIZELESS = ("hidden_class", "noise", "dependency", "clusters")  # kinds to which strength 1 means nothing
PLAIN = MarginalConfig(**{name: float(name in ("plain", "continuous")) for name in WARPS + GRAINS})
ROWS = 4000


def only(kind: str) -> CopulaShares:
    return CopulaShares(**{name: float(name == kind) for name in KINDS})


def family(name: str) -> CopulaFamilies:
    return CopulaFamilies(**{n: float(n == name) for n in CopulaFamilies.__dataclass_fields__})


def pair(r: float) -> torch.Tensor:
    """Loadings (1, 1, 1, 2) of two features of correlation r."""
    return torch.tensor([[[[math.sqrt(abs(r)), math.copysign(math.sqrt(abs(r)), r)]]]])


@SMALL
@given(seed=st.integers(0, 2**40), r=st.floats(-0.99, 0.99))
def test_rank_correlation_of_gaussian_copulas_is_that_of_theory(seed: int, r: float) -> None:
    scores = gaussian_scores(pair(r), torch.zeros(1, ROWS, dtype=torch.long), Draws(seed))[0]
    assert abs(spearmanr(scores[:, 0], scores[:, 1]).statistic - 6 / math.pi * math.asin(r / 2)) < 0.07


@SMALL
@given(seed=st.integers(0, 2**40), r=st.floats(-0.95, 0.95), degrees=st.floats(1.0, 50.0))
def test_kendalls_tau_of_student_copulas_is_that_of_theory(seed: int, r: float, degrees: float) -> None:
    draws = Draws(seed)
    gaussian = gaussian_scores(pair(r), torch.zeros(1, ROWS, dtype=torch.long), draws)
    scores = student_scores(gaussian, torch.tensor([degrees]), draws)[0]
    assert abs(kendalltau(scores[:, 0], scores[:, 1]).statistic - 2 / math.pi * math.asin(r)) < 0.05


@SMALL
@given(seed=st.integers(0, 2**40), tau=st.floats(0.02, 0.97))
def test_kendalls_tau_of_archimedean_copulas_is_that_asked_for(seed: int, tau: float) -> None:
    # Clayton's is theta / (theta + 2), Gumbel's 1 - 1 / theta; both samplers take tau itself
    for sample in (clayton_scores, gumbel_scores):
        scores = sample(torch.tensor([[tau]]), torch.zeros(1, 2, dtype=torch.long), ROWS, Draws(seed))[0]
        assert abs(kendalltau(scores[:, 0], scores[:, 1]).statistic - tau) < 0.05


@SMALL
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


@pytest.mark.parametrize("kind", ["reflected", "dependency"])
@pytest.mark.parametrize("name", list(CopulaFamilies.__dataclass_fields__))
def test_outliers_of_copulas_keep_their_marginals_and_break_the_joint(kind: str, name: str) -> None:
    config = CopulaConfig(
        max_features=6, min_features=6, wide_share=0.0, typical_features=6.0, feature_spread=0.0, single_class=1.0,
        factors=(1, 1), dependence=(0.9, 0.95), independent_share=0.0, families=family(name), shares=only(kind),
        hidden=0.0, odd_inliers=(1e-9, 1e-9), marginals=PLAIN,
    )  # fmt: skip
    tables = copula_tables(config, Draws(3), 8, 2000, 1000)
    broken = []
    for b in range(8):
        usual, strange = tables.inliers[b].numpy(), tables.outliers[b].numpy()
        for d in range(6):
            # student scores are a little off the normal law, symmetrically: marginals are kept all the same
            assert kstest(usual[:, d], strange[:, d]).statistic < 0.09
        broken.append(np.abs(spearmanr(usual).statistic - spearmanr(strange).statistic).max())
    assert np.mean(broken) > 0.3


@SMALL
@given(seed=st.integers(0, 2**40), kind=st.sampled_from(KINDS), width=st.integers(2, 40), half=st.integers(1, 30))
def test_every_outlier_kind_yields_finite_balanced_data(seed: int, kind: str, width: int, half: int) -> None:
    batch = copula_batch(CopulaConfig(max_features=width, shares=only(kind)), Draws(seed), 4, 80, 2 * half)
    assert batch.context.shape == (4, 80, width)
    assert batch.context.isfinite().all()
    assert batch.queries.isfinite().all()
    assert batch.labels.sum(1).tolist() == [half] * 4
    for b in range(4):
        d = int(batch.n_features[b])
        assert 2 <= d <= width
        assert not batch.context[b, :, d:].any()
        assert not batch.queries[b, :, d:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_outliers_of_every_kind_can_be_found_and_are_not_all_trivial(kind: str) -> None:
    config = CopulaConfig(max_features=15, shares=only(kind), mixed_kinds=0.0)
    best = evidence_batch(copula_batch(config, Draws(1), 16, 250, 80), with_context=False).best
    assert 0.6 < best.mean() < 0.999
    assert best.min() < 0.99


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in SIZELESS])
def test_rows_without_strength_cannot_be_told_from_inliers(kind: str) -> None:
    config = CopulaConfig(max_features=15, strength=(1.0, 1.0), row_strength=0.0, shares=only(kind))
    page = evidence_batch(copula_batch(config, Draws(2), 16, 250, 200), with_context=False)
    areas = auroc(page.queries, page.labels).mean(0)
    assert areas.min() > 0.45
    assert areas.max() < 0.55


def test_same_seed_same_data_and_another_seed_other_data() -> None:
    first, again, other = (copula_batch(CopulaConfig(max_features=9), Draws(s), 3, 50, 20) for s in (7, 7, 8))
    assert torch.equal(first.context, again.context)
    assert torch.equal(first.queries, again.queries)
    assert not torch.equal(first.context, other.context)


@pytest.mark.parametrize("name", list(CopulaFamilies.__dataclass_fields__))
def test_families_of_weight_zero_are_not_sampled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[str] = []

    def noting(other: str, sampler: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def sample(*arguments: Any) -> torch.Tensor:
            sampled.append(other)
            return sampler(*arguments)

        return sample

    for other in ("student", "clayton", "gumbel"):
        sampler = getattr(copulas, f"{other}_scores")
        monkeypatch.setattr(copulas, f"{other}_scores", noting(other, sampler))
    config = CopulaConfig(
        max_features=5, families=family(name),
        shapes=QuantileShapes(normal=0.0, skewed=0.0, uniform=1.0, two_peaks=0.0),
    )  # fmt: skip
    assert copula_batch(config, Draws(0), 4, 50, 10).context.isfinite().all()
    assert sampled == ([] if name == "gaussian" else [name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dependence": (0.5, 1.5)}, "dependence is a range"),
        ({"dependence": 0.5}, "dependence is a range"),
        ({"degrees": (0.5, 3.0)}, "degrees is a range"),
        ({"mixed_families": 1.1}, "mixed_families is a share"),
        ({"structures": (0.0, 0.0, 0.0)}, "structures are three weights"),
        ({"families": CopulaFamilies(0.0, 0.0, 0.0, 0.0)}, "at least one"),
        ({"shares": CopulaShares(reflected=-1.0)}, "shares.reflected is a weight"),
        ({"strength": (3.0, 1.0)}, "strength is a range"),
    ],
)
def test_impossible_copula_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CopulaConfig(**change)  # type: ignore[arg-type]
