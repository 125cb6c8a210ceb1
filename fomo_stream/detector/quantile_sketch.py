"""Quantiles of a stream, row by row, in bounded memory; older rows weigh less."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fomo_stream.detector.rank_curve import NOTHING, TINY, Curve, faded, knots_of, thinned, with_rows
from fomo_stream.model.quantile_map import Knots, constant_scale

Float = NDArray[np.float64]
Int = NDArray[np.int64]

SKETCH_SIZE = 1024  # points for each feature
GOLDEN = 0.6180339887498949  # its multiples, without their whole part, are evenly spread however many there are
MAX_HALVINGS = 300  # of a weight in one merge
UNDERFLOW = 1e-200  # rows


@lru_cache(maxsize=8)
def _weights(chunk: int, half_life: float) -> Float:
    """Weights (chunk,) of as many rows, the latest last. By `math`: NumPy's last digits depend on the processor."""
    return np.array([math.exp2(-min(age / half_life, MAX_HALVINGS)) for age in reversed(range(chunk))])


def _moments_with(moments: Float, rows: Float, weights: Float) -> Float:
    """Weight, mean and weighted sum of squared deviations (3,), with rows (n,) (Chan, Golub & LeVeque 1983)."""
    weight, mean, squares = moments
    fresh = weights.sum()
    center = (weights * rows).sum() / fresh  # not a matrix product, whose order of additions depends on the processor
    step, share = center - mean, fresh / (weight + fresh)
    squares += (weights * (rows - center) ** 2).sum() + weight * share * step**2
    return np.array([weight + fresh, mean + share * step, squares])


@dataclass
class QuantileSketch:
    """Time-decayed quantiles of every feature in bounded memory.

    A row with `a` rows after it weighs 2 ** (-a / half_life); missing values (NaN or infinite) weigh nothing. For each
    feature the sketch has the cumulative weight at up to `size` of its values, the points. The last `chunk` rows are
    in a ring buffer. Every `chunk` rows a feature has its turn: every row since its last turn becomes a point, where
    the weight of earlier rows is interpolated; then the points that matter least are removed; the other points do not
    change. Features have their turns at different rows, so that no row waits for all of them. Up to `size` distinct
    values nothing is approximated; mean and standard deviation are always exact.
    The outer knots correspond to a batch with as many rows as the sum of all weights: a value is out of range when less
    than half a row is at it or beyond it. A feature that is missing for very long keeps its last state.
    """

    n_features: int
    half_life: float = 5000.0
    size: int = SKETCH_SIZE
    chunk: int = 2048

    def __post_init__(self) -> None:
        if self.size < 2 or self.chunk < 1 or not self.half_life > 0:
            raise ValueError(f"a sketch needs size >= 2, chunk >= 1 and half_life > 0, got {self}")
        d = self.n_features
        self.count = 0  # rows so far
        self.merged: Int = np.zeros(d, dtype=np.int64)  # rows that were learned at each feature's last turn
        self._curves = [NOTHING] * d
        self._moments = np.zeros((d, 3))
        self._ring = np.full((d, self.chunk), np.nan)  # row i in column i % chunk
        self._turns = (np.arange(d) * GOLDEN % 1 * self.chunk).astype(np.int64)  # at rows of this number modulo chunk
        self._next_turns = np.append(np.unique(self._turns[self._turns > 0]), self.chunk)
        self._weights = _weights(self.chunk, self.half_life)

    def update(self, rows: Float) -> None:
        """Learn rows (n_rows, n_features), raw units, NaN allowed. Splitting the rows over calls changes nothing."""
        while len(rows):
            place = self.count % self.chunk
            turn = int(self._next_turns[np.searchsorted(self._next_turns, place, side="right")])
            part = rows[: turn - place]
            stop = place + len(part)
            self._ring[:, place:stop] = part.T
            self.count += len(part)
            if stop == turn:
                self.merge(np.flatnonzero(self._turns == turn % self.chunk))
            rows = rows[len(part) :]

    def merge(self, features: Int) -> None:
        """Make points of all rows of these features now, before their turn."""
        for j in features[self.merged[features] < self.count].tolist():
            self._curves[j], self._moments[j] = self._with_waiting(j, self.size)
            self.merged[j] = self.count

    def _with_waiting(self, j: int, size: int) -> tuple[Curve, Float]:
        """At most `size` points of feature j, and its moments, from all rows, as weighted after the last one."""
        curve, moments, n = self._curves[j], self._moments[j], self.count - int(self.merged[j])
        fade = math.exp2(-min(n / self.half_life, MAX_HALVINGS))
        if moments[0] * fade <= UNDERFLOW:
            fade = 1.0  # such a small weight no longer decays, or underflow would remove it
        moments, rows, weights = moments * [fade, 1.0, fade], self._waiting(j), self._weights[self.chunk - n :]
        known = np.isfinite(rows)
        if not known.all():
            rows, weights = rows[known], weights[known]
        curve = faded(curve, fade)
        if len(rows):
            moments, curve = _moments_with(moments, rows, weights), with_rows(curve, rows, weights)
        return thinned(curve, size), moments

    def _waiting(self, j: int) -> Float:
        """The rows (n,) of feature j that are no points yet."""
        ring, start = self._ring[j], int(self.merged[j]) % self.chunk
        n = self.count - int(self.merged[j])
        beyond = start + n - self.chunk
        return ring[start : start + n] if beyond <= 0 else np.concatenate([ring[start:], ring[:beyond]])

    def knots(self, n_knots: int = 2 * SKETCH_SIZE) -> Knots:
        """The transform now, float64 on the CPU, from up to n_knots / 2 points of each feature; n_knots >= 4.

        A feature never seen counts as constant 0.
        """
        moments = np.zeros_like(self._moments)
        faint = -math.expm1(-math.log(2) / self.half_life) / 2
        values, levels = np.zeros((self.n_features, n_knots)), np.full((self.n_features, n_knots), 0.5)
        for j in range(self.n_features):
            curve, moments[j] = self._with_waiting(j, n_knots // 2)
            if len(curve.values):
                found, at = knots_of(curve, faint)
                n = len(found)
                values[j, :n], values[j, n:] = found, found[-1]  # the last knot repeated changes nothing
                levels[j, :n], levels[j, n:] = at, at[-1]
        weight, mean, squares = torch.from_numpy(moments).unbind(1)
        scale = constant_scale(mean, (squares / weight.clamp(min=TINY)).sqrt(), weight.clamp(min=1))
        return Knots(torch.from_numpy(values), torch.from_numpy(levels), scale)

    def copy(self, more: int = 0) -> QuantileSketch:
        """An independent sketch of the same rows, with `more` further features that none of them has."""
        d = self.n_features
        twin = QuantileSketch(d + more, self.half_life, self.size, self.chunk)
        twin.count = self.count
        twin.merged[:d], twin.merged[d:] = self.merged, self.count
        twin._curves[:d], twin._moments[:d], twin._ring[:d] = self._curves, self._moments, self._ring
        return twin

    def points(self, j: int) -> bytes:
        """The rows at the last turn of feature j, its moments and its points."""
        curve = np.stack(self._curves[j])
        return b"".join([self.merged[j].tobytes(), self._moments[j].tobytes(), curve.tobytes()])

    def take_points(self, points: list[bytes]) -> None:
        """Start from what `points` has returned for each feature: all rows since the earliest turn have to follow."""
        for j, data in enumerate(points):
            self.merged[j] = np.frombuffer(data[:8], np.int64)[0]
            self._moments[j] = np.frombuffer(data[8:32])
            self._curves[j] = Curve(*np.frombuffer(data[32:]).reshape(3, -1))
        self.count = int(self.merged.min())

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Named arrays of everything that later knots depend on."""
        points = [np.frombuffer(self.points(j), np.uint8) for j in range(self.n_features)]
        waiting = [self._waiting(j) for j in range(self.n_features)]
        return {
            "sketch.count": np.array(self.count),
            "sketch.lengths": np.array([len(part) for part in points]),
            "sketch.points": np.concatenate(points),
            "sketch.waiting": np.concatenate(waiting),
        }

    def take_arrays(self, found: dict[str, NDArray[Any]]) -> None:
        """Become the sketch whose `to_arrays` these are."""
        ends = np.cumsum(found["sketch.lengths"])[:-1]
        self.take_points([part.tobytes() for part in np.split(found["sketch.points"], ends)])
        self.count = int(found["sketch.count"])
        ends = np.cumsum(self.count - self.merged)[:-1]
        for j, part in enumerate(np.split(found["sketch.waiting"], ends)):
            self._ring[j, np.arange(self.merged[j], self.count) % self.chunk] = part
