"""Reuse of datasets, to make synthesis cheap: random linear transforms of a dataset, and repetition in later epochs.

T maps x_K to W x_K + b on the inflated features only. It preserves Mahalanobis distances, so the labels stay correct,
and the covariances of the mixtures are no longer diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from pretrain.priors.checks import check_least
from pretrain.priors.draws import Draws, stream_seed
from pretrain.priors.gmm import GmmConfig, GmmDatasets, Mixtures, sample_gmm

_POOL_STREAM, _TRANSFORM_STREAM = 101, 102
_DATASETS_AT_ONCE = 16  # limits the memory of rejection sampling


@dataclass
class LinearTransform:
    """x -> weight x + bias, one for each of B datasets; the identity on features outside K.

    weight: (B, D, D), symmetric; bias: (B, D).
    """

    weight: Tensor
    bias: Tensor

    def rows(self, rows: Tensor) -> Tensor:
        """Transformed rows or component means (B, n, D)."""
        return torch.baddbmm(self.bias[:, None], rows, self.weight)


def draw_transform(inflated: Tensor, draws: Draws) -> LinearTransform:
    """Random transforms on the features K given by `inflated` (B, D): W = U diag(lambda) U^T with U orthonormal,
    lambda in [-1, -0.1] u [0.1, 1], so that no direction collapses, and b in [-1, 1]."""
    b, d = inflated.shape
    both = inflated[:, :, None] & inflated[:, None, :]
    eye = torch.eye(d, device=draws.device)
    # the QR of a matrix that is the identity outside K has an orthonormal block on K and unit vectors elsewhere
    basis = torch.linalg.qr(torch.where(both, draws.normal(b, d, d), eye)).Q
    eigenvalues = draws.uniform(b, d, low=0.1, high=1.0) * draws.sign(b, d)
    weight = (basis * eigenvalues[:, None]) @ basis.transpose(1, 2)
    weight = torch.where(both, (weight + weight.transpose(1, 2)) / 2, eye)
    bias = draws.uniform(b, d, low=-1.0) * inflated
    return LinearTransform(weight, bias)


@dataclass(frozen=True)
class ReuseConfig:
    """Reuse of new datasets. The paper: 500 new ones in each epoch, and each of them transformed 15 times."""

    unique: int = 500  # new datasets per epoch, rounded up to whole batches
    transforms: int = 15  # further passes over them, each with another T
    epochs: int = 0  # P: epochs after which the same datasets are repeated, with other transforms; 0: never

    def __post_init__(self) -> None:
        check_least(self, {"unique": 1, "transforms": 0, "epochs": 0})


class GmmReuse:
    """The GMM prior with reuse. The datasets of a step depend only on (seed, step)."""

    def __init__(
        self,
        gmm: GmmConfig,
        reuse: ReuseConfig,
        batch: int,
        inliers: int,
        outliers: int,
        seed: int,
        device: torch.device | str,
    ) -> None:
        self.gmm, self.reuse, self.batch, self.seed = gmm, reuse, batch, seed
        self.device = torch.device(device)
        self.sizes = (inliers, outliers)
        self.groups = -(-reuse.unique // batch)  # batches of new datasets per epoch
        self.steps_per_epoch = self.groups * (1 + reuse.transforms)
        self._pool = lru_cache(maxsize=1)(self._draw_pool)

    def datasets(self, step: int, slots: list[int], percentile: float) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of the datasets in the given slots of a step's batch: inliers (b, n, D), outliers (b, m, D), and
        n_features (b,)."""
        period = self.reuse.epochs * self.steps_per_epoch
        first = step % period if period else step  # when its datasets came for the first time
        epoch, within = divmod(first, self.steps_per_epoch)
        turn, group = divmod(within, self.groups)
        pool = self._pool(epoch, percentile)
        which = torch.tensor(slots, device=self.device) + group * self.batch
        inliers, outliers = pool.inliers[which], pool.outliers[which]
        if turn or first < step:
            draws = Draws(stream_seed(self.seed, _TRANSFORM_STREAM, step), self.device)
            t = draw_transform(pool.mixtures.inflated[group * self.batch :][: self.batch], draws)
            t = LinearTransform(t.weight[slots], t.bias[slots])
            inliers, outliers = t.rows(inliers), t.rows(outliers)
        return inliers, outliers, pool.mixtures.n_features[which]

    def _draw_pool(self, epoch: int, percentile: float) -> GmmDatasets:
        gmm = replace(self.gmm, percentile=percentile)
        draws = Draws(stream_seed(self.seed, _POOL_STREAM, epoch), self.device)
        total = self.groups * self.batch
        parts = [
            sample_gmm(gmm, draws, min(_DATASETS_AT_ONCE, total - start), *self.sizes)
            for start in range(0, total, _DATASETS_AT_ONCE)
        ]
        mixtures = Mixtures(*map(torch.cat, zip(*(vars(p.mixtures).values() for p in parts), strict=True)))
        return GmmDatasets(mixtures, torch.cat([p.inliers for p in parts]), torch.cat([p.outliers for p in parts]))
