"""The causal prior: every kind of outlier gives finite, balanced, learnable data."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.priors.causal import KINDS, CausalConfig, OutlierShares, causal_batch
from pretrain.priors.draws import Draws
from pretrain.priors.table_prior import draw_kinds
from pretrain.training.evidence_batches import auroc, evidence_batch

SMALL = settings(max_examples=20)
KIND_NAMES = st.sampled_from(KINDS)
SIZELESS = ("hidden_class", "mechanism", "noise", "dependency", "clusters")  # to which strength 1 means nothing


def only(kind: str) -> OutlierShares:
    return OutlierShares(**{name: float(name == kind) for name in KINDS})


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
    config = CausalConfig(max_features=15, shares=only(kind), mixed_kinds=0.0)
    best = evidence_batch(causal_batch(config, Draws(1), 16, 250, 80), with_context=False).best
    assert 0.6 < best.mean() < 0.999
    assert best.min() < 0.99


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in SIZELESS])
def test_rows_without_strength_cannot_be_told_from_inliers(kind: str) -> None:
    config = CausalConfig(max_features=15, strength=(1.0, 1.0), row_strength=0.0, shares=only(kind), strangers=0.0)
    page = evidence_batch(causal_batch(config, Draws(2), 16, 250, 200), with_context=False)
    areas = auroc(page.queries, page.labels).mean(0)
    assert areas.min() > 0.45
    assert areas.max() < 0.55


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


def test_kinds_of_weight_zero_never_come() -> None:
    drawn = draw_kinds(CausalConfig(), OutlierShares(local=0.0, far=0.0), Draws(0), 200, 10)
    assert set(drawn) == set(KINDS) - {"local", "far"}
    assert torch.stack(list(drawn.values())).sum(0).eq(1).all()
    mixed = draw_kinds(CausalConfig(), OutlierShares(local=1.0), Draws(0), 2000, 1)
    assert abs(mixed["local"].float().mean() - mixed["hidden_class"].float().mean()) < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strength": (3.0, 1.0)}, "strength is a range"),
        ({"connections": (0.1, 1.5)}, "connections is a range"),
        ({"grouped": 2.0}, "grouped is a share"),
        ({"width": 30}, "multiple of 8"),
        ({"shares": OutlierShares(spikes=float("nan"))}, "shares.spikes is a weight"),
    ],
)
def test_impossible_causal_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CausalConfig(**change)  # type: ignore[arg-type]
