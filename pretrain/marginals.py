"""From standardised features to columns as in real tables: skewed, bounded, rounded, mostly zero, in any unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.draws import Draws

LIMIT = 1e6  # of a column before it gets its unit


@dataclass(frozen=True)
class MarginalConfig:
    """Relative weights of the monotone warps and of the kinds of discreteness; each dataset sharpens its own taste."""

    plain: float = 1.0
    sinh_arcsinh: float = 0.5  # skew and tail weight
    exponential: float = 0.6  # log-normal-like
    power: float = 0.3
    logistic: float = 0.25  # bounded
    continuous: float = 1.0
    rounded: float = 0.35
    binary: float = 0.12
    zero_inflated: float = 0.15
    mostly_constant: float = 0.08

    @property
    def warps(self) -> tuple[float, ...]:
        return (self.plain, self.sinh_arcsinh, self.exponential, self.power, self.logistic)

    @property
    def grains(self) -> tuple[float, ...]:
        return (self.continuous, self.rounded, self.binary, self.zero_inflated, self.mostly_constant)


def to_raw(rows: Tensor, inliers: int, config: MarginalConfig, draws: Draws) -> Tensor:
    """Warp, coarsen and scale columns. rows: (B, N, D) in standard deviations, the first `inliers` rows being inliers.

    Returns raw values of the same shape, finite. Every step is monotone in each column but for the rounding.
    """
    b, _, d = rows.shape
    rows = rows.clamp(-100.0, 100.0)
    rows = _standardised(_warped(rows, _tastes(config.warps, b, d, draws), draws), inliers)
    rows = _coarsened(rows, _tastes(config.grains, b, d, draws), draws)
    rows = rows.clamp(-LIMIT, LIMIT)
    unit = draws.log_uniform(b, 1, d, low=1e-2, high=1e3)
    offset = draws.normal(b, 1, d) * 3 * draws.chance(0.5, b, 1, d)
    return (rows + offset) * unit


def _tastes(weights: tuple[float, ...], b: int, d: int, draws: Draws) -> Tensor:
    """(B, 1, D) which kind each column is; a dataset multiplies the weights by factors of its own."""
    own = torch.tensor(weights, device=draws.device) * (1.5 * draws.normal(b, len(weights))).exp()
    return draws.category(own, b, d)[:, None]


def _warped(x: Tensor, kind: Tensor, draws: Draws) -> Tensor:
    b, _, d = x.shape
    x = x * draws.sign(b, 1, d)
    skew, tail = draws.normal(b, 1, d) * 0.5, draws.log_uniform(b, 1, d, low=0.7, high=1.6)
    rate = draws.uniform(b, 1, d, low=0.3, high=1.2)
    power = draws.log_uniform(b, 1, d, low=0.5, high=2.0)
    warps = (
        x,
        torch.sinh(((torch.asinh(x) + skew) * tail).clamp(-12.0, 12.0)),
        # beyond what float can hold, go on linearly: further out must stay further out
        (rate * x.clamp_max(6.0)).exp() * (1 + rate * (x - 6.0).relu()),
        x.sign() * x.abs().pow(power),
        torch.sigmoid(x * 1.5 * rate),
    )
    return _choose(warps, kind)


def _coarsened(x: Tensor, kind: Tensor, draws: Draws) -> Tensor:
    b, _, d = x.shape
    steps = draws.log_uniform(b, 1, d, low=0.7, high=20.0)
    edge = draws.normal(b, 1, d)
    wide = draws.uniform(b, 1, d, low=0.8, high=3.0)
    grains = (
        x,
        (x * steps).round() / steps,
        (x > edge).to(x.dtype),
        (x - edge).relu(),
        torch.where(x.abs() > wide, x, 0.0),
    )
    return _choose(grains, kind)


def _choose(versions: tuple[Tensor, ...], kind: Tensor) -> Tensor:
    result = versions[0]
    for i, version in enumerate(versions[1:], 1):
        result = torch.where(kind == i, version, result)
    return result


def _standardised(x: Tensor, inliers: int) -> Tensor:
    usual = x[:, :inliers]
    return (x - usual.mean(1, True)) / usual.std(1, keepdim=True).clamp_min(1e-6)
