"""Kinds of outliers: each changes the right rows and features, in the right way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
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
from pretrain.priors.draws import Draws

SMALL = settings(max_examples=20)
SIZED = ("inflated_features", "spikes", "local", "perturbed", "contextual", "between", "far")
KINDS = (*SIZED, "noise", "dependency", "clusters")
SCENES = {"seed": st.integers(0, 2**40), "width": st.integers(1, 12), "classes": st.integers(1, 4)}


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


@SMALL
@given(**SCENES, kind=st.sampled_from(KINDS))
def test_rows_of_other_kinds_are_left_alone(seed: int, width: int, classes: int, kind: str) -> None:
    scene = scene_of(seed, width, classes)
    chosen = Draws(seed + 1).chance(0.5, 2, 30)
    spoiled = spoil_features(scene, {kind: chosen}, Draws(seed))
    assert torch.equal(spoiled[~chosen], scene.rows[~chosen])
    assert spoiled.isfinite().all()


@SMALL
@given(**SCENES)
def test_kinds_that_are_not_of_features_change_nothing(seed: int, width: int, classes: int) -> None:
    scene = scene_of(seed, width, classes)
    everything = torch.ones(2, 30, dtype=torch.bool)
    assert torch.equal(spoil_features(scene, {"hidden_class": everything}, Draws(seed)), scene.rows)


@SMALL
@given(**SCENES, kind=st.sampled_from(SIZED))
def test_rows_of_strength_one_stay_as_they_are(seed: int, width: int, classes: int, kind: str) -> None:
    scene = scene_of(seed, width, classes, strength=1.0)
    spoiled = spoil_features(scene, {kind: torch.ones(2, 30, dtype=torch.bool)}, Draws(seed))
    torch.testing.assert_close(spoiled, scene.rows, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["spikes", "perturbed", "contextual", "far", "noise", "dependency", "local"])
def test_only_real_features_change(kind: str) -> None:
    scene = scene_of(0, 9, 3)
    spoiled = spoil_features(scene, {kind: torch.ones(2, 30, dtype=torch.bool)}, Draws(1))
    assert torch.equal(spoiled[1, :, 6:], scene.rows[1, :, 6:])
    assert not torch.equal(spoiled, scene.rows)


@SMALL
@given(**SCENES)
def test_local_scale_is_the_mean_distance_to_the_nearest_inliers(seed: int, width: int, classes: int) -> None:
    scene = scene_of(seed, width, classes)
    scale = local_scale(scene)
    for b in range(2):
        real = scene.real[b]
        search = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(scene.inliers[b][:, real].numpy())
        expected = torch.from_numpy(search.kneighbors(scene.rows[b][:, real].numpy())[0].mean(1))
        torch.testing.assert_close(scale[b].double(), expected.double(), rtol=1e-2, atol=5e-3)


@SMALL
@given(**SCENES, strength=st.floats(1.0, 8.0))
def test_local_outliers_move_by_a_multiple_of_the_local_scale(
    seed: int, width: int, classes: int, strength: float
) -> None:
    scene = scene_of(seed, width, classes, strength)
    moved = (displaced(scene, Draws(seed)) - scene.rows).norm(dim=-1)
    torch.testing.assert_close(moved, (strength - 1) / 2 * local_scale(scene), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("kind", "most"), [("spikes", 3), ("perturbed", 4)])
def test_few_features_of_a_row_are_off(kind: str, most: int) -> None:
    scene = scene_of(0, 12, 3)
    spoiled = spoil_features(scene, {kind: torch.ones(2, 30, dtype=torch.bool)}, Draws(2))
    changed = (spoiled != scene.rows).sum(-1)
    assert changed.min() >= 1
    assert changed.max() == most


@SMALL
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


@SMALL
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


def test_with_one_class_nothing_is_between() -> None:
    scene = scene_of(0, 5, 1)
    torch.testing.assert_close(between_classes(scene, Draws(0)), scene.rows)


@SMALL
@given(**SCENES)
def test_far_outliers_are_beyond_every_inlier(seed: int, width: int, classes: int) -> None:
    scene = scene_of(seed, width, classes)
    rows = beyond_all(scene, Draws(seed))
    low, high = scene.inliers.amin(1, True), scene.inliers.amax(1, True)
    assert ((rows <= low) | (rows >= high)).all()
