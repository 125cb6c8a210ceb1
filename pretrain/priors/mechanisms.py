"""Random networks of mechanisms: root causes in latent classes, layers of noisy nodes, features that observe nodes.

All operations are vectorised over datasets. `run` computes the values of all nodes, `observe` the features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pretrain.priors.checks import Range, check_range, check_share
from pretrain.priors.draws import Draws
from pretrain.priors.table_prior import TableConfig, draw_class_shares, draw_widths

ACTIVATIONS = 8  # kinds of nodes, equally many of each per layer; a dataset uses some kinds more than others


@dataclass(frozen=True)
class NetworkConfig(TableConfig):
    """Settings of the networks and their rows; lengths in standard deviations."""

    causes: tuple[int, int] = (2, 6)
    layers: int = 3  # of the network; features may observe any of them
    width: int = 32  # nodes per layer, a multiple of 8; each dataset uses a part of them
    connections: Range = (0.08, 0.8)  # share of the layer's inputs that a node reads
    gain: Range = (0.5, 2.5)  # scale of the input of an activation
    node_noise: Range = (0.005, 0.3)
    measurement_noise: Range = (0.003, 0.25)
    independent_share: float = 0.2  # maximum share of the features that are independent noise
    heavy_tails: float = 0.5  # share of datasets whose noise is heavy-tailed
    class_spread: Range = (0.1, 1.0)  # of a class in each cause, drawn for every class and cause
    grouped: float = 0.6  # share of datasets in which rows come in groups of near-copies
    groups: tuple[int, int] = (12, 512)
    likeness: Range = (0.8, 0.999)  # correlation of the noise within a group, uniform
    strangers: float = 0.5  # share of the grouped datasets whose outliers are in groups without inliers

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gain", "node_noise", "measurement_noise", "class_spread"):
            check_range(name, getattr(self, name), low=1e-9)
        check_range("connections", self.connections, 1e-9, 1.0)
        check_range("likeness", self.likeness, 0.0, 1.0)
        check_range("causes", self.causes, low=1)
        check_range("groups", self.groups, low=1)
        for name in ("independent_share", "heavy_tails", "grouped", "strangers"):
            check_share(name, getattr(self, name))
        if self.layers < 1 or self.width < 1 or self.width % ACTIVATIONS:
            raise ValueError(
                f"layers is at least 1 and width a multiple of {ACTIVATIONS}, not {self.layers}, {self.width}"
            )


@dataclass
class World:
    """The mechanisms of B datasets: R causes, L layers of H nodes, P = R + L * H nodes in all, D features."""

    centers: Tensor  # (B, C + 1, R); the last class is the hidden one
    scales: Tensor  # (B, C + 1, R)
    laws: Tensor  # (B, R) index of the distribution of a cause within its class
    weights: list[Tensor]  # L of (B, R + H, H)
    gains: Tensor  # (B, L, 1, H)
    biases: Tensor  # (B, L, 1, H)
    noise: Tensor  # (B, 1, L * H)
    uneven: Tensor  # (B, 1, 1) growth of the noise with the input of a node
    tails: Tensor  # (B, 1, 1) weight of the tails of the noise; 0 = normal
    nodes: Tensor  # (B, D) the node that a feature observes
    own_noise: Tensor  # (B, 1, D) measurement noise relative to the node's deviation
    n_features: Tensor  # (B,)


@dataclass
class Rows:
    """The classes of the rows, and all their random numbers."""

    classes: Tensor  # (B, N)
    noise: Tensor  # (B, N, P)
    own_noise: Tensor  # (B, N, D)


def draw_world(config: NetworkConfig, draws: Draws, datasets: int) -> World:
    b, layers, width = datasets, config.layers, config.width
    max_causes, max_features = config.causes[1], config.max_features
    n_features = draw_widths(config, draws, b)

    causes = draws.log_uniform(b, low=config.causes[0], high=max_causes + 0.99).long()
    is_cause = (torch.arange(max_causes, device=draws.device) < causes[:, None]).float()
    classes = config.classes + 1
    apart = draws.log_uniform(b, 1, 1, low=config.separation[0], high=config.separation[1])
    apart = apart * (draws.normal(b, classes, 1) * config.remoteness).exp()
    centers = draws.normal(b, classes, max_causes) * apart * draws.chance(0.7, b, 1, max_causes)
    scales = draws.log_uniform(b, classes, max_causes, low=config.class_spread[0], high=config.class_spread[1])

    kinds, taken = _node_preferences(draws, b, layers, width)
    connected = draws.log_uniform(b, 1, 1, low=config.connections[0], high=config.connections[1])
    weights = []
    for layer in range(layers):
        before = taken[:, layer - 1] if layer else torch.zeros_like(taken[:, 0])
        source = torch.cat([is_cause, before], 1)[..., None]
        present = draws.chance(connected, b, max_causes + width, width)
        weights.append(draws.normal(b, max_causes + width, width) * present * source)

    direct = draws.uniform(b, 1, high=1.0).square() * 0.7  # share of features that observe a root cause
    shallow = draws.log_uniform(b, layers, 1, low=0.1, high=1.0)
    popular = draws.normal(b, max_causes + layers * width).exp()
    inner = (taken * kinds * shallow).flatten(1)
    shown = torch.cat([is_cause * direct / is_cause.sum(1, True), inner * (1 - direct) / inner.sum(1, True)], 1)
    nodes = draws.category(shown * popular + 1e-9, b, max_features)

    measured = draws.log_uniform(b, 1, 1, low=config.measurement_noise[0], high=config.measurement_noise[1])
    own_noise = measured * draws.log_uniform(b, 1, max_features, low=0.5, high=2.0)
    independent = draws.chance(draws.uniform(b, 1, 1).square() * config.independent_share, b, 1, max_features)
    noise = draws.log_uniform(b, 1, 1, low=config.node_noise[0], high=config.node_noise[1])
    return World(
        centers=centers,
        scales=scales,
        laws=draws.integers(0, 4, b, max_causes),
        weights=weights,
        gains=draws.log_uniform(b, layers, 1, width, low=config.gain[0], high=config.gain[1]),
        biases=draws.normal(b, layers, 1, width) * 0.7,
        noise=noise * draws.log_uniform(b, 1, layers * width, low=0.3, high=3.0),
        uneven=draws.uniform(b, 1, 1) * draws.chance(0.3, b, 1, 1),
        tails=draws.uniform(b, 1, 1, low=0.2, high=1.0) * draws.chance(config.heavy_tails, b, 1, 1),
        nodes=nodes,
        own_noise=torch.where(independent, 100.0, own_noise),
        n_features=n_features,
    )


def _node_preferences(draws: Draws, b: int, layers: int, width: int) -> tuple[Tensor, Tensor]:
    """Weight of the kind of each node (B, L, H), and whether the dataset uses the node (B, L, H), 0 or 1."""
    # in the order of `_activate`; sine has the least weight, because it hides values outside the usual range
    usual = torch.tensor([1.0, 0.7, 0.6, 0.4, 0.4, 0.3, 0.3, 0.1], device=draws.device)
    liked = usual * draws.uniform(b, 1, ACTIVATIONS).pow(3).clamp_min(1e-3)
    kinds = (liked / liked.amax(-1, keepdim=True)).expand(b, layers, ACTIVATIONS)
    kinds = kinds.repeat_interleave(width // ACTIVATIONS, -1)
    taken = draws.chance((2 * kinds).clamp(0.05, 1.0), b, layers, width).float()
    taken[..., 0] = 1.0  # no layer is empty
    return kinds, taken


def draw_rows(config: NetworkConfig, draws: Draws, world: World, inliers: int, outliers: int) -> tuple[Rows, Rows]:
    """Classes and noise of inliers and outliers. Rows of a group share their class and much of their noise."""
    b, total = len(world.nodes), inliers + outliers
    nodes = world.centers.shape[-1] + world.noise.shape[-1]
    groups = draws.log_uniform(b, 1, low=config.groups[0], high=config.groups[1])
    grouped = draws.chance(config.grouped, b, 1)
    groups = torch.where(grouped, groups, float(config.groups[1])).long()
    likeness = draws.uniform(b, 1, low=config.likeness[0], high=config.likeness[1]) * grouped

    share = draw_class_shares(config, draws, b)
    spare = config.groups[1]  # groups from this index on are for outliers only
    class_of = draws.category(share, b, 2 * spare)
    group = draws.integers(0, groups - 1, b, total)
    strangers = draws.chance(config.strangers, b, 1) & grouped
    group[:, inliers:] += torch.where(strangers, spare, 0)
    classes = class_of.gather(1, group)
    shared = draws.normal(b, 2 * spare, nodes).gather(1, group[..., None].expand(-1, -1, nodes))
    mix = likeness[..., None]
    noise = draws.normal(b, total, nodes) * (1 - mix.square()).sqrt() + shared * mix
    own = draws.normal(b, total, world.nodes.shape[1]) * (1 - mix.square()).sqrt()
    own = own * (world.tails * draws.normal(*own.shape)).exp()
    return (
        Rows(classes[:, :inliers], noise[:, :inliers], own[:, :inliers]),
        Rows(classes[:, inliers:], noise[:, inliers:], own[:, inliers:]),
    )


def _causes(world: World, rows: Rows, boost: Tensor) -> Tensor:
    """(B, N, R) root causes: the class's centre plus its scatter, times `boost` (B, N) or (1, 1)."""
    r = world.centers.shape[-1]
    e = rows.noise[..., :r]
    laws = (
        e,
        torch.erf(e * 0.7071) * 1.73,
        e.sign() * e.abs().pow(1.5),
        e * (0.6 * e.abs()).exp() * 0.5,
        (e.clamp_max(6.0) * 0.7).exp() - 1.2,
    )
    scatter = torch.zeros_like(e)
    for i, values in enumerate(laws):
        scatter = torch.where((world.laws == i)[:, None], values, scatter)
    index = rows.classes[..., None].expand(-1, -1, r)
    return world.centers.gather(1, index) + scatter * world.scales.gather(1, index) * boost[..., None]


def run(world: World, rows: Rows, boost: Tensor, stats: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Pass rows through the network: (B, N, P) values of the causes and of every node.

    stats: location and scale of each layer. The first call, with the inliers and an empty list, fills it; later calls
    use it, so that outliers pass through the same mechanism.
    """
    fit = not stats
    causes = _causes(world, rows, boost)
    width = world.weights[0].shape[-1]
    noise = rows.noise[..., causes.shape[-1] :]
    noise = noise * (world.tails * noise.flip(-1)).exp() * world.noise
    values, last = [causes], causes.new_zeros(*causes.shape[:2], width)
    for i, weight in enumerate(world.weights):
        inputs = torch.bmm(torch.cat([causes, last], -1), weight)
        if fit:
            stats.append((inputs.mean(1, True), inputs.std(1, keepdim=True).clamp_min(1e-2)))
        location, scale = stats[i]
        inputs = (inputs - location) / scale * world.gains[:, i] + world.biases[:, i]
        here = noise[..., i * width : (i + 1) * width] * (1 + world.uneven * (inputs.abs() - 1))
        last = (_activate(inputs) + here).clamp(-1e3, 1e3)
        values.append(last)
    return torch.cat(values, -1)


def _activate(x: Tensor) -> Tensor:
    """One kind of activation for each eighth of the nodes (last axis)."""
    a, b, c, d, e, f, g, h = x.chunk(ACTIVATIONS, -1)
    return torch.cat(
        [
            a,
            torch.tanh(b),
            c.relu(),
            d.abs(),
            e.clamp_max(3.0).exp() * 0.5 + (e - 3.0).relu() * 10,
            (f > 0).to(x.dtype),
            g.square().clamp_max(1e3),
            torch.sin(2 * h),
        ],
        -1,
    )


def another_mechanism(draws: Draws, world: World, strength: Tensor) -> World:
    """The same world with other weights and a shifted bias in a part of the nodes of every layer."""
    b, layers = world.gains.shape[:2]
    width = world.gains.shape[-1]
    changed = draws.chance(draws.uniform(b, 1, 1, 1, low=0.1, high=0.7), b, layers, 1, width)
    size = strength.mean(1)[:, None, None] / 3
    weights = [
        torch.where(changed[:, i], w[:, :, draws.order(width)] * (0.5 + size), w) for i, w in enumerate(world.weights)
    ]
    shift = draws.normal(b, layers, 1, width) * size[..., None]
    return replace(world, weights=weights, biases=torch.where(changed, world.biases + shift, world.biases))


def observe(world: World, pool: Tensor, usual: Rows, strange: Tensor, unusual: Rows) -> tuple[Tensor, Tensor]:
    """Features (B, N, D) of inliers and outliers in standard deviations of the inliers, with measurement noise."""
    location, scale = pool.mean(1, True), pool.std(1, keepdim=True).clamp_min(1e-3)
    size = (1 + world.own_noise.square()).sqrt()
    observed = []
    for values, rows in ((pool, usual), (strange, unusual)):
        index = world.nodes[:, None].expand(-1, values.shape[1], -1)
        features = ((values - location) / scale).gather(2, index)
        observed.append((features + rows.own_noise * world.own_noise) / size)
    return observed[0], observed[1]
