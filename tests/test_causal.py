"""The causal prior: every kind of outlier gives finite, balanced, learnable data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.causal import KINDS, CausalConfig, OutlierShares, causal_batch
from pretrain.draws import Draws
from pretrain.marginals import MarginalConfig, to_raw
from pretrain.metrics import auroc
from pretrain.mixture import BatchSource, DataConfig

SMALL = settings(max_examples=20, deadline=None)
KIND_NAMES = st.sampled_from(KINDS)


def only(kind: str) -> OutlierShares:
    return OutlierShares(**{name: float(name == kind) for name in KINDS})


def nearest_distance(batch_context: torch.Tensor, batch_queries: torch.Tensor) -> torch.Tensor:
    """Distance to the nearest context row in z-scores: the plainest detector there is."""
    center, scale = batch_context.mean(1, True), batch_context.std(1, keepdim=True).clamp_min(1e-6)
    return torch.cdist((batch_queries - center) / scale, (batch_context - center) / scale).amin(-1)


@SMALL
@given(seed=st.integers(0, 2**40), kind=KIND_NAMES, width=st.integers(2, 40), half=st.integers(1, 30))
def test_every_outlier_kind_yields_finite_balanced_data(seed: int, kind: str, width: int, half: int) -> None:
    config = CausalConfig(max_features=width, shares=only(kind))
    batch = causal_batch(config, Draws(seed), 4, 80, 2 * half)
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
    config = CausalConfig(max_features=20, shares=only(kind), mixed_kinds=0.0)
    batch = causal_batch(config, Draws(1), 48, 400, 100)
    areas = auroc(nearest_distance(batch.context.double(), batch.queries.double()), batch.labels)
    assert areas.mean() > 0.6
    assert (areas < 0.999).sum() > 5


def test_rows_without_strength_cannot_be_told_from_inliers() -> None:
    config = CausalConfig(
        max_features=20, strength=(1.0, 1.0), row_strength=0.0, shares=only("inflated_features"), strangers=0.0
    )
    batch = causal_batch(config, Draws(2), 48, 400, 200)
    areas = auroc(nearest_distance(batch.context.double(), batch.queries.double()), batch.labels)
    assert abs(areas.mean() - 0.5) < 0.03


def test_same_seed_same_data_and_another_seed_other_data() -> None:
    first, again, other = (causal_batch(CausalConfig(max_features=9), Draws(s), 3, 50, 20) for s in (7, 7, 8))
    assert torch.equal(first.context, again.context)
    assert torch.equal(first.queries, again.queries)
    assert not torch.equal(first.context, other.context)


def test_tables_have_few_features_more_often_than_many() -> None:
    batch = causal_batch(CausalConfig(), Draws(0), 400, 2, 2)
    few = (batch.n_features <= 40).float().mean()
    assert 0.7 < few < 0.97
    assert batch.n_features.max() > 80


def test_columns_are_as_discrete_and_skewed_as_in_real_tables() -> None:
    batch = causal_batch(CausalConfig(max_features=10, min_features=10), Draws(5), 64, 300, 2)
    columns = batch.context.permute(0, 2, 1).reshape(-1, 300)
    values = torch.tensor([len(c.unique()) for c in columns])
    assert (values <= 2).float().mean() > 0.02
    assert (values < 100).float().mean() > 0.1
    assert (values == 300).float().mean() > 0.2
    z = (columns - columns.mean(1, True)) / columns.std(1, keepdim=True).clamp_min(1e-9)
    assert (z.pow(3).mean(1).abs() > 1).float().mean() > 0.1


@SMALL
@given(seed=st.integers(0, 2**40), warp=st.sampled_from(["plain", "sinh_arcsinh", "exponential", "power", "logistic"]))
def test_warps_keep_the_order_of_a_column_and_stay_finite(seed: int, warp: str) -> None:
    weights = dict.fromkeys(MarginalConfig.__dataclass_fields__, 0.0) | {warp: 1.0, "continuous": 1.0}
    rows = torch.linspace(-150, 150, 301)[None, :, None].repeat(2, 1, 3)
    raw = to_raw(rows, 301, MarginalConfig(**weights), Draws(seed))
    assert raw.isfinite().all()
    rounding = 1e-5 * (raw.amax(1, True) - raw.amin(1, True))
    steps = raw.diff(dim=1)
    assert ((steps >= -rounding).all(1) | (steps <= rounding).all(1)).all()


def test_contamination_is_off_unless_asked_for() -> None:
    assert CausalConfig().contamination == 0.0
    config = CausalConfig(max_features=5, shares=only("spikes"), strength=(50.0, 50.0), hidden=0.0)
    clean = causal_batch(config, Draws(4), 16, 200, 20)
    dirty = causal_batch(replace(config, contamination=0.05), Draws(4), 16, 200, 20)
    assert dirty.context.shape == clean.context.shape
    assert dirty.labels.sum(1).tolist() == [10] * 16


@SMALL
@given(seed=st.integers(0, 2**40), step=st.integers(0, 10**6), weight=st.floats(0, 1))
def test_a_batch_is_a_function_of_seed_and_step(seed: int, step: int, weight: float) -> None:
    config = DataConfig(
        gmm_weight=weight,
        causal_weight=1.01 - weight,
        max_features=6,
        batch=3,
        context_min=5,
        context_max=30,
        queries=8,
    )
    first = BatchSource(config, seed).batch(step)
    source = BatchSource(config, seed)
    source.batch(step + 1)  # what came before does not matter
    again = source.batch(step)
    assert torch.equal(first.context, again.context)
    assert torch.equal(first.queries, again.queries)
    assert torch.equal(first.labels, again.labels)
    assert first.context.shape[0] == 3
    assert 5 <= first.context.shape[1] <= 30
    assert first.context.shape[2] == int(first.n_features.max())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": 7}, "even"),
        ({"context_min": 1}, "context"),
        ({"context_min": 50, "context_max": 40}, "context"),
        ({"gmm_weight": 0.0, "causal_weight": 0.0}, "weights"),
    ],
)
def test_impossible_data_settings_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(**change)  # type: ignore[arg-type]
