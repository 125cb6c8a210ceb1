"""Kinds of outliers: each changes the right rows and features, and can be found in tables of every prior."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from pretrain.priors.anomalies import (
    NEIGHBOURS,
    Scene,
    between_classes,
    beyond_all,
    displaced,
    local_scale,
    out_of_context,
    spoil_features,
)
from pretrain.priors.causal import CausalConfig, OutlierShares, causal_tables
from pretrain.priors.copulas import CopulaConfig, CopulaShares, copula_tables
from pretrain.priors.datasets import Batch, split
from pretrain.priors.draws import Draws
from pretrain.priors.table_prior import draw_kinds
from pretrain.training.loader import auroc, evidence_batch

SIZED = ("inflated_features", "spikes", "local", "perturbed", "contextual", "between", "far")
OF_FEATURES = (*SIZED, "noise", "dependency", "clusters")
SCENES = {"seed": st.integers(0, 2**40), "width": st.integers(1, 12), "classes": st.integers(1, 4)}
SIZELESS = ("hidden_class", "mechanism", "noise", "dependency", "clusters")  # to which strength 1 means nothing
PRIORS: dict[str, tuple[Any, Any, Any]] = {
    "causal": (causal_tables, CausalConfig, OutlierShares),
    "copulas": (copula_tables, CopulaConfig, CopulaShares),
}
OF_PRIORS = [(prior, kind) for prior, parts in PRIORS.items() for kind in parts[2].__dataclass_fields__]
# Each kind once, as most are made by the same function for both priors; and two of them for the other prior as well.
KINDS = [(p, kind) for p, kind in OF_PRIORS if p == "causal" or kind not in OutlierShares.__dataclass_fields__]
KINDS += [("copulas", "contextual"), ("copulas", "hidden_class")]


def scene_of(seed: int, width: int, classes: int, strength: float = 3.0, tight: float = 0.1) -> Scene:
    """Two datasets of 60 inliers and 30 rows in tight classes; the second dataset lacks a third of the columns."""
    draws = Draws(seed)
    centers = draws.normal(2, classes, width) * 4
    of_inliers, of_rows = (draws.integers(0, classes - 1, 2, n) for n in (60, 30))
    inliers, rows = (
        centers.gather(1, c[..., None].expand(-1, -1, width)) + tight * draws.normal(*c.shape, width)
        for c in (of_inliers, of_rows)
    )
    real = torch.arange(width) < torch.tensor([[width], [max(1, 2 * width // 3)]])
    return Scene(rows, of_rows, inliers, of_inliers, classes + 1, torch.full((2, 30), strength), real)


@given(**SCENES, kind=st.sampled_from(OF_FEATURES))
def test_rows_of_other_kinds_are_left_alone(seed: int, width: int, classes: int, kind: str) -> None:
    scene = scene_of(seed, width, classes)
    chosen = Draws(seed + 1).chance(0.5, 2, 30)
    spoiled = spoil_features(scene, {kind: chosen}, Draws(seed))
    assert torch.equal(spoiled[~chosen], scene.rows[~chosen])
    assert spoiled.isfinite().all()


@given(**SCENES, kind=st.sampled_from(SIZED))
def test_rows_of_strength_one_stay_as_they_are(seed: int, width: int, classes: int, kind: str) -> None:
    scene = scene_of(seed, width, classes, strength=1.0)
    spoiled = spoil_features(scene, {kind: torch.ones(2, 30, dtype=torch.bool)}, Draws(seed))
    torch.testing.assert_close(spoiled, scene.rows, rtol=0, atol=1e-6)


def test_only_real_features_change_and_few_of_a_row_by_spikes_and_perturbations() -> None:
    scene = scene_of(0, 12, 3)
    most = {"spikes": 3, "perturbed": 4, **dict.fromkeys(("contextual", "far", "noise", "dependency", "local"), 12)}
    for kind, limit in most.items():
        spoiled = spoil_features(scene, {kind: torch.ones(2, 30, dtype=torch.bool)}, Draws(2))
        assert torch.equal(spoiled[1, :, 8:], scene.rows[1, :, 8:]), kind
        changed = (spoiled != scene.rows).sum(-1)
        assert changed.any()
        assert limit == 12 or (changed.min() >= 1 and changed.max() == limit), kind


@given(**SCENES)
def test_local_scale_is_the_mean_distance_to_the_nearest_inliers(seed: int, width: int, classes: int) -> None:
    scene = scene_of(seed, width, classes)
    scale = local_scale(scene)
    for b in range(2):
        real = scene.real[b]
        search = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(scene.inliers[b][:, real].numpy())
        expected = torch.from_numpy(search.kneighbors(scene.rows[b][:, real].numpy())[0].mean(1))
        torch.testing.assert_close(scale[b].double(), expected.double(), rtol=1e-2, atol=5e-3)


@given(**SCENES, strength=st.floats(1.0, 8.0))
def test_local_outliers_move_by_a_multiple_of_the_local_scale(
    seed: int, width: int, classes: int, strength: float
) -> None:
    scene = scene_of(seed, width, classes, strength)
    moved = (displaced(scene, Draws(seed)) - scene.rows).norm(dim=-1)
    torch.testing.assert_close(moved, (strength - 1) / 2 * local_scale(scene), rtol=1e-2, atol=1e-4)


@given(seed=st.integers(0, 2**40), width=st.integers(2, 12), classes=st.integers(2, 4))
def test_contextual_outliers_hold_values_of_one_row_of_another_class(seed: int, width: int, classes: int) -> None:
    scene = scene_of(seed, width, classes)
    subset = Draws(seed + 1).chance(0.6, 2, 30, width) & scene.real[:, None]
    spoiled = out_of_context(scene, subset, Draws(seed))
    for b in range(2):
        for i in range(30):
            changed = spoiled[b, i] != scene.rows[b, i]
            assert not changed[~subset[b, i]].any()
            assert not changed[scene.real[b]].all()
            donors = (scene.inliers[b][:, changed] == spoiled[b, i][changed]).all(-1)
            assert donors.any()
            if changed.any() and scene.inlier_classes[b].min() < scene.inlier_classes[b].max():
                assert (scene.inlier_classes[b][donors] != scene.classes[b, i]).all()


@given(seed=st.integers(0, 2**40), width=st.integers(1, 8))
def test_outliers_between_lie_in_the_gap_of_two_classes(seed: int, width: int) -> None:
    scene = scene_of(seed, width, 2, tight=1e-3)
    for b in range(2):
        means = torch.stack([scene.inliers[b][scene.inlier_classes[b] == c].mean(0) for c in range(2)])
        rows = between_classes(scene, Draws(seed))[b]
        axis = means[1] - means[0]
        along = (rows - means[0]) @ axis / axis.square().sum()
        off = (rows - means[0]) - along[:, None] * axis
        slack = 0.01 / float(axis.norm())
        assert along.min() > 1 / 3 - slack
        assert along.max() < 2 / 3 + slack
        assert off.norm(dim=-1).max() < 0.02
    alone = scene_of(0, 5, 1)
    torch.testing.assert_close(between_classes(alone, Draws(0)), alone.rows)


@given(**SCENES)
def test_far_outliers_are_beyond_every_inlier(seed: int, width: int, classes: int) -> None:
    scene = scene_of(seed, width, classes)
    rows = beyond_all(scene, Draws(seed))
    low, high = scene.inliers.amin(1, True), scene.inliers.amax(1, True)
    assert ((rows <= low) | (rows >= high)).all()


def batch_of(prior: str, kind: str, seed: int, datasets: int, context: int, queries: int, **settings: Any) -> Batch:
    """Datasets of a prior whose outliers are all of one kind."""
    tables, config, shares = PRIORS[prior]
    only = shares(**{name: float(name == kind) for name in shares.__dataclass_fields__})
    draws, half = Draws(seed), queries // 2
    made = tables(config(shares=only, **settings), draws, datasets, context + half, half)
    return split(made.inliers, made.outliers, made.n_features, draws, context, queries)


@given(seed=st.integers(0, 2**40), of=st.sampled_from(OF_PRIORS), width=st.integers(2, 40), half=st.integers(1, 30))
def test_every_kind_yields_finite_balanced_data(seed: int, of: tuple[str, str], width: int, half: int) -> None:
    batch = batch_of(*of, seed, 4, 80, 2 * half, max_features=width)
    assert batch.context.shape == (4, 80, width)
    assert batch.context.isfinite().all()
    assert batch.queries.isfinite().all()
    assert batch.labels.sum(1).tolist() == [half] * 4
    for b, d in enumerate(batch.n_features.tolist()):
        assert 2 <= d <= width
        assert not batch.context[b, :, d:].any()
        assert not batch.queries[b, :, d:].any()


@pytest.mark.parametrize(("prior", "kind"), KINDS)
def test_outliers_of_every_kind_can_be_found_and_are_not_all_trivial(prior: str, kind: str) -> None:
    batch = batch_of(prior, kind, 1, 8, 100, 80, max_features=15, mixed_kinds=0.0)
    best = evidence_batch(batch).best
    assert 0.6 < best.mean() < 0.999
    assert best.min() < 0.99


@pytest.mark.parametrize(("prior", "kind"), [each for each in KINDS if each[1] not in (*SIZED, *SIZELESS)])
def test_rows_without_strength_cannot_be_told_from_inliers(prior: str, kind: str) -> None:
    more = {"strangers": 0.0} if prior == "causal" else {}
    batch = batch_of(prior, kind, 2, 8, 60, 160, max_features=15, strength=(1.0, 1.0), row_strength=0.0, **more)
    page = evidence_batch(batch)
    assert page.queries.channels is not None
    areas = auroc(page.queries.channels, page.labels).mean(0)
    assert areas.min() > 0.45
    assert areas.max() < 0.55


def test_kinds_of_weight_zero_never_come() -> None:
    drawn = draw_kinds(CausalConfig(), OutlierShares(local=0.0, far=0.0), Draws(0), 200, 10)
    assert set(drawn) == set(OutlierShares.__dataclass_fields__) - {"local", "far"}
    assert torch.stack(list(drawn.values())).sum(0).eq(1).all()
    mixed = draw_kinds(CausalConfig(), OutlierShares(local=1.0), Draws(0), 2000, 1)
    assert abs(mixed["local"].float().mean() - mixed["hidden_class"].float().mean()) < 0.05
