"""All views of a detector scored by one call, against each generation by itself."""

from __future__ import annotations

import pickle
from copy import deepcopy

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fomo_stream.detector.generation import ContextSpec, Generation
from fomo_stream.detector.view_inputs import ViewInput, score_view_inputs
from fomo_stream.model.checkpoint import load_model, shared_model

Float = NDArray[np.float64]


def table(n: int, d: int, categorical: int, seed: int, gaps: float = 0.05) -> Float:
    """Rows whose first columns hold codes."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) + rng.normal(size=(n, 1))
    rows[:, :categorical] = rng.integers(0, 4, (n, categorical))
    rows[rng.random(rows.shape) < gaps] = np.nan
    return rows


def context_spec(rows: Float, categorical: int, number: int, once: float, outliers: Float) -> ContextSpec:
    n = len(rows)
    codes = tuple(range(categorical))
    none = np.zeros(n, dtype=bool)
    return ContextSpec(number, 0, 0, codes, 0.0, once, np.arange(n), rows, np.zeros(n), none, outliers)


def looks(seed: int, q: int, widths: list[int], cut: int, stand_ins: bool) -> list[ViewInput]:
    """Views of these widths, the first one with categories, whose generation changes at record `cut` of q."""
    model = shared_model("streams", "cpu", "numba")
    found = []
    for at, d in enumerate(widths):
        codes = min(2, d) if at == 0 else 0
        once, outliers = float(at != 1) * 2, table(30 * (at != 1), d, codes, seed + 5) + 6 * (at == 2)
        rows = [table(n, d, codes, seed + n) for n in (80, 120)]
        both = [
            Generation.build(model, context_spec(one, codes, number + 2, once, outliers))
            for number, one in enumerate(rows)
        ]
        parts = [(part, one) for part, one in zip((np.arange(cut), np.arange(cut, q)), both, strict=True) if len(part)]
        asked = table(q, d, codes, seed + 7)
        gaps = np.random.default_rng(seed).random((q, d)) < 0.2 if stand_ins and at < 2 else None
        skips = at == len(widths) - 1
        if skips:
            asked[::3] = np.nan
            parts = parts[1:]
        found.append(ViewInput(asked, gaps, parts, skips))
    return found


def apart(one: ViewInput) -> tuple[Float, Float]:
    """Logits and votes of a view, by its generations and row by row."""
    model, out = shared_model("streams", "cpu", "numba"), np.full((2, len(one.rows)), np.nan)
    for part, generation in one.parts:
        for i in part.tolist():
            row, gaps = one.rows[i : i + 1], None if one.gaps is None else one.gaps[i : i + 1]
            if not (one.skips and np.isnan(row).all()):
                out[0, i] = generation.logits(model, row, gaps)[0]
                out[1, i] = generation.vote(out[0, i : i + 1])[0]
    return out[0], out[1]


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**16),
    q=st.sampled_from([1, 2, 40]),
    widths=st.lists(st.sampled_from([1, 3, 10, 70]), min_size=2, max_size=4),
    cut=st.integers(0, 40),
    stand_ins=st.booleans(),
)
def test_one_call_says_what_each_generation_says_by_itself(
    seed: int, q: int, widths: list[int], cut: int, stand_ins: bool
) -> None:
    asked = looks(seed, q, widths, min(cut, q), stand_ins)
    ((logits, votes),) = score_view_inputs(shared_model("streams", "cpu", "numba"), [asked])
    for at, one in enumerate(asked):
        expected, said = apart(one)
        np.testing.assert_allclose(logits[at], expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(votes[at], said, rtol=0, atol=1e-12)


def test_a_copy_and_a_pickle_score_by_their_own_arrays() -> None:
    model = load_model(backend="numba")
    asked = looks(3, 9, [4, 8, 8], 5, stand_ins=True)
    expected = score_view_inputs(model, [asked])
    again = [deepcopy((model, [asked])), pickle.loads(pickle.dumps((model, [asked])))]
    del model, asked
    for one in again:
        np.testing.assert_array_equal(score_view_inputs(*one), expected)
