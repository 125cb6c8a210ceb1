"""Rows as planes of features and side by side, and with further features when a stream has new ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def with_missing_features(rows: NDArray[np.float64], more: int) -> NDArray[np.float64]:
    """Rows (..., d) with `more` further features at the end, all missing: (..., d + more)."""
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, more)], constant_values=np.nan)


def flat(planes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Planes (n, planes, d) side by side: (n, planes * d), contiguous, as safetensors can only store such an array."""
    n, n_planes, d = planes.shape
    return np.ascontiguousarray(planes.reshape(n, n_planes * d))
