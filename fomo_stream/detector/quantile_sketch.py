"""Quantiles of a stream, row by row, in bounded memory; older rows weigh less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries, Table
from fomo_stream.detector.widening import with_missing_features
from fomo_stream.model.quantile_map import Knots, constant_scale

Float = NDArray[np.float64]

SKETCH_SIZE = 1024  # points for each feature
ROW_BLOCK = 16  # waiting rows to an entry of the log
BENDING = 20.0  # cost of a point that is off a straight line by some weight, relative to a gap of that weight
MAX_HALVINGS = 300  # of a weight in one merge
UNDERFLOW = 1e-200  # rows
TINY = 1e-300


class _Curve(NamedTuple):
    """Cumulative weight of one feature, in rows, at chosen values of it; all (n_points,)."""

    values: Float  # raw units, ascending, distinct
    below: Float  # weight of all smaller values
    upto: Float  # weight of all smaller values and of this one


def _weights_at(curve: _Curve, values: Float) -> tuple[Float, Float]:
    """Weight below and up to each of values (n,); between two points of the curve it is spread evenly."""
    after = np.searchsorted(curve.values, values, side="right")
    left, right = np.maximum(after - 1, 0), np.minimum(after, len(curve.values) - 1)
    low, upto = curve.values[left], curve.upto[left] * (after > 0)
    gap = curve.values[right] - low
    gap[left == right] = np.inf  # beyond the outer points
    upto += (values - low) / gap * (curve.below[right] - upto)
    return np.where(values == low, curve.below[left], upto), upto


def _with_rows(curve: _Curve, rows: Float, weights: Float) -> _Curve:
    """The curve with rows (n,) of these weights added, n >= 1; every distinct row is a point of its own."""
    order = np.argsort(rows, kind="stable")
    rows, weight = rows[order], np.cumsum(weights[order])
    last = np.flatnonzero(rows != np.append(rows[1:], np.inf))  # of equal rows
    rows, weight = rows[last], np.append(0.0, weight[last])
    if not len(curve.values):
        return _Curve(rows, weight[:-1], weight[1:])
    below, upto = _weights_at(curve, rows)
    place = np.searchsorted(rows, curve.values)
    tied = np.append(rows, np.inf)[place] == curve.values  # points that are rows as well
    if tied.any():
        curve, place = _Curve(*(part[~tied] for part in curve)), place[~tied]
    values = np.concatenate([curve.values, rows])
    below = np.concatenate([curve.below + weight[place], below + weight[:-1]])
    upto = np.concatenate([curve.upto + weight[place], upto + weight[1:]])
    order = np.argsort(values, kind="stable")
    return _Curve(values[order], below[order], upto[order])


def _thinned(curve: _Curve, size: int) -> _Curve:
    """At most `size` points of the curve, the outer two among them.

    The points with the lowest cost are removed. The cost is the weight between the neighbours, plus BENDING times the
    weight by which the point is off the straight line that replaces it. Points at bends are kept, because without them
    all later ranks nearby would be wrong in the same direction. At rank p the cost is divided by sqrt(p (1 - p)), so
    that points are denser in the tails (as in a t-digest; Dunning 2019). Each pass looks at every other point and
    removes at most half of those, so that the neighbours of a removed point stay, and the cheapest can be chosen.
    """
    while (excess := len(curve.values) - size) > 0:
        values, below, upto = curve
        before, inner, after = slice(None, -2, 2), slice(1, -1, 2), slice(2, None, 2)
        rise = below[after] - upto[before]
        part = (values[inner] - values[before]) / (values[after] - values[before])
        line = upto[before] + part * rise
        off = np.maximum(upto[inner] - line, line - below[inner])
        rank = (below[inner] + upto[inner]) / (2 * upto[-1])
        cost = (rise + BENDING * off) / np.sqrt(np.maximum(rank * (1 - rank), TINY))
        cut = min(excess, (len(cost) + 1) // 2) - 1
        kept = np.ones(len(values), dtype=bool)
        kept[inner] = cost > np.partition(cost, cut)[cut]
        points = np.flatnonzero(kept)
        curve = _Curve(values[points], below[points], upto[points])
    return curve


def _moments_with(moments: Float, rows: Float, weights: Float) -> Float:
    """Weight, mean and weighted sum of squared deviations (3,), with rows (n,) (Chan, Golub & LeVeque 1983)."""
    weight, mean, squares = moments
    fresh = weights.sum()
    center = weights @ rows / fresh
    step, share = center - mean, fresh / (weight + fresh)
    squares += weights @ (rows - center) ** 2 + weight * share * step**2
    return np.array([weight + fresh, mean + share * step, squares])


def _knots_of(curve: _Curve, faint: float) -> tuple[Float, Float]:
    """Values and levels of knots, two for each point; without the outer points beyond which the share is < faint.

    A tie extends from the middle of its first row to the middle of its last, as in `fit_knots`.
    """
    total = curve.upto[-1]
    start = int(np.searchsorted(curve.upto, faint * total))
    stop = int(np.searchsorted(curve.below, (1 - faint) * total, side="right"))
    values, below, upto = (part[start:stop] if start < stop else part for part in curve)
    half = np.minimum(upto - below, 1.0) / 2
    levels = np.stack([below + half, upto - half], axis=1).ravel() / total
    return np.repeat(values, 2), levels.clip(faint / 2, 1 - faint / 2)


@dataclass
class QuantileSketch:
    """Time-decayed quantiles of every feature in bounded memory.

    A row with `a` rows after it weighs 2 ** (-a / half_life); missing values (NaN or infinite) weigh nothing. For each
    feature the sketch has the cumulative weight at up to `size` of its values, the points. Rows wait in a buffer of
    `chunk` rows. When it is full, every row becomes a point, where the weight of earlier rows is interpolated; then the
    points that matter least are removed; the other points do not change. Up to `size` distinct values nothing is
    approximated; mean and standard deviation are always exact.
    The outer knots correspond to a batch with as many rows as the sum of all weights: a value is out of range when less
    than half a row is at it or beyond it. A feature that is missing for very long keeps its last state.
    """

    n_features: int
    half_life: float = 5000.0
    size: int = SKETCH_SIZE
    chunk: int = 1024

    def __post_init__(self) -> None:
        if self.size < 2 or self.chunk < 1 or not self.half_life > 0:
            raise ValueError(f"a sketch needs size >= 2, chunk >= 1 and half_life > 0, got {self}")
        shape = (self.n_features, self.size)
        self._points = Table(
            1,
            values=np.full(shape, np.inf),
            below=np.zeros(shape),
            upto=np.zeros(shape),
            moments=np.zeros((self.n_features, 3)),
        )
        self._buffer = Table(ROW_BLOCK, buffer=np.full((self.chunk, self.n_features), np.nan))
        self.waiting = 0  # rows in the buffer

    def update(self, rows: Float) -> None:
        """Learn rows (n_rows, n_features), raw units, NaN allowed. Splitting the rows over calls changes nothing."""
        while len(rows):
            part = rows[: self.chunk - self.waiting]
            self._buffer.put(np.arange(self.waiting, self.waiting + len(part)), buffer=part)
            self.waiting += len(part)
            rows = rows[len(part) :]
            if self.waiting == self.chunk:
                self._merge()
                self.waiting = 0

    def _merge(self) -> None:
        curves, moments = self._merged(self.size)
        known = np.flatnonzero(moments[:, 0])  # features that had a value
        points = np.full((3, len(known), self.size), np.inf)
        for part, j in zip(points.swapaxes(0, 1), known, strict=True):
            part[:, : len(curves[j].values)] = curves[j]
        values, below, upto = points
        self._points.put(known, values=values, below=below, upto=upto, moments=moments[known])

    def _merged(self, size: int) -> tuple[list[_Curve], Float]:
        """At most `size` points of each feature, and its moments, from all rows, as weighted after the last one."""
        rows = np.ascontiguousarray(self._buffer["buffer"][: self.waiting].T)
        known = np.isfinite(rows)
        ages = np.arange(self.waiting + 1)[::-1]
        before = self._points
        faded = np.exp2(-np.minimum(ages / self.half_life, MAX_HALVINGS))
        fresh = faded[1:]
        # such a small weight no longer decays, or underflow would remove it
        fades = np.where(before["moments"][:, 0] * faded[0] > UNDERFLOW, faded[0], 1.0)
        moments = before["moments"] * np.stack([fades, np.ones_like(fades), fades], axis=1)
        curves = []
        for j, (row, mask, fade) in enumerate(zip(rows, known, fades.tolist(), strict=True)):
            n = int(np.searchsorted(before["values"][j], np.inf))
            curve = _Curve(before["values"][j, :n], before["below"][j, :n] * fade, before["upto"][j, :n] * fade)
            if mask.any():
                moments[j] = _moments_with(moments[j], row[mask], fresh[mask])
                curve = _with_rows(curve, row[mask], fresh[mask])
            curves.append(_thinned(curve, size))
        return curves, moments

    def knots(self, n_knots: int = 2 * SKETCH_SIZE) -> Knots:
        """The transform now, float64 on the CPU, from up to n_knots / 2 points of each feature; n_knots >= 4.

        A feature never seen counts as constant 0.
        """
        curves, moments = self._merged(n_knots // 2)
        faint = -np.expm1(-np.log(2) / self.half_life) / 2
        values, levels = np.zeros((self.n_features, n_knots)), np.full((self.n_features, n_knots), 0.5)
        for j, curve in enumerate(curves):
            if len(curve.values):
                found, at = _knots_of(curve, faint)
                padding = (0, n_knots - len(found))  # the last knot repeated changes nothing
                values[j], levels[j] = np.pad(found, padding, mode="edge"), np.pad(at, padding, mode="edge")
        weight, mean, squares = torch.from_numpy(moments).unbind(1)
        scale = constant_scale(mean, (squares / weight.clamp(min=TINY)).sqrt(), weight.clamp(min=1))
        return Knots(torch.from_numpy(values), torch.from_numpy(levels), scale)

    def copy(self, more: int = 0) -> QuantileSketch:
        """An independent sketch of the same rows, with `more` further features that none of them has."""
        twin = QuantileSketch(self.n_features + more, self.half_life, self.size, self.chunk)
        known = np.flatnonzero(self._points["moments"][:, 0])
        columns = ("values", "below", "upto", "moments")
        twin._points.put(known, **{name: self._points[name][known] for name in columns})
        waiting = np.arange(self.waiting)
        twin._buffer.put(waiting, buffer=with_missing_features(self._buffer["buffer"][waiting], more))
        twin.waiting = self.waiting
        return twin

    def changes(self, name: str) -> Entries:
        """Entries of all changes since the last call, at first of everything; without the number of waiting rows."""
        return {**self._points.changes(f"{name}/points"), **self._buffer.changes(f"{name}/waiting")}

    def recover(self, entries: StoredEntries, name: str, waiting: int) -> None:
        """Take the state from the entries, with `waiting` rows in the buffer. Raises StateError if they do not fit."""
        self._points.recover(entries, f"{name}/points")
        self._buffer.recover(entries, f"{name}/waiting")
        self.waiting = waiting
