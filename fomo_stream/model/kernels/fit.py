"""A context's own rows: their projection, their statistics leave-one-out, and their channels."""

from __future__ import annotations

import math

import numpy as np

from fomo_stream.model.kernels.arithmetic import log_all
from fomo_stream.model.kernels.compiling import kernel
from fomo_stream.model.kernels.evidence import (
    NEIGHBOURS,
    PER_SPACE,
    SPACES,
    STATISTICS,
    channels_of,
    density_statistics,
    distance_statistics,
    project,
    rank_statistics,
    ratio_statistics,
    size_statistics,
)
from fomo_stream.model.kernels.neighbours import FAR, kernel_sums, nearest, new_scratch, squared_distances

KEPT_DISTANCES = 1 << 22  # are kept between the two passes (16 MiB); of larger contexts they are computed twice


@kernel
def project_all(rows, t):
    """Complete rows (n, d) in the three spaces: (3, n, d), and tail probabilities by rank (n, d)."""
    n, d = rows.shape
    views, tails = np.empty((SPACES, n, d)), np.empty((n, d))
    of_row, smaller = np.empty((SPACES, d)), np.empty(d, np.int64)
    for i in range(n):
        project(rows[i], t, of_row, tails[i], smaller)
        for s in range(SPACES):
            views[s, i] = of_row[s]
    return views, tails


@kernel
def _own_distances(x, columns, i, out):
    """Squared distances of row i of the context, x (d,), to all of it, into out (m,); to itself: far."""
    width = columns.shape[2]
    for b in range(columns.shape[0]):
        squared_distances(x, columns[b], out[b * width : (b + 1) * width])
    out[i] = np.float32(FAR * FAR)


@kernel
def _own_in(x, columns, floor, kept, out, own):
    """Own statistics out (n, 14) and own (n, 2) of the context x (n, d) in one space; returns the bandwidth.

    kept: (n, m) to keep the distances in, or (1, m).
    """
    n, m = x.shape[0], kept.shape[1]
    k = min(NEIGHBOURS, n - 1)
    keeps = kept.shape[0] == n
    near, where = np.empty((n, k), np.float32), np.empty((n, k), np.int32)
    scratch, logs, sums, means = new_scratch(m), np.ones(8), np.empty(4), np.empty(n)
    for i in range(n):
        d2 = kept[i if keeps else 0]
        _own_distances(x[i], columns, i, d2)
        nearest(d2, n, near[i], where[i], scratch)
        distance_statistics(x[i], columns, near[i], where[i], floor, logs)
        means[i] = logs[1]
        log_all(logs)
        out[i, 0], out[i, 1], out[i, 2], out[i, 9] = logs[0], logs[1], logs[2], logs[3]
        own[i, 0], own[i, 1] = logs[1], logs[2]
        size_statistics(x[i], out[i, 10:14])
    bandwidth = np.sort(means)[(n - 1) // 2]
    rest = math.log((n - 1) / n)  # the mean over n rows counts the row itself, whose kernel is 0
    for i in range(n):
        d2 = kept[i if keeps else 0]
        if not keeps:
            _own_distances(x[i], columns, i, d2)
        ratio_statistics(out[i, 0:3], own, where[i], out[i, 3:5])
        kernel_sums(d2, near[i, 0], bandwidth, sums)
        for a in range(4):
            logs[4 + a] = sums[a] / n
        log_all(logs[4:8])
        density_statistics(near[i, 0], bandwidth, logs[4:8], out[i, 5:9])
        for a in range(5, 9):
            out[i, a] += rest
    return bandwidth


@kernel
def own_statistics(x, columns, tails, floor):
    """Statistics (n, S) of the context's own rows, leave-one-out, with own (3, n, 2) and bandwidth (3,).

    x: (3, n, d) float32 rows; columns: the same in blocks; tails: (n, d) tail probabilities.
    """
    n = tails.shape[0]
    m = columns.shape[1] * columns.shape[3]
    out, own, bandwidth = np.empty((n, STATISTICS)), np.empty((SPACES, n, 2)), np.empty(SPACES)
    kept = np.empty((n if n * m <= KEPT_DISTANCES else 1, m), np.float32)
    for s in range(SPACES):
        part = out[:, s * PER_SPACE : (s + 1) * PER_SPACE]
        bandwidth[s] = _own_in(x[s], columns[s], floor, kept, part, own[s])
    for i in range(n):
        rank_statistics(tails[i], out[i, SPACES * PER_SPACE :])
    return out, own, bandwidth


@kernel
def own_channels(statistics, median, spread, ordered, last_ordered, rarity):
    """Channels (n, 2 S) float32 of the context's own statistics (n, S)."""
    n, count = statistics.shape
    out = np.empty((n, 2 * count), np.float32)
    for i in range(n):
        channels_of(statistics[i], median, spread, ordered, last_ordered, rarity, out[i])
    return out
