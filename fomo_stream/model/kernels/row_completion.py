"""Missing values completed by the nearest rows of a context: `fomo_stream.model.completion`, compiled.

Distances in float32 tell which rows may be among the nearest; those of these few rows are computed in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.compiling import exact_kernel, kernel
from fomo_stream.model.kernels.lanes import LANES, add_squares, all_lanes, lanes_at, put_lanes
from fomo_stream.model.kernels.neighbours import (
    GROUPS,
    HITS_AT_ONCE,
    LIMIT,
    MAX_ROWS_WITHOUT_BOUND,
    bound_of,
    rows_up_to,
)

Float = NDArray[np.float64]

ROUNDING = 2.5e-7  # of float32: twice as much as two coordinates and their difference can be wrong, by their size
MAX_FLOAT = np.finfo(np.float64).max


class CompletionRows(NamedTuple):
    """The n rows of a context that complete others."""

    rows: Float  # (n, d) raw units
    known: NDArray[np.bool_]  # (d,) features that have values
    scale: Float  # (d,) that distances are divided by
    center: Float  # (d,)
    most: Float  # (d,) the largest size of (rows - center) / scale
    columns: NDArray[np.float32]  # (d, m) these, padded with FAR
    nearest: float  # how many rows complete a row


@kernel
def _rough_distances(x, columns, has, count, out):
    """Squared distances of x (d,) to the columns of columns (d, m) in the first `count` coordinates of `has`."""
    m = out.shape[0]
    for start in range(0, m, LANES):
        total = all_lanes(np.float32(0))
        for a in range(count):
            total = add_squares(total, lanes_at(columns, has[a] * m + start), x[has[a]])
        put_lanes(out, start, total)


@exact_kernel
def _candidates(row, c, has, count, lacking, x, d2, minima, near):
    """The rows that may be among the nearest of a row (d,), ascending, into near (> n,); returns how many."""
    n, m = c.rows.shape[0], d2.shape[0]
    limit = np.inf
    if count and m > MAX_ROWS_WITHOUT_BOUND:
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
        root = math.sqrt(bound_of(d2, min(int(c.nearest), n), minima))
        limit = ((root + 2.0 * ROUNDING * math.sqrt(wrong)) * (1.0 + ROUNDING * (count + 4))) ** 2
    if not limit < LIMIT:
        for i in range(n):
            near[i] = i
        return n
    return rows_up_to(d2, np.float32(limit * (1.0 + ROUNDING)), near)


@exact_kernel
def _keep_nearest(row, c, has, count, lacking, near, total, distances, least):
    """Keep of the rows near (total,) those that are nearest to a row (d,), and all that are as far as the last of them;
    returns how many. distances (n,), least (k,): to work with."""
    for a in range(total):
        i, distance = near[a], 0.0
        for b in range(count):
            z = (c.rows[i, has[b]] - row[has[b]]) / c.scale[has[b]]
            distance += z * z
        for j in range(lacking.shape[0]):
            if lacking[j, i] and c.known[j] and np.isnan(row[j]):
                distance = np.inf
        distances[a] = distance
    least[:] = np.inf
    for a in range(total):
        at = least.shape[0] - 1
        if distances[a] < least[at]:
            while at > 0 and least[at - 1] > distances[a]:
                least[at] = least[at - 1]
                at -= 1
            least[at] = distances[a]
    last = least[least.shape[0] - 1]
    if last == np.inf and least[0] < np.inf:
        last = MAX_FLOAT
    kept = 0
    for a in range(total):
        if distances[a] <= last:
            near[kept] = near[a]
            kept += 1
    return kept


@exact_kernel
def _middle(rows, near, total, j, values):
    """The middle one, or the lower of two, of what the rows of near (total,) have in column j. values: to work with."""
    for a in range(total):
        values[a] = rows[near[a], j]
    if total > 2 * LANES:
        return np.sort(values[:total])[(total - 1) // 2]
    for a in range(total):
        before = 0
        for b in range(total):
            before += 1 if values[b] < values[a] or (values[b] == values[a] and b < a) else 0
        if before == (total - 1) // 2:
            return values[a]
    return np.nan


@exact_kernel
def complete(rows, c, lacking, out):
    """Rows (q, d), NaN = missing, into out, completed by the context c. See `Completion`.

    lacking: (d, n) values of the context that are known to none, or (0, 0).
    """
    # An assignment of arrays would have numba compile an error message, with all that makes text of a shape.
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            out[i, j] = rows[i, j]
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            if c.known[j] and np.isnan(rows[i, j]):
                _complete_from(i, rows, c, lacking, out)
                return


@exact_kernel
def _complete_from(first, rows, c, lacking, out):
    """Complete the rows from the first one on."""
    n, d = c.rows.shape
    near, distances, least = np.empty(n + HITS_AT_ONCE, np.uint32), np.empty(n), np.empty(min(int(c.nearest), n))
    has, x, d2 = np.empty(d, np.int64), np.empty(d, np.float32), np.empty(c.columns.shape[1], np.float32)
    minima = np.empty(GROUPS, np.float32)
    for i in range(first, rows.shape[0]):
        row, count, gaps = rows[i], 0, 0
        for j in range(d):
            if c.known[j] and np.isnan(row[j]):
                gaps += 1
            elif c.known[j]:
                has[count] = j
                count += 1
        if not gaps:
            continue
        total = _candidates(row, c, has, count, lacking, x, d2, minima, near)
        total = _keep_nearest(row, c, has, count, lacking, near, total, distances, least) if count else total
        for j in range(d):
            if c.known[j] and np.isnan(row[j]):
                out[i, j] = _middle(c.rows, near, total, j, distances)
