"""The network, in float32: the fused evidence plus the transformer.

Context rows meet through routers, and give the one vector that all queries read at each layer (mean attention).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.arithmetic import exp_of_negative, gelu
from fomo_stream.model.kernels.compiling import kernel
from fomo_stream.model.kernels.statistics import TILE, channels_of, describe_tile, new_memory

Single = NDArray[np.float32]

CHANNEL_LIMIT = np.float32(12.0)


class Weights(NamedTuple):
    """The weights of a model as the kernels read them: matrices (inputs, outputs), layers stacked. C = channels."""

    has_fusion: bool
    fusion: NDArray[np.float64]  # (C,)
    fusion_bias: float
    embed: Single  # (C, width)
    embed_bias: Single  # (width,)
    norms: Single  # (layers, 4, width): weight and bias before, weight and bias after the feed-forward part
    expand: Single  # (layers, width, hidden)
    expand_bias: Single
    reduce: Single  # (layers, hidden, width)
    reduce_bias: Single
    head: Single  # (width, 2 width)
    head_bias: Single
    last: Single  # (2 width,) of the outlier's logit minus the inlier's
    last_bias: float


@kernel
def linear(x, size, weights, bias, out):
    """out[t] = x[t] @ weights + bias, t < size; every row adds its inputs in the same order."""
    inputs, outputs = weights.shape
    for t in range(size):
        for o in range(outputs):
            out[t, o] = bias[o]
    for i in range(0, inputs - 3, 4):
        wa, wb, wc, wd = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        for t in range(size):
            a, b, c, d = x[t, i], x[t, i + 1], x[t, i + 2], x[t, i + 3]
            row = out[t]
            for o in range(outputs):
                row[o] += (a * wa[o] + b * wb[o]) + (c * wc[o] + d * wd[o])
    for i in range(inputs // 4 * 4, inputs):
        for t in range(size):
            a = x[t, i]
            for o in range(outputs):
                out[t, o] += a * weights[i, o]


@kernel
def normalize(x, weight, bias):
    """Layer normalisation of x (width,), in place."""
    n = x.shape[0]
    mean = np.float32(0)
    for i in range(n):
        mean += x[i]
    mean /= np.float32(n)
    variance = np.float32(0)
    for i in range(n):
        variance += (x[i] - mean) * (x[i] - mean)
    factor = np.float32(1.0) / np.sqrt(variance / np.float32(n) + np.float32(1e-5))
    for i in range(n):
        x[i] = (x[i] - mean) * factor * weight[i] + bias[i]


@kernel
def attend(query, keys, values, scores, out):
    """Softmax attention of one row: query (width,), keys and values (heads, width / heads, n), into out (width,)."""
    heads, width, n = keys.shape
    scale = np.float32(1.0) / np.sqrt(np.float32(width))
    for h in range(heads):
        scores[:] = np.float32(0)
        q = query[h * width : (h + 1) * width]
        for j in range(0, width - 3, 4):
            qa, qb, qc, qd = q[j] * scale, q[j + 1] * scale, q[j + 2] * scale, q[j + 3] * scale
            ka, kb, kc, kd = keys[h, j], keys[h, j + 1], keys[h, j + 2], keys[h, j + 3]
            for i in range(n):
                scores[i] += (qa * ka[i] + qb * kb[i]) + (qc * kc[i] + qd * kd[i])
        for j in range(width // 4 * 4, width):
            qa, ka = q[j] * scale, keys[h, j]
            for i in range(n):
                scores[i] += qa * ka[i]
        top = scores[0]
        for i in range(n):
            top = max(top, scores[i])
        total = np.float32(0)
        for i in range(n):
            e = exp_of_negative(scores[i] - top)
            scores[i] = e
            total += e
        for j in range(width):
            value, mixed = values[h, j], np.float32(0)
            for i in range(n):
                mixed += scores[i] * value[i]
            out[h * width + j] = mixed / total


@kernel
def _gelu_all(x):
    for i in range(x.shape[0]):
        x[i] = gelu(x[i])


@kernel
def feed_forward(z, y, u, size, layer, w):
    """The feed-forward part of a layer and its norm, for the rows z (size, width) in place; y, u: to work with."""
    linear(z, size, w.expand[layer], w.expand_bias[layer], u)
    for t in range(size):
        _gelu_all(u[t])
    linear(u, size, w.reduce[layer], w.reduce_bias[layer], y)
    for t in range(size):
        for i in range(z.shape[1]):
            z[t, i] += y[t, i]
        normalize(z[t], w.norms[layer, 2], w.norms[layer, 3])


@kernel
def _new_network_memory(w):
    width, hidden = w.embed.shape[1], w.expand.shape[2]
    return (
        np.empty((TILE, w.embed.shape[0]), np.float32),
        np.empty((TILE, width), np.float32),
        np.empty((TILE, width), np.float32),
        np.empty((TILE, hidden), np.float32),
        np.empty((TILE, w.head.shape[1]), np.float32),
    )


@kernel
def network(channels, size, w, read, memory, logits):
    """Add the transformer's part to the logits (size,) of channels (TILE, C), float32. read: (layers, width) what
    queries read."""
    x, z, y, u, h = memory
    layers = w.norms.shape[0]
    for t in range(size):
        for i in range(channels.shape[1]):
            x[t, i] = min(max(channels[t, i], -CHANNEL_LIMIT), CHANNEL_LIMIT)
    linear(x, size, w.embed, w.embed_bias, z)
    for layer in range(layers):
        for t in range(size):
            for i in range(z.shape[1]):
                z[t, i] += read[layer, i]
            normalize(z[t], w.norms[layer, 0], w.norms[layer, 1])
        feed_forward(z, y, u, size, layer, w)
    linear(z, size, w.head, w.head_bias, h)
    for t in range(size):
        _gelu_all(h[t])
        total = w.last_bias
        for i in range(h.shape[1]):
            total += h[t, i] * w.last[i]
        logits[t] += total


@kernel
def score_channels(channels, w, read):
    """Logits (q,) of channels (q, C) float32."""
    q = channels.shape[0]
    logits = np.zeros(q)
    if w.has_fusion:
        for t in range(q):
            total = w.fusion_bias
            for i in range(channels.shape[1]):
                total += channels[t, i] * w.fusion[i]
            logits[t] = total
    if w.norms.shape[0] == 0:
        return logits
    memory = _new_network_memory(w)
    for start in range(0, q, TILE):
        size = min(TILE, q - start)
        network(channels[start : start + size], size, w, read, memory, logits[start : start + size])
    return logits


@kernel
def describe_rows(rows, t, c):
    """Channels (q, C) float32 of raw rows (q, d), NaN = missing, against a context."""
    q, d = rows.shape
    memory = new_memory(d, c.columns.shape[1] * c.columns.shape[3], c.own.shape[1])
    count = c.median.shape[0]
    statistics, channels = np.empty((TILE, count)), np.empty((q, 2 * count), np.float32)
    for start in range(0, q, TILE):
        size = min(TILE, q - start)
        describe_tile(rows[start : start + size], t, c, memory, statistics)
        for i in range(size):
            out = channels[start + i]
            channels_of(statistics[i], c.median, c.spread, c.ordered, c.last_ordered, c.rarity, out)
    return channels


@kernel
def score_rows(rows, t, c, w, read):
    """Logits (q,) of raw rows (q, d), NaN = missing, against a context."""
    return score_channels(describe_rows(rows, t, c), w, read)


QUERY, KEY, VALUE, OUT = range(4)


class ContextWeights(NamedTuple):
    """The weights that only context rows use: layers stacked, attention as query, key, value and output maps."""

    heads: int
    cross: Single  # (layers, width, width) of the mean that queries read
    cross_bias: Single
    routers: Single  # (layers, R, width); R = 0: context rows attend to each other
    collect: Single  # (layers, 4, width, width) routers attend to context rows
    collect_bias: Single
    spread: Single  # (layers, 4, width, width) context rows attend to routers, or to each other
    spread_bias: Single


@kernel
def _by_head(rows, weights, bias, heads):
    """Keys or values of rows (n, width) as `attend` takes them: (heads, width / heads, n)."""
    n, width = rows.shape
    mapped = np.empty((n, width), np.float32)
    linear(rows, n, weights, bias, mapped)
    out = np.empty((heads, width // heads, n), np.float32)
    for h in range(heads):
        for j in range(width // heads):
            for i in range(n):
                out[h, j, i] = mapped[i, h * (width // heads) + j]
    return out


@kernel
def _attention(rows, source, heads, weights, bias):
    """Softmax attention of rows (q, width) to source (n, width), after the output map: (q, width)."""
    q, width = rows.shape
    keys = _by_head(source, weights[KEY], bias[KEY], heads)
    values = _by_head(source, weights[VALUE], bias[VALUE], heads)
    asked, mixed = np.empty((q, width), np.float32), np.empty((q, width), np.float32)
    out, scores = np.empty((q, width), np.float32), np.empty(len(source), np.float32)
    linear(rows, q, weights[QUERY], bias[QUERY], asked)
    for i in range(q):
        attend(asked[i], keys, values, scores, mixed[i])
    linear(mixed, q, weights[OUT], bias[OUT], out)
    return out


@kernel
def _mean(z):
    """The mean (1, width) of rows (n, width)."""
    out = np.empty((1, z.shape[1]), np.float32)
    for j in range(z.shape[1]):
        total = 0.0
        for i in range(z.shape[0]):
            total += z[i, j]
        out[0, j] = total / z.shape[0]
    return out


@kernel
def _meet(z, layer, w, c):
    """The context rows z (n, width) that enter the next layer, in place."""
    source = z
    if c.routers.shape[1]:
        source = _attention(c.routers[layer], z, c.heads, c.collect[layer], c.collect_bias[layer])
    attended = _attention(z, source, c.heads, c.spread[layer], c.spread_bias[layer])
    norms = w.norms[layer]
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            z[i, j] += attended[i, j]
        normalize(z[i], norms[0], norms[1])
    hidden = np.empty((z.shape[0], w.expand.shape[2]), np.float32)
    feed_forward(z, attended, hidden, z.shape[0], layer, w)


@kernel
def encode_channels(channels, w, c):
    """What queries read of a context at each layer, (layers, width), from the channels (n, C) of its rows."""
    n, width, layers = channels.shape[0], w.embed.shape[1], w.norms.shape[0]
    x, z = np.empty(channels.shape, np.float32), np.empty((n, width), np.float32)
    read = np.empty((layers, width), np.float32)
    if layers == 0:
        return read
    for i in range(n):
        for j in range(x.shape[1]):
            x[i, j] = min(max(channels[i, j], -CHANNEL_LIMIT), CHANNEL_LIMIT)
    linear(x, n, w.embed, w.embed_bias, z)
    for layer in range(layers):
        linear(_mean(z), 1, c.cross[layer], c.cross_bias[layer], read[layer : layer + 1])
        if layer + 1 < layers:  # nothing reads the rows that leave the last layer
            _meet(z, layer, w, c)
    return read
