"""Kinds of outliers that change the observed features. (Other kinds are in the modules of networks and copulas.)

Every kind takes rows distributed like inliers and changes them. Lengths are in standard deviations of the inliers. Rows
of strength 1 do not change, except by `noise`, `dependency` and `clusters`, which have no size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.priors.draws import Draws

NEIGHBOURS = 5  # of a row; their mean distance is its local scale


@dataclass
class Scene:
    """Rows to change, and the inliers around them.

    rows: (B, m, D); inliers: (B, n, D); classes (B, m), inlier_classes (B, n): latent classes, below `n_classes`;
    strength: (B, m), 1 = like an inlier; real: (B, D) bool, false for padding columns.
    """

    rows: Tensor
    classes: Tensor
    inliers: Tensor
    inlier_classes: Tensor
    n_classes: int
    strength: Tensor
    real: Tensor


def spoil_features(scene: Scene, of_kind: Mapping[str, Tensor], draws: Draws) -> Tensor:
    """The rows (B, m, D), changed where a row is of a kind in this module.

    of_kind: name -> (B, m) bool. Missing kinds cost no time; names of other kinds are ignored.
    """
    subset, few = _subsets(scene, draws), _few(scene, draws)
    kinds: dict[str, Callable[[], Tensor]] = {
        "inflated_features": lambda: torch.where(subset, inflated(scene), scene.rows),
        "noise": lambda: torch.where(subset, _uniform(scene, draws), scene.rows),
        "dependency": lambda: torch.where(subset, _of_other_rows(scene, subset, draws), scene.rows),
        "spikes": lambda: torch.where(few, _spiked(scene, 2.0, draws), scene.rows),
        "clusters": lambda: _clustered(scene, draws),
        "local": lambda: displaced(scene, draws),
        "perturbed": lambda: torch.where(_several(scene, draws), _spiked(scene, 0.2, draws), scene.rows),
        "contextual": lambda: out_of_context(scene, subset, draws),
        "between": lambda: between_classes(scene, draws),
        "far": lambda: torch.where(subset, beyond_all(scene, draws), scene.rows),
    }
    result = scene.rows
    for name, change in kinds.items():
        if name in of_kind:
            result = torch.where(of_kind[name][..., None], change(), result)
    return result


def _subsets(scene: Scene, draws: Draws) -> Tensor:
    """(B, m, D) bool, the features to change: all, a share or a few; the same for all rows, or drawn per row."""
    b, rows, d = scene.rows.shape
    count = scene.real.sum(1)
    share = draws.uniform(b, low=0.1, high=0.9)
    extent = draws.category([0.4, 0.4, 0.2], b)
    size = torch.stack([count, (share * count).ceil().long(), draws.integers(1, 3, b)], 1)
    size = size.gather(1, extent[:, None]).squeeze(1)
    same = draws.subset(size, scene.real)[:, None].expand(b, rows, d)
    own = draws.subset(size[:, None].expand(b, rows), scene.real[:, None].expand(b, rows, d))
    return torch.where(draws.chance(0.5, b, 1, 1), own, same)


def _few(scene: Scene, draws: Draws) -> Tensor:
    """(B, m, D) bool: one to three features of each row."""
    b, m, d = scene.rows.shape
    return draws.subset(draws.integers(1, 3, b, m), scene.real[:, None].expand(b, m, d))


def _several(scene: Scene, draws: Draws) -> Tensor:
    """(B, m, D) bool: one feature of each row up to a third of them."""
    b, m, d = scene.rows.shape
    limit = (scene.real.sum(1)[:, None] / 3).ceil().long()
    return draws.subset(draws.integers(1, limit, b, m), scene.real[:, None].expand(b, m, d))


def _class_means(scene: Scene) -> tuple[Tensor, Tensor]:
    """Means (B, C, D) of the inliers of each class, 0 for empty classes, and their counts (B, C)."""
    member = torch.nn.functional.one_hot(scene.inlier_classes, scene.n_classes).to(scene.inliers.dtype)
    counts = member.sum(1)
    return torch.bmm(member.transpose(1, 2), scene.inliers) / counts.clamp_min(1.0)[..., None], counts


def _other_class(scene: Scene, counts: Tensor, draws: Draws) -> Tensor:
    """(B, m) a random class with inliers, other than that of the row if there is one."""
    own = torch.nn.functional.one_hot(scene.classes, scene.n_classes).bool()
    open_ = (counts > 0)[:, None] & ~own
    pick = draws.uniform(*own.shape).masked_fill(~open_, -1.0).argmax(-1)
    return torch.where(open_.any(-1), pick, scene.classes)


def inflated(scene: Scene) -> Tensor:
    """Rows with a wider spread around the mean of their class."""
    means, _ = _class_means(scene)
    center = means.gather(1, scene.classes[..., None].expand_as(scene.rows))
    return center + (scene.rows - center) * scene.strength[..., None]


def _uniform(scene: Scene, draws: Draws) -> Tensor:
    """Uniform values; their range grows with the strength, from half the range of inliers to about twice that."""
    low, high = scene.inliers.amin(1, True), scene.inliers.amax(1, True)
    # without this the extremes of heavy-tailed features would determine the range
    low, high = low.clamp_min(-6.0), high.clamp_max(6.0)
    middle, reach = (low + high) / 2, (high - low) / 2 * (0.5 + 0.1 * scene.strength[..., None])
    return middle + reach * draws.uniform(*scene.rows.shape, low=-1.0)


def _of_other_rows(scene: Scene, subset: Tensor, draws: Draws) -> Tensor:
    """Values of inliers: all values of a row from one inlier, or each feature from a different inlier.

    If most features change, each is from a different inlier; otherwise the row would be a copy of one.
    """
    b, m, d = subset.shape
    last = scene.inliers.shape[1] - 1
    one = draws.integers(0, last, b, m, 1).expand(b, m, d)
    each = draws.integers(0, last, b, m, d)
    most = 2 * subset.sum(-1) > scene.real.sum(1)[:, None]
    apart = draws.chance(0.5, b, 1) | most
    return scene.inliers.gather(1, torch.where(apart[..., None], each, one))


def _spiked(scene: Scene, size: float, draws: Draws) -> Tensor:
    """Every feature moved up or down by about `size` per unit of strength."""
    reach = (scene.strength - 1).clamp_min(0.0)[..., None] * size * draws.uniform(*scene.rows.shape, low=0.5, high=1.5)
    return scene.rows + reach * draws.sign(*scene.rows.shape)


def _clustered(scene: Scene, draws: Draws) -> Tensor:
    """One to three tight groups, each at a distance from an inlier, in random directions."""
    b, m, d = scene.rows.shape
    clusters = 3
    anchor = scene.inliers.gather(1, draws.integers(0, scene.inliers.shape[1] - 1, b, clusters, 1).expand(-1, -1, d))
    size = draws.integers(1, scene.real.sum(1)[:, None], b, clusters)
    axes = draws.subset(size, scene.real[:, None].expand(b, clusters, d))
    away = scene.strength.mean(1)[:, None, None] * draws.normal(b, clusters, d) * axes
    center = anchor + away
    pick = draws.integers(0, draws.integers(0, clusters - 1, b, 1), b, m)
    center = center.gather(1, pick[..., None].expand(b, m, d))
    tight = draws.uniform(b, 1, 1, low=0.02, high=0.6)
    return center + (scene.rows - scene.rows.mean(1, True)) * tight


def local_scale(scene: Scene) -> Tensor:
    """(B, m) mean distance of each row to its nearest inliers over the real features."""
    real = scene.real[:, None]
    distances = torch.cdist(scene.rows * real, scene.inliers * real)
    return distances.topk(min(NEIGHBOURS, scene.inliers.shape[1]), dim=-1, largest=False).values.mean(-1)


def displaced(scene: Scene, draws: Draws) -> Tensor:
    """Rows moved in random directions by a small multiple of the local scale: (strength - 1) / 2 times it.

    Such a row is an outlier only for its neighbourhood: rows in sparse regions are as far from the inliers.
    """
    direction = torch.nn.functional.normalize(draws.normal(*scene.rows.shape) * scene.real[:, None], dim=-1)
    size = (scene.strength - 1).clamp_min(0.0) / 2 * local_scale(scene)
    return scene.rows + direction * size[..., None]


def out_of_context(scene: Scene, subset: Tensor, draws: Draws) -> Tensor:
    """Rows with a subset of features from an inlier of another class: usual values in an unusual combination.

    If the subset has all features, one of them stays. With one class only, the inlier is of the same class.
    """
    _, counts = _class_means(scene)
    wanted = _other_class(scene, counts, draws)
    # sorted by class, shuffled within a class
    order = (scene.inlier_classes + draws.uniform(*scene.inlier_classes.shape)).argsort(1)
    count = counts.gather(1, wanted)
    first = counts.cumsum(1).gather(1, wanted) - count
    index = (first + draws.uniform(*wanted.shape) * count).long().clamp_max(order.shape[1] - 1)
    donor = scene.inliers.gather(1, order.gather(1, index)[..., None].expand_as(scene.rows))
    stays = draws.subset(torch.ones_like(wanted), scene.real[:, None].expand_as(scene.rows))
    whole = (subset | ~scene.real[:, None]).all(-1, keepdim=True)
    swapped = subset & ~(stays & whole) & (scene.strength != 1)[..., None]
    return torch.where(swapped, donor, scene.rows)


def between_classes(scene: Scene, draws: Draws) -> Tensor:
    """Rows moved a third to two thirds of the way to another class, into the gap between the two.

    The row keeps its deviation from the class mean, so only its position is unusual. With one class it does not move.
    """
    means, counts = _class_means(scene)
    other = _other_class(scene, counts, draws)[..., None].expand_as(scene.rows)
    own = scene.classes[..., None].expand_as(scene.rows)
    way = draws.uniform(*scene.strength.shape, low=1 / 3, high=2 / 3) * (scene.strength != 1)
    return scene.rows + way[..., None] * (means.gather(1, other) - means.gather(1, own))


def beyond_all(scene: Scene, draws: Draws) -> Tensor:
    """Every feature beyond the farthest inlier, above or below; the distance grows with the strength."""
    low, high = scene.inliers.amin(1, True), scene.inliers.amax(1, True)
    reach = (high - low) * 0.05 * (scene.strength - 1).clamp_min(0.0)[..., None] * draws.uniform(*scene.rows.shape)
    outside = torch.where(draws.chance(0.5, *scene.rows.shape), high + reach, low - reach)
    return torch.where((scene.strength != 1)[..., None], outside, scene.rows)
