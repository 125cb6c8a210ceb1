"""The causal prior: tables from random structural causal models, and outliers that violate them.

Root causes (mixtures of latent classes) pass through a random multi-layer network with noise at every node. Some nodes
are observed as features, whose marginals are then warped, rounded or made discrete. Outliers differ in their causes,
their class, the mechanism, or in the features. All operations are vectorised over datasets.

    >>> from pretrain.priors.draws import Draws
    >>> tables = causal_tables(CausalConfig(max_features=20), Draws(0), datasets=4, inliers=300, outliers=32)
    >>> tables.inliers.shape, tables.outliers.shape, bool(tables.outliers.isfinite().all())
    (torch.Size([4, 300, 20]), torch.Size([4, 32, 20]), True)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pretrain.priors.anomalies import Scene, spoil_features
from pretrain.priors.checks import check_weights
from pretrain.priors.datasets import Tables
from pretrain.priors.draws import Draws
from pretrain.priors.mechanisms import NetworkConfig, another_mechanism, draw_rows, draw_world, observe, run
from pretrain.priors.table_prior import draw_kinds, draw_strength, odd_inliers, raw_tables, real_features


@dataclass(frozen=True)
class OutlierShares:
    """Relative weights of the kinds of outliers."""

    inflated_causes: float = 0.06  # root causes with a wider spread around their class
    hidden_class: float = 1.0  # rows of a latent class without inliers
    mechanism: float = 0.09  # other weights in a part of the network
    inflated_features: float = 0.05  # features with a wider spread around their class
    noise: float = 0.26  # features uniform over about the range of the inliers
    dependency: float = 0.03  # features copied from other rows
    spikes: float = 0.05  # one to three features with large deviations
    clusters: float = 0.04  # groups of rows moved together
    local: float = 0.03  # moved by a small multiple of the distance to the nearest inliers
    perturbed: float = 0.01  # some features with small deviations
    contextual: float = 0.02  # some features as in another class
    between: float = 0.02  # in the gap between two classes
    far: float = 0.03  # beyond the farthest inlier


KINDS = tuple(OutlierShares.__dataclass_fields__)


@dataclass(frozen=True)
class CausalConfig(NetworkConfig):
    """Settings of the tables. Each dataset draws one value from a range, log-uniformly unless noted otherwise.

    Lengths are in standard deviations of the inliers. The defaults come from a comparison of evidence profiles (which
    classical detectors do well, and which badly) with those of real tables. Outliers in real tables mostly lie in the
    gaps between tight classes of inliers, far from every row but not from the centre; so hidden classes and uniform
    noise have the largest weights. In real tables nearest neighbours on z-scores do better, and local ratios worse,
    than one would expect; few causes and near-copies of rows have the same effect here.
    """

    shares: OutlierShares = field(default_factory=OutlierShares)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights("shares", self.shares)


def causal_tables(config: CausalConfig, draws: Draws, datasets: int, inliers: int, outliers: int) -> Tables:
    """Fresh datasets of so many inliers and outliers each."""
    world = draw_world(config, draws, datasets)
    usual, unusual = draw_rows(config, draws, world, inliers, outliers)
    of_kind = draw_kinds(config, config.shares, draws, datasets, outliers)
    strength = draw_strength(config, draws, datasets, outliers)

    # Outliers that differ inside the network
    if "hidden_class" in of_kind:
        unusual.classes = torch.where(of_kind["hidden_class"], config.classes, unusual.classes)
    as_usual = torch.ones(1, 1, device=draws.device)
    boost = torch.where(of_kind["inflated_causes"], strength, 1.0) if "inflated_causes" in of_kind else as_usual
    stats: list[tuple[Tensor, Tensor]] = []
    pool = run(world, usual, as_usual, stats)
    strange = run(world, unusual, boost, stats)
    if "mechanism" in of_kind:
        other = run(another_mechanism(draws, world, strength), unusual, boost, stats)
        strange = torch.where(of_kind["mechanism"][..., None], other, strange)

    normal, strange = observe(world, pool, usual, strange, unusual)
    normal = odd_inliers(config, draws, normal)
    # Outliers that differ in the observed features
    real = real_features(world.n_features, config.max_features)
    scene = Scene(strange, unusual.classes, normal, usual.classes, config.classes + 1, strength, real)
    return raw_tables(config, draws, normal, spoil_features(scene, of_kind, draws), world.n_features)
