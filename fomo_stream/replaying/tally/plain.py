"""Numbers of a report, as JSON can hold them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

DIGITS = 6


def plain(node: Any) -> Any:
    """Arrays as lists, and floats with DIGITS significant digits; NaN and infinities are None.

    >>> plain({"psi": np.array([0.12345678, np.nan]), "records": np.int64(3)})
    {'psi': [0.123457, None], 'records': 3}
    """
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [plain(value) for value in node]
    if isinstance(node, np.ndarray):
        return plain(node.tolist())
    if isinstance(node, np.generic):
        return plain(node.item())
    if isinstance(node, float):
        return float(f"{node:.{DIGITS}g}") if math.isfinite(node) else None
    return node
