"""Random records for property tests, and the values that JSON can keep."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

numbers = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.integers(-(2**80), 2**80), st.just(10**400), st.just(1e308)
)
scalars = st.one_of(st.none(), numbers, st.text(st.characters(), max_size=5))
keys = st.one_of(st.sampled_from(["a", "b", "a.b", "b.a", "fomo", ""]), st.text(st.characters(), max_size=3))
values = st.recursive(
    scalars,
    lambda child: st.one_of(st.lists(child, max_size=3), st.dictionaries(keys, child, max_size=3)),
    max_leaves=10,
)
records = st.dictionaries(keys, values, max_size=6)


def flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a record by their dotted paths."""
    out: dict[str, Any] = {}
    for key, value in record.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


def finite(node: Any) -> Any:
    """The value with None in place of NaN and infinities, which JSON cannot write."""
    if isinstance(node, dict):
        return {key: finite(child) for key, child in node.items()}
    if isinstance(node, list):
        return [finite(child) for child in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node
