"""Figures of columns, one pass for each: to NumPy these take several arrays of the size of a context."""

from __future__ import annotations

import math

import numpy as np

from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.neighbours import FAR, LIMIT


@exact_kernel
def spreads(rows, counts):
    """Standard deviations (d,) of the columns of those rows (n, d) that count (n,)."""
    n, d = rows.shape
    total, squares, m = np.zeros(d), np.zeros(d), 0
    for i in range(n):
        if counts[i]:
            m += 1
            for j in range(d):
                total[j] += rows[i, j]
    for j in range(d):
        total[j] /= m
    for i in range(n):
        if counts[i]:
            for j in range(d):
                squares[j] += (rows[i, j] - total[j]) * (rows[i, j] - total[j])
    for j in range(d):
        squares[j] = math.sqrt(squares[j] / m)
    return squares


@exact_kernel
def median_deviations(ordered):
    """The lower median (d,) of the distances of each of d ascending rows (d, n) from its lower median."""
    d, n = ordered.shape
    out = np.empty(d)
    for j in range(d):
        middle = (n - 1) // 2
        before, after, at, center = middle, middle + 1, 0.0, ordered[j, middle]
        for _ in range(middle + 1):  # the nearest values, one after the other: they lie around the median
            left = center - ordered[j, before] if before >= 0 else np.inf
            right = ordered[j, after] - center if after < n else np.inf
            at = min(left, right)
            if left <= right:
                before -= 1
            else:
                after += 1
        out[j] = at
    return out


@exact_kernel
def standardised(rows, known, scale, padded):
    """Mean (d,) of the columns of rows (n, d), largest size (d,) of (rows - mean) / scale, and these, limited, as
    columns (d, padded); 0 where nothing is known (d,)."""
    n, d = rows.shape
    center, most, columns = np.zeros(d), np.zeros(d), np.full((d, padded), FAR, np.float32)
    for i in range(n):
        for j in range(d):
            center[j] += rows[i, j]
    for j in range(d):
        center[j] = center[j] / n if known[j] else 0.0
    for i in range(n):
        for j in range(d):
            z = (rows[i, j] - center[j]) / scale[j] if known[j] else 0.0
            most[j] = max(most[j], abs(z))
            columns[j, i] = min(max(z, -LIMIT), LIMIT)
    return center, most, columns
