"""Marginals: turns standardised features into skewed, bounded, rounded or mostly zero columns, as in real tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.priors.checks import check_weights
from pretrain.priors.draws import Draws

MAX_CODES = 20  # values of a categorical column
LIMIT = 1e6  # of the values before the unit is applied


@dataclass(frozen=True)
class MarginalConfig:
    """Relative weights of the monotone warps and of the grains (kinds of discreteness); each dataset changes them at
    random."""

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
    categorical: float = 0.0  # integer codes in random order, some of them rare
    saturated: float = 0.0  # a sensor with a lower or an upper limit

    def __post_init__(self) -> None:
        check_weights("marginals", self, WARPS)
        check_weights("marginals", self, GRAINS)


WARPS = ("plain", "sinh_arcsinh", "exponential", "power", "logistic")  # the order of `_warped`
GRAINS = ("continuous", "rounded", "binary", "zero_inflated", "mostly_constant", "categorical", "saturated")


def to_raw(rows: Tensor, inliers: int, config: MarginalConfig, draws: Draws) -> Tensor:
    """Warp, coarsen and scale columns. rows: (B, N, D) in standard deviations, the first `inliers` rows being inliers.

    Returns finite raw values of the same shape. Every step is monotone in each column, except for categorical codes.
    """
    b, _, d = rows.shape
    rows = rows.clamp(-100.0, 100.0)
    rows = _standardised(_warped(rows, draw_choices([getattr(config, w) for w in WARPS], b, d, draws), draws), inliers)
    rows = _coarsened(rows, config, draws)
    rows = rows.clamp(-LIMIT, LIMIT)
    unit = draws.log_uniform(b, 1, d, low=1e-2, high=1e3)
    offset = draws.normal(b, 1, d) * 3 * draws.chance(0.5, b, 1, d)
    return (rows + offset) * unit


def draw_choices(weights: Sequence[float], b: int, d: int, draws: Draws) -> Tensor:
    """(B, 1, D) index of the kind of each column; each dataset multiplies the weights by random factors."""
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
        # linear beyond the range of float, so that the order of values stays the same
        (rate * x.clamp_max(6.0)).exp() * (1 + rate * (x - 6.0).relu()),
        x.sign() * x.abs().pow(power),
        torch.sigmoid(x * 1.5 * rate),
    )
    return choose(warps, kind)


def _coarsened(x: Tensor, config: MarginalConfig, draws: Draws) -> Tensor:
    b, _, d = x.shape
    steps = draws.log_uniform(b, 1, d, low=0.7, high=20.0)
    edge = draws.normal(b, 1, d)
    wide = draws.uniform(b, 1, d, low=0.8, high=3.0)
    grains: dict[str, Callable[[], Tensor]] = {
        "continuous": lambda: x,
        "rounded": lambda: (x * steps).round() / steps,
        "binary": lambda: (x > edge).to(x.dtype),
        "zero_inflated": lambda: (x - edge).relu(),
        "mostly_constant": lambda: torch.where(x.abs() > wide, x, 0.0),
        "categorical": lambda: _codes(x, draws),
        "saturated": lambda: _saturated(x, draws),
    }
    weights = [getattr(config, grain) for grain in GRAINS]
    kind = draw_choices(weights, b, d, draws)
    return choose([grains[grain]() if w else x for grain, w in zip(GRAINS, weights, strict=True)], kind)


def _codes(x: Tensor, draws: Draws) -> Tensor:
    """Each column cut into 2 to MAX_CODES intervals, some of them rare, with codes 0, 1, ... in random order."""
    b, _, d = x.shape
    count = draws.log_uniform(b, 1, d, low=2.0, high=MAX_CODES + 0.99).floor()
    skew = draws.log_uniform(b, 1, d, low=0.5, high=4.0)
    interval = (torch.special.ndtr(x).pow(skew) * count).floor().minimum(count - 1).long()
    absent = torch.arange(MAX_CODES, device=x.device)[:, None] >= count
    code_of = (draws.uniform(b, MAX_CODES, d) + absent.to(x.dtype)).argsort(1).argsort(1)
    return code_of.gather(1, interval).to(x.dtype)


def _saturated(x: Tensor, draws: Draws) -> Tensor:
    """Each column clipped at one bound or at both."""
    b, _, d = x.shape
    side = draws.integers(0, 2, b, 1, d)
    reach = draws.uniform(2, b, 1, d, low=0.3, high=2.0)
    low, high = torch.where(side == 0, -LIMIT, -reach[0]), torch.where(side == 1, LIMIT, reach[1])
    return x.clamp(low, high)


def choose(versions: Sequence[Tensor], kind: Tensor) -> Tensor:
    """The i-th version where `kind` is i."""
    result = versions[0]
    for i, version in enumerate(versions[1:], 1):
        result = torch.where(kind == i, version, result)
    return result


def _standardised(x: Tensor, inliers: int) -> Tensor:
    usual = x[:, :inliers]
    return (x - usual.mean(1, True)) / usual.std(1, keepdim=True).clamp_min(1e-6)
