"""Statistics of many rows against a few: the loops run over the rows that are scored, not over the context.

With at most MEMBERS context rows there are too few distances to fill a processor's registers with, so LANES rows are
scored side by side. Their neighbours are sorted by a network of comparisons that is the same for all of them.
"""

from __future__ import annotations

import math

import numpy as np

from fomo_stream.model.kernels.arithmetic import bits_of_single, exp_of_negative, log_all, single_of_bits
from fomo_stream.model.kernels.compiling import kernel
from fomo_stream.model.kernels.evidence import (
    FEWER,
    NEIGHBOURS,
    PER_SPACE,
    SPACES,
    STATISTICS,
    channels_of,
    density_statistics,
    impute,
    project,
    rank_statistics,
)
from fomo_stream.model.kernels.neighbours import LIMIT

MEMBERS = 32
LANES = 16  # without influence on results
PLACE = np.int32(MEMBERS - 1)  # the bits of a key that hold a row's place in the context
UNUSED = np.int32(0x7F000000)  # key of a place without a row: farther than all


def _network() -> np.ndarray:
    """Pairs (c, 2) whose exchange, one after the other, sorts MEMBERS values (Batcher 1968, odd-even merging)."""
    pairs = []
    p = 1
    while p < MEMBERS:
        k = p
        while k:
            for j in range(k % p, MEMBERS - k, 2 * k):
                for i in range(min(k, MEMBERS - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    return np.array(pairs)


PAIRS = _network()


@kernel
def _sorted_keys(x, columns, n, d2, keys):
    """Squared distances d2 (n, LANES) of x (d, LANES) to the n context rows columns (d, width), and sorted keys.

    A key (MEMBERS, LANES) is the distance's bits, of which the last hold the place of the row: an integer in the order
    of the distances, exact to 4e-6 of them.
    """
    for r in range(n):
        for lane in range(LANES):
            d2[r, lane] = 0
        for j in range(x.shape[0]):
            c = columns[j, r]
            for lane in range(LANES):
                t = x[j, lane] - c
                d2[r, lane] += t * t
        for lane in range(LANES):
            keys[r, lane] = (bits_of_single(d2[r, lane]) & ~PLACE) | np.int32(r)
    for r in range(n, MEMBERS):
        for lane in range(LANES):
            keys[r, lane] = UNUSED
    for p in range(PAIRS.shape[0]):
        low, high = keys[PAIRS[p, 0]], keys[PAIRS[p, 1]]
        for lane in range(LANES):
            a, b = low[lane], high[lane]
            low[lane], high[lane] = min(a, b), max(a, b)


@kernel
def _distances(x, columns, keys, k, floor, logs):
    """Nearest distance, means of the 5 and the k nearest, and gap to the nearest, into logs (4, LANES)."""
    logs[:4] = 0.0
    for i in range(k):
        for lane in range(LANES):
            root = math.sqrt(np.float64(single_of_bits(keys[i, lane] & ~PLACE)))
            logs[2, lane] += root
            logs[1, lane] += root if i < FEWER else 0.0
            logs[0, lane] += root if i == 0 else 0.0
    for lane in range(LANES):
        nearest = keys[0, lane] & PLACE
        gap = 0.0
        for j in range(x.shape[0]):
            gap = max(gap, abs(np.float64(x[j, lane]) - np.float64(columns[j, nearest])))
        logs[0, lane] = max(logs[0, lane], floor)
        logs[1, lane] = max(logs[1, lane] / min(FEWER, k), floor)
        logs[2, lane] = max(logs[2, lane] / k, floor)
        logs[3, lane] = max(gap, floor)


@kernel
def _kernel_means(d2, keys, n, bandwidth, sums, logs):
    """Means of the density kernels at 4, 2, 1 and 1/2 bandwidths, into logs (4, LANES). sums: (4, LANES) float32."""
    factor = np.float32(1.0 / (32.0 * bandwidth * bandwidth))
    sums[:] = np.float32(0)
    for r in range(n):
        for lane in range(LANES):
            closest = single_of_bits(keys[0, lane] & ~PLACE)
            e = exp_of_negative(min(closest - d2[r, lane], np.float32(0)) * factor)
            e4 = (e * e) * (e * e)
            e16 = (e4 * e4) * (e4 * e4)
            sums[0, lane] += e
            sums[1, lane] += e4
            sums[2, lane] += e16
            sums[3, lane] += (e16 * e16) * (e16 * e16)
    for a in range(4):
        for lane in range(LANES):
            logs[a, lane] = np.float64(sums[a, lane]) / n


@kernel
def _sizes(x, top, out):
    """Size statistics (4, LANES) of x (d, LANES). top: (3, LANES) to work with."""
    d = x.shape[0]
    top[:], out[:] = 0.0, 0.0
    for j in range(d):
        for lane in range(LANES):
            size = abs(np.float64(x[j, lane]))
            out[2, lane] += size * size
            out[3, lane] += size
            second = min(top[0, lane], size)
            top[0, lane] = max(top[0, lane], size)
            third = min(top[1, lane], second)
            top[1, lane] = max(top[1, lane], second)
            top[2, lane] = max(top[2, lane], third)
    for lane in range(LANES):
        out[0, lane] = top[0, lane]
        out[1, lane] = (top[0, lane] + top[1, lane] + top[2, lane]) / min(d, 3)
        out[2, lane] = math.sqrt(out[2, lane] / d)
        out[3, lane] /= d


@kernel
def _describe_in(x, s, c, memory, out):
    """The statistics of x (d, LANES) in space s, into out (LANES, 14)."""
    d2, keys, logs, sums, top, sizes = memory
    n, own = c.own.shape[1], c.own[s]
    k = min(NEIGHBOURS, n)
    _sorted_keys(x, c.columns[s, 0], n, d2, keys)
    _distances(x, c.columns[s, 0], keys, k, c.floor, logs)
    _kernel_means(d2, keys, n, c.bandwidth[s], sums, logs[4:8])
    log_all(logs.reshape(8 * LANES))
    _sizes(x, top, sizes)
    for lane in range(LANES):
        five = twenty = 0.0
        for i in range(k):
            row = keys[i, lane] & PLACE
            twenty += own[row, 1]
            five += own[row, 0] if i < FEWER else 0.0
        st = out[lane]
        st[0], st[1], st[2], st[9] = logs[0, lane], logs[1, lane], logs[2, lane], logs[3, lane]
        st[3], st[4] = logs[1, lane] - five / min(FEWER, k), logs[2, lane] - twenty / k
        density_statistics(single_of_bits(keys[0, lane] & ~PLACE), c.bandwidth[s], logs[4:8, lane], st[5:9])
        for a in range(4):
            st[10 + a] = sizes[a, lane]


@kernel
def fuse_rows(rows, t, c, weights, bias):
    """Logits (q,) of raw rows (q, d) by the fusion, against a context of at most MEMBERS rows. weights: (C,)."""
    q, d = rows.shape
    row, views, smaller, tails = np.empty(d), np.empty((SPACES, d)), np.empty(d, np.int64), np.empty(d)
    x = np.zeros((SPACES, d, LANES), np.float32)
    memory = (
        np.empty((MEMBERS, LANES), np.float32),
        np.empty((MEMBERS, LANES), np.int32),
        np.empty((8, LANES)),
        np.empty((4, LANES), np.float32),
        np.empty((3, LANES)),
        np.empty((4, LANES)),
    )
    statistics, channels, logits = np.empty((LANES, STATISTICS)), np.empty(2 * STATISTICS, np.float32), np.empty(q)
    for start in range(0, q, LANES):
        size = min(LANES, q - start)
        for i in range(size):
            impute(rows[start + i], t.fill, t.known, t.value_limit, row)
            project(row, t, views, tails, smaller)
            for s in range(SPACES):
                for j in range(d):
                    x[s, j, i] = min(max(views[s, j], -LIMIT), LIMIT)
            rank_statistics(tails, statistics[i, SPACES * PER_SPACE :])
        for s in range(SPACES):
            _describe_in(x[s], s, c, memory, statistics[:, s * PER_SPACE : (s + 1) * PER_SPACE])
        for i in range(size):
            channels_of(statistics[i], c.median, c.spread, c.ordered, c.last_ordered, c.rarity, channels)
            total = bias
            for a in range(weights.shape[0]):
                total += channels[a] * weights[a]
            logits[start + i] = total
    return logits
