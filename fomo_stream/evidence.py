"""Evidence channels: what classical detectors would say of a row, as numbers a network can weigh.

A row is looked at in three spaces - z-scores, quantile map with growing tails, whitened z-scores - and in each space
its distances to the context rows and its own coordinates give `SPACE_STATISTICS`; the ranks of its coordinates give
`RANK_STATISTICS`. Each statistic becomes two channels by comparison with the context rows' own values of it, which are
computed leave-one-out: how far beyond the usual (robust z, asinh), and -log10 of its p-value.

Everything is vectorised over a batch of contexts (the leading dimension B) and runs in the dtype of the rows; inference
uses float64, because distances between near-duplicates cancel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fomo_stream.quantiles import Knots, constant_scale, fit_knots, to_normal

SPACES = ("z", "quantile", "whitened")
SPACE_STATISTICS = (
    "nearest", "mean5", "mean20", "ratio5", "ratio20", "density0.5", "density1", "density2", "density4",
    "gap", "max", "top3", "rms", "mean_abs",
)  # fmt: skip
RANK_STATISTICS = ("tail_sum", "tail_max")
STATISTICS = tuple(f"{space}.{name}" for space in SPACES for name in SPACE_STATISTICS) + RANK_STATISTICS
CHANNELS = tuple(f"{name}.{kind}" for name in STATISTICS for kind in ("far", "rare"))

NEIGHBOURS = 20
VALUE_LIMIT = 1e60  # keeps squares of raw values finite in float64
ROWS_AT_ONCE = 1024  # context rows per distance block: bounds memory at n = 5,000


class Filling(NamedTuple):
    """How missing values are treated; made by `fit_filling`."""

    fill: Tensor  # (B, 1, d) raw units
    known: Tensor  # (B, 1, d) bool: features with a value anywhere in the context


def fit_filling(rows: Tensor) -> Filling:
    """Missing values (NaN, infinities) become the context's median; a feature unknown to the context is always 0."""
    present = torch.isfinite(rows)
    middle = torch.where(present, rows, torch.nan).nanmedian(dim=1, keepdim=True).values
    return Filling(torch.nan_to_num(middle), present.any(1, keepdim=True))


def complete(rows: Tensor, filling: Filling) -> Tensor:
    """Rows (B, q, d) with missing values filled in and sizes limited so that squares stay finite."""
    return torch.where(torch.isfinite(rows) & filling.known, rows, filling.fill).clamp(-VALUE_LIMIT, VALUE_LIMIT)


class Space(NamedTuple):
    """Context rows in one space, with what a query is compared to. B = number of contexts."""

    rows: Tensor  # (B, n, d)
    norms: Tensor  # (B, n) squared lengths
    own: Tensor  # (B, n, 2) log of the mean distance to the 5 and the 20 nearest, leave-one-out
    bandwidth: Tensor  # (B, 1, 1) median of the 5-neighbour distance


class Evidence(NamedTuple):
    """Everything about a context that the channels of a query need; made by `fit_evidence`."""

    center: Tensor  # (B, 1, d) raw units
    scale: Tensor  # (B, 1, d) raw units
    filling: Filling
    knots: Knots
    whiten: Tensor  # (B, d, d)
    n_features: Tensor  # (B,) the rest of the d columns is padding
    spaces: tuple[Space, ...]  # one per SPACES
    median: Tensor  # (B, 1, S) of the context's own statistics
    spread: Tensor  # (B, 1, S)
    ordered: Tensor  # (B, S, n) the context's own statistics, ascending


def _whitening(z: Tensor, n_features: Tensor) -> Tensor:
    """Inverse square root (B, d, d) of the covariance of z-scores, shrunk towards a multiple of the identity (OAS)."""
    n, d = z.shape[-2:]
    real = (torch.arange(d, device=z.device) < n_features[:, None]).to(z.dtype)
    cov = z.transpose(-1, -2) @ z / n
    variance = cov.diagonal(dim1=-2, dim2=-1)
    cov = cov + torch.diag_embed((variance < 1e-12).to(z.dtype))  # constants and padding: leave them as they are
    p = n_features.to(z.dtype)
    masked = cov * real[:, :, None] * real[:, None, :]
    trace = masked.diagonal(dim1=-2, dim2=-1).sum(-1)
    trace_sq = (masked**2).sum((-2, -1))
    top = (1 - 2 / p) * trace_sq + trace**2
    bottom = (n + 1 - 2 / p) * (trace_sq - trace**2 / p)
    rho = torch.where(bottom > 0, top / bottom.clamp(min=1e-30), torch.ones_like(top)).clamp(0, 1)
    rho = rho[:, None, None]
    eye = torch.eye(d, dtype=z.dtype, device=z.device)
    shrunk = (1 - rho) * cov + rho * (trace / p)[:, None, None] * eye
    values, vectors = torch.linalg.eigh(shrunk)
    inverse_root: Tensor = (vectors * values.clamp(min=1e-12).rsqrt().unsqueeze(-2)) @ vectors.transpose(-1, -2)
    return inverse_root


def _project(rows: Tensor, evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
    """The three views (B, q, d) of complete rows."""
    limit = 1e30
    z = ((rows - evidence.center) / evidence.scale).clamp(-limit, limit)
    quantile = to_normal(rows, evidence.knots).clamp(-limit, limit)
    return z, quantile, z @ evidence.whiten


def _log_means(nearest: Tensor, floor: float) -> Tensor:
    """Log of the mean distance to the 5 and the 20 nearest: (..., k) ascending distances -> (..., 2)."""
    k = nearest.shape[-1]
    five, twenty = nearest[..., : min(5, k)].mean(-1), nearest.mean(-1)
    return torch.stack([five, twenty], -1).clamp(min=floor).log()


def _squared_distances(x: Tensor, space: Space) -> Tensor:
    """(B, q, n)"""
    product = x @ space.rows.transpose(-1, -2)
    squares = (x**2).sum(-1, keepdim=True)
    return (squares + space.norms.unsqueeze(-2) - 2 * product).clamp(min=0)


def _log_densities(d2: Tensor, bandwidth: Tensor) -> Tensor:
    """Minus the log kernel density at 0.5, 1, 2 and 4 bandwidths: (B, q, n) -> (B, q, 4).

    The kernel at half the bandwidth is the fourth power of the kernel, so one exponential serves all four.
    """
    closest = d2.min(-1, keepdim=True).values
    widest = 2 * (4 * bandwidth) ** 2
    kernel = torch.exp((closest - d2) / widest)
    out = []
    for power in (1, 4, 16, 64):
        out.append(closest / widest * power - kernel.mean(-1, keepdim=True).log())
        if power < 64:
            kernel = kernel.square().square()
    return torch.cat(out[::-1], -1)


def _size_statistics(x: Tensor, n_features: Tensor) -> Tensor:
    """(B, q, 4): largest |x|, mean of the 3 largest, RMS, mean |x|; padding columns are zero."""
    size = x.abs()
    count = n_features[:, None].to(x.dtype)
    top = size.topk(min(3, x.shape[-1]), dim=-1).values
    mean3 = top.sum(-1) / count.clamp(max=3)
    rms = (size.square().sum(-1) / count).sqrt()
    return torch.stack([top[..., 0], mean3, rms, size.sum(-1) / count], -1)


def _floor(n_features: int) -> float:
    """Distances below this count as equal: keeps the log of a duplicate's distance finite."""
    return 1e-4 * math.sqrt(n_features)


def _neighbour_statistics(x: Tensor, space: Space, d2: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, q, 10) statistics from squared distances, and the indices (B, q, k) of the neighbours, nearest first."""
    near, index = d2.topk(k, dim=-1, largest=False, sorted=True)
    floor = _floor(x.shape[-1])
    nearest = near.sqrt()
    log_means = _log_means(nearest, floor)
    densities = _log_densities(d2, space.bandwidth)
    b = torch.arange(len(x), device=x.device)[:, None]
    gap = (x - space.rows[b, index[..., 0]]).abs().amax(-1)
    statistics = torch.cat(
        [nearest[..., :1].clamp(min=floor).log(), log_means, densities, gap.clamp(min=floor).log().unsqueeze(-1)], -1
    )
    return statistics, index


def _ratios(log_means: Tensor, own: Tensor, index: Tensor) -> Tensor:
    """Log of own mean distance over the neighbours' own, at 5 and 20 neighbours, as in LOF: (B, q, 2)."""
    b = torch.arange(len(index), device=index.device)[:, None, None]
    theirs = own[b, index]  # (B, q, k, 2)
    k = index.shape[-1]
    five = theirs[..., : min(5, k), 0].mean(-1)
    twenty = theirs[..., 1].mean(-1)
    return log_means - torch.stack([five, twenty], -1)


def _assemble(neighbours: Tensor, ratios: Tensor, sizes: Tensor) -> Tensor:
    """In the order of SPACE_STATISTICS."""
    return torch.cat([neighbours[..., :3], ratios, neighbours[..., 3:], sizes], -1)


def _fit_space(rows: Tensor, n_features: Tensor) -> tuple[Space, Tensor]:
    """A space over context rows (B, n, d), and their own statistics (B, n, 14), leave-one-out."""
    n = rows.shape[1]
    k = min(NEIGHBOURS, n - 1)
    norms = rows.square().sum(-1)
    empty = rows.new_zeros(())
    space = Space(rows, norms, empty, empty)

    def blocks() -> list[tuple[slice, Tensor]]:
        found = []
        for start in range(0, n, ROWS_AT_ONCE):
            part = slice(start, min(n, start + ROWS_AT_ONCE))
            d2 = _squared_distances(rows[:, part], space)
            here = torch.arange(part.start, part.stop, device=rows.device)
            d2[:, here - start, here] = torch.inf
            found.append((part, d2))
        return found

    floor = _floor(rows.shape[-1])
    distances = blocks()
    nearest5 = torch.cat([d2.topk(min(5, k), largest=False).values.sqrt().mean(-1) for _, d2 in distances], 1)
    bandwidth = nearest5.median(1).values.clamp(min=floor)[:, None, None]
    space = space._replace(bandwidth=bandwidth)
    parts = [_neighbour_statistics(rows[:, part], space, d2, k) for part, d2 in distances]
    del distances
    neighbours = torch.cat([p[0] for p in parts], 1)
    index = torch.cat([p[1] for p in parts], 1)
    # the mean over n includes the row itself, whose kernel is 0: count n - 1 instead
    neighbours[..., 3:7] += math.log((n - 1) / n)
    own = neighbours[..., 1:3]
    space = space._replace(own=own)
    return space, _assemble(neighbours, _ratios(own, own, index), _size_statistics(rows, n_features))


def _rank_statistics(quantile: Tensor, knots: Knots, n_features: Tensor) -> Tensor:
    """(B, q, 2): sum over features and largest of -log two-sided tail probability, from ranks alone."""
    outer = torch.special.ndtri(knots.levels.expand_as(knots.values)[..., -1]).unsqueeze(-2)
    ranks = torch.minimum(quantile.abs(), outer.abs())
    tails = -(2 * torch.special.ndtr(-ranks)).clamp(max=1).log()
    tails = tails * (torch.arange(tails.shape[-1], device=tails.device) < n_features[:, None, None])
    return torch.stack([tails.sum(-1), tails.amax(-1)], -1)


def fit_evidence(rows: Tensor, n_features: Tensor, knots: Knots | None = None) -> tuple[Evidence, Tensor]:
    """Evidence of a context, and the channels (B, n, C) of its own rows, leave-one-out.

    rows: (B, n, d) raw units, NaN = missing, n >= 2; n_features: (B,), columns beyond it are zero padding;
    knots: the quantile transform to use (as a stream's sketch gives it), or None to fit it on the rows.
    """
    filling = fit_filling(rows)
    rows = complete(rows, filling)
    center = rows.mean(1, keepdim=True)
    deviation = rows.std(1, keepdim=True, correction=0)
    scale = constant_scale(center, deviation, rows.shape[1])
    z = (rows - center) / scale
    knots = fit_knots(rows) if knots is None else knots
    nothing = rows.new_zeros(())
    whiten = _whitening(z, n_features)
    evidence = Evidence(center, scale, filling, knots, whiten, n_features, (), nothing, nothing, nothing)
    views = _project(rows, evidence)
    fitted = [_fit_space(view.contiguous(), n_features) for view in views]
    own = torch.cat([s for _, s in fitted] + [_rank_statistics(views[1], knots, n_features)], -1)
    median = own.median(1, keepdim=True).values
    mad = (own - median).abs().median(1, keepdim=True).values
    spread = 1.4826 * mad + 0.05 * own.std(1, keepdim=True, correction=0) + 1e-6
    ordered = own.transpose(1, 2).contiguous().sort(-1).values
    evidence = evidence._replace(
        spaces=tuple(space for space, _ in fitted), median=median, spread=spread, ordered=ordered
    )
    return evidence, _channels(own, evidence, own_rows=True)


def evidence_channels(queries: Tensor, evidence: Evidence) -> Tensor:
    """Channels (B, q, C) float of raw queries (B, q, d), NaN = missing; C = len(CHANNELS), higher = more outlying."""
    rows = complete(queries, evidence.filling)
    views = _project(rows, evidence)
    parts = []
    for view, space in zip(views, evidence.spaces, strict=True):
        d2 = _squared_distances(view, space)
        k = min(NEIGHBOURS, space.rows.shape[1])
        neighbours, index = _neighbour_statistics(view, space, d2, k)
        ratios = _ratios(neighbours[..., 1:3], space.own, index)
        parts.append(_assemble(neighbours, ratios, _size_statistics(view, evidence.n_features)))
    parts.append(_rank_statistics(views[1], evidence.knots, evidence.n_features))
    return _channels(torch.cat(parts, -1), evidence, own_rows=False)


def _channels(statistics: Tensor, evidence: Evidence, own_rows: bool) -> Tensor:
    """(B, q, S) -> (B, q, 2 S): robust z under asinh, and -log10 p, interleaved as in CHANNELS."""
    far = torch.asinh((statistics - evidence.median) / evidence.spread)
    n = evidence.ordered.shape[-1]
    smaller = torch.searchsorted(evidence.ordered, statistics.transpose(1, 2).contiguous(), right=False)
    at_least = (n - smaller).transpose(1, 2).to(statistics.dtype)
    p = at_least / n if own_rows else (at_least + 1) / (n + 1)
    return torch.stack([far, -torch.log10(p)], -1).flatten(-2)
