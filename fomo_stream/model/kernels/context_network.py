"""The network for context rows: they meet through routers, and give what queries read at each layer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.compiling import kernel
from fomo_stream.model.kernels.network import (
    CHANNEL_LIMIT,
    Read,
    attend,
    feed_forward,
    linear,
    normalize,
)

Single = NDArray[np.float32]
QUERY, KEY, VALUE, OUT = range(4)


class ContextWeights(NamedTuple):
    """The weights that only context rows use: layers stacked, attention as query, key, value and output maps."""

    heads: int
    cross: Single  # (layers, width, width) of the mean that queries read; empty with attention
    cross_bias: Single
    key: Single  # (layers, width, width) of the keys and values that queries attend to; empty without attention
    key_bias: Single
    value: Single
    value_bias: Single
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
    """What queries read of a context, from the channels (n, C) of its rows."""
    n, width, layers = channels.shape[0], w.embed.shape[1], w.norms.shape[0]
    x, z = np.empty(channels.shape, np.float32), np.empty((n, width), np.float32)
    means = 0 if w.attends else layers
    mean = np.empty((means, width), np.float32)
    heads = np.empty((layers - means, c.heads, width // c.heads, n if w.attends else 0), np.float32)
    read = Read(mean, heads, heads.copy())
    if layers == 0:
        return read
    for i in range(n):
        for j in range(x.shape[1]):
            x[i, j] = min(max(channels[i, j], -CHANNEL_LIMIT), CHANNEL_LIMIT)
    linear(x, n, w.embed, w.embed_bias, z)
    for layer in range(layers):
        if w.attends:
            read.keys[layer] = _by_head(z, c.key[layer], c.key_bias[layer], c.heads)
            read.values[layer] = _by_head(z, c.value[layer], c.value_bias[layer], c.heads)
        else:
            linear(_mean(z), 1, c.cross[layer], c.cross_bias[layer], read.mean[layer : layer + 1])
        if layer + 1 < layers:  # nothing reads the rows that leave the last layer
            _meet(z, layer, w, c)
    return read
