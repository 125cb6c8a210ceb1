"""The fusion: a weighted sum of evidence channels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.compiling import kernel
from fomo_stream.model.kernels.statistics import TILE, channels_of, describe_tile, new_memory

FUSES = 1.0  # first number of these weights


class FusionWeights(NamedTuple):
    """The weights of a fusion as the kernels read them. C = channels."""

    kind: float  # FUSES
    channels: NDArray[np.float64]  # (C,)
    bias: float


@kernel
def fuse(channels, w):
    """Logits (q,) of channels (q, C) float32."""
    q, count = channels.shape
    logits = np.empty(q)
    for t in range(q):
        total = w.bias
        for i in range(count):
            total += channels[t, i] * w.channels[i]
        logits[t] = total
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
def fuse_rows(rows, t, c, w):
    """Logits (q,) of raw rows (q, d), NaN = missing, against a context."""
    return fuse(describe_rows(rows, t, c), w)
