"""The binary search of kernels. `arithmetic` needs numba; what the detector does must also run without it."""

from __future__ import annotations

from fomo_stream.model.kernels.compiling import exact_kernel


@exact_kernel
def smaller(ascending, x):
    """Return how many of ascending numbers (m,) are smaller than x."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low
