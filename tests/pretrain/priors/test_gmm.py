"""The Gaussian mixture prior: labels by the chi-square rule; transforms that keep them; datasets that come again."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from pretrain.priors.draws import Draws
from pretrain.priors.gmm import GmmConfig, GmmDatasets, mahalanobis, sample_gmm
from pretrain.priors.mixture import BatchSource, DataConfig
from pretrain.priors.reuse import GmmReuse, ReuseConfig, draw_transform

CONFIGS = [
    GmmConfig(max_features=12),
    GmmConfig(max_features=1),
    GmmConfig(max_features=6, percentile=80.0),
    GmmConfig(max_features=30, min_features=20, margin=0.0),
    GmmConfig(max_features=10, means=(5.0, 50.0), variances=(5.0, 50.0)),
    GmmConfig(max_features=8, components=(5, 50)),
]


def restricted_distances(data: GmmDatasets, rows: torch.Tensor, b: int) -> np.ndarray:
    """Squared Mahalanobis distances to the nearest component over K, by the definition, in float64."""
    inside = data.mixtures.inflated[b].numpy()
    x = rows[b].double().numpy()[:, inside]
    distances = []
    for j in range(int(data.mixtures.components[b])):
        mean = data.mixtures.means[b, j].double().numpy()[inside]
        covariance = np.diag(data.mixtures.variances[b, j].double().numpy()[inside])
        gap = x - mean
        distances.append(np.einsum("ni,ij,nj->n", gap, np.linalg.inv(covariance), gap))
    return np.asarray(np.min(distances, axis=0))


@given(seed=st.integers(0, 2**40), config=st.sampled_from(CONFIGS))
def test_labels_obey_the_chi_square_rule(seed: int, config: GmmConfig) -> None:
    data = sample_gmm(config, Draws(seed), datasets=3, inliers=60, outliers=60)
    for b in range(3):
        size = int(data.mixtures.inflated[b].sum())
        assert 1 <= size <= int(data.mixtures.n_features[b]) <= config.max_features
        near = chi2.ppf((config.percentile - config.margin) / 100, size)
        far = chi2.ppf((config.percentile + config.margin) / 100, size)
        # rows and distances are float32: leave room for rounding where a variance is tiny
        assert (restricted_distances(data, data.inliers, b) < near * 1.002).all()
        assert (restricted_distances(data, data.outliers, b) > far * 0.998).all()


def test_an_overcrowded_mixture_still_fills_with_true_outliers() -> None:
    config = GmmConfig(max_features=1, components=(50, 50), means=(0.0, 1.0), variances=(4.0, 5.0), inflation=1.01)
    data = sample_gmm(config, Draws(0), datasets=4, inliers=50, outliers=400)
    for b in range(4):
        assert (restricted_distances(data, data.outliers, b) > chi2.ppf(0.95, 1) * 0.999).all()


def test_inliers_follow_the_mixture_and_outliers_are_inflated_on_k_only() -> None:
    config = GmmConfig(max_features=20, min_features=20, components=(1, 1))
    data = sample_gmm(config, Draws(3), datasets=8, inliers=4000, outliers=4000)
    scale = data.mixtures.variances[:, 0].sqrt()
    z_in = (data.inliers - data.mixtures.means[:, :1]) / scale[:, None]
    z_out = (data.outliers - data.mixtures.means[:, :1]) / scale[:, None]
    inside = data.mixtures.inflated
    assert z_in.std(1)[~inside].sub(1).abs().max() < 0.06
    assert z_out.std(1)[~inside].sub(1).abs().max() < 0.06
    assert z_in.std(1)[inside].max() < 1.0  # cut at the 85th percentile
    assert z_out.std(1)[inside].min() > 2.0  # about the root of 5


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


def test_after_p_epochs_the_same_datasets_come_round_transformed() -> None:
    """Rows of the next round are a linear function of those of the first one; rows of other datasets are not."""
    source = reuse(ReuseConfig(unique=2, transforms=1, epochs=2))
    seen = [source.datasets(step, [0, 1], 90.0)[0] for step in range(8)]
    for step in (0, 2):
        for b in (0, 1):
            known = np.column_stack([seen[step][b].numpy(), np.ones(12)])
            gaps = []
            for rows in (seen[step + 4][b].numpy(), seen[2 - step][b].numpy()):
                gaps.append(np.abs(known @ np.linalg.lstsq(known, rows, rcond=None)[0] - rows).max())
            assert gaps[0] < 1e-4 < gaps[1]
            assert not torch.equal(seen[step + 4][b], seen[step][b])


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
