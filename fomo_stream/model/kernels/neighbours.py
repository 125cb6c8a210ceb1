"""Distances of a row to the rows of a context, and the nearest of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fomo_stream.model.kernels.arithmetic import exp_of_negative
from fomo_stream.model.kernels.compiling import kernel

BLOCK = 128  # context rows that are compared with several rows before the next: they stay in the nearest cache
LANES = 16  # blocks are padded to a multiple of this many rows
GROUPS = 32  # of context rows; their minima bound the distance of the last neighbour
MOST = 128  # candidates that are ranked by counting
FEW = 4 * LANES  # rows that are ranked without a bound
FAR = 1e18  # coordinate of the padding; far from every row, whose coordinates are at most LIMIT
LIMIT = 1e15  # of coordinates: their squares are finite in float32


@intrinsic
def up_to(_typing: Any, values: Any, start: Any, bound: Any) -> Any:
    """A bit for each of the LANES values from `start` on that is at most `bound`: (float32 array, int, float32)."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        lanes = ir.VectorType(ir.FloatType(), LANES)
        at = builder.bitcast(builder.gep(array.data, [arguments[1]]), lanes.as_pointer())
        empty = ir.Constant(lanes, ir.Undefined)
        first = builder.insert_element(empty, arguments[2], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        bounds = builder.shuffle_vector(first, empty, zeros)
        smaller = builder.fcmp_ordered("<=", builder.load(at, align=4), bounds)
        return builder.zext(builder.bitcast(smaller, ir.IntType(LANES)), ir.IntType(32))

    return types.uint32(values, types.int64, types.float32), codegen


@intrinsic
def trailing_zeros(_typing: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set; bits is not 0."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1)), ir.IntType(64))

    return types.int64(types.uint32), codegen


@kernel
def squared_distances(x, columns, out):
    """Squared distances of x (d,) to the columns of columns (d, m), into out (m,): four coordinates at a time."""
    d, m = columns.shape
    if d < 4:
        out[:] = 0
    for j in range(0, d - 3, 4):
        a, b, c, e = x[j], x[j + 1], x[j + 2], x[j + 3]
        ca, cb, cc, ce = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
        if j == 0:
            for i in range(m):
                ta, tb, tc, te = ca[i] - a, cb[i] - b, cc[i] - c, ce[i] - e
                out[i] = (ta * ta + tb * tb) + (tc * tc + te * te)
        else:
            for i in range(m):
                ta, tb, tc, te = ca[i] - a, cb[i] - b, cc[i] - c, ce[i] - e
                out[i] += (ta * ta + tb * tb) + (tc * tc + te * te)
    for j in range(d // 4 * 4, d):
        a, ca = x[j], columns[j]
        for i in range(m):
            ta = ca[i] - a
            out[i] += ta * ta


@kernel
def _rank(values, index, count, near, where, place):
    """The smallest of values (count,), ascending, into near (k,), and their indices into where (k,).

    The place of each is the number of those before it: quadratic, but without branches. values and place have room up
    to the next multiple of LANES.
    """
    padded = (count + LANES - 1) // LANES * LANES
    for i in range(count, padded):
        values[i] = np.inf
    for i in range(padded):
        place[i] = 0
    for j in range(count):
        v = values[j]
        for i in range(padded):
            place[i] += np.int32((v < values[i]) | ((v == values[i]) & (j < i)))
    for i in range(count):
        if place[i] < near.shape[0]:
            near[place[i]] = values[i]
            where[place[i]] = index[i]


@kernel
def bound_of(d2, k, minima, place):
    """A distance that at least k rows do not exceed, and few more: the k-th smallest of the minima of GROUPS groups."""
    m = d2.shape[0]
    for g in range(GROUPS):
        minima[g] = d2[g]
    for start in range(GROUPS, m - GROUPS + 1, GROUPS):
        for g in range(GROUPS):
            minima[g] = min(minima[g], d2[start + g])
    rest = m // GROUPS * GROUPS
    for g in range(m - rest):
        minima[g] = min(minima[g], d2[rest + g])
    for g in range(GROUPS):
        place[g] = 0
    for h in range(GROUPS):
        v = minima[h]
        for g in range(GROUPS):
            place[g] += np.int32(v <= minima[g])
    bound = np.float32(np.inf)
    for g in range(GROUPS):
        if place[g] >= k and minima[g] < bound:
            bound = minima[g]
    return bound


@kernel
def _insert(near, where, count, v, i):
    """Put v into the ascending near (k,), of which count are filled; equal values stay in order."""
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
    minima, values, place, found = scratch
    if d2.shape[0] <= FEW:
        for i in range(n):
            found[i] = i
            values[i] = d2[i]
        _rank(values, found, n, near, where, place)
        return
    bound = bound_of(d2, near.shape[0], minima, place)
    count = 0
    for start in range(0, d2.shape[0], LANES):
        hits = up_to(d2, start, bound)
        while hits:
            found[count] = start + trailing_zeros(hits)
            count += 1
            hits &= hits - np.uint32(1)
    if count <= MOST:
        for c in range(count):
            values[c] = d2[found[c]]
        _rank(values, found, count, near, where, place)
        return
    filled = 0
    for c in range(count):  # many equal distances
        v = d2[found[c]]
        if filled < near.shape[0] or v < near[near.shape[0] - 1]:
            _insert(near, where, filled, v, found[c])
            filled += 1 if filled < near.shape[0] else 0


@kernel
def new_scratch(m):
    """Working memory of `nearest` for m distances."""
    return (
        np.empty(GROUPS, np.float32),
        np.empty(MOST, np.float32),
        np.empty(MOST, np.int32),
        np.empty(m + 1, np.int32),
    )


@kernel
def kernel_sums(d2, closest, bandwidth, sums):
    """Sums (4,) of exp((closest - d2) / (2 b ** 2)) over d2 (m,), b = 4, 2, 1 and 1/2 times the bandwidth.

    Half a bandwidth is the fourth power of the kernel, so one exponential serves all.
    """
    factor = np.float32(1.0 / (32.0 * bandwidth * bandwidth))
    s1 = s4 = s16 = s64 = np.float32(0)
    for i in range(d2.shape[0]):
        e = exp_of_negative((closest - d2[i]) * factor)
        e4 = (e * e) * (e * e)
        e16 = (e4 * e4) * (e4 * e4)
        e64 = (e16 * e16) * (e16 * e16)
        s1 += e
        s4 += e4
        s16 += e16
        s64 += e64
    sums[0], sums[1], sums[2], sums[3] = s1, s4, s16, s64
