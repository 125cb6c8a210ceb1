"""Kernel router attention in float32: the same as `fomo_stream.model.kernel_attention`, row by row."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.arithmetic import exp_of_negative, log
from fomo_stream.model.kernels.compiling import addressed_kernel, exact_kernel, kernel
from fomo_stream.model.kernels.handles import cube, cubes, numbers_at, row, rows_at, scalar, table, words_at
from fomo_stream.model.kernels.lanes import (
    LANES,
    add_products,
    all_lanes,
    lanes_at,
    least,
    least_across,
    span,
    sum_across,
)
from fomo_stream.model.kernels.neighbours import (
    LIMIT,
    block_distances,
    fourth_power,
    kernel_sums,
    nearest,
    new_scratch,
)
from fomo_stream.model.kernels.network import gelu_all, linear, normalize
from fomo_stream.model.kernels.statistics import (
    DESCRIBED,
    NEAR_NEIGHBOURS,
    READ,
    SPACES,
    TILE,
    channels_of,
    impute_row,
    own_distances,
    project,
    transform_at,
)

Float = NDArray[np.float64]
Single = NDArray[np.float32]

BANDWIDTHS = 4  # in each space, each twice as wide as the one before
WIDEST_SQUARED = 64.0  # the widest of them, squared, over the narrowest
INPUT_LIMIT = np.float32(12.0)
# a weight that changes nothing; its products with values are normal numbers, which are fast (denormal ones are slow)
MIN_KERNEL_WEIGHT = np.float32(2.0**-64)


class AttentionWeights(NamedTuple):
    """The weights as the kernels read them: matrices (inputs, outputs), layers stacked.

    S = spaces, H = S BANDWIDTHS heads, L layers; the first layer has no coordinates, values and messages; V values
    a head, C coordinates, R routers, K coordinates for these.
    """

    precision: Float  # (L, S) of the narrowest bandwidth
    mix: Single  # (L, 2 H, width) of densities
    mix_bias: Single
    mix_values: Single  # (L - 1, H V, width)
    no_bias: Single  # (max(width, S C),) zeros
    norms: Single  # (L, 4, width): weight and bias before the feed-forward part, and before coordinates and values
    expand: Single  # (L, width, hidden)
    expand_bias: Single
    reduce: Single  # (L, hidden, width)
    reduce_bias: Single
    coordinates: Single  # (L - 1, width, S C)
    values: Single  # (L - 1, width, H V)
    values_bias: Single
    routers: Single  # (L - 1, R, K)
    router_precision: Single  # (L - 1,)
    router_key: Single  # (L - 1, width, K)
    router_key_bias: Single
    router_value: Single  # (L - 1, width, width)
    router_value_bias: Single
    message: Single  # (L - 1, width, width)
    message_bias: Single
    weight: Float  # (L, 2 H) of the densities
    bias: float
    norm: Single  # (2, width)
    head: Single  # (width, hidden)
    head_bias: Single
    last: Single  # (hidden,)
    last_bias: float


class AttentionContext(NamedTuple):
    """An encoded context, as `statistics.Described`: the fields that both have are the same."""

    columns: Single  # (S, blocks, d, lanes) coordinates in units, padded with FAR
    coordinates: Single  # ((L - 1) S, blocks, C, lanes) learned ones, padded with zeros
    values: Single  # ((L - 1) H, V, m) zero in the padding
    unit: Float  # (S,)
    median: Float  # (L H,) of the own -log densities
    spread: Float  # (L H,)
    ordered: Single  # (L H, > n) ascending; padded as a table of `count_smaller`
    last_ordered: Single
    rarity: Single  # (n + 1,)


class _LayerMemory(NamedTuple):
    """Working memory of a layer, for a tile of rows."""

    norm: Single  # (TILE, width)
    y: Single  # (TILE, width)
    hidden: Single  # (TILE, hidden)
    learned: Single  # (TILE, S C) coordinates
    in_space: Single  # (TILE, C)
    extra: Single  # (TILE, m) distances in them
    keys: Single  # (TILE, K)
    inputs: Single  # (TILE, 2 H) densities as inputs
    mixed: Single  # (TILE, H V) what was read of values
    weights: Single  # (BANDWIDTHS, m)
    sums: Float  # (BANDWIDTHS,)


@kernel
def _new_memory(w, m):
    """Working memory for contexts of m rows, with padding."""
    width, hidden = w.head.shape[0], max(w.head.shape[1], w.expand.shape[2])
    spaces, learned = w.precision.shape[1], w.coordinates.shape[2]
    return _LayerMemory(
        np.empty((TILE, width), np.float32),
        np.empty((TILE, width), np.float32),
        np.empty((TILE, hidden), np.float32),
        np.empty((TILE, learned), np.float32),
        np.empty((TILE, learned // spaces), np.float32),
        np.empty((TILE, m), np.float32),
        np.empty((TILE, w.router_key.shape[2]), np.float32),
        np.empty((TILE, w.weight.shape[1]), np.float32),
        np.empty((TILE, w.mix_values.shape[1]), np.float32),
        np.empty((BANDWIDTHS, m), np.float32),
        np.empty(BANDWIDTHS),
    )


@kernel
def _closest(d2):
    """The smallest of d2 (m,), m a multiple of LANES."""
    smallest = lanes_at(d2, 0)
    for start in range(LANES, d2.shape[0], LANES):
        smallest = least(smallest, lanes_at(d2, start))
    return least_across(smallest)


@kernel
def _weigh(d2, closest, factor, weights, sums):
    """As `kernel_sums`, with the kernels themselves in weights (BANDWIDTHS, m), narrowest first."""
    m = d2.shape[0]
    narrowest, narrow = span(weights, 0, m), span(weights, m, m)
    wide, widest = span(weights, 2 * m, m), span(weights, 3 * m, m)
    s1 = s4 = s16 = s64 = np.float32(0)
    for i in range(m):
        e = exp_of_negative((closest - d2[i]) * factor)
        e4 = fourth_power(e)
        e16 = fourth_power(e4)
        e64 = fourth_power(e16)
        widest[i], wide[i] = max(e, MIN_KERNEL_WEIGHT), max(e4, MIN_KERNEL_WEIGHT)
        narrow[i], narrowest[i] = max(e16, MIN_KERNEL_WEIGHT), max(e64, MIN_KERNEL_WEIGHT)
        s1 += e
        s4 += e4
        s16 += e16
        s64 += e64
    sums[0], sums[1], sums[2], sums[3] = s1, s4, s16, s64


@kernel
def _mixed(weights, values, total, out):
    """The values (V, m) mixed by weights (m,) whose sum is `total`, into out (V,); V is a multiple of 4, m of LANES."""
    m = weights.shape[0]
    for v in range(0, out.shape[0], 4):
        a = b = c = d = all_lanes(np.float32(0))
        for start in range(0, m, LANES):
            some, at = lanes_at(weights, start), v * m + start
            a = add_products(a, some, lanes_at(values, at))
            b = add_products(b, some, lanes_at(values, at + m))
            c = add_products(c, some, lanes_at(values, at + 2 * m))
            d = add_products(d, some, lanes_at(values, at + 3 * m))
        out[v], out[v + 1] = sum_across(a) / total, sum_across(b) / total
        out[v + 2], out[v + 3] = sum_across(c) / total, sum_across(d) / total


@kernel
def _densities(sums, closest, precision, n, out):
    """-log kernel densities (BANDWIDTHS,), narrowest first, from the sums of `kernel_sums`."""
    scale = precision
    for k in range(BANDWIDTHS):
        out[k] = math.log(n) + scale * closest - log(sums[BANDWIDTHS - 1 - k])
        scale *= 0.25


@kernel
def _attend(d2, precision, n, values, weights, sums, densities, mixed):
    """One row in one space: its densities (BANDWIDTHS,), and what it reads of values (BANDWIDTHS V, m).

    d2: (m,) squared distances to n rows, then padding. mixed: (BANDWIDTHS V,); of size 0: nothing is read.
    """
    m, closest = d2.shape[0], _closest(d2)
    factor = np.float32(precision / WIDEST_SQUARED)
    if mixed.shape[0] == 0:
        kernel_sums(d2, closest, factor, sums)
    else:
        _weigh(d2, closest, factor, weights, sums)
        count = mixed.shape[0] // BANDWIDTHS
        for k in range(BANDWIDTHS):
            part, of_head = span(weights, k * m, m), span(values, k * count * m, count * m)
            _mixed(part, of_head, np.float32(sums[BANDWIDTHS - 1 - k]), span(mixed, k * count, count))
    _densities(sums, np.float64(closest), precision, n, densities)


@kernel
def _add_rows(z, size, part):
    for t in range(size):
        for i in range(z.shape[1]):
            z[t, i] += part[t, i]


@kernel
def _normalized(z, size, norm, out):
    """The rows z (size, width) after a normalisation with weight and bias norm (2, width), into out."""
    for t in range(size):
        for i in range(z.shape[1]):
            out[t, i] = z[t, i]
        normalize(out[t], norm[0], norm[1])


@kernel
def _add_forward(z, size, layer, w, memory):
    """Add the feed-forward part of a layer to the rows z (size, width)."""
    count = w.expand.shape[2]
    _normalized(z, size, w.norms[layer, :2], memory.norm)
    linear(memory.norm, size, w.expand[layer], w.expand_bias[layer], memory.hidden)
    for t in range(size):
        gelu_all(memory.hidden[t, :count])
    linear(memory.hidden, size, w.reduce[layer], w.reduce_bias[layer], memory.y)
    _add_rows(z, size, memory.y)


@kernel
def _add_messages(z, size, layer, w, read, memory):
    """Add to the rows z (size, width) what they read of the routers, read (R, K + width)."""
    keys, y = memory.keys, memory.y
    k, width = keys.shape[1], z.shape[1]
    linear(z, size, w.router_key[layer - 1], w.router_key_bias[layer - 1], keys)
    for t in range(size):
        closest = np.float32(np.inf)
        for r in range(read.shape[0]):
            closest = min(closest, _between(keys[t], read[r], k))
        total = np.float32(0)
        y[t, :] = np.float32(0)
        for r in range(read.shape[0]):
            weight = exp_of_negative((closest - _between(keys[t], read[r], k)) * w.router_precision[layer - 1])
            total += weight
            for i in range(width):
                y[t, i] += weight * read[r, k + i]
        for i in range(width):
            z[t, i] += y[t, i] / total + w.message_bias[layer - 1, i]


@kernel
def _between(a, b, count):
    total = np.float32(0)
    for i in range(count):
        total += (a[i] - b[i]) * (a[i] - b[i])
    return total


@kernel
def _add_learned_distances(z, size, layer, w, c, memory, d2):
    """Add to the squared distances d2 (S, TILE, m) those in the coordinates of a layer, of rows z (size, width)."""
    learned, in_space, extra = memory.learned, memory.in_space, memory.extra
    spaces, count, m = d2.shape[0], in_space.shape[1], d2.shape[2]
    _normalized(z, size, w.norms[layer, 2:], memory.norm)
    linear(memory.norm, size, w.coordinates[layer - 1], w.no_bias, learned)
    for s in range(spaces):
        for t in range(size):
            for i in range(count):
                in_space[t, i] = learned[t, s * count + i]
        block_distances(in_space, size, c.coordinates[(layer - 1) * spaces + s], extra)
        for t in range(size):
            near, learned_part = span(d2, (s * TILE + t) * m, m), span(extra, t * m, m)
            for i in range(m):
                near[i] += learned_part[i]


@kernel
def _attend_all(d2, size, layer, n, w, c, memory, densities):
    """Densities (TILE, H) of rows at squared distances d2 (S, TILE, m), and what they read, in memory."""
    mixed = memory.mixed
    spaces, m, heads = d2.shape[0], d2.shape[2], d2.shape[0] * BANDWIDTHS
    count, first = (mixed.shape[1] // spaces, layer - 1) if layer else (0, 0)  # values of a space
    for t in range(size):
        for s in range(spaces):
            of_row = span(d2, (s * TILE + t) * m, m)
            values = span(c.values, (first * spaces + s) * count * m, count * m)
            of_heads = span(densities, t * heads + s * BANDWIDTHS, BANDWIDTHS)
            read = span(mixed, t * mixed.shape[1] + s * count, count)
            _attend(of_row, w.precision[layer, s], n, values, memory.weights, memory.sums, of_heads, read)


@kernel
def _finish(z, size, layer, densities, w, c, rarity, read, memory, logits):
    """The rows z (size, width) after a layer, in place; the part of their densities (TILE, H) is added to the logits.

    rarity: as of `channels_of`. read: (R, K + width) what is read of routers.
    """
    heads, inputs = densities.shape[1], memory.inputs
    a, b = layer * heads, (layer + 1) * heads
    for t in range(size):
        channels_of(densities[t], c.median[a:b], c.spread[a:b], c.ordered[a:b], c.last_ordered[a:b], rarity, inputs[t])
        for i in range(2 * heads):
            logits[t] += inputs[t, i] * w.weight[layer, i]
            inputs[t, i] = min(max(inputs[t, i], -INPUT_LIMIT), INPUT_LIMIT)
    linear(inputs, size, w.mix[layer], w.mix_bias[layer], memory.y)
    _add_rows(z, size, memory.y)
    if layer:
        linear(memory.mixed, size, w.mix_values[layer - 1], w.no_bias, memory.y)
        _add_rows(z, size, memory.y)
        if read.shape[0]:
            _add_messages(z, size, layer, w, read, memory)
    _add_forward(z, size, layer, w, memory)


@kernel
def _copy_first(source, size, target):
    """Copy the first rows; an assignment of slices would have numba compile much more, for its error message."""
    for t in range(size):
        for j in range(source.shape[1]):
            target[t, j] = source[t, j]


@kernel
def _add_head(z, size, w, memory, logits):
    """Add what the head makes of the last rows z (size, width) to the logits."""
    count = w.head.shape[1]
    _normalized(z, size, w.norm, memory.norm)
    linear(memory.norm, size, w.head, w.head_bias, memory.hidden)
    for t in range(size):
        hidden = memory.hidden[t, :count]
        gelu_all(hidden)
        total = w.last_bias
        for i in range(count):
            total += hidden[i] * w.last[i]
        logits[t] += total


@kernel
def attend_rows(rows, t, c, w, read, logits):
    """Write the logits (q,) of raw rows (q, d), NaN = missing, against a context.

    read: ((L - 1) R, K + width) of its routers.
    """
    q, d = rows.shape
    n, m = c.rarity.shape[0] - 1, c.columns.shape[1] * c.columns.shape[3]
    used, layers, heads = c.columns.shape[0], w.precision.shape[0], w.weight.shape[1] // 2
    memory = _new_memory(w, m)
    logits[:] = w.bias
    row, tails, views, smaller = np.empty(d), np.empty(d), np.empty((SPACES, d)), np.empty(d, np.int64)
    x, d2 = np.empty((SPACES, TILE, d), np.float32), np.empty((used, TILE, m), np.float32)
    z, densities = np.empty((TILE, w.head.shape[0]), np.float32), np.empty((TILE, heads))
    routers = w.routers.shape[1]
    for start in range(0, q, TILE):
        size = min(TILE, q - start)
        for i in range(size):
            impute_row(span(rows, (start + i) * d, d), t.fill, t.known, t.value_limit, row)
            project(row, t, views, tails, smaller)
            s = 0
            for space in range(SPACES):
                if t.uses[space]:
                    for j in range(d):
                        x[s, i, j] = min(max(views[space, j] / c.unit[s], -LIMIT), LIMIT)
                    s += 1
        for s in range(used):
            block_distances(x[s], size, c.columns[s], d2[s])
        z[:] = np.float32(0)
        part = logits[start : start + size]
        for layer in range(layers):
            if layer:
                _add_learned_distances(z, size, layer, w, c, memory, d2)
            _attend_all(d2, size, layer, n, w, c, memory, densities)
            messages = read[max(layer - 1, 0) * routers : layer * routers]
            _finish(z, size, layer, densities, w, c, c.rarity, messages, memory, part)
        _add_head(z, size, w, memory, part)


@exact_kernel
def _attention_at(h):
    return AttentionWeights(
        table(h, 0, np.float64),
        cube(h, 1, np.float32),
        table(h, 2, np.float32),
        cube(h, 3, np.float32),
        row(h, 4, np.float32),
        cube(h, 5, np.float32),
        cube(h, 6, np.float32),
        table(h, 7, np.float32),
        cube(h, 8, np.float32),
        table(h, 9, np.float32),
        cube(h, 10, np.float32),
        cube(h, 11, np.float32),
        table(h, 12, np.float32),
        cube(h, 13, np.float32),
        row(h, 14, np.float32),
        cube(h, 15, np.float32),
        table(h, 16, np.float32),
        cube(h, 17, np.float32),
        table(h, 18, np.float32),
        cube(h, 19, np.float32),
        table(h, 20, np.float32),
        table(h, 21, np.float64),
        scalar(h, 22),
        table(h, 23, np.float32),
        table(h, 24, np.float32),
        row(h, 25, np.float32),
        row(h, 26, np.float32),
        scalar(h, 27),
    )


@exact_kernel
def _attended_at(h):
    return AttentionContext(
        cubes(h, DESCRIBED, np.float32),
        cubes(h, DESCRIBED + 1, np.float32),
        cube(h, DESCRIBED + 2, np.float32),
        row(h, DESCRIBED + 3, np.float64),
        row(h, DESCRIBED + 4, np.float64),
        row(h, DESCRIBED + 5, np.float64),
        table(h, DESCRIBED + 6, np.float32),
        table(h, DESCRIBED + 7, np.float32),
        row(h, DESCRIBED + 8, np.float32),
    )


@addressed_kernel
def attend_at(rows, q, context, weights, out):
    """Write the logits (q,) of complete rows (q, d) to `out`, as `fusion.fuse_at`."""
    c = words_at(context)
    t = transform_at(c)
    x, read = rows_at(rows, q, t.center.shape[0]), table(c, READ, np.float32)
    attend_rows(x, t, _attended_at(c), _attention_at(words_at(weights)), read, numbers_at(out, q))


@kernel
def units_of(x, columns, floor):
    """Median (S,) of the mean distance of the context's rows x (S, n, d) to their 5 nearest ones."""
    spaces, n = x.shape[:2]
    m, k = columns.shape[1] * columns.shape[3], min(NEAR_NEIGHBOURS, n - 1)
    near, where, scratch = np.empty(k, np.float32), np.empty(k, np.int32), new_scratch(m)
    d2, means, out = np.empty((TILE, m), np.float32), np.empty(n), np.empty(spaces)
    for s in range(spaces):
        for i in range(n):
            if i % TILE == 0:
                own_distances(x[s], i, columns[s], d2)
            nearest(d2[i % TILE], n, near, where, scratch)
            total = 0.0
            for j in range(k):
                total += math.sqrt(np.float64(near[j]))
            means[i] = total / k
        out[s] = max(np.sort(means)[(n - 1) // 2], floor)
    return out


@kernel
def own_densities(x, z, layer, w, c):
    """Densities (n, H) of the context's own rows x (S, n, d) in a layer, leave-one-out, and what they read (n, H V).

    z: (n, width) the rows before the layer. c: the context; its comparison is not known yet.
    """
    spaces, n = x.shape[:2]
    m, heads = c.columns.shape[1] * c.columns.shape[3], w.weight.shape[1] // 2
    memory, d2 = _new_memory(w, m), np.empty((spaces, TILE, m), np.float32)
    densities, part = np.empty((n, heads)), np.empty((TILE, heads))
    read = np.empty((n, memory.mixed.shape[1]), np.float32)
    for start in range(0, n, TILE):
        size = min(TILE, n - start)
        for s in range(spaces):
            own_distances(x[s], start, c.columns[s], d2[s])
        if layer:
            _add_learned_distances(z[start : start + size], size, layer, w, c, memory, d2)
        _attend_all(d2, size, layer, n - 1, w, c, memory, part)
        _copy_first(part, size, densities[start:])
        _copy_first(memory.mixed, size, read[start:])
    return densities, read


@kernel
def own_rows(z, layer, densities, mixed, w, c, rarity, read, logits):
    """The context's rows z (n, width) after a layer, in place, from the results of `own_densities`.

    The layer's part is added to their logits (n,), after the last one the head's part, too.
    """
    n = z.shape[0]
    memory = _new_memory(w, 1)
    for start in range(0, n, TILE):
        size = min(TILE, n - start)
        _copy_first(mixed[start:], size, memory.mixed)
        part = logits[start : start + size]
        rows = z[start : start + size]
        _finish(rows, size, layer, densities[start : start + size], w, c, rarity, read, memory, part)
        if layer == w.precision.shape[0] - 1:
            _add_head(rows, size, w, memory, part)


@kernel
def keys_of_layer(z, layer, w):
    """Return what others read of the context's rows z (n, width) in a layer: coordinates (n, S C), values (n, H V), and
    the messages of routers (R, K + width)."""
    n, width = z.shape
    norm, coordinates = np.empty((n, width), np.float32), np.empty((n, w.coordinates.shape[2]), np.float32)
    values = np.empty((n, w.values.shape[2]), np.float32)
    _normalized(z, n, w.norms[layer, 2:], norm)
    linear(norm, n, w.coordinates[layer - 1], w.no_bias, coordinates)
    linear(norm, n, w.values[layer - 1], w.values_bias[layer - 1], values)
    return coordinates, values, _router_messages(z, layer, w)


@kernel
def _router_messages(z, layer, w):
    """Return the coordinates of the messages that routers collect, with what they add to a row: (R, K + width)."""
    n, width = z.shape
    count, k = w.routers.shape[1], w.router_key.shape[2]
    keys, mapped = np.empty((n, k), np.float32), np.empty((n, width), np.float32)
    messages, out = np.zeros((count, width), np.float32), np.empty((count, k + width), np.float32)
    linear(z, n, w.router_key[layer - 1], w.router_key_bias[layer - 1], keys)
    linear(z, n, w.router_value[layer - 1], w.router_value_bias[layer - 1], mapped)
    for r in range(count):
        router, closest, total = w.routers[layer - 1, r], np.float32(np.inf), np.float32(0)
        for i in range(n):
            closest = min(closest, _between(keys[i], router, k))
        for i in range(n):
            weight = exp_of_negative((closest - _between(keys[i], router, k)) * w.router_precision[layer - 1])
            total += weight
            for j in range(width):
                messages[r, j] += weight * mapped[i, j]
        for j in range(width):
            messages[r, j] /= total
    of_messages, added = np.empty((count, k), np.float32), np.empty((count, width), np.float32)
    linear(messages, count, w.router_key[layer - 1], w.router_key_bias[layer - 1], of_messages)
    linear(messages, count, w.message[layer - 1], w.no_bias, added)
    for r in range(count):
        for j in range(k):
            out[r, j] = of_messages[r, j]
        for j in range(width):
            out[r, k + j] = added[r, j]
    return out
