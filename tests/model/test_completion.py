"""Missing values completed by the nearest rows: NumPy and the kernel against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fomo_stream.model import compiled
from fomo_stream.model.completion import NEAREST, Completion

Float = NDArray[np.float64]
NONE_LACKING = np.zeros((0, 0), dtype=bool)


def naive(context: Completion, row: Float) -> Float:
    """The lower middle of the NEAREST rows, and of those as far as the last of them, feature by feature."""
    has, out = context.known & ~np.isnan(row), row.copy()
    for j in np.flatnonzero(context.known & np.isnan(row)):
        apart = [sum(((one[has] - row[has]) / context.scale[has]) ** 2) for one in context.rows]
        last = sorted(apart)[min(NEAREST, len(apart)) - 1]
        values = sorted(one[j] for one, distance in zip(context.rows, apart, strict=True) if distance <= last)
        out[j] = values[(len(values) - 1) // 2]
    return out


def table(n: int, d: int, seed: int, kind: str, gaps: float) -> Float:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * 10 ** rng.uniform(-3, 6, d) + 10 ** rng.uniform(-3, 9, d)
    if kind == "ties":
        rows = rng.integers(0, 3, (n, d)).astype(np.float64)
    if kind == "far":
        rows[rng.random(rows.shape) < 0.01] = 1e12
    rows[rng.random(rows.shape) < gaps] = np.nan
    return rows


@pytest.mark.parametrize("kind", ["plain", "ties", "far"])
@given(n=st.integers(2, 400), d=st.integers(1, 12), seed=st.integers(0, 2**16), gaps=st.sampled_from([0.0, 0.05, 0.5]))
def test_the_kernel_completes_as_numpy_does(kind: str, n: int, d: int, seed: int, gaps: float) -> None:
    context = table(n, d, seed, kind, gaps)
    one, other = Completion.of(context), Completion.of(context, compiled.completed)
    np.testing.assert_array_equal(one.rows, other.rows)
    queries = np.concatenate([table(9, d, seed + 1, kind, 0.3), context[:9], np.full((1, d), np.nan)])
    queries[0, 1:] = 1e30  # nearly as far from every row
    filled = one.fill(queries)
    np.testing.assert_array_equal(compiled.completed(one, queries, NONE_LACKING), filled)
    if kind == "plain":  # of sums in another order, some rows are as far in one of them alone
        np.testing.assert_array_equal(filled[1:], [naive(one, row) for row in queries[1:]])
