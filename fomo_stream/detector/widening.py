"""Further features: rows become wider when a stream has new features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def with_missing_features(rows: NDArray[np.float64], more: int) -> NDArray[np.float64]:
    """Rows (..., d) with `more` further features at the end, all missing: (..., d + more)."""
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, more)], constant_values=np.nan)
