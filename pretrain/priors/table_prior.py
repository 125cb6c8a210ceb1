"""The common part of the causal and the copula prior: widths, classes, kinds of outliers, and strengths of outliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from pretrain.priors.checks import Range, check_range, check_share
from pretrain.priors.datasets import Tables
from pretrain.priors.draws import Draws
from pretrain.priors.marginals import MarginalConfig, to_raw


@dataclass(frozen=True)
class TableConfig:
    """Settings of both priors. Each dataset draws one value from a range, log-uniformly unless noted otherwise."""

    max_features: int = 100
    min_features: int = 2
    typical_features: float = 14.0  # median of the log-normal distribution of the number of features ...
    feature_spread: float = 0.8  # ... and the standard deviation of its logarithm
    wide_share: float = 0.15  # share of datasets with a uniform number of features up to the maximum instead
    single_class: float = 0.08  # share of datasets with one latent class; the others have 2 to `classes`
    classes: int = 16
    imbalance: float = 2.5  # the j-th class has weight j ** -U(0, imbalance)
    separation: Range = (0.8, 5.0)  # of the latent classes
    remoteness: float = 0.3  # standard deviation of the logarithm of the distance of a class from the centre
    odd_inliers: Range = (0.001, 0.05)  # share of inliers with extreme values in a few features
    mixed_kinds: float = 0.35  # share of datasets with two or three kinds of outliers instead of one
    strength: Range = (1.5, 10.0)  # factor by which outliers exceed inliers
    row_strength: float = 0.4  # standard deviation of the logarithm of the strength between rows of a dataset
    hidden: float = 0.2  # maximum share of a dataset's outliers that look like inliers
    marginals: MarginalConfig = field(default_factory=MarginalConfig)

    def __post_init__(self) -> None:
        for name in ("separation", "strength"):
            check_range(name, getattr(self, name), low=1e-9)
        check_range("odd_inliers", self.odd_inliers, 1e-9, 1.0)
        for name in ("wide_share", "single_class", "mixed_kinds", "hidden"):
            check_share(name, getattr(self, name))
        if self.max_features < 1 or self.min_features < 1 or self.classes < 1:
            raise ValueError("max_features, min_features and classes are at least 1")


def draw_widths(config: TableConfig, draws: Draws, datasets: int) -> Tensor:
    """(B,) numbers of features: mostly few, as in real tables, sometimes uniform up to the maximum."""
    wide = draws.chance(config.wide_share, datasets)
    typical = config.typical_features * (draws.normal(datasets) * config.feature_spread).exp()
    max_features = config.max_features
    widths = torch.where(wide, draws.uniform(datasets, low=config.min_features, high=max_features + 1), typical)
    return widths.long().clamp(min(config.min_features, max_features), max_features)


def draw_class_shares(config: TableConfig, draws: Draws, datasets: int) -> Tensor:
    """(B, classes) relative sizes of the latent classes, 0 for classes that a dataset does not have."""
    count = torch.where(
        draws.chance(config.single_class, datasets, 1),
        1.0,
        draws.log_uniform(datasets, 1, low=min(2.0, config.classes), high=config.classes + 0.99).floor(),
    )
    rank = torch.arange(1, config.classes + 1, device=draws.device)
    return rank ** -(draws.uniform(datasets, 1) * config.imbalance) * (rank <= count)


def draw_kinds(config: TableConfig, shares: Any, draws: Draws, datasets: int, outliers: int) -> Mapping[str, Tensor]:
    """The kind of each outlier, as name -> (B, m) bool: one kind per dataset, or a mixture of up to three.

    shares: a dataclass of weights, one field per kind. Kinds with weight 0 are left out and cost no time.
    """
    palette = draws.category(astuple(shares), datasets, 3)
    pick = draws.integers(0, 2, datasets, outliers)
    pick = torch.where(draws.chance(config.mixed_kinds, datasets, 1), pick, 0)
    kind = palette.gather(1, pick)
    return {f.name: kind == i for i, f in enumerate(fields(shares)) if getattr(shares, f.name) > 0}


def draw_strength(config: TableConfig, draws: Draws, datasets: int, outliers: int) -> Tensor:
    """(B, m) factor >= 0 by which an outlier exceeds inliers. Outliers with a factor near 1 look like inliers."""
    strength = draws.log_uniform(datasets, 1, low=config.strength[0], high=config.strength[1])
    strength = strength * (draws.normal(datasets, outliers) * config.row_strength).exp()
    hidden = draws.chance(draws.uniform(datasets, 1).square() * config.hidden, datasets, outliers)
    return torch.where(hidden, 1.0, strength)


def odd_inliers(config: TableConfig, draws: Draws, rows: Tensor) -> Tensor:
    """Give a few inliers extreme values in a few features: in real tables not every extreme value is an outlier."""
    b, n, d = rows.shape
    share = draws.log_uniform(b, 1, 1, low=config.odd_inliers[0], high=config.odd_inliers[1])
    odd = draws.chance(share, b, n, 1) & draws.chance(2.0 / d, b, n, d)
    return torch.where(odd, rows + draws.normal(b, n, d) * 4 * draws.normal(b, n, d).exp(), rows)


def real_features(n_features: Tensor, width: int) -> Tensor:
    """(B, D) bool, false for padding columns."""
    return torch.arange(width, device=n_features.device) < n_features[:, None]


def raw_tables(config: TableConfig, draws: Draws, inliers: Tensor, outliers: Tensor, n_features: Tensor) -> Tables:
    """Rows in standard deviations -> columns as in real tables, in various units, with zeros as padding."""
    real = real_features(n_features, inliers.shape[-1])
    count = inliers.shape[1]
    rows = to_raw(torch.cat([inliers, outliers], 1), count, config.marginals, draws) * real[:, None]
    return Tables(rows[:, :count], rows[:, count:], n_features)
