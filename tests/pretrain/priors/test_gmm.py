"""The Gaussian mixture prior: labels, balanced halves, padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from pretrain.priors.draws import Draws, stream_seed
from pretrain.priors.gmm import GmmConfig, GmmDatasets, gmm_batch, sample_gmm
from pretrain.training.evidence_batches import auroc

SMALL = settings(max_examples=25)
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


@SMALL
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


@SMALL
@given(
    seed=st.integers(0, 2**40),
    context=st.integers(2, 120),
    half=st.integers(1, 40),
    width=st.integers(1, 15),
)
def test_batches_have_balanced_halves_and_zero_padding(seed: int, context: int, half: int, width: int) -> None:
    batch = gmm_batch(GmmConfig(max_features=width), Draws(seed), 4, context, 2 * half)
    assert batch.context.shape == (4, context, width)
    assert batch.queries.shape == (4, 2 * half, width)
    assert batch.labels.sum(1).tolist() == [half] * 4
    assert batch.context.isfinite().all()
    for b in range(4):
        d = int(batch.n_features[b])
        assert 1 <= d <= width
        assert not batch.context[b, :, d:].any()
        assert not batch.queries[b, :, d:].any()
        assert batch.context[b, :, :d].std(0).min() > 0


def test_queries_are_shuffled() -> None:
    batch = gmm_batch(GmmConfig(max_features=3), Draws(0), 16, 10, 200)
    first_half = batch.labels[:, :100].mean(1)
    assert ((first_half > 0.3) & (first_half < 0.7)).all()
    assert len(set(first_half.tolist())) > 3


def test_same_seed_same_data_and_another_seed_other_data() -> None:
    first, again, other = (gmm_batch(GmmConfig(max_features=5), Draws(s), 3, 20, 10) for s in (7, 7, 8))
    assert torch.equal(first.context, again.context)
    assert torch.equal(first.queries, again.queries)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.context, other.context)


def test_more_features_than_the_table_of_quantiles_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="up to 500"):
        sample_gmm(GmmConfig(max_features=501), Draws(0), 1, 2, 2)


def test_stream_seeds_of_neighbouring_steps_are_unrelated() -> None:
    seeds = {stream_seed(s, stream, step) for s in range(5) for stream in range(5) for step in range(200)}
    assert len(seeds) == 5 * 5 * 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert stream_seed(3, 1, 2) != stream_seed(3, 2, 1)


@SMALL
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 40), levels=st.integers(1, 5))
def test_auroc_counts_pairs_and_halves_ties(seed: int, rows: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    positives = int(rng.integers(1, rows))
    labels = np.stack([rng.permutation(np.r_[np.ones(positives), np.zeros(rows - positives)]) for _ in range(3)])
    scores = rng.integers(0, levels + 1, (3, rows, 2)).astype(float)
    found = auroc(torch.tensor(scores), torch.tensor(labels))
    for b in range(3):
        for c in range(2):
            gap = scores[b, labels[b] == 1, c][:, None] - scores[b, labels[b] == 0, c][None]
            assert found[b, c] == pytest.approx(((gap > 0) + 0.5 * (gap == 0)).mean())
    assert torch.allclose(auroc(torch.tensor(scores[..., 0]), torch.tensor(labels)), found[:, 0])
