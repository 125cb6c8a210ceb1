"""Quantile transform to a normal, with tails that keep growing: fitted at once, or row by row as a stream is learned.

Two fits give the same `Knots`: `fit_knots` on a batch of rows (pretraining, batch detectors) and `QuantileSketch`,
which keeps time-decayed weighted quantiles in bounded memory (streams). One transform, `to_normal`, serves both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

N_KNOTS = 1000
Float = NDArray[np.float64]


class Knots(NamedTuple):
    """Empirical quantiles of each feature; leading dimensions (a batch of contexts) are optional.

    values: (..., n_features, n_knots), raw units, ascending; levels: broadcastable to it, in (0, 1), ascending;
    scale: (..., n_features), raw units for one normal unit beyond the outer knots.
    """

    values: Tensor
    levels: Tensor
    scale: Tensor


def constant_scale(center: Tensor, deviation: Tensor, n_rows: int) -> Tensor:
    """Spread to divide by, raw units: the standard deviation, or a stand-in where a feature is constant.

    A value that differs from n identical ones is about as surprising as the odd one among n, which lies sqrt(n)
    deviations out whatever it is; so the stand-in is |the constant| (or 1) / sqrt(n). Rounding noise is no spread.
    """
    size = center.abs()
    stand_in = torch.where(size > 0, size, torch.ones_like(size)) / n_rows**0.5
    return torch.where(deviation > 1e-9 * size, deviation, stand_in)


def fit_knots(rows: Tensor, n_knots: int = N_KNOTS) -> Knots:
    """Quantiles of complete rows (..., n_rows, n_features), no NaN; exact for up to n_knots rows."""
    n = rows.shape[-2]
    ordered = rows.transpose(-1, -2).contiguous().sort(dim=-1).values
    if n > n_knots:
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
    scale = constant_scale(rows.mean(-2), rows.std(-2, correction=0), n)
    return Knots(values, levels, scale)


def z_score_knots(rows: Tensor) -> Knots:
    """Knots with which `to_normal` gives plain z-scores: one, at the mean, and straight tails from there.

    rows: (..., n_rows, n_features), complete.
    """
    center = rows.mean(-2)
    scale = constant_scale(center, rows.std(-2, correction=0), rows.shape[-2])
    return Knots(center.unsqueeze(-1), torch.full((1,), 0.5, dtype=rows.dtype, device=rows.device), scale)


def to_normal(rows: Tensor, knots: Knots) -> Tensor:
    """Map each feature to a standard normal through its empirical quantiles (paper, section 3.1; spec trap 1).

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


@dataclass
class QuantileSketch:
    """Time-decayed quantiles of every feature in bounded memory.

    Rows wait in a buffer of `chunk` rows; a full buffer is merged into at most `size` weighted points a feature, whose
    weights have first been multiplied by 2 ** (-chunk / half_life). A merge moves a rank by at most 1 / (2 size).
    Until `size` rows have come nothing is approximated. Missing values (NaN) carry no weight.
    """

    n_features: int
    half_life: float = 5000.0
    size: int = 1024
    chunk: int = 512

    def __post_init__(self) -> None:
        self._values: Float = np.full((self.n_features, 0), np.inf)
        self._weights: Float = np.zeros((self.n_features, 0))
        self._buffer: Float = np.zeros((0, self.n_features))

    def update(self, rows: Float) -> None:
        """Learn rows (n_rows, n_features), raw units, NaN allowed. Splitting the rows over calls changes nothing."""
        while len(rows):
            room = self.chunk - len(self._buffer)
            self._buffer = np.concatenate([self._buffer, rows[:room]])
            rows = rows[room:]
            if len(self._buffer) == self.chunk:
                self._values, self._weights = self._compress(*self._merged())
                self._buffer = self._buffer[:0]

    def _merged(self) -> tuple[Float, Float]:
        """Points (n_features, n_points), ascending, and their weights, buffer included; NaN becomes (inf, 0)."""
        fresh = self._buffer.T
        missing = np.isnan(fresh)
        decay = 0.5 ** (len(self._buffer) / self.half_life)
        values = np.concatenate([self._values, np.where(missing, np.inf, fresh)], axis=1)
        weights = np.concatenate([self._weights * decay, (~missing).astype(float)], axis=1)
        order = np.argsort(values, axis=1, kind="stable")
        return np.take_along_axis(values, order, 1), np.take_along_axis(weights, order, 1)

    def _compress(self, values: Float, weights: Float) -> tuple[Float, Float]:
        """Keep `size` points of equal weight, each the value in the middle of its share."""
        if values.shape[1] <= self.size:
            return values, weights
        edges = np.cumsum(weights, axis=1)
        total = edges[:, -1]
        middles = (np.arange(self.size) + 0.5) / self.size
        kept = np.full((self.n_features, self.size), np.inf)
        for j in range(self.n_features):
            if total[j] > 0:
                kept[j] = values[j, np.searchsorted(edges[j], middles * total[j])]
        return kept, np.repeat(total[:, None] / self.size, self.size, axis=1)

    def knots(self, n_knots: int = N_KNOTS) -> Knots:
        """The transform as of now, float64 on the CPU. A feature never seen counts as constant 0."""
        values, weights = self._merged()
        out = np.zeros((self.n_features, n_knots))
        levels = np.zeros((self.n_features, n_knots))
        center, deviation = np.zeros(self.n_features), np.zeros(self.n_features)
        counts = np.ones(self.n_features)
        for j in range(self.n_features):
            real = weights[j] > 0
            v, w = values[j, real], weights[j, real]
            if len(v) == 0:
                levels[j] = np.linspace(0.25, 0.75, n_knots)
                continue
            total = w.sum()
            rank = (np.cumsum(w) - w / 2) / total
            if len(v) > n_knots:
                levels[j] = np.linspace(rank[0], rank[-1], n_knots)
                out[j] = np.interp(levels[j], rank, v)
            else:  # exact; the last point is repeated to fill the row, which changes nothing
                levels[j] = np.pad(rank, (0, n_knots - len(v)), mode="edge")
                out[j] = np.pad(v, (0, n_knots - len(v)), mode="edge")
            center[j] = (w @ v) / total
            deviation[j] = np.sqrt(w @ (v - center[j]) ** 2 / total)
            counts[j] = total
        scale = torch.stack(
            [
                constant_scale(torch.tensor(c), torch.tensor(s), max(1, round(n)))
                for c, s, n in zip(center, deviation, counts, strict=True)
            ]
        )
        return Knots(torch.from_numpy(out), torch.from_numpy(levels), scale)

    def snapshot(self) -> dict[str, Float]:
        """The state, as arrays that `restore` takes back."""
        return {"values": self._values.copy(), "weights": self._weights.copy(), "buffer": self._buffer.copy()}

    def restore(self, state: dict[str, Float]) -> None:
        """Become what `snapshot` saw."""
        self._values, self._weights = state["values"].copy(), state["weights"].copy()
        self._buffer = state["buffer"].copy()
