"""Distances of a row to the rows of a context, and the nearest of them."""

from __future__ import annotations

import numpy as np

from fomo_stream.model.kernels.arithmetic import exp_of_negative
from fomo_stream.model.kernels.compiling import inline_kernel, kernel
from fomo_stream.model.kernels.lanes import (
    LANES,
    add_squares,
    all_counts,
    all_lanes,
    bits_set,
    count_if,
    lanes_at,
    least,
    put_counts,
    put_lanes,
    smallest_with,
    trailing_zeros,
    up_to,
)

BLOCK = 128  # context rows that are compared with several rows together: so they stay in the processor's nearest cache
GROUPS = 2 * LANES  # of context rows; their minima bound the distance of the last neighbour
HITS_AT_ONCE = 4  # among 64 rows there are usually not more neighbours
MAX_RANKED = 128  # candidates that are ranked by counting
MAX_ROWS_WITHOUT_BOUND = 4 * LANES  # rows that are ranked without a bound
FAR = 1e18  # coordinate of the padding; far from every row, whose coordinates are at most LIMIT
MIN_BASE = np.float32(2.0**-31)  # its fourth power added to 1 changes nothing, and is a normal number: those are fast
LIMIT = 1e15  # of coordinates: their squares are finite in float32


@kernel
def block_distances(x, size, columns, out):
    """Squared distances of `size` rows of x (t, d) to a context's, columns (blocks, d, width), into out (t, m).

    One block after the other for all rows, so that it stays in the nearest cache; without slices of arrays, which cost
    as much as the distances in a block. Squares are added in the order of the features.
    """
    blocks, d, width = columns.shape
    for b in range(blocks):
        for i in range(size):
            for start in range(0, width - 3 * LANES, 4 * LANES):
                first = second = third = fourth = all_lanes(np.float32(0))
                at = b * d * width + start
                for j in range(d):
                    first = add_squares(first, lanes_at(columns, at), x[i, j])
                    second = add_squares(second, lanes_at(columns, at + LANES), x[i, j])
                    third = add_squares(third, lanes_at(columns, at + 2 * LANES), x[i, j])
                    fourth = add_squares(fourth, lanes_at(columns, at + 3 * LANES), x[i, j])
                    at += width
                to = (i * blocks + b) * width + start
                put_lanes(out, to, first)
                put_lanes(out, to + LANES, second)
                put_lanes(out, to + 2 * LANES, third)
                put_lanes(out, to + 3 * LANES, fourth)
            for start in range(width // (4 * LANES) * 4 * LANES, width, LANES):
                first, at = all_lanes(np.float32(0)), b * d * width + start
                for j in range(d):
                    first = add_squares(first, lanes_at(columns, at), x[i, j])
                    at += width
                put_lanes(out, (i * blocks + b) * width + start, first)


@kernel
def _rank_smallest(values, index, count, near, where, order):
    """The smallest of values (count,), ascending, into near (k,), and their indices into where (k,).

    The place of each is the number of those before it: quadratic, but without branches. values and order (2, more):
    room up to the next multiple of LANES; order: to work with.
    """
    padded = (count + LANES - 1) // LANES * LANES
    for i in range(count, padded):
        values[i] = np.inf
    for start in range(0, padded, LANES):
        some, before = lanes_at(values, start), all_counts(np.int32(0))
        for j in range(count):
            before = count_if(before, values[j], some, np.int32(j - start))
        put_counts(order, start, before)
    for i in range(count):
        order[1, order[0, i]] = i
    for i in range(near.shape[0]):
        near[i] = values[order[1, i]]
        where[i] = index[order[1, i]]


@kernel
def bound_of(d2, k, minima):
    """A distance that at least k rows do not exceed, and few more: the k-th smallest of the minima of GROUPS groups.

    d2: (m,), m a multiple of LANES and at least GROUPS. minima: (GROUPS,) to work with.
    """
    a, b = lanes_at(d2, 0), lanes_at(d2, LANES)
    for start in range(GROUPS, d2.shape[0] - LANES, GROUPS):
        a, b = least(a, lanes_at(d2, start)), least(b, lanes_at(d2, start + LANES))
    if d2.shape[0] % GROUPS:
        a = least(a, lanes_at(d2, d2.shape[0] - LANES))
    put_lanes(minima, 0, a)
    put_lanes(minima, LANES, b)
    of_a, of_b, always = all_counts(np.int32(0)), all_counts(np.int32(0)), np.int32(-1)
    for g in range(GROUPS):
        of_a, of_b = count_if(of_a, minima[g], a, always), count_if(of_b, minima[g], b, always)
    return min(smallest_with(of_a, np.int32(k), a), smallest_with(of_b, np.int32(k), b))


@kernel
def rows_up_to(d2, bound, rows):
    """Write the rows whose d2 (m,) is at most `bound`, ascending, into rows (m + HITS_AT_ONCE,); returns how many.

    HITS_AT_ONCE are written for each 64 rows, without a branch that a processor would often predict wrongly; only where
    there are more do others follow.
    """
    count = 0
    for start in range(0, d2.shape[0], 4 * LANES):
        hits = up_to(lanes_at(d2, start), bound)
        for part in range(1, min(4, (d2.shape[0] - start) // LANES)):
            hits |= up_to(lanes_at(d2, start + part * LANES), bound) << np.uint64(part * LANES)
        some = bits_set(hits)
        for i in range(HITS_AT_ONCE):
            rows[count + i] = start + trailing_zeros(hits)
            hits &= hits - np.uint64(1)
        for i in range(HITS_AT_ONCE, some):
            rows[count + i] = start + trailing_zeros(hits)
            hits &= hits - np.uint64(1)
        count += some
    return count


@kernel
def _insert(near, where, count, v, i):
    """Insert v into the ascending near (k,), whose first `count` are filled; equal values stay in order."""
    at = count if count < near.shape[0] else near.shape[0] - 1
    while at > 0 and near[at - 1] > v:
        near[at] = near[at - 1]
        where[at] = where[at - 1]
        at -= 1
    near[at] = v
    where[at] = i


@kernel
def nearest(d2, n, near, where, scratch):
    """The k = len(near) <= n smallest of d2 (n, then padding up to m), ascending, and their rows; ties by row.

    scratch: of `new_scratch`.
    """
    minima, values, order, rows = scratch
    if d2.shape[0] <= MAX_ROWS_WITHOUT_BOUND:
        for i in range(n):
            rows[i] = i
            values[i] = d2[i]
        _rank_smallest(values, rows, n, near, where, order)
        return
    count = rows_up_to(d2, bound_of(d2, near.shape[0], minima), rows)
    if count <= MAX_RANKED:
        for c in range(count):
            values[c] = d2[rows[c]]
        _rank_smallest(values, rows, count, near, where, order)
        return
    filled = 0
    for c in range(count):  # many equal distances
        v = d2[rows[c]]
        if filled < near.shape[0] or v < near[near.shape[0] - 1]:
            _insert(near, where, filled, v, rows[c])
            filled += 1 if filled < near.shape[0] else 0


@kernel
def new_scratch(m):
    """Working memory of `nearest` for m distances."""
    return (
        np.empty(GROUPS, np.float32),
        np.empty(MAX_RANKED, np.float32),
        np.empty((2, MAX_RANKED), np.uint32),
        np.empty(m + HITS_AT_ONCE, np.uint32),
    )


@inline_kernel
def fourth_power(x):
    """x ** 4 of a float32 x >= 0; of less than MIN_BASE that of MIN_BASE."""
    y = max(x, MIN_BASE)
    return (y * y) * (y * y)


@kernel
def kernel_sums(d2, closest, factor, sums):
    """Sums (4,) of exp((closest - d2) factor f) over d2 (m,), f = 1, 4, 16 and 64: of bandwidths that are halved.

    Half a bandwidth is the fourth power of the kernel, so one exponential serves all. factor: float32.
    """
    s1 = s4 = s16 = s64 = np.float32(0)
    for i in range(d2.shape[0]):
        e = exp_of_negative((closest - d2[i]) * factor)
        e4 = fourth_power(e)
        e16 = fourth_power(e4)
        e64 = fourth_power(e16)
        s1 += e
        s4 += e4
        s16 += e16
        s64 += e64
    sums[0], sums[1], sums[2], sums[3] = s1, s4, s16, s64
