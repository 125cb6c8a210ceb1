"""Reuse: the linear transform keeps distances and labels, and repeated datasets are equal."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from pretrain.priors.draws import Draws
from pretrain.priors.gmm import GmmConfig, mahalanobis, sample_gmm
from pretrain.priors.mixture import BatchSource, DataConfig
from pretrain.priors.reuse import GmmReuse, ReuseConfig, draw_transform

SMALL = settings(max_examples=25)


@SMALL
@given(seed=st.integers(0, 2**40), width=st.integers(1, 25))
def test_t_preserves_mahalanobis_distances_and_labels(seed: int, width: int) -> None:
    data = sample_gmm(GmmConfig(max_features=width), Draws(seed), 3, 40, 40)
    t = draw_transform(data.mixtures.inflated, Draws(seed + 1))
    means = t.rows(data.mixtures.means).double().numpy()
    for b in range(3):
        inside = data.mixtures.inflated[b].numpy()
        k = int(inside.sum())
        for before, after, label in (
            (data.inliers, t.rows(data.inliers), 0),
            (data.outliers, t.rows(data.outliers), 1),
        ):
            x = after[b].double().numpy()[:, inside]
            distances = []
            for j in range(int(data.mixtures.components[b])):
                gap = x - means[b, j][inside]
                weight = t.weight[b].double().numpy()[np.ix_(inside, inside)]
                covariance = weight @ np.diag(data.mixtures.variances[b, j].double().numpy()[inside]) @ weight.T
                distances.append(np.einsum("ni,ni->n", gap, np.linalg.solve(covariance, gap.T).T))
            now = np.min(distances, axis=0)
            then = mahalanobis(before, data.mixtures)[b].double().numpy()
            np.testing.assert_allclose(now, then, rtol=0.05, atol=0.05)
            # the gap between the percentiles is wider than the rounding: labels are the same by the rule itself
            assert ((now > chi2.ppf(0.90, k)) == bool(label)).all()


@SMALL
@given(seed=st.integers(0, 2**40), width=st.integers(1, 30))
def test_t_is_the_identity_outside_k_and_well_conditioned_inside(seed: int, width: int) -> None:
    draws = Draws(seed)
    inflated = draws.chance(0.5, 3, width)
    inflated[:, 0] = True
    t = draw_transform(inflated, draws)
    rows = draws.normal(3, 10, width)
    moved = t.rows(rows)
    untouched = ~inflated[:, None].expand_as(rows)
    assert torch.equal(moved[untouched], rows[untouched])
    sizes = torch.linalg.eigvalsh(t.weight.double()).abs()
    assert sizes.min() > 0.0999
    assert sizes.max() < 1.0001
    assert t.bias.abs().max() <= 1
    assert not t.bias[~inflated].any()


def reuse(config: ReuseConfig) -> GmmReuse:
    return GmmReuse(GmmConfig(max_features=4), config, batch=2, inliers=12, outliers=6, seed=5, device="cpu")


def test_an_epoch_shows_each_fresh_dataset_once_plain_and_then_transformed() -> None:
    source = reuse(ReuseConfig(unique=4, transforms=3))
    assert source.steps_per_epoch == 8
    seen = [source.datasets(step, [0, 1], 90.0)[0] for step in range(8)]
    assert not torch.equal(seen[0], seen[1])
    for turn in range(1, 4):
        assert seen[2 * turn].shape == seen[0].shape
        assert not torch.allclose(seen[2 * turn], seen[0])


def test_after_p_epochs_the_same_datasets_come_round() -> None:
    source = reuse(ReuseConfig(unique=2, transforms=1, epochs=2, fresh_transforms=False))
    first = [source.datasets(step, [0, 1], 90.0)[0] for step in range(4)]
    again = [source.datasets(step, [0, 1], 90.0)[0] for step in range(4, 8)]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first[0], first[2])


def test_a_forgotten_pool_is_drawn_again_just_the_same() -> None:
    roomy = reuse(ReuseConfig(unique=2, transforms=0, epochs=3))
    tight = reuse(ReuseConfig(unique=2, transforms=0, epochs=3, memory_gb=0.0))
    for step in (0, 1, 2, 0, 2):
        assert torch.equal(roomy.datasets(step, [1], 90.0)[0], tight.datasets(step, [1], 90.0)[0])


def test_batches_with_reuse_are_a_function_of_seed_and_step_too() -> None:
    config = DataConfig(
        max_features=5, batch=4, context_min=5, context_max=20, queries=6, reuse=ReuseConfig(unique=8, transforms=2)
    )
    source = BatchSource(config, seed=1)
    walked = [source.batch(step) for step in range(9)][-1]
    jumped = BatchSource(config, seed=1).batch(8)
    assert torch.equal(walked.context, jumped.context)
    assert torch.equal(walked.queries, jumped.queries)
    assert walked.labels.sum(1).tolist() == [3.0] * 4
