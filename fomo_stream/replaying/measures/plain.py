"""Numbers of a report, as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

DIGITS = 6  # of floats: more are noise, and another processor gives others


def plain(value: Any) -> Any:
    """Floats with DIGITS significant digits, None for NaN and infinities, lists for arrays, no NumPy types.

    >>> plain({"value": np.float64(1 / 3), "rows": np.arange(3), "none": float("nan")})
    {'value': 0.333333, 'rows': [0, 1, 2], 'none': None}
    """
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return float(f"{number:.{DIGITS}g}") + 0.0 if math.isfinite(number) else None  # + 0.0: no -0.0
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return str(value)
