from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm
from sklearn.preprocessing import QuantileTransformer

from fomo_stream.quantiles import Knots, QuantileSketch, fit_knots, to_normal

values = st.floats(-1e6, 1e6, allow_subnormal=False)
columns = st.integers(2, 60).flatmap(lambda n: arrays(np.float64, (n, 2), elements=values))


def transform(rows: np.ndarray, knots: Knots) -> np.ndarray:
    return to_normal(torch.from_numpy(rows), knots).numpy()


@given(columns, arrays(np.float64, (20, 2), elements=values))
def test_order_of_values_is_kept(context: np.ndarray, queries: np.ndarray) -> None:
    knots = fit_knots(torch.from_numpy(context))
    ordered = np.sort(queries, axis=0)
    assert (np.diff(transform(ordered, knots), axis=0) >= 0).all()


@given(columns)
def test_tails_grow_beyond_the_observed_range(context: np.ndarray) -> None:
    knots = fit_knots(torch.from_numpy(context))
    far = context.max(0) + np.array([[1.0], [2.0], [3.0]]) * knots.scale.numpy()
    steps = np.diff(transform(far, knots), axis=0)
    np.testing.assert_allclose(steps, 1.0, rtol=1e-3)


@pytest.mark.parametrize("n", [50, 1000, 4000])
def test_agrees_with_scikit_learn_inside_the_range(n: int) -> None:
    rng = np.random.default_rng(n)
    rows = np.column_stack([rng.normal(size=n), rng.exponential(size=n), rng.integers(0, 5, n)])
    theirs = QuantileTransformer(n_quantiles=n, output_distribution="uniform", subsample=None).fit_transform(rows)
    ours = norm.cdf(transform(rows, fit_knots(torch.from_numpy(rows))))
    inside = (rows > rows.min(0)) & (rows < rows.max(0))  # scikit-learn pins the smallest and largest value to 0 and 1
    assert np.abs(ours - theirs)[inside].max() < 1 / n + 1e-3


def test_tied_values_sit_at_their_mid_rank() -> None:
    rows = np.array([[0.0]] * 60 + [[1.0]] * 40)
    ours = norm.cdf(transform(np.array([[0.0], [1.0]]), fit_knots(torch.from_numpy(rows))))
    np.testing.assert_allclose(ours[:, 0], [0.3, 0.8], atol=1e-12)


def test_constant_maps_to_zero_and_a_departure_from_it_does_not() -> None:
    knots = fit_knots(torch.full((30, 1), 7.0, dtype=torch.float64))
    at, above, below = transform(np.array([[7.0], [8.0], [6.0]]), knots)[:, 0]
    assert abs(at) < 1e-12
    assert below < -2
    assert above > 2


def test_missing_stays_missing() -> None:
    knots = fit_knots(torch.randn(30, 2, dtype=torch.float64))
    assert np.isnan(transform(np.array([[np.nan, 0.0]]), knots)).tolist() == [[True, False]]


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 400), min_size=1, max_size=6))
def test_sketch_does_not_depend_on_how_rows_are_batched(seed: int, sizes: list[int]) -> None:
    rows = np.random.default_rng(seed).normal(size=(sum(sizes), 2))
    at_once, in_parts = QuantileSketch(2, size=64, chunk=32), QuantileSketch(2, size=64, chunk=32)
    at_once.update(rows)
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        in_parts.update(part)
    for name, array in at_once.snapshot().items():
        np.testing.assert_array_equal(array, in_parts.snapshot()[name])


@given(st.integers(0, 2**32 - 1), st.integers(2, 900))
def test_sketch_equals_the_batch_fit_until_it_forgets(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.normal(size=n), rng.integers(0, 3, n)])
    sketch = QuantileSketch(2, half_life=1e12)
    sketch.update(rows)
    queries = np.column_stack([rng.normal(size=40) * 2, rng.integers(-1, 4, 40)])
    batch = transform(queries, fit_knots(torch.from_numpy(rows)))
    np.testing.assert_allclose(transform(queries, sketch.knots()), batch, atol=1e-6)


def weighted_ranks(rows: np.ndarray, weights: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Share of weight below each value of `at`, ties counted half."""
    below = (rows[None, :] < at[:, None]) @ weights
    equal = (rows[None, :] == at[:, None]) @ weights
    return np.asarray((below + equal / 2) / weights.sum())


@pytest.mark.parametrize("half_life", [700.0, 3500.0])
def test_sketch_ranks_are_within_half_a_percent_of_exact_decayed_ones(half_life: float) -> None:
    rng = np.random.default_rng(3)
    n, sketch = 20_000, QuantileSketch(2, half_life=half_life)
    drift = np.linspace(0, 5, n)
    rows = np.column_stack([rng.normal(size=n) + drift, rng.exponential(size=n)])
    sketch.update(rows)
    # the sketch ages rows by whole chunks: a row's age is the rows in later chunks and half of its own... as merged
    chunk = np.arange(n) // sketch.chunk
    ages = np.array([(c + 1) * sketch.chunk for c in chunk])
    weights = 0.5 ** ((n - np.minimum(ages, n)) / half_life)
    inside = np.quantile(rows[-2000:], np.linspace(0.02, 0.98, 50), axis=0)
    ours = norm.cdf(transform(inside, sketch.knots()))
    for j in range(2):
        exact = weighted_ranks(rows[:, j], weights, inside[:, j])
        assert np.abs(ours[:, j] - exact).max() <= 0.005


def test_sketch_memory_stays_constant() -> None:
    sketch = QuantileSketch(3, size=128, chunk=64)
    rng = np.random.default_rng(0)
    sketch.update(rng.normal(size=(1_000, 3)))
    early = sum(a.nbytes for a in sketch.snapshot().values())
    sketch.update(rng.normal(size=(99_000 // 64 * 64, 3)))
    assert sum(a.nbytes for a in sketch.snapshot().values()) <= early


def test_sketch_ignores_missing_values() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(400, 1))
    holes = np.full((800, 1), np.nan)
    holes[::2] = rows
    full, sparse = QuantileSketch(1, half_life=1e12), QuantileSketch(1, half_life=1e12)
    full.update(rows)
    sparse.update(holes)
    queries = rng.normal(size=(30, 1))
    np.testing.assert_allclose(transform(queries, full.knots()), transform(queries, sparse.knots()), atol=1e-9)


def test_feature_never_seen_does_not_fail() -> None:
    sketch = QuantileSketch(1)
    sketch.update(np.full((10, 1), np.nan))
    assert np.isfinite(transform(np.array([[0.0], [3.0]]), sketch.knots())).all()
