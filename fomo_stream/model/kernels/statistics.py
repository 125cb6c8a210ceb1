"""The statistics of rows against a context, and the channels made of them (see `fomo_stream.model.evidence`).

Those of a context's own rows are leave-one-out. Its means, spreads and whitening are sums in an order that no processor
or library changes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.arithmetic import (
    asinh,
    bits_of_single,
    count_smaller,
    count_up_to,
    log,
    log_all,
    normal_quantile,
    search,
)
from fomo_stream.model.kernels.compiling import exact_kernel, kernel
from fomo_stream.model.kernels.handles import row, scalar, table
from fomo_stream.model.kernels.lanes import span
from fomo_stream.model.kernels.neighbours import FAR, LIMIT, block_distances, kernel_sums, nearest, new_scratch

Float = NDArray[np.float64]
Single = NDArray[np.float32]

MAX_FEATURES = 64  # with more, a library is faster
MAX_SWEEPS = 30  # far more sweeps than any matrix needs
PRECISION = 1e-15


@kernel
def moments(rows):
    """Mean and standard deviation (2, d) of the columns of rows (n, d)."""
    n, d = rows.shape
    out = np.zeros((2, d))
    for i in range(n):
        for j in range(d):
            out[0, j] += rows[i, j]
    for j in range(d):
        out[0, j] /= n
    for i in range(n):
        for j in range(d):
            out[1, j] += (rows[i, j] - out[0, j]) * (rows[i, j] - out[0, j])
    for j in range(d):
        out[1, j] = math.sqrt(out[1, j] / n)
    return out


@kernel
def _shrunk_covariance(z):
    """Covariance (d, d) of z-scores (n, d), shrunk towards a multiple of the identity (OAS, Chen et al. 2010)."""
    n, d = z.shape
    cov = np.zeros((d, d))
    for i in range(n):
        for a in range(d):
            for b in range(d):
                cov[a, b] += z[i, a] * z[i, b]
    trace = squares = 0.0
    for a in range(d):
        for b in range(d):
            cov[a, b] /= n
        if cov[a, a] < 1e-12:  # constants: leave them as they are
            cov[a, a] += 1.0
    for a in range(d):
        trace += cov[a, a]
        for b in range(d):
            squares += cov[a, b] * cov[a, b]
    top = (1.0 - 2.0 / d) * squares + trace * trace
    bottom = (n + 1.0 - 2.0 / d) * (squares - trace * trace / d)
    rho = min(max(top / max(bottom, 1e-30), 0.0), 1.0) if bottom > 0 else 1.0
    for a in range(d):
        for b in range(d):
            cov[a, b] *= 1.0 - rho
        cov[a, a] += rho * trace / d
    return cov


@kernel
def _rotate(x, y, cosine, sine):
    for j in range(x.shape[0]):
        a, b = x[j], y[j]
        x[j] = cosine * a - sine * b
        y[j] = sine * a + cosine * b


@kernel
def _dot(x, y):
    total = 0.0
    for j in range(x.shape[0]):
        total += x[j] * y[j]
    return total


@kernel
def _eigen(matrix):
    """Eigenvectors, as rows (d, d), and eigenvalues (d,) of a symmetric matrix without negative eigenvalues.

    By rotations of its rows until all are orthogonal to each other (one-sided Jacobi; Hestenes 1958). Their lengths are
    then the eigenvalues, and the same rotations of the identity are the eigenvectors.
    """
    d = matrix.shape[0]
    rows, vectors = matrix.copy(), np.eye(d)
    smallest = 0.0
    for a in range(d):
        smallest = max(smallest, _dot(rows[a], rows[a]))
    smallest *= PRECISION * PRECISION
    for _ in range(MAX_SWEEPS):
        rotated = False
        for a in range(d - 1):
            for b in range(a + 1, d):
                dot, aa, bb = _dot(rows[a], rows[b]), _dot(rows[a], rows[a]), _dot(rows[b], rows[b])
                if abs(dot) <= PRECISION * math.sqrt(aa * bb) + smallest:
                    continue
                rotated = True
                zeta = (bb - aa) / (2.0 * dot)
                tangent = (1.0 if zeta >= 0 else -1.0) / (abs(zeta) + math.sqrt(1.0 + zeta * zeta))
                cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
                _rotate(rows[a], rows[b], cosine, cosine * tangent)
                _rotate(vectors[a], vectors[b], cosine, cosine * tangent)
        if not rotated:
            break
    values = np.empty(d)
    for a in range(d):
        values[a] = math.sqrt(_dot(rows[a], rows[a]))
    return vectors, values


@kernel
def whitening_matrix(z):
    """Inverse square root (d, d) of the shrunk covariance of z-scores (n, d), d <= MAX_FEATURES."""
    d = z.shape[1]
    vectors, values = _eigen(_shrunk_covariance(z))
    out = np.zeros((d, d))
    for i in range(d):
        weight = 1.0 / math.sqrt(max(values[i], 1e-12))
        for a in range(d):
            scaled = weight * vectors[i, a]
            for b in range(d):
                out[a, b] += scaled * vectors[i, b]
    return out


NEIGHBOURS = 20
NEAR_NEIGHBOURS = 5
SPACES = 3  # z-scores, quantile map, whitened
PER_SPACE = 14
TILE = 8  # rows that pass over the context together; without influence on results


class Transform(NamedTuple):
    """The maps from raw values to the spaces in use. d = features, k = knots; raw units, float64."""

    uses: NDArray[np.bool_]  # (SPACES,)

    fill: Float  # (d,) values that replace missing ones
    known: NDArray[np.bool_]  # (d,) features with a value in the context
    value_limit: float
    center: Float  # (d,)
    scale: Float  # (d,)
    values: Float  # (d, k) knots, ascending
    levels: Float  # (d, k)
    knot_scale: Float  # (d,)
    ends: Float  # (2, d) normal quantiles of the outer levels
    whiten: Float  # (d, d)


class Described(NamedTuple):
    """The context's rows in the u spaces in use, and their own statistics. n = rows, in blocks of `width`."""

    columns: Single  # (u, blocks, d, width) coordinates, padded with FAR
    own: Float  # (u, n, 2) log mean distance to the 5 and the 20 nearest
    bandwidth: Float  # (u,)
    floor: float  # distances below count as equal
    median: Float  # (S,) of the own statistics
    spread: Float  # (S,)
    ordered: Single  # (S, > n) ascending; padded as a table of `count_smaller`
    last_ordered: Single  # (S, blocks)
    rarity: Single  # (n + 1,) -log10 of the p-value of a statistic above so many of the context's


# Positions in the handle of a context
DESCRIBED = len(Transform._fields)
READ = DESCRIBED + len(Described._fields)


@exact_kernel
def transform_at(h):
    """Return the transform of the context of a handle."""
    return Transform(
        row(h, 0, np.bool_),
        row(h, 1, np.float64),
        row(h, 2, np.bool_),
        scalar(h, 3),
        row(h, 4, np.float64),
        row(h, 5, np.float64),
        table(h, 6, np.float64),
        table(h, 7, np.float64),
        row(h, 8, np.float64),
        table(h, 9, np.float64),
        table(h, 10, np.float64),
    )


@exact_kernel
def impute_row(row, fill, known, limit, out):
    """A row (d,) with missing values replaced and sizes limited, into out."""
    for j in range(row.shape[0]):
        x = row[j] if known[j] and np.isfinite(row[j]) else fill[j]
        out[j] = min(max(x, -limit), limit)


@kernel
def outer_quantiles(levels):
    """Normal quantiles (2, d) of the first and the last of levels (d, k)."""
    d, k = levels.shape
    out = np.empty((2, d))
    for j in range(d):
        out[0, j], out[1, j] = normal_quantile(levels[j, 0]), normal_quantile(levels[j, k - 1])
    return out


@kernel
def _to_normal(x, j, smaller, t):
    """Value x of feature j through its quantile map, and its two-sided tail probability by rank.

    smaller: how many knots are smaller. The probability is at least that of the last knot.
    """
    k = t.values.shape[1]
    values, levels, last = span(t.values, j * k, k), span(t.levels, j * k, k), k - 1
    least = 1.0 - levels[last]
    if x > values[last]:
        return t.ends[1, j] + (x - values[last]) / t.knot_scale[j], 2.0 * least
    if x < values[0]:
        q = t.ends[0, j] - (values[0] - x) / t.knot_scale[j]
        return q, math.erfc(min(-q, t.ends[1, j]) * 0.7071067811865476)
    above = min(smaller, last)
    below = max((count_up_to(values, x) if values[above] == x else smaller) - 1, 0)
    gap = values[above] - values[below]
    part = min(max((x - values[below]) / gap, 0.0), 1.0) if gap > 0 else 0.5
    p = levels[below] + part * (levels[above] - levels[below])
    return normal_quantile(p), 2.0 * max(min(p, 1.0 - p), least)


@kernel
def project(row, t, views, tails, smaller):
    """A complete row (d,) in the spaces in use: views (3, d) float64, and tail probabilities by rank: tails (d,).

    smaller: (d,) integers to work with.
    """
    d = row.shape[0]
    for j in range(d):
        views[0, j] = min(max((row[j] - t.center[j]) / t.scale[j], -1e30), 1e30)
    if t.uses[1]:
        search(t.values, row, smaller)
        for j in range(d):
            q, tail = _to_normal(row[j], j, smaller[j], t)
            views[1, j], tails[j] = min(max(q, -1e30), 1e30), min(max(tail, 1e-300), 1.0)
    if not t.uses[2]:
        return
    for j in range(d):
        views[2, j] = 0.0
    for i in range(d):
        zi = views[0, i]
        for j in range(d):
            views[2, j] += zi * t.whiten[i, j]


@kernel
def rank_statistics(tails, out):
    """Sum and largest of -log of tail probabilities tails (d,), into out (2,). tails become their logarithms."""
    log_all(tails)
    total = most = 0.0
    for j in range(tails.shape[0]):
        total -= tails[j]
        most = max(most, -tails[j])
    out[0], out[1] = total, most


@kernel
def size_statistics(x, out):
    """Largest |x|, mean of the 3 largest, root mean square, mean |x| of x (d,), into out (4,)."""
    d = x.shape[0]
    a = b = c = 0.0
    total = squares = 0.0
    for j in range(d):
        size = abs(np.float64(x[j]))
        total += size
        squares += size * size
        if size > a:
            a, b, c = size, a, b
        elif size > b:
            b, c = size, b
        elif size > c:
            c = size
    out[0], out[1], out[2], out[3] = a, (a + b + c) / min(d, 3), math.sqrt(squares / d), total / d


@kernel
def distance_statistics(x, columns, near, where, floor, logs):
    """Log of the distance to the nearest row, mean to the 5 and the 20 nearest, and largest gap to the nearest in one
    coordinate, into logs (4,). near: (k,) squared distances of the nearest rows `where`."""
    k = near.shape[0]
    five = twenty = 0.0
    for i in range(k):
        root = math.sqrt(np.float64(near[i]))
        twenty += root
        five += root if i < NEAR_NEIGHBOURS else 0.0
    block, lane = where[0] // columns.shape[2], where[0] % columns.shape[2]
    gap = 0.0
    for j in range(x.shape[0]):
        gap = max(gap, abs(np.float64(x[j]) - np.float64(columns[block, j, lane])))
    logs[0] = max(math.sqrt(np.float64(near[0])), floor)
    logs[1] = max(five / min(NEAR_NEIGHBOURS, k), floor)
    logs[2] = max(twenty / k, floor)
    logs[3] = max(gap, floor)


@kernel
def ratio_statistics(logs, own, where, out):
    """Log of the own mean distance over the neighbours' own, at 5 and 20 neighbours, into out (2,)."""
    k = where.shape[0]
    five = twenty = 0.0
    for i in range(k):
        twenty += own[where[i], 1]
        five += own[where[i], 0] if i < NEAR_NEIGHBOURS else 0.0
    out[0] = logs[1] - five / min(NEAR_NEIGHBOURS, k)
    out[1] = logs[2] - twenty / k


@kernel
def density_statistics(closest, bandwidth, logs, out):
    """Minus the log kernel density at 1/2, 1, 2 and 4 bandwidths, into out (4,). logs: of the means of the kernels."""
    near = np.float64(closest) / (32.0 * bandwidth * bandwidth)
    out[0] = near * 64 - logs[3]
    out[1] = near * 16 - logs[2]
    out[2] = near * 4 - logs[1]
    out[3] = near - logs[0]


@kernel
def _describe_in(x, s, c, columns, own, d2, near, where, scratch, sums, logs, out):
    """The statistics (14,) of x (d,) in space s, from its squared distances d2 to the context c.

    columns, own: of c in this space.
    """
    n = own.shape[0]
    nearest(d2, n, near, where, scratch)
    distance_statistics(x, columns, near, where, c.floor, logs)
    kernel_sums(d2, near[0], np.float32(1.0 / (32.0 * c.bandwidth[s] * c.bandwidth[s])), sums)
    for a in range(4):
        logs[4 + a] = sums[a] / n
    log_all(logs)
    out[0], out[1], out[2], out[9] = logs[0], logs[1], logs[2], logs[3]
    ratio_statistics(logs, own, where, span(out, 3, 2))
    density_statistics(near[0], c.bandwidth[s], span(logs, 4, 4), span(out, 5, 4))
    size_statistics(x, span(out, 10, 4))


@kernel
def new_memory(d, m, n):
    """Working memory of `describe_tile` for d features and n context rows, padded to m."""
    k, doubles = min(NEIGHBOURS, n), np.empty(2 * d + 12)
    return (
        doubles,  # the next four are parts of it: to allocate an array takes as long as the distances to fifty rows
        span(doubles, 0, d),
        span(doubles, d, d),
        span(doubles, 2 * d, 4),
        span(doubles, 2 * d + 4, 8),
        np.empty((SPACES, d)),
        np.empty((SPACES, TILE, d), np.float32),
        np.empty(d, np.int64),
        np.empty((TILE, m), np.float32),
        np.empty(k, np.float32),
        np.empty(k, np.int32),
        new_scratch(m),
    )


@kernel
def describe_tile(rows, t, c, memory, out):
    """The statistics out (TILE, S) of up to TILE raw rows (q, d), NaN = missing, against a context."""
    _, row, tails, sums, logs, views, x, smaller, d2, near, where, scratch = memory
    used, d, m, count = c.columns.shape[0], rows.shape[1], d2.shape[1], out.shape[1]
    for i in range(rows.shape[0]):
        impute_row(span(rows, i * d, d), t.fill, t.known, t.value_limit, row)
        project(row, t, views, tails, smaller)
        s = 0
        for space in range(SPACES):
            if t.uses[space]:
                for j in range(d):
                    x[s, i, j] = min(max(views[space, j], -LIMIT), LIMIT)
                s += 1
        if t.uses[1]:
            rank_statistics(tails, span(out, i * count + used * PER_SPACE, 2))
    for s in range(used):
        columns, own = c.columns[s], c.own[s]
        block_distances(x[s], rows.shape[0], columns, d2)
        for i in range(rows.shape[0]):
            of_row, distances = span(x, (s * TILE + i) * d, d), span(d2, i * m, m)
            part = span(out, i * count + s * PER_SPACE, PER_SPACE)
            _describe_in(of_row, s, c, columns, own, distances, near, where, scratch, sums, logs, part)


@kernel
def channels_of(statistics, median, spread, ordered, last_ordered, rarity, out):
    """The channels out (2 S,) float32 of statistics (S,)."""
    for a in range(statistics.shape[0]):
        out[2 * a] = asinh(np.float32((statistics[a] - median[a]) / spread[a]))
    width, blocks = ordered.shape[1], last_ordered.shape[1]
    for a in range(statistics.shape[0]):
        table, last = span(ordered, a * width, width), span(last_ordered, a * blocks, blocks)
        out[2 * a + 1] = rarity[count_smaller(table, last, np.float32(statistics[a]))]


@kernel
def rarities(n, own):
    """-log10 of the p-value of a statistic that is above i of the context's n, i = 0 ... n (own: of a row in it)."""
    out = np.empty(n + 1, np.float32)
    for i in range(n + 1):
        p = max(n - i, 1) / n if own else (n - i + 1) / (n + 1)
        out[i] = -log(max(p, 1e-300)) * 0.4342944819032518
    return out


ROW_OF_KEY = 0xFFFFFFFF  # bits of `sorting_keys`
KEPT_DISTANCES = 1 << 22  # are kept between the two passes (16 MiB); of larger contexts they are computed twice


@kernel
def project_all(rows, t):
    """Complete rows (n, d) in the spaces in use: (3, n, d), and tail probabilities by rank (n, d)."""
    n, d = rows.shape
    views, tails = np.empty((SPACES, n, d)), np.ones((n, d))
    of_row, smaller = np.zeros((SPACES, d)), np.empty(d, np.int64)
    for i in range(n):
        project(span(rows, i * d, d), t, of_row, span(tails, i * d, d), smaller)
        for s in range(SPACES):
            views[s, i] = of_row[s]
    return views, tails


@kernel
def own_distances(x, start, columns, out):
    """Squared distances of TILE rows of the context x (n, d), from `start` on, to all of it, into out (TILE, m); to
    themselves: far. Of fewer at the end."""
    size = min(TILE, x.shape[0] - start)
    block_distances(x[start:], size, columns, out)
    for i in range(size):
        out[i, start + i] = np.float32(FAR * FAR)


@kernel
def _own_in(x, columns, floor, kept, out, first, own):
    """Own statistics, out (n, S) from column `first` on, and own (n, 2) of the context x (n, d) in a space; returns the
    bandwidth.

    kept: (n, m) to keep the distances in, or (TILE, m).
    """
    n, d, m, count = x.shape[0], x.shape[1], kept.shape[1], out.shape[1]
    k = min(NEIGHBOURS, n - 1)
    keeps = kept.shape[0] >= n
    near, where = np.empty((n, k), np.float32), np.empty((n, k), np.int32)
    scratch, logs, sums, means, fives = new_scratch(m), np.ones(4), np.empty(4), np.empty(4), np.empty(n)
    for i in range(n):
        if i % TILE == 0:
            tile = kept[i:] if keeps else kept
            own_distances(x, i, columns, tile)
        of_row, closest, at = span(x, i * d, d), span(near, i * k, k), span(where, i * k, k)
        nearest(span(tile, i % TILE * m, m), n, closest, at, scratch)
        distance_statistics(of_row, columns, closest, at, floor, logs)
        fives[i] = logs[1]
        log_all(logs)
        part = span(out, i * count + first, PER_SPACE)
        part[0], part[1], part[2], part[9] = logs[0], logs[1], logs[2], logs[3]
        own[i, 0], own[i, 1] = logs[1], logs[2]
        size_statistics(of_row, span(part, 10, 4))
    bandwidth = np.sort(fives)[(n - 1) // 2]
    factor = np.float32(1.0 / (32.0 * bandwidth * bandwidth))
    rest = math.log((n - 1) / n)  # the mean over n rows counts the row itself, whose kernel is 0
    for i in range(n):
        if i % TILE == 0:
            tile = kept[i:] if keeps else kept
            if not keeps:
                own_distances(x, i, columns, tile)
        part = span(out, i * count + first, PER_SPACE)
        ratio_statistics(part, own, span(where, i * k, k), span(part, 3, 2))
        kernel_sums(span(tile, i % TILE * m, m), near[i, 0], factor, sums)
        for a in range(4):
            means[a] = sums[a] / n
        log_all(means)
        density_statistics(near[i, 0], bandwidth, means, span(part, 5, 4))
        for a in range(5, 9):
            part[a] += rest
    return bandwidth


@kernel
def own_statistics(x, columns, tails, ranks, floor):
    """Statistics (n, S) of the context's own rows, leave-one-out, with own (u, n, 2) and bandwidth (u,).

    x: (u, n, d) float32 rows; columns: the same in blocks; tails: (n, d) tail probabilities, which count if `ranks`.
    """
    used, n = x.shape[:2]
    m = columns.shape[1] * columns.shape[3]
    count = used * PER_SPACE + (2 if ranks else 0)
    out, own, bandwidth = np.empty((n, count)), np.empty((used, n, 2)), np.empty(used)
    kept = np.empty((n if n * m <= KEPT_DISTANCES else TILE, m), np.float32)
    for s in range(used):
        bandwidth[s] = _own_in(x[s], columns[s], floor, kept, out, s * PER_SPACE, own[s])
    if ranks:
        for i in range(n):
            rank_statistics(tails[i], span(out, i * count + used * PER_SPACE, 2))
    return out, own, bandwidth


@kernel
def sorting_keys(statistics):
    """Integers (S, n) in the order of the float32 values of statistics (n, S), with the row of each in their lower
    half. To sort them tells the places of rows, in a quarter of the time of an argsort."""
    n, count = statistics.shape
    keys = np.empty((count, n), np.int64)
    for i in range(n):
        for a in range(count):
            bits = bits_of_single(np.float32(statistics[i, a]))
            keys[a, i] = (np.int64(bits if bits >= 0 else -(bits & 0x7FFFFFFF)) << 32) | i
    return keys


@kernel
def own_channels(statistics, keys, median, spread, rarity):
    """Channels (n, 2 S) float32 of the context's own statistics (n, S), as `channels_of` makes them, from their sorted
    keys (S, n)."""
    n, count = statistics.shape
    out = np.empty((n, 2 * count), np.float32)
    for i in range(n):
        for a in range(count):
            out[i, 2 * a] = asinh(np.float32((statistics[i, a] - median[a]) / spread[a]))
    for a in range(count):
        of_statistic, smaller = span(keys, a * n, n), 0
        for r in range(n):
            if of_statistic[r] >> 32 != of_statistic[smaller] >> 32:
                smaller = r
            out[of_statistic[r] & ROW_OF_KEY, 2 * a + 1] = rarity[smaller]
    return out
