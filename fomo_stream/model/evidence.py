"""Evidence channels: the statistics of classical detectors for a row, as numbers that a network can weigh.

A row is described in up to three spaces - z-scores, quantile map with growing tails, whitened z-scores - and in each
its distances to the context rows and its own coordinates give `SPACE_STATISTICS`; the ranks of its coordinates in the
quantile map give `RANK_STATISTICS`. Each statistic becomes two channels by comparison with the context rows' own
values of it, which are computed leave-one-out: how far above the context's median (robust z, asinh), and -log10 of its
p-value.

Everything is vectorised over a batch of contexts (the leading dimension B) and runs in the dtype of the rows; inference
uses float64, because distances between near-duplicates cancel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fomo_stream.model.architecture import SPACES
from fomo_stream.model.preprocessing import Knots, center_and_scale, fit_knots, to_normal

NEIGHBOURS = 20
VIEW_LIMIT = 1e15  # of coordinates: their squares are finite in float32
BLOCK = 1 << 17  # distances at once while a context is fitted: bounds memory, stays near a CPU's caches ...
BLOCK_GPU = 1 << 26  # ... and gives a GPU enough to do at a time


class Space(NamedTuple):
    """Context rows in one space, with the statistics that a query needs. B = number of contexts."""

    rows: Tensor  # (B, n, d)
    norms: Tensor  # (B, n) squared lengths
    own: Tensor  # (B, n, 2) log of the mean distance to the 5 and the 20 nearest, leave-one-out
    bandwidth: Tensor  # (B, 1, 1) median of the 5-neighbour distance


class Evidence(NamedTuple):
    """Everything about a context that the channels of a query need; from `fit_evidence`."""

    center: Tensor  # (B, 1, d) raw units
    scale: Tensor  # (B, 1, d) raw units
    knots: Knots
    whiten: Tensor  # (B, d, d)
    n_features: Tensor  # (B,) the rest of the d columns is padding
    spaces: tuple[Space, ...]  # one for each of those in use
    median: Tensor  # (B, 1, S) of the context's own statistics
    spread: Tensor  # (B, 1, S)
    ordered: Tensor  # (B, S, n) the context's own statistics, ascending


def whitening(z: Tensor, n_features: Tensor) -> Tensor:
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


def _project(rows: Tensor, evidence: Evidence, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Complete rows (B, q, d) in each of these of SPACES."""
    limit = 1e30
    z = ((rows - evidence.center) / evidence.scale).clamp(-limit, limit)
    ways = {
        "z": lambda: z,
        "quantile": lambda: to_normal(rows, evidence.knots).clamp(-limit, limit),
        "whitened": lambda: z @ evidence.whiten,
    }
    return {name: ways[name]() for name in names}


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


def _smallest(d2: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row of d2 (B, q, n), ascending, and where they are: (B, q, k) each."""
    if d2.device.type != "cpu":
        top = d2.topk(k, dim=-1, largest=False, sorted=True)
        return top.values, top.indices
    numbers = d2.numpy()  # on a CPU numpy's selection is several times faster than topk
    index = np.argpartition(numbers, k - 1, axis=-1)[..., :k]
    values = np.take_along_axis(numbers, index, -1)
    order = np.argsort(values, axis=-1, kind="stable")
    near, where = np.take_along_axis(values, order, -1), np.take_along_axis(index, order, -1)
    return torch.from_numpy(near), torch.from_numpy(where)


def _nearest_rows(x: Tensor, space_rows: Tensor, d2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return distances (B, q, k), ascending, and indices (B, q, k) of the nearest context rows, and the largest gap in
    one coordinate to the very nearest (B, q)."""
    near, index = _smallest(d2, min(NEIGHBOURS, space_rows.shape[1]))
    b = torch.arange(len(x), device=x.device)[:, None]
    gap = (x - space_rows[b, index[..., 0]]).abs().amax(-1)
    return near.sqrt(), index, gap


def _ratios(log_means: Tensor, own: Tensor, index: Tensor) -> Tensor:
    """Log of own mean distance over the neighbours' own, at 5 and 20 neighbours, as in LOF: (B, q, 2)."""
    b = torch.arange(len(index), device=index.device)[:, None, None]
    theirs = own[b, index]  # (B, q, k, 2)
    k = index.shape[-1]
    five = theirs[..., : min(5, k), 0].mean(-1)
    twenty = theirs[..., 1].mean(-1)
    return log_means - torch.stack([five, twenty], -1)


def _assemble(
    floor: float, nearest: Tensor, log_means: Tensor, ratios: Tensor, densities: Tensor, gap: Tensor, sizes: Tensor
) -> Tensor:
    """(B, q, 14) in the order of SPACE_STATISTICS."""
    ends = [part.unsqueeze(-1).clamp(min=floor).log() for part in (nearest[..., 0], gap)]
    return torch.cat([ends[0], log_means, ratios, densities, ends[1], sizes], -1)


def _own_distances(rows: Tensor, space: Space) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of context rows (B, n, d), and their squared distances to all; infinite to themselves."""
    b, n, _ = rows.shape
    step = max(1, (BLOCK if rows.device.type == "cpu" else BLOCK_GPU) // (b * n))
    for start in range(0, n, step):
        block = slice(start, min(n, start + step))
        d2 = _squared_distances(rows[:, block], space)
        here = torch.arange(block.start, block.stop, device=rows.device)
        d2[:, here - block.start, here] = torch.inf
        yield block, d2


def _fit_space(rows: Tensor, n_features: Tensor) -> tuple[Space, Tensor]:
    """A space over context rows (B, n, d), and their own statistics (B, n, 14), leave-one-out."""
    b, n, d = rows.shape
    floor = _floor(d)
    nothing = rows.new_zeros(())
    space = Space(rows, rows.square().sum(-1), nothing, nothing)
    # results go into arrays made beforehand: a list of small ones between large temporary ones keeps the allocator
    # from giving memory back, hundreds of MiB with 5,000 rows
    k = min(NEIGHBOURS, n)
    nearest, gap, densities = rows.new_empty(b, n, k), rows.new_empty(b, n), rows.new_empty(b, n, 4)
    index = torch.empty(b, n, k, dtype=torch.long, device=rows.device)
    for block, d2 in _own_distances(rows, space):
        nearest_rows = _nearest_rows(rows[:, block], rows, d2)
        nearest[:, block], index[:, block], gap[:, block] = nearest_rows
    if n <= NEIGHBOURS:  # the row itself, infinitely far, is among them
        nearest, index = nearest[..., : n - 1], index[..., : n - 1]
    bandwidth = nearest[..., : min(5, n - 1)].mean(-1).median(1).values.clamp(min=floor)[:, None, None]
    own = _log_means(nearest, floor)
    space = space._replace(bandwidth=bandwidth, own=own)
    for block, d2 in _own_distances(rows, space):
        densities[:, block] = _log_densities(d2, bandwidth)
    densities += math.log((n - 1) / n)  # the mean over n rows counts the row itself, whose kernel is 0
    sizes = _size_statistics(rows, n_features)
    return space, _assemble(floor, nearest, own, _ratios(own, own, index), densities, gap, sizes)


def _rank_statistics(views: dict[str, Tensor], knots: Knots, n_features: Tensor) -> list[Tensor]:
    """(B, q, 2): sum over features and largest of -log two-sided tail probability, from ranks alone.

    None without the quantile map.
    """
    if "quantile" not in views:
        return []
    quantile = views["quantile"]
    outer = torch.special.ndtri(knots.levels.expand_as(knots.values)[..., -1]).unsqueeze(-2)
    ranks = torch.minimum(quantile.abs(), outer.abs())
    tails = -(2 * torch.special.ndtr(-ranks)).clamp(max=1).log()
    tails = tails * (torch.arange(tails.shape[-1], device=tails.device) < n_features[:, None, None])
    return [torch.stack([tails.sum(-1), tails.amax(-1)], -1)]


def _fit_projection(
    rows: Tensor, n_features: Tensor, knots: Knots | None, names: tuple[str, ...]
) -> tuple[Evidence, dict[str, Tensor], Tensor | None]:
    """Evidence without spaces and statistics, the rows in each space, and which of their values are far."""
    center, scale, far = center_and_scale(rows)
    z = (rows - center) / scale
    z = z if far is None else z.masked_fill(far, 0.0)
    knots = fit_knots(rows) if knots is None else knots
    nothing = rows.new_zeros(())
    whiten = whitening(z, n_features)
    evidence = Evidence(center, scale, knots, whiten, n_features, (), nothing, nothing, nothing)
    return evidence, _project(rows, evidence, names), far


def fit_views(
    rows: Tensor, n_features: Tensor, knots: Knots | None = None, names: tuple[str, ...] = SPACES
) -> tuple[Evidence, Tensor, Tensor | None]:
    """Return the evidence that `views_of` needs, and the views (B, S, n, d) of a context; arguments as of
    `fit_evidence`.

    Also which rows have far values (B, n); None: no row.
    """
    evidence, views, far = _fit_projection(rows, n_features, knots, names)
    nothing = rows.new_zeros(())
    spaces = tuple(Space(nothing, nothing, nothing, _bandwidth(view)) for view in views.values())
    evidence = evidence._replace(spaces=spaces)
    return evidence, _in_units(views, evidence), None if far is None else far.any(-1)


def views_of(queries: Tensor, evidence: Evidence, names: tuple[str, ...] = SPACES) -> Tensor:
    """Complete queries (B, q, d), raw units, in each space: (B, S, q, d), in units of its bandwidth."""
    return _in_units(_project(queries, evidence, names), evidence)


def _in_units(views: dict[str, Tensor], evidence: Evidence) -> Tensor:
    each = zip(views.values(), evidence.spaces, strict=True)
    return torch.stack([(view / space.bandwidth).clamp(-VIEW_LIMIT, VIEW_LIMIT) for view, space in each], 1)


def _bandwidth(rows: Tensor) -> Tensor:
    """Median (B, 1, 1) of the mean distance of rows (B, n, d) to their 5 nearest ones."""
    b, n, d = rows.shape
    space = Space(rows, rows.square().sum(-1), *[rows.new_zeros(())] * 2)
    k, means = min(5, n - 1), rows.new_empty(b, n)
    for block, d2 in _own_distances(rows, space):
        means[:, block] = _smallest(d2, k)[0].sqrt().mean(-1)
    return means.median(1).values.clamp(min=_floor(d))[:, None, None]


def fit_evidence(
    rows: Tensor, n_features: Tensor, knots: Knots | None = None, names: tuple[str, ...] = SPACES
) -> tuple[Evidence, Tensor]:
    """Evidence of a context, and the channels (B, n, C) of its own rows, leave-one-out.

    rows: (B, n, d) raw units, complete (see `imputation`), n >= 2; n_features: (B,), columns beyond it are zero
    padding; knots: the quantile transform to use, or None to fit it on the rows; names: of the spaces to use, in order.
    """
    evidence, views, far = _fit_projection(rows, n_features, knots, names)
    fitted = [_fit_space(view.contiguous(), n_features) for view in views.values()]
    own = torch.cat([s for _, s in fitted] + _rank_statistics(views, evidence.knots, n_features), -1)
    median = own.median(1, keepdim=True).values
    mad = (own - median).abs().median(1, keepdim=True).values
    deviation = own.std(1, keepdim=True, correction=0)
    if far is not None:  # rows with far values do not count
        near = ~far.any(-1, keepdim=True)
        mean = (own * near).sum(1, keepdim=True) / near.sum(1, keepdim=True)
        deviation = (((own - mean) * near).square().sum(1, keepdim=True) / near.sum(1, keepdim=True)).sqrt()
    spread = 1.4826 * mad + 0.05 * deviation + 1e-6
    ordered = own.transpose(1, 2).contiguous().sort(-1).values
    evidence = evidence._replace(
        spaces=tuple(space for space, _ in fitted), median=median, spread=spread, ordered=ordered
    )
    return evidence, _channels(own, evidence, own_rows=True)


def evidence_channels(queries: Tensor, evidence: Evidence, names: tuple[str, ...] = SPACES) -> Tensor:
    """Channels (B, q, C) float of complete queries (B, q, d), raw units, as `channels_in`; higher = more outlying.

    names: the spaces that the evidence was fitted in.
    """
    views = _project(queries, evidence, names)
    floor = _floor(queries.shape[-1])
    parts = []
    for view, space in zip(views.values(), evidence.spaces, strict=True):
        d2 = _squared_distances(view, space)
        nearest, index, gap = _nearest_rows(view, space.rows, d2)
        log_means = _log_means(nearest, floor)
        ratios = _ratios(log_means, space.own, index)
        densities = _log_densities(d2, space.bandwidth)
        sizes = _size_statistics(view, evidence.n_features)
        parts.append(_assemble(floor, nearest, log_means, ratios, densities, gap, sizes))
    parts += _rank_statistics(views, evidence.knots, evidence.n_features)
    return _channels(torch.cat(parts, -1), evidence, own_rows=False)


def _channels(statistics: Tensor, evidence: Evidence, own_rows: bool) -> Tensor:
    """(B, q, S) -> (B, q, 2 S): robust z under asinh, and -log10 p, interleaved as in CHANNELS."""
    far = torch.asinh((statistics - evidence.median) / evidence.spread)
    n = evidence.ordered.shape[-1]
    smaller = torch.searchsorted(evidence.ordered, statistics.transpose(1, 2).contiguous(), right=False)
    at_least = (n - smaller).transpose(1, 2).to(statistics.dtype)
    p = at_least / n if own_rows else (at_least + 1) / (n + 1)
    return torch.stack([far, -torch.log10(p)], -1).flatten(-2)
