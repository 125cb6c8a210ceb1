"""Batches: priors and row effects follow the settings, and a batch depends only on seed and step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.priors.causal import KINDS, CausalConfig, OutlierShares
from pretrain.priors.copulas import CopulaConfig, CopulaFamilies, CopulaShares, QuantileShapes
from pretrain.priors.draws import Draws
from pretrain.priors.gmm import GmmConfig
from pretrain.priors.marginals import GRAINS, WARPS, MarginalConfig
from pretrain.priors.mixture import (
    PRIORS,
    TABLES,
    BatchSource,
    DataConfig,
    contaminated,
    draw_amounts,
)
from pretrain.priors.reuse import ReuseConfig

PLAIN = MarginalConfig(**{name: float(name in ("plain", "continuous")) for name in WARPS + GRAINS})
QUIET: dict[str, Any] = {
    "min_features": 3,
    "odd_inliers": (1e-9, 1e-9),
    "marginals": PLAIN,
    "single_class": 1.0,
    "hidden": 0.0,
    "strength": (1e5, 1e5),
    "row_strength": 0.0,
}
# outliers so far out that the test finds them in the context without labels
LOUD = DataConfig(
    max_features=10,
    batch=12,
    context_min=300,
    context_max=300,
    queries=20,
    contaminated_share=0.0,
    gmm=GmmConfig(components=(1, 1), inflation=1e8),
    causal=CausalConfig(
        heavy_tails=0.0,
        connections=(0.5, 0.8),
        gain=(0.5, 0.6),
        independent_share=1.0,
        measurement_noise=(1.0, 1.0),
        class_spread=(1.0, 1.0),
        shares=OutlierShares(**{k: float(k == "far") for k in KINDS}),
        **QUIET,
    ),
    copulas=CopulaConfig(
        families=CopulaFamilies(1.0, 0.0, 0.0, 0.0),
        shapes=QuantileShapes(1.0, 0.0, 0.0, 0.0),
        shares=CopulaShares(**{k: float(k == "far") for k in CopulaShares.__dataclass_fields__}),
        **QUIET,
    ),
)


def loud_of(prior: str, **change: Any) -> DataConfig:
    weights: dict[str, Any] = {setting: float(name == prior) for name, setting in PRIORS.items()}
    return replace(LOUD, **weights, **change)


def far_rows(context: torch.Tensor) -> torch.Tensor:
    """(B,) share of context rows that lie far outside of the bulk in some feature."""
    gap = (context - context.median(1, keepdim=True).values).abs()
    spread = gap.median(1, keepdim=True).values
    return ((gap > 30 * spread) & (spread > 0)).any(-1).float().mean(1)


@pytest.mark.parametrize("prior", TABLES)
@pytest.mark.parametrize("share", [0.02, 0.1])
def test_contexts_of_every_prior_of_tables_hold_the_share_of_outliers_asked_for(prior: str, share: float) -> None:
    clean = BatchSource(loud_of(prior), 3).batch(1)
    assert far_rows(clean.context).max() < 0.02
    dirty = BatchSource(loud_of(prior, contaminated_share=1.0, contamination=(share, share)), 3).batch(1)
    torch.testing.assert_close(far_rows(dirty.context), torch.full((12,), share), rtol=0, atol=0.012)
    assert dirty.context.shape == clean.context.shape
    assert dirty.labels.sum(1).tolist() == [10.0] * 12


def test_no_query_hides_in_a_contaminated_context() -> None:
    size: dict[str, Any] = {"max_features": 6, "batch": 8, "context_min": 100, "context_max": 100, "queries": 80}
    config = loud_of("gmm", gmm=GmmConfig(), contaminated_share=1.0, contamination=(0.4, 0.4), **size)
    batch = BatchSource(config, 0).batch(0)
    for b, d in enumerate(batch.n_features.tolist()):
        asked = batch.queries[b, batch.labels[b] == 1, :d]
        assert torch.cdist(asked, batch.context[b, :, :d], p=1).amin() > 0


def test_reused_mixtures_are_contaminated_too() -> None:
    config = loud_of("gmm", contaminated_share=1.0, contamination=(0.1, 0.1), reuse=ReuseConfig(unique=12))
    batch = BatchSource(config, 0).batch(0)
    torch.testing.assert_close(far_rows(batch.context), torch.full((12,), 0.1), rtol=0, atol=0.012)


def test_only_the_share_of_datasets_asked_for_is_affected() -> None:
    amounts = draw_amounts(0.3, (0.05, 0.1), Draws(0), 4000)
    hit = amounts > 0
    assert abs(hit.float().mean() - 0.3) < 0.03
    assert amounts[hit].min() >= 0.05
    assert amounts[hit].max() <= 0.1
    assert not draw_amounts(0.0, (0.05, 0.1), Draws(0), 100).any()


@given(seed=st.integers(0, 2**40), share=st.floats(0, 0.5))
def test_contamination_replaces_rows_by_different_outliers(seed: int, share: float) -> None:
    context, outliers = torch.zeros(2, 40, 1), torch.arange(1.0, 21.0)[None, :, None].expand(2, 20, 1)
    dirty = contaminated(context, outliers, torch.tensor([[share], [0.0]]), Draws(seed))
    assert not dirty[1].any()
    found = dirty[0][dirty[0] > 0].tolist()
    assert len(found) == len(set(found)) == round(float(torch.tensor(share) * 40))


def test_the_curriculum_lowers_the_percentile_of_mixtures_after_its_share_of_the_run() -> None:
    config = loud_of("gmm", gmm=GmmConfig(), curriculum=0.5)
    low = replace(config, gmm=GmmConfig(percentile=config.curriculum_percentile))
    early, late = (BatchSource(config, 0).batch(0, progress) for progress in (0.5, 0.51))
    assert torch.equal(early.queries, BatchSource(config, 0).batch(0).queries)
    assert torch.equal(late.queries, BatchSource(low, 0).batch(0).queries)
    assert not torch.equal(early.queries, late.queries)


def test_priors_come_in_proportion_to_their_weights() -> None:
    """Each prior has its own number of features here."""
    size: Any = {"max_features": 30, "batch": 400, "context_min": 2, "context_max": 2, "queries": 2}
    weights: Any = {"gmm_weight": 0.2, "causal_weight": 0.3, "copula_weight": 0.5}
    causal = CausalConfig(wide_share=0.0, typical_features=5.0, feature_spread=0.0)
    copulas = CopulaConfig(wide_share=0.0, typical_features=8.0, feature_spread=0.0)
    config = DataConfig(gmm=GmmConfig(min_features=30), causal=causal, copulas=copulas, **weights, **size)
    widths = BatchSource(config, 0).batch(0).n_features
    for width, share in ((30, 0.2), (5, 0.3), (8, 0.5)):
        assert abs((widths == width).float().mean() - share) < 0.07


@given(seed=st.integers(0, 2**40), step=st.integers(0, 10**6), weight=st.floats(0, 1))
def test_a_batch_is_finite_padded_with_zeros_and_a_function_of_seed_and_step(
    seed: int, step: int, weight: float
) -> None:
    size: dict[str, Any] = {"max_features": 6, "batch": 2, "context_min": 5, "context_max": 30, "queries": 8}
    weights: Any = {"gmm_weight": weight, "causal_weight": 1.01 - weight, "copula_weight": 0.5}
    config = DataConfig(contaminated_share=0.5, **weights, **size)
    batch = BatchSource(config, seed).batch(step)
    source = BatchSource(config, seed)
    source.batch(step + 1)  # earlier batches do not matter
    again = source.batch(step)
    assert torch.equal(batch.context, again.context)
    assert torch.equal(batch.queries, again.queries)
    assert torch.equal(batch.labels, again.labels)
    assert batch.context.isfinite().all()
    assert batch.queries.isfinite().all()
    assert batch.labels.sum(1).tolist() == [4.0] * 2
    assert 5 <= batch.context.shape[1] <= 30
    assert batch.context.shape[2] == int(batch.n_features.max())
    for b, d in enumerate(batch.n_features.tolist()):
        assert not batch.context[b, :, d:].any()
        assert not batch.queries[b, :, d:].any()


def test_queries_are_shuffled() -> None:
    config = replace(loud_of("gmm"), batch=16, queries=200)
    first_half = BatchSource(config, 0).batch(0).labels[:, :100].mean(1)
    assert ((first_half > 0.3) & (first_half < 0.7)).all()
    assert len(set(first_half.tolist())) > 3


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (DataConfig, {"context_min": 1}, "context"),
        (DataConfig, {"gmm_weight": 0.0, "causal_weight": 0.0, "copula_weight": 0.0}, "weights"),
        (DataConfig, {"contaminated_share": 1.5}, "contaminated_share is a share"),
        (DataConfig, {"contamination": (0.2, 0.7)}, "contamination is a range"),
        (CausalConfig, {"strength": (3.0, 1.0)}, "strength is a range"),
        (CausalConfig, {"connections": (0.1, 1.5)}, "connections is a range"),
        (CausalConfig, {"grouped": 2.0}, "grouped is a share"),
        (CausalConfig, {"width": 30}, "multiple of 8"),
        (CausalConfig, {"shares": OutlierShares(spikes=float("nan"))}, "shares.spikes is a weight"),
        (CopulaConfig, {"dependence": 0.5}, "dependence is a range"),
        (CopulaConfig, {"degrees": (0.5, 3.0)}, "degrees is a range"),
        (CopulaConfig, {"mixed_families": 1.1}, "mixed_families is a share"),
        (CopulaConfig, {"structures": (0.0, 0.0, 0.0)}, "structures are three weights"),
        (CopulaConfig, {"families": CopulaFamilies(0.0, 0.0, 0.0, 0.0)}, "at least one"),
        (MarginalConfig, dict.fromkeys(GRAINS, 0.0), "weight"),
    ],
)
def test_impossible_settings_are_refused(kind: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**change)
