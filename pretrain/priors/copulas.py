"""The copula prior: tables whose features depend on each other through a copula, with marginals of various shapes.

A table is a mixture of classes. Each class has its own centre, spread and dependence: factor models (dense, blocks or
sparse) under Gaussian or Student copulas, or groups of features with Clayton or Gumbel copulas, in any orientation.
Outliers keep the marginals and violate the dependence, or are of the kinds in `anomalies`.

The samplers make *normal scores*: the rank of a value as a quantile of the standard normal distribution. B datasets at
once, N rows, D features, K factors (or groups of features that share a frailty).

    >>> from pretrain.priors.draws import Draws
    >>> tables = copula_tables(CopulaConfig(max_features=20), Draws(0), datasets=4, inliers=300, outliers=32)
    >>> tables.inliers.shape, tables.outliers.shape, bool(tables.outliers.isfinite().all())
    (torch.Size([4, 300, 20]), torch.Size([4, 32, 20]), True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

import torch
from torch import Tensor

from pretrain.priors.anomalies import Scene, spoil_features
from pretrain.priors.checks import Range, check_range, check_share, check_weights
from pretrain.priors.datasets import Tables
from pretrain.priors.draws import Draws
from pretrain.priors.marginals import choose, draw_choices
from pretrain.priors.table_prior import (
    TableConfig,
    draw_class_shares,
    draw_kinds,
    draw_strength,
    draw_widths,
    odd_inliers,
    raw_tables,
    real_features,
)

_TINY = 1e-7  # minimum distance of ranks from 0 and 1, about the resolution of float32


@dataclass(frozen=True)
class CopulaShares:
    """Relative weights of the kinds of outliers. All except the first two are as in `causal`."""

    reflected: float = 0.10  # features mirrored within their marginals, so correlations change their sign
    other_tail: float = 0.06  # features that are extreme together in a corner without inliers
    hidden_class: float = 0.28
    inflated_features: float = 0.06
    noise: float = 0.16
    dependency: float = 0.05
    spikes: float = 0.05
    clusters: float = 0.04
    local: float = 0.05
    perturbed: float = 0.03
    contextual: float = 0.04
    between: float = 0.06
    far: float = 0.02


@dataclass(frozen=True)
class CopulaFamilies:
    """Relative weights of the copula families, in the order of `_draw_scores`."""

    gaussian: float = 1.0
    student: float = 1.0
    clayton: float = 0.7
    gumbel: float = 0.7


@dataclass(frozen=True)
class QuantileShapes:
    """Relative weights of the shapes of marginals within a class, in the order of `_quantiles`."""

    normal: float = 1.0
    skewed: float = 0.8  # Tukey's g-and-h: skewed, heavy-tailed
    uniform: float = 0.3
    two_peaks: float = 0.3


@dataclass(frozen=True)
class CopulaConfig(TableConfig):
    """Settings of the tables. Each dataset draws one value from a range, log-uniformly unless noted otherwise."""

    single_class: float = 0.25
    classes: int = 8
    separation: Range = (0.4, 4.0)  # of the classes, in a share of the features, uniform from 0.1 to 1
    class_spread: Range = (0.1, 1.0)  # of a class in each feature, drawn for every class and feature
    factors: tuple[int, int] = (1, 8)  # common factors of the features, or groups of features with their own frailty
    structures: tuple[float, float, float] = (0.4, 0.3, 0.3)  # weights of dense, block and sparse loadings
    dependence: Range = (0.2, 0.98)  # uniform; share of a feature explained by factors, Kendall's tau in groups
    independent_share: float = 0.3  # maximum share of the features that are independent of all others
    degrees: Range = (1.5, 30.0)  # degrees of freedom of Student copulas
    mixed_families: float = 0.3  # share of datasets in which every group of features has its own family
    families: CopulaFamilies = field(default_factory=CopulaFamilies)
    shapes: QuantileShapes = field(default_factory=QuantileShapes)
    shares: CopulaShares = field(default_factory=CopulaShares)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("class_spread", self.class_spread, low=1e-9)
        check_range("factors", self.factors, low=1)
        check_range("dependence", self.dependence, 0.0, 1.0)
        check_range("degrees", self.degrees, low=1.0)
        for name in ("independent_share", "mixed_families"):
            check_share(name, getattr(self, name))
        if len(self.structures) != 3 or min(self.structures) < 0 or max(self.structures) <= 0:
            raise ValueError(f"structures are three weights (dense, blocks, sparse), not {self.structures!r}")
        for name in ("families", "shapes", "shares"):
            check_weights(name, getattr(self, name))


@dataclass
class _Law:
    """The joint distributions of B datasets: C + 1 classes (the last one hidden), K factors or groups, D features."""

    families: Tensor  # (B, D) index
    loadings: Tensor  # (B, C + 1, K, D)
    groups: Tensor  # (B, D) below K
    tau: Tensor  # (B, K)
    degrees: Tensor  # (B,)
    corners: Tensor  # (B, C + 1, D), -1 or 1: the orientation of the features of a class
    alone: Tensor  # (B, D) bool, independent features
    centers: Tensor  # (B, C + 1, D)
    spreads: Tensor  # (B, C + 1, D)


def copula_tables(config: CopulaConfig, draws: Draws, datasets: int, inliers: int, outliers: int) -> Tables:
    """Fresh datasets of so many inliers and outliers each."""
    n_features = draw_widths(config, draws, datasets)
    law = _draw_law(config, draws, datasets)
    classes = draws.category(draw_class_shares(config, draws, datasets), datasets, inliers + outliers)
    of_kind = draw_kinds(config, config.shares, draws, datasets, outliers)
    strength = draw_strength(config, draws, datasets, outliers)
    if "hidden_class" in of_kind:
        hidden = torch.where(of_kind["hidden_class"], config.classes, classes[:, inliers:])
        classes = torch.cat([classes[:, :inliers], hidden], 1)

    scores = _draw_scores(config, law, classes, draws)
    strange = _break_dependence(law, scores[:, inliers:], classes[:, inliers:], strength, of_kind, draws)
    scores = torch.cat([scores[:, :inliers], strange], 1)
    rows = _quantiles(scores, config.shapes, draws)
    member = classes[..., None].expand_as(rows)
    rows = law.centers.gather(1, member) + law.spreads.gather(1, member) * rows
    usual = rows[:, :inliers]
    rows = (rows - usual.mean(1, True)) / usual.std(1, keepdim=True).clamp_min(1e-3)

    normal, strange = odd_inliers(config, draws, rows[:, :inliers]), rows[:, inliers:]
    real = real_features(n_features, config.max_features)
    scene = Scene(strange, classes[:, inliers:], normal, classes[:, :inliers], config.classes + 1, strength, real)
    return raw_tables(config, draws, normal, spoil_features(scene, of_kind, draws), n_features)


def _draw_law(config: CopulaConfig, draws: Draws, b: int) -> _Law:
    classes, d = config.classes + 1, config.max_features
    k = config.factors[1]  # maximum number of factors
    factors = draws.log_uniform(b, 1, low=config.factors[0], high=k + 0.99).long()
    groups = draws.integers(0, factors - 1, b, d)
    present = (torch.arange(k, device=draws.device) < factors)[..., None]  # (B, K, 1)
    block = torch.nn.functional.one_hot(groups, k).transpose(1, 2).bool()
    sparse = (draws.chance(0.3, b, k, d) | block) & present
    structure = draws.category(config.structures, b)[:, None, None]
    mask = torch.where(structure == 0, present, torch.where(structure == 1, block, sparse))

    explained = draws.uniform(b, 1, low=config.dependence[0], high=config.dependence[1])
    own = draws.uniform(b, d, low=0.6, high=1.0)  # some features depend less on the factors
    # a class has the loadings of the table, or its own
    alike = draws.chance(0.5, b, classes, 1, 1)
    loadings = torch.where(alike, draws.normal(b, 1, k, d), draws.normal(b, classes, k, d)) * mask[:, None]
    loadings = loadings / loadings.norm(dim=2, keepdim=True).clamp_min(1e-6) * (explained * own).sqrt()[:, None, None]

    mixed = draws.chance(config.mixed_families, b, 1)
    weights = astuple(config.families)
    families = torch.where(mixed, draws.category(weights, b, k), draws.category(weights, b, 1)).gather(1, groups)
    apart = draws.log_uniform(b, 1, 1, low=config.separation[0], high=config.separation[1])
    apart = apart * (draws.normal(b, classes, 1) * config.remoteness).exp()
    turned = torch.where(draws.chance(0.5, b, classes, 1), draws.sign(b, 1, d), draws.sign(b, classes, d))
    return _Law(
        families=families,
        loadings=loadings,
        groups=groups,
        tau=(explained * draws.uniform(b, k, low=0.6, high=1.0)).clamp(0.02, 0.97),
        degrees=draws.log_uniform(b, low=config.degrees[0], high=config.degrees[1]),
        corners=turned,
        alone=draws.chance(draws.uniform(b, 1).square() * config.independent_share, b, d),
        centers=draws.normal(b, classes, d) * apart * draws.chance(draws.uniform(b, 1, 1, low=0.1), b, 1, d),
        spreads=draws.log_uniform(b, classes, d, low=config.class_spread[0], high=config.class_spread[1]),
    )


def _draw_scores(config: CopulaConfig, law: _Law, classes: Tensor, draws: Draws) -> Tensor:
    """(B, N, D) normal scores of rows of the given classes."""
    rows = classes.shape[1]
    gaussian = gaussian_scores(law.loadings, classes, draws)
    versions = [gaussian, gaussian, gaussian, gaussian]
    if config.families.student:
        versions[1] = student_scores(gaussian, law.degrees, draws)
    if config.families.clayton:
        versions[2] = clayton_scores(law.tau, law.groups, rows, draws)
    if config.families.gumbel:
        versions[3] = gumbel_scores(law.tau, law.groups, rows, draws)
    scores = choose(versions, law.families[:, None])
    scores = scores * law.corners.gather(1, classes[..., None].expand_as(scores))
    return torch.where(law.alone[:, None], draws.normal(*scores.shape), scores)


def _break_dependence(
    law: _Law, scores: Tensor, classes: Tensor, strength: Tensor, of_kind: Mapping[str, Tensor], draws: Draws
) -> Tensor:
    """Scores (B, m, D) of outliers, changed for the two kinds that violate the dependence."""
    b, m, d = scores.shape
    spoil = (strength != 1)[..., None]
    result = scores
    if "reflected" in of_kind:
        # about half of the features, so that many pairs have one mirrored feature; the same in all rows, or not
        mirrored = torch.where(draws.chance(0.5, b, 1, 1), draws.sign(b, 1, d), draws.sign(b, m, d))
        result = torch.where(of_kind["reflected"][..., None] & spoil, scores * mirrored, result)
    if "other_tail" in of_kind:
        corner = law.corners.gather(1, classes[..., None].expand_as(scores))
        # Clayton copulas depend in the lower tail, Gumbel in the upper, the others in both: there any corner is rare
        family = law.families[:, None]
        corner = torch.where(family == 2, corner, torch.where(family == 3, -corner, draws.sign(b, m, d)))
        share = 1 - 1 / strength.clamp_min(1.0)[..., None]
        level = 1.2 + 0.1 * strength[..., None] + 0.3 * draws.normal(b, m, d).abs()
        moved = (1 - share) * scores + share * corner * level
        result = torch.where(of_kind["other_tail"][..., None], moved, result)
    return result


def _quantiles(scores: Tensor, shapes: QuantileShapes, draws: Draws) -> Tensor:
    """Normal scores (B, N, D) through one increasing quantile function per column."""
    b, _, d = scores.shape
    skew = (0.5 * draws.normal(b, 1, d)).clamp(-1.2, 1.2)
    skew = torch.where(skew.abs() < 0.02, 0.02, skew)
    tail = draws.log_uniform(b, 1, d, low=0.01, high=0.3)
    power = draws.uniform(b, 1, d, low=0.25, high=0.7)
    shapes_ = (
        scores,
        torch.expm1(skew * scores) / skew * (tail * scores.square() / 2).exp(),
        (torch.special.ndtr(scores) - 0.5) * 12**0.5,
        scores.sign() * scores.abs().pow(power),
    )
    return choose(shapes_, draw_choices(astuple(shapes), b, d, draws))


def gaussian_scores(loadings: Tensor, classes: Tensor, draws: Draws) -> Tensor:
    """Gaussian copulas of factor models: (B, N, D), correlation L^T L off the diagonal.

    loadings: (B, C, K, D), one model per class, each column of squared norm at most 1; classes: (B, N) below C.
    """
    b, c, k, d = loadings.shape
    n = classes.shape[1]
    member = torch.nn.functional.one_hot(classes, c).to(loadings.dtype)
    factors = member[..., None] * draws.normal(b, n, 1, k)  # 0 for other classes: one product does all
    common = torch.bmm(factors.view(b, n, c * k), loadings.reshape(b, c * k, d))
    rest = (1 - loadings.square().sum(2)).clamp_min(0.0).sqrt()
    return common + torch.bmm(member, rest) * draws.normal(b, n, d)


def student_scores(scores: Tensor, degrees: Tensor, draws: Draws) -> Tensor:
    """Gaussian scores (B, N, D) -> scores of Student copulas, where rows are extreme in all features together.

    degrees: (B,) of freedom, at least 1. The monotone map of Wallace (1959) turns t into normal quantiles. Its error is
    below 0.03 for 2 or more degrees; it changes marginals, which are warped later, but no ranks within a column.
    """
    half = (degrees / 2)[:, None].expand(scores.shape[:2])
    scale = torch._standard_gamma(half, generator=draws.generator).clamp_min(_TINY) / half
    nu = degrees[:, None, None]
    t_squared = scores.square() / scale[..., None]
    return scores.sign() * (1 - 2 / (8 * nu + 3)) * (nu * torch.log1p(t_squared / nu)).sqrt()


def clayton_scores(tau: Tensor, groups: Tensor, rows: int, draws: Draws) -> Tensor:
    """Clayton copulas (dependent in the lower tail) within groups of features; groups are independent: (B, rows, D).

    tau: (B, K) Kendall's rank correlation in each group, within (0, 1); groups: (B, D) below K. Marshall and Olkin
    (1988): ranks are psi(E / V) with psi(t) = (1 + t)^(-1/theta), theta = 2 tau / (1 - tau), E exponential and the
    group's frailty V ~ Gamma(1/theta).
    """
    theta = 2 * tau / (1 - tau)
    shape = (1 / theta)[:, None].expand(-1, rows, -1)
    # Gamma(a) = Gamma(a + 1) U^(1/a), in logarithms, because the frailty may be too small for a float
    frailty = torch._standard_gamma(shape + 1, generator=draws.generator).log() + _log_uniform(draws, shape) / shape
    ratio = _log_exponential(draws, rows, groups) - _of_features(frailty, groups)
    minus_log_rank = torch.nn.functional.softplus(ratio) / _of_features(theta[:, None], groups)
    return _scores(torch.exp(-minus_log_rank))


def gumbel_scores(tau: Tensor, groups: Tensor, rows: int, draws: Draws) -> Tensor:
    """Gumbel copulas, dependent in the upper tail; arguments as in `clayton_scores`.

    psi(t) = exp(-t^a) with a = 1 - tau; the frailty is positive stable, drawn by the method of Kanter (1975).
    """
    a = (1 - tau)[:, None]
    shape = a.expand(-1, rows, -1)
    angle = draws.uniform(*shape.shape, low=1e-4, high=1 - 1e-4) * math.pi
    log_sin = [torch.sin(x).log() for x in (a * angle, angle, (1 - a) * angle)]
    waiting = (-_log_uniform(draws, shape)).log()
    frailty = (log_sin[0] - log_sin[1]) / a + (1 - a) / a * (log_sin[2] - log_sin[0] - waiting)
    ratio = _log_exponential(draws, rows, groups) - _of_features(frailty, groups)
    return _scores(torch.exp(-torch.exp(ratio * _of_features(a, groups))))


def _log_uniform(draws: Draws, like: Tensor) -> Tensor:
    return draws.uniform(*like.shape, low=_TINY).log()


def _log_exponential(draws: Draws, rows: int, groups: Tensor) -> Tensor:
    """(B, rows, D) logarithms of unit exponentials."""
    return (-draws.uniform(len(groups), rows, groups.shape[1], low=_TINY, high=1 - _TINY).log()).log()


def _of_features(values: Tensor, groups: Tensor) -> Tensor:
    """Values of groups (B, rows, K) -> values of features (B, rows, D)."""
    return values.gather(2, groups[:, None].expand(-1, values.shape[1], -1))


def _scores(ranks: Tensor) -> Tensor:
    scores: Tensor = torch.special.ndtri(ranks.clamp(_TINY, 1 - _TINY))
    return scores
