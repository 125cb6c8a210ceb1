"""The Gaussian mixture prior: datasets whose labels follow a chi-square rule.

A dataset is a mixture of Gaussians with diagonal covariances. The variances of a random subset K of its features are
inflated for outliers. The label depends on the squared Mahalanobis distance *over K* to the nearest component. All
operations are vectorised over datasets and stay on the device of the generator.

    >>> from pretrain.priors.draws import Draws
    >>> data = sample_gmm(GmmConfig(max_features=20), Draws(0), datasets=4, inliers=300, outliers=32)
    >>> data.inliers.shape, data.outliers.shape
    (torch.Size([4, 300, 20]), torch.Size([4, 32, 20]))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.special import gammaincinv
from torch import Tensor

from pretrain.priors.checks import check_least, check_range
from pretrain.priors.draws import Draws

MAX_DIMENSIONS = 500
NOMINAL_ROUNDS = 8  # rounds of rejection sampling after which the inflation of an incomplete dataset is doubled


@dataclass(frozen=True)
class GmmConfig:
    """Settings of the mixtures. The defaults are those of the paper; stress tests set other ranges."""

    max_features: int = 100
    min_features: int = 1
    components: tuple[int, int] = (1, 5)
    means: tuple[float, float] | None = None  # range of |mean|, sign random; None: U(0,1) * an integer in -5..5
    variances: tuple[float, float] | None = None  # range; None: U(0,1) * an integer in 1..5
    inflation: float = 5.0  # factor on the variances of the features in K
    percentile: float = 90.0  # inliers lie below percentile - margin, ...
    margin: float = 5.0  # ... outliers above percentile + margin (the curriculum lowers the percentile to 80)

    def __post_init__(self) -> None:
        check_range("components", self.components, low=1)
        for name in ("means", "variances"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), low=0.0)
        check_least(self, {"min_features": 1, "inflation": 1, "margin": 0})
        if not 0 < self.percentile - self.margin <= self.percentile + self.margin < 100:
            raise ValueError(
                f"percentile - margin and percentile + margin must lie between 0 and 100, not {self.percentile} and"
                f" {self.margin}: no row would be an inlier, or an outlier"
            )


@dataclass
class Mixtures:
    """Parameters of B mixtures of at most M components in at most D features (padding: mean 0, variance 0).

    means, variances: (B, M, D); components, n_features: (B,); inflated: (B, D) bool, the subset K.
    """

    means: Tensor
    variances: Tensor
    components: Tensor
    inflated: Tensor
    n_features: Tensor

    def __getitem__(self, which: Tensor) -> Mixtures:
        return Mixtures(*(part[which] for part in vars(self).values()))


@dataclass
class GmmDatasets:
    """B labelled datasets and the mixtures they came from. inliers: (B, n, D); outliers: (B, m, D)."""

    mixtures: Mixtures
    inliers: Tensor
    outliers: Tensor


@cache
def chi2_table(percentile: float) -> np.ndarray:
    """Quantiles of the chi-square distribution for 0..500 degrees of freedom (0 for 0 degrees), float64."""
    # scipy.stats has chi2.ppf, but its import takes a second
    return np.concatenate([[0.0], 2 * gammaincinv(np.arange(1, MAX_DIMENSIONS + 1) / 2, percentile / 100)])


def sample_gmm(config: GmmConfig, draws: Draws, datasets: int, inliers: int, outliers: int) -> GmmDatasets:
    """Draw mixtures and fill each with `inliers` and `outliers` rows by rejection sampling.

    In some mixtures the components cover nearly all of the space, so rows of the inflated mixture are almost never
    outliers. After NOMINAL_ROUNDS rounds the inflation of such a dataset is doubled in every round until it is full.
    The label rule holds for every row; only the outliers lie further out than with the nominal inflation.
    """
    if config.max_features > MAX_DIMENSIONS:
        raise ValueError(f"the prior has up to {MAX_DIMENSIONS} features, not {config.max_features}")
    mixtures = _draw_mixtures(config, draws, datasets)
    size = mixtures.inflated.sum(1)
    near = _threshold(config.percentile - config.margin, size)
    far = _threshold(config.percentile + config.margin, size)

    def draw_inliers(which: Tensor, round_: int) -> tuple[Tensor, Tensor]:
        part = mixtures[which]
        rows = _draw_rows(part, draws, math.ceil(inliers * 1.25) + 8, 1.0)
        return rows, mahalanobis(rows, part) < near[which, None]

    def draw_outliers(which: Tensor, round_: int) -> tuple[Tensor, Tensor]:
        part = mixtures[which]
        inflation = config.inflation * 2.0 ** max(0, round_ - NOMINAL_ROUNDS)
        rows = _draw_rows(part, draws, math.ceil(outliers * 1.5) + 8, inflation)
        return rows, mahalanobis(rows, part) > far[which, None]

    width = config.max_features
    return GmmDatasets(
        mixtures,
        _fill(draw_inliers, datasets, inliers, width, draws.device),
        _fill(draw_outliers, datasets, outliers, width, draws.device),
    )


def mahalanobis(rows: Tensor, mixtures: Mixtures) -> Tensor:
    """Squared distance to the nearest component over the features in K. rows: (B, n, D). Returns (B, n)."""
    inside = mixtures.inflated[:, None]
    precision = torch.where(inside, 1 / mixtures.variances.where(inside, torch.ones(())), 0.0)
    nearest = rows.new_full(rows.shape[:2], torch.inf)
    for j in range(mixtures.means.shape[1]):
        gap = (rows - mixtures.means[:, j, None]).square_()
        distance = torch.bmm(gap, precision[:, j, :, None]).squeeze(-1)
        absent = (j >= mixtures.components)[:, None]
        nearest = torch.minimum(nearest, distance.masked_fill(absent, torch.inf))
    return nearest


def _draw_mixtures(config: GmmConfig, draws: Draws, datasets: int) -> Mixtures:
    low, high = config.components
    shape = (datasets, high, config.max_features)
    n_features = draws.integers(config.min_features, config.max_features, datasets)
    components = draws.integers(low, high, datasets)
    if config.means is None:
        means = draws.uniform(*shape) * draws.integers(-5, 5, *shape)
    else:
        means = draws.uniform(*shape, low=config.means[0], high=config.means[1]) * draws.sign(*shape)
    if config.variances is None:
        variances = draws.uniform(*shape) * draws.integers(1, 5, *shape)
    else:
        variances = draws.uniform(*shape, low=config.variances[0], high=config.variances[1])
    # with a variance below the resolution of float32 at a mean of 5, labels would depend on rounding
    variances = variances.clamp_min(1e-5)
    real = torch.arange(config.max_features, device=draws.device) < n_features[:, None]
    inflated = draws.subset(draws.integers(1, n_features, datasets), real)
    return Mixtures(means * real[:, None], variances * real[:, None], components, inflated, n_features)


def _draw_rows(mixtures: Mixtures, draws: Draws, count: int, inflation: float) -> Tensor:
    datasets, _, width = mixtures.means.shape
    component = draws.integers(0, mixtures.components[:, None] - 1, datasets, count)[..., None].expand(-1, -1, width)
    variances = torch.where(mixtures.inflated[:, None], mixtures.variances * inflation, mixtures.variances)
    rows = draws.normal(datasets, count, width) * variances.sqrt().gather(1, component)
    return rows.add_(mixtures.means.gather(1, component))


def _threshold(percentile: float, size: Tensor) -> Tensor:
    table = torch.as_tensor(chi2_table(percentile), dtype=torch.float32, device=size.device)
    return table[size]


def _fill(
    draw: Callable[[Tensor, int], tuple[Tensor, Tensor]],
    datasets: int,
    count: int,
    width: int,
    device: torch.device,
) -> Tensor:
    """Rounds of `draw(which datasets, round) -> (rows, accepted)` until each dataset has `count` accepted rows."""
    filled = torch.zeros(datasets, count, width, device=device)
    have = torch.zeros(datasets, dtype=torch.long, device=device)
    round_ = 0
    while len(which := torch.nonzero(have < count).squeeze(1)):
        rows, accepted = draw(which, round_)
        place = accepted.cumsum(1) - 1 + have[which, None]
        dataset, row = torch.nonzero(accepted & (place < count), as_tuple=True)
        filled[which[dataset], place[dataset, row]] = rows[dataset, row]
        have[which] += accepted.sum(1)
        round_ += 1
    return filled
