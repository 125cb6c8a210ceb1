"""Outliers by what happens to the features that are seen; what happens inside the network is in `causal`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.draws import Draws


@dataclass
class Spoiled:
    """Which outliers are of which kind, and how strong they are.

    of_kind: name -> (B, m) bool; strength: (B, m), 1 = as usual; real: (B, D) bool, false for padding columns.
    """

    of_kind: Mapping[str, Tensor]
    strength: Tensor
    real: Tensor


def spoil_features(
    outliers: Tensor, classes: Tensor, inliers: Tensor, inlier_classes: Tensor, spoiled: Spoiled, draws: Draws
) -> Tensor:
    """Outliers (B, m, D) with the features of those of a feature kind changed; the other rows are returned as they are.

    inliers: (B, n, D), in standard deviations; classes, inlier_classes: latent class of each row.
    """
    subset = _subsets(spoiled.real, outliers.shape[1], draws)
    few = _few(spoiled.real, outliers.shape[1], draws)
    changed: dict[str, Callable[[], Tensor]] = {
        "inflated_features": lambda: torch.where(
            subset, _inflated(outliers, classes, inliers, inlier_classes, spoiled.strength), outliers
        ),
        "noise": lambda: torch.where(subset, _uniform(inliers, spoiled.strength, draws), outliers),
        "dependency": lambda: torch.where(subset, _of_other_rows(inliers, subset, spoiled.real, draws), outliers),
        "spikes": lambda: torch.where(few, _spiked(outliers, spoiled.strength, draws), outliers),
        "clusters": lambda: _clustered(outliers, inliers, spoiled, draws),
    }
    result = outliers
    for name, change in changed.items():
        result = torch.where(spoiled.of_kind[name][..., None], change(), result)
    return result


def _subsets(real: Tensor, rows: int, draws: Draws) -> Tensor:
    """(B, m, D) bool, the features to change: all, a share or a few; the same for a dataset or new for each row."""
    b, d = real.shape
    count = real.sum(1)
    share = draws.uniform(b, low=0.1, high=0.9)
    extent = draws.category([0.4, 0.4, 0.2], b)
    size = torch.stack([count, (share * count).ceil().long(), draws.integers(1, 3, b)], 1)
    size = size.gather(1, extent[:, None]).squeeze(1)
    same = draws.subset(size, real)[:, None].expand(b, rows, d)
    own = draws.subset(size[:, None].expand(b, rows), real[:, None].expand(b, rows, d))
    return torch.where(draws.chance(0.5, b, 1, 1), own, same)


def _few(real: Tensor, rows: int, draws: Draws) -> Tensor:
    """(B, m, D) bool: one to three features of each row."""
    b, d = real.shape
    return draws.subset(draws.integers(1, 3, b, rows), real[:, None].expand(b, rows, d))


def _inflated(outliers: Tensor, classes: Tensor, inliers: Tensor, inlier_classes: Tensor, strength: Tensor) -> Tensor:
    n_classes = 1 + int(torch.maximum(classes.max(), inlier_classes.max()))
    member = torch.nn.functional.one_hot(inlier_classes, n_classes).to(inliers.dtype)
    means = torch.bmm(member.transpose(1, 2), inliers) / member.sum(1).clamp_min(1.0)[..., None]
    center = means.gather(1, classes[..., None].expand_as(outliers))
    return center + (outliers - center) * strength[..., None]


def _uniform(inliers: Tensor, strength: Tensor, draws: Draws) -> Tensor:
    """Uniform over a range that grows with the strength from the inner half of the inliers' to about twice it."""
    low, high = inliers.amin(1, True), inliers.amax(1, True)
    # the extremes of heavy-tailed features would make the range meaningless: keep it near the bulk
    low, high = low.clamp_min(-6.0), high.clamp_max(6.0)
    middle, reach = (low + high) / 2, (high - low) / 2 * (0.5 + 0.1 * strength[..., None])
    return middle + reach * draws.uniform(*strength.shape, inliers.shape[-1], low=-1.0)


def _of_other_rows(inliers: Tensor, subset: Tensor, real: Tensor, draws: Draws) -> Tensor:
    """Each value from some inlier: from one and the same for the whole row, or from another for every feature.

    Where most features change, never from one and the same, or the row would be a copy of that inlier.
    """
    b, m, d = subset.shape
    one = draws.integers(0, inliers.shape[1] - 1, b, m, 1).expand(b, m, d)
    each = draws.integers(0, inliers.shape[1] - 1, b, m, d)
    most = 2 * subset.sum(-1) > real.sum(1)[:, None]
    apart = draws.chance(0.5, b, 1) | most
    return inliers.gather(1, torch.where(apart[..., None], each, one))


def _spiked(outliers: Tensor, strength: Tensor, draws: Draws) -> Tensor:
    size = (strength - 1).clamp_min(0.0)[..., None] * 2 * draws.uniform(*outliers.shape, low=0.5, high=1.5)
    return outliers + size * draws.sign(*outliers.shape)


def _clustered(outliers: Tensor, inliers: Tensor, spoiled: Spoiled, draws: Draws) -> Tensor:
    """One to three tight groups, each some way from an inlier in a direction of its own."""
    b, m, d = outliers.shape
    clusters = 3
    real = spoiled.real[:, None]
    anchor = inliers.gather(1, draws.integers(0, inliers.shape[1] - 1, b, clusters, 1).expand(-1, -1, d))
    axes = draws.subset(draws.integers(1, spoiled.real.sum(1)[:, None], b, clusters), real.expand(b, clusters, d))
    away = spoiled.strength.mean(1)[:, None, None] * draws.normal(b, clusters, d) * axes
    center = anchor + away
    pick = draws.integers(0, draws.integers(0, clusters - 1, b, 1), b, m)
    center = center.gather(1, pick[..., None].expand(b, m, d))
    tight = draws.uniform(b, 1, 1, low=0.02, high=0.6)
    return center + (outliers - outliers.mean(1, True)) * tight
