"""Missing values completed by the nearest rows of a context: `fomo_stream.model.completion`, compiled.

Distances in float32 tell which rows may be among the nearest; those of these few rows are computed in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.compiling import exact_kernel, kernel
from fomo_stream.model.kernels.neighbours import FEW, GROUPS, LANES, LIMIT, bound_of, trailing_zeros, up_to

Float = NDArray[np.float64]

ROUNDING = 2.5e-7  # of float32: twice as much as two coordinates and their difference can be wrong, by their size


class Known(NamedTuple):
    """The n rows of a context that complete others."""

    rows: Float  # (n, d) raw units
    known: NDArray[np.bool_]  # (d,) features that have values
    scale: Float  # (d,) that distances are divided by
    center: Float  # (d,)
    most: Float  # (d,) the largest size of (rows - center) / scale
    columns: NDArray[np.float32]  # (d, m) these, padded with FAR
    nearest: float  # how many rows have a say


@kernel
def _rough_distances(x, columns, has, count, out):
    """Squared distances of x (d,) to the columns of columns (d, m) in the first `count` coordinates of `has`."""
    m = out.shape[0]
    for i in range(m):
        out[i] = np.float32(0)
    for a in range(0, count - 3, 4):
        ja, jb, jc, je = has[a], has[a + 1], has[a + 2], has[a + 3]
        xa, xb, xc, xe = x[ja], x[jb], x[jc], x[je]
        ca, cb, cc, ce = columns[ja], columns[jb], columns[jc], columns[je]
        for i in range(m):
            ta, tb, tc, te = ca[i] - xa, cb[i] - xb, cc[i] - xc, ce[i] - xe
            out[i] += (ta * ta + tb * tb) + (tc * tc + te * te)
    for a in range(count // 4 * 4, count):
        xa, ca = x[has[a]], columns[has[a]]
        for i in range(m):
            ta = ca[i] - xa
            out[i] += ta * ta


@exact_kernel
def _candidates(row, c, has, count, lacking, x, d2, minima, place, found):
    """The rows that may be among the nearest of a row (d,), ascending, into found (n,); returns how many."""
    n, m = c.rows.shape[0], d2.shape[0]
    limit = np.inf
    if m > FEW:
        wrong = 0.0
        for a in range(count):
            j = has[a]
            z = (row[j] - c.center[j]) / c.scale[j]
            x[j] = min(max(z, -LIMIT), LIMIT)
            wrong += (c.most[j] + abs(z)) ** 2
        _rough_distances(x, c.columns, has, count, d2)
        for j in range(lacking.shape[0]):
            if c.known[j] and np.isnan(row[j]):
                for i in range(n):
                    if lacking[j, i]:
                        d2[i] = np.inf
        root = math.sqrt(bound_of(d2, min(int(c.nearest), n), minima, place))
        limit = ((root + 2.0 * ROUNDING * math.sqrt(wrong)) * (1.0 + ROUNDING * (count + 4))) ** 2
    if not limit < LIMIT:
        for i in range(n):
            found[i] = i
        return n
    total, limit = 0, np.float32(limit * (1.0 + ROUNDING))
    for start in range(0, m, LANES):
        hits = up_to(d2, start, limit)
        while hits:
            found[total] = start + trailing_zeros(hits)
            total += 1
            hits &= hits - np.uint32(1)
    return total


@exact_kernel
def _nearest(row, c, has, count, lacking, found, near, apart):
    """The rows near (k,) that are nearest to a row (d,) among those of `found`, with squared distances apart (k,).

    Both ascend; of rows that are equally far the first ones are taken.
    """
    filled, k = 0, near.shape[0]
    for a in range(found.shape[0]):
        i, distance = found[a], 0.0
        for b in range(count):
            z = (c.rows[i, has[b]] - row[has[b]]) / c.scale[has[b]]
            distance += z * z
        for j in range(lacking.shape[0]):
            if lacking[j, i] and c.known[j] and np.isnan(row[j]):
                distance = np.inf
        if filled == k and not distance < apart[k - 1]:
            continue
        at = min(filled, k - 1)
        while at > 0 and apart[at - 1] > distance:
            near[at], apart[at] = near[at - 1], apart[at - 1]
            at -= 1
        near[at], apart[at] = i, distance
        filled = min(filled + 1, k)


@exact_kernel
def _middle(rows, near, j):
    """The middle one, or the lower of two, of the values that the rows of `near` (k,) have in column j."""
    k = near.shape[0]
    for a in range(k):
        x, before = rows[near[a], j], 0
        for b in range(k):
            y = rows[near[b], j]
            before += 1 if y < x or (y == x and b < a) else 0
        if before == (k - 1) // 2:
            return x
    return rows[near[0], j]


@exact_kernel
def complete(rows, c, lacking, out):
    """Rows (q, d), NaN = missing, into out, completed by the context c. See `Completion`.

    lacking: (d, n) values of the context that are known to none, or (0, 0).
    """
    n, d = c.rows.shape
    k = min(int(c.nearest), n)
    near, apart, found = np.empty(k, np.int64), np.empty(k), np.empty(n, np.int64)
    has, x, d2 = np.empty(d, np.int64), np.empty(d, np.float32), np.empty(c.columns.shape[1], np.float32)
    minima, place = np.empty(GROUPS, np.float32), np.empty(GROUPS, np.int32)
    for i in range(rows.shape[0]):
        count = gaps = 0
        for j in range(d):
            out[i, j] = rows[i, j]
            if c.known[j] and np.isnan(rows[i, j]):
                gaps += 1
            elif c.known[j]:
                has[count] = j
                count += 1
        if not gaps:
            continue
        if count:
            total = _candidates(rows[i], c, has, count, lacking, x, d2, minima, place, found)
            _nearest(rows[i], c, has, count, lacking, found[:total], near, apart)
        for j in range(d):
            if c.known[j] and np.isnan(rows[i, j]):
                out[i, j] = _middle(c.rows, near, j) if count else np.sort(c.rows[:, j])[(n - 1) // 2]
