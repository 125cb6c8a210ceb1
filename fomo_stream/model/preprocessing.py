"""Preprocessing, fitted on a context: missing values become its median, and features are mapped to a normal."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fomo_stream.model.architecture import NARROW, NOISE, VALUE_LIMIT
from fomo_stream.model.bulk import GAP, MAX_FAR_SHARE, without_far
from fomo_stream.model.quantile_map import N_KNOTS, knots_of


class Imputation(NamedTuple):
    """The values that replace missing ones, from a context, by `fit_imputation`."""

    fill: Tensor  # (B, 1, d) raw units
    known: Tensor  # (B, 1, d) bool: features with a value anywhere in the context


def fit_imputation(rows: Tensor) -> Imputation:
    """The medians of context rows (B, n, d) float64, NaN or infinite = missing; 0 for a feature without any value."""
    present = torch.isfinite(rows)
    middle = torch.where(present, rows, torch.nan).nanmedian(dim=1, keepdim=True).values
    return Imputation(torch.nan_to_num(middle).clamp(-VALUE_LIMIT, VALUE_LIMIT), present.any(1, keepdim=True))


def impute(rows: Tensor, imputation: Imputation) -> Tensor:
    """Rows (B, q, d) with missing values replaced and sizes limited.

    A feature without any value in the context is always replaced, so that it does not count.
    """
    return torch.where(torch.isfinite(rows) & imputation.known, rows, imputation.fill).clamp(-VALUE_LIMIT, VALUE_LIMIT)


class Knots(NamedTuple):
    """Empirical quantiles of each feature; leading dimensions (a batch of contexts) are optional.

    values: (..., n_features, n_knots), raw units, ascending; levels: broadcastable to it, in (0, 1), ascending;
    scale: (..., n_features), raw units for one normal unit beyond the outer knots.
    """

    values: Tensor
    levels: Tensor
    scale: Tensor


def constant_scale(center: Tensor, deviation: Tensor, n_rows: int | Tensor) -> Tensor:
    """Spread to divide by, raw units: the standard deviation, or a stand-in where a feature is constant.

    A value that differs from n identical ones is about as surprising as a single different value among n, which is
    sqrt(n) deviations away, whatever its value; so the stand-in is |the constant| (or 1) / sqrt(n). Rounding noise does
    not count as spread.
    No spread is below 1e-200, so that a value divided by it is finite.
    """
    size = center.abs()
    stand_in = torch.where(size > 0, size, torch.ones_like(size)) / n_rows**0.5
    return torch.where(deviation > NOISE * size, deviation, stand_in).clamp(min=1e-200)


def center_and_scale(rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean and spread (..., 1, d) of complete rows (..., n, d), raw units, without the values that are far.

    And which are (..., n, d), see `bulk`; None: no value is.
    """
    center, deviation = rows.mean(-2, keepdim=True), rows.std(-2, correction=0, keepdim=True)
    far = (rows > _end_before_gap(rows)) | (-rows > _end_before_gap(-rows))
    again = far.any(-2, keepdim=True) | (deviation < NARROW * center.abs())
    if again.any():
        reference = rows.median(-2, keepdim=True).values  # the sum of large values has errors as large as their spread
        count = (~far).sum(-2, keepdim=True)
        middle = (rows - reference).masked_fill(far, 0.0).sum(-2, keepdim=True) / count
        square = (rows - reference - middle).masked_fill(far, 0.0).square().sum(-2, keepdim=True) / count
        center = torch.where(again, reference + middle, center)
        deviation = torch.where(again, square.sqrt(), deviation)
    return center, constant_scale(center, deviation, rows.shape[-2]), far if far.any() else None


def _end_before_gap(rows: Tensor) -> Tensor:
    """The largest values (..., 1, d) of rows (..., n, d) before a gap, as `bulk` has them."""
    n = rows.shape[-2]
    aside = int(MAX_FAR_SHARE * n)
    ordered = rows.sort(dim=-2).values
    first, upper = ordered[..., aside : aside + 1, :], ordered[..., n - 1 - aside :, :]
    below, above, end = upper[..., :-1, :], upper[..., 1:, :], upper[..., -1:, :]
    is_gap = (above - below > GAP * (below - first)) & (below > first)
    while is_gap.any():
        is_end = is_gap & (above <= end) & (end - above <= above - below)
        if not is_end.any():
            break
        end = torch.where(is_end, below, end).amin(-2, keepdim=True)
    return end


def fit_knots(rows: Tensor, n_knots: int = N_KNOTS) -> Knots:
    """Quantiles of complete rows (..., n_rows, n_features), no NaN; exact for up to n_knots rows."""
    n = rows.shape[-2]
    _, scale, far = center_and_scale(rows)
    scale = scale.squeeze(-2)
    ordered = rows.transpose(-1, -2).contiguous().sort(dim=-1).values
    if far is not None:  # columns of several lengths
        columns = [without_far(column) for column in ordered.flatten(0, -2).cpu().numpy()]
        parts = (torch.from_numpy(part).to(rows) for part in knots_of(columns, n_knots))
        values, levels = (part.reshape(*ordered.shape[:-1], -1) for part in parts)
    elif n > n_knots:
        at = torch.linspace(0, n - 1, n_knots, dtype=rows.dtype, device=rows.device)
        low = at.floor().long().clamp(max=n - 2)
        part = at - low
        # not lerp: its rounding can break the tie of two equal neighbours
        below, above = ordered[..., low], ordered[..., low + 1]
        values = below + part * (above - below)
        levels = (at + 0.5) / n
    else:
        values = ordered
        levels = (torch.arange(n, dtype=rows.dtype, device=rows.device) + 0.5) / n
    return Knots(values, levels, scale)


def z_score_knots(rows: Tensor) -> Knots:
    """Knots with which `to_normal` gives plain z-scores: one, at the mean, and straight tails from there.

    rows: (..., n_rows, n_features), complete.
    """
    center, scale, _ = center_and_scale(rows)
    middle = torch.full((1,), 0.5, dtype=rows.dtype, device=rows.device)
    return Knots(center.transpose(-1, -2), middle, scale.squeeze(-2))


def to_normal(rows: Tensor, knots: Knots) -> Tensor:
    """Map each feature to a standard normal through its empirical quantiles (paper, section 3.1).

    rows: (..., n_rows, n_features), raw units, NaN allowed. Returns the same shape, unitless: ties sit at their
    mid-rank, NaN stays NaN, and beyond the outer knots the result keeps growing linearly.
    """
    x = rows.transpose(-1, -2).contiguous()
    values = knots.values.expand(*x.shape[:-1], -1).contiguous()
    levels = knots.levels.expand_as(values).contiguous()
    last = values.shape[-1] - 1
    first_ge = torch.searchsorted(values, x, right=False)
    last_le = torch.searchsorted(values, x, right=True) - 1
    above, below = first_ge.clamp(max=last), last_le.clamp(min=0)
    p_above, p_below = levels.gather(-1, above), levels.gather(-1, below)
    v_above, v_below = values.gather(-1, above), values.gather(-1, below)
    gap = v_above - v_below
    between = torch.where(gap > 0, (x - v_below) / torch.where(gap > 0, gap, 1.0), 0.5)
    z = torch.special.ndtri(p_below + between.clamp(0, 1) * (p_above - p_below))
    scale = knots.scale.unsqueeze(-1)
    over = (x - values[..., -1:]).clamp(min=0) / scale
    under = (values[..., :1] - x).clamp(min=0) / scale
    # outside the knots a row ranks as the outermost one even where the outer knot is a tie far from rank 0 or 1
    z = torch.where(over > 0, torch.special.ndtri(levels[..., -1:]), z)
    z = torch.where(under > 0, torch.special.ndtri(levels[..., :1]), z)
    z = torch.where(torch.isnan(x), x, z + over - under)
    return z.transpose(-1, -2)
