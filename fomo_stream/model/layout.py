"""Arrays as the compiled kernels read them: weights of linear maps, context rows in blocks, sorted tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.arithmetic import STRIDE
from fomo_stream.model.kernels.lanes import LANES
from fomo_stream.model.kernels.neighbours import BLOCK, FAR

Single = NDArray[np.float32]
Arrays = Mapping[str, Single]


def as_tables(ordered: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Ascending rows (c, n) as tables of `count_smaller`, and the last values of their blocks."""
    count, n = ordered.shape
    padded = np.full((count, (n // STRIDE + 1) * STRIDE), np.inf, ordered.dtype)
    padded[:, :n] = ordered
    return padded, np.ascontiguousarray(padded[:, STRIDE - 1 : -1 : STRIDE])


def in_blocks(x: Single, padding: float = FAR) -> Single:
    """(u, n, d) -> (u, blocks, d, width)."""
    spaces, n, d = x.shape
    width = min(BLOCK, -(-n // LANES) * LANES)
    blocks = -(-n // width)
    columns = np.full((spaces, d, blocks * width), padding, np.float32)
    columns[:, :, :n] = x.transpose(0, 2, 1)
    return np.ascontiguousarray(columns.reshape(spaces, d, blocks, width).transpose(0, 2, 1, 3))


def linear_maps(arrays: Arrays, names: Sequence[str]) -> tuple[Single, Single]:
    """Weights (n, inputs, outputs) and biases (n, outputs) of linear maps."""
    return stacked([arrays[f"{name}.weight"].T for name in names], 3), stacked(
        [arrays[f"{name}.bias"] for name in names], 2
    )


def linear_map(arrays: Arrays, names: Sequence[str]) -> tuple[Single, Single]:
    """Weights (inputs, outputs) and bias (outputs,) of the only map; without any, empty."""
    weights, bias = linear_maps(arrays, names)
    return (weights[0], bias[0]) if len(weights) else (np.zeros((0, 0), np.float32), np.zeros(0, np.float32))


def norms(arrays: Arrays, names: Sequence[str]) -> Single:
    """Weight and bias of each normalisation, one after the other: (2 n, width)."""
    return np.stack([arrays[f"{name}.{part}"] for name in names for part in ("weight", "bias")])


def stacked(parts: Sequence[Single], dimensions: int) -> Single:
    """Parts of one shape, along a first dimension; without any, empty of so many dimensions."""
    if not parts:
        return np.zeros((0,) * dimensions, np.float32)
    return np.ascontiguousarray(np.stack(parts), dtype=np.float32)
