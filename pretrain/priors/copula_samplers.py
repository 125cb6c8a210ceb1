"""Samplers of copulas: joint distributions in which every feature is standard normal.

Rows are *normal scores*: the rank of a value as a quantile of the standard normal distribution. B datasets at once, N
rows, D features, K factors (or groups of features that share a frailty).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pretrain.priors.draws import Draws

_TINY = 1e-7  # minimum distance of ranks from 0 and 1, about the resolution of float32


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
