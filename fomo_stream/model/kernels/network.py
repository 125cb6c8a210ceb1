"""The layers of a network, in float32."""

from __future__ import annotations

import numpy as np

from fomo_stream.model.kernels.arithmetic import gelu
from fomo_stream.model.kernels.compiling import kernel


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
def gelu_all(x):
    for i in range(x.shape[0]):
        x[i] = gelu(x[i])
