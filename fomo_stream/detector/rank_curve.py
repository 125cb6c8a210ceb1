"""The cumulative weight of the values of one feature, at chosen points."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]

BENDING = 20.0  # cost of a point that is off a straight line by some weight, relative to a gap of that weight
TINY = 1e-300


class Curve(NamedTuple):
    """Cumulative weight of one feature, in rows, at chosen values of it; all (n_points,), never written in place."""

    values: Float  # raw units, ascending, distinct
    below: Float  # weight of all smaller values
    upto: Float  # weight of all smaller values and of this one


NOTHING = Curve(np.zeros(0), np.zeros(0), np.zeros(0))


def faded(curve: Curve, factor: float) -> Curve:
    """The curve with all weights multiplied by the factor."""
    return Curve(curve.values, curve.below * factor, curve.upto * factor)


def with_rows(curve: Curve, rows: Float, weights: Float) -> Curve:
    """The curve with rows (n,) of these weights added, n >= 1; every distinct row is a point of its own."""
    order = np.argsort(rows)  # not stable, but several times faster
    rows = rows[order]
    last = np.append(rows[1:] != rows[:-1], True)  # of equal rows
    if last.all():
        weight = np.cumsum(weights[order])
    else:
        weight = np.cumsum(weights[_in_time(order, last)])[last]
        rows = rows[last]
    weight = np.append(0.0, weight)
    if not len(curve.values):
        return Curve(rows, weight[:-1], weight[1:])
    place = np.searchsorted(rows, curve.values)  # rows below each point
    tied = np.append(rows, np.inf)[place] == curve.values  # points that are rows as well
    below, upto = _weights_at(curve, rows, place, tied)
    if tied.any():
        curve, place = Curve(*(part[~tied] for part in curve)), place[~tied]
    of_points, of_rows = place + np.arange(len(place)), _points_below(place, len(rows)) + np.arange(len(rows))
    joined = Curve(*(np.empty(len(place) + len(rows)) for _ in curve))
    for part, old in zip(joined, curve, strict=True):
        part[of_points] = old
    earlier = weight[place]
    joined.below[of_points] += earlier
    joined.upto[of_points] += earlier
    joined.values[of_rows] = rows
    joined.below[of_rows] = below + weight[:-1]
    joined.upto[of_rows] = upto + weight[1:]
    return joined


def _in_time(order: Int, last: NDArray[np.bool_]) -> Int:
    """The order (n,) with equal rows in their first order, so that sums do not depend on the processor's way to sort.

    last: (n,) whether a row is the last of equal ones.
    """
    n = len(order)
    group: Int = np.cumsum(last) - last
    return np.sort(group * n + order) - group * n


def _points_below(place: Int, n: int) -> Int:
    """For each of n rows, how many points are below it or equal to it; place: (m,) rows below each point."""
    return np.repeat(np.arange(len(place) + 1), np.diff(place, prepend=0, append=n))


def _weights_at(curve: Curve, rows: Float, place: Int, tied: NDArray[np.bool_]) -> tuple[Float, Float]:
    """Weight of the curve below and up to each of rows (n,), ascending; between two points it is spread evenly.

    place: (m,) rows below each point; tied: (m,) whether the next row is equal to the point.
    """
    inner = slice(place[0], place[-1])  # rows between two points
    left = np.repeat(np.arange(len(place) - 1), np.diff(place))
    low, start = curve.values[left], curve.upto[left]
    right = left + 1
    upto = np.empty(len(rows))
    upto[: inner.start], upto[inner.stop :] = 0.0, curve.upto[-1]
    upto[inner] = start + (rows[inner] - low) / (curve.values[right] - low) * (curve.below[right] - start)
    below = upto
    if tied.any():
        below = upto.copy()
        below[place[tied]] = curve.below[tied]
    return below, upto


def thinned(curve: Curve, size: int) -> Curve:
    """At most `size` points of the curve, the outer two among them.

    The points with the lowest cost are removed. The cost is the weight between the neighbours, plus BENDING times the
    weight by which the point is off the straight line that replaces it. Points at bends are kept, because without them
    all later ranks nearby would be wrong in the same direction. At rank p the cost is divided by sqrt(p (1 - p)), so
    that points are denser in the tails (as in a t-digest; Dunning 2019). Each pass looks at every other point and
    removes at most half of those, so that the neighbours of a removed point stay, and the cheapest can be chosen.
    """
    excess = len(curve.values) - size
    if excess <= 0:
        return curve
    values, below, upto = curve
    rank = (below + upto) / (2 * upto[-1])
    spread = np.sqrt(np.maximum(rank * (1 - rank), TINY))
    while excess > 0:
        before, inner, after = slice(None, -2, 2), slice(1, -1, 2), slice(2, None, 2)
        low, start, own = values[before], upto[before], upto[inner]
        rise = below[after] - start
        line = start + (values[inner] - low) / (values[after] - low) * rise
        off = np.maximum(own - line, line - below[inner])
        cost = (rise + BENDING * off) / spread[inner]
        cut = min(excess, (len(cost) + 1) // 2) - 1
        kept = np.ones(len(values), dtype=bool)
        kept[inner] = cost > np.partition(cost, cut)[cut]
        points = np.flatnonzero(kept)
        values, below, upto, spread = values[points], below[points], upto[points], spread[points]
        excess = len(values) - size
    return Curve(values, below, upto)


def knots_of(curve: Curve, faint: float) -> tuple[Float, Float]:
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
