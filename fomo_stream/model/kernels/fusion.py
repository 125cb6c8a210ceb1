"""The fusion: a weighted sum of evidence channels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.compiling import addressed_kernel, exact_kernel, kernel
from fomo_stream.model.kernels.handles import cube, cubes, numbers_at, row, rows_at, scalar, table, words_at
from fomo_stream.model.kernels.statistics import (
    DESCRIBED,
    TILE,
    Described,
    channels_of,
    describe_tile,
    new_memory,
    transform_at,
)


class FusionWeights(NamedTuple):
    """The weights of a fusion as the kernels read them. C = channels."""

    channels: NDArray[np.float64]  # (C,)
    bias: float


@kernel
def fuse(channels, w, logits):
    """Write the logits (q,) of channels (q, C) float32."""
    for t in range(channels.shape[0]):
        total = w.bias
        for i in range(channels.shape[1]):
            total += channels[t, i] * w.channels[i]
        logits[t] = total


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


@exact_kernel
def _fusion_at(h):
    return FusionWeights(row(h, 0, np.float64), scalar(h, 1))


@exact_kernel
def _described_at(h):
    return Described(
        cubes(h, DESCRIBED, np.float32),
        cube(h, DESCRIBED + 1, np.float64),
        row(h, DESCRIBED + 2, np.float64),
        scalar(h, DESCRIBED + 3),
        row(h, DESCRIBED + 4, np.float64),
        row(h, DESCRIBED + 5, np.float64),
        table(h, DESCRIBED + 6, np.float32),
        table(h, DESCRIBED + 7, np.float32),
        row(h, DESCRIBED + 8, np.float32),
    )


@addressed_kernel
def fuse_at(rows, q, context, weights, out):
    """Write the logits (q,) of complete rows (q, d) to `out`; all are addresses, of arrays and of handles."""
    c = words_at(context)
    t = transform_at(c)
    channels = describe_rows(rows_at(rows, q, t.center.shape[0]), t, _described_at(c))
    fuse(channels, _fusion_at(words_at(weights)), numbers_at(out, q))
