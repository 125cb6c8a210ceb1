"""Missing values, and the transform to a normal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm
from sklearn.preprocessing import QuantileTransformer

from fomo_stream.model.completion import Completion
from fomo_stream.model.preprocessing import Knots, fit_imputation, fit_knots, impute, to_normal

# --- imputation


def skewed(n: int, seed: int) -> np.ndarray:
    """Rows of a log-normal and a uniform feature, a fifth of the values missing; the first row is complete."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack([np.exp(2 * rng.normal(size=n)), rng.random(n)])
    rows[1:][rng.random((n - 1, 2)) < 0.2] = np.nan
    return rows


@given(st.integers(0, 1000), st.integers(5, 300))
def test_a_missing_value_is_imputed_at_the_middle_of_the_transformed_space(seed: int, n: int) -> None:
    context = skewed(n, seed)
    imputation = fit_imputation(torch.from_numpy(context)[None])
    imputed = impute(torch.full((1, 1, 2), torch.nan, dtype=torch.float64), imputation)[0]
    for j in range(2):
        known = torch.from_numpy(context[~np.isnan(context[:, j]), j])[:, None]
        normal = to_normal(imputed[:, [j]], fit_knots(known)).item()
        assert abs(norm.cdf(normal) - 0.5) <= 1 / len(known)  # zero, as near as one of so many values can be


@given(st.integers(0, 1000), st.integers(5, 60))
def test_the_gaps_of_a_context_are_filled_from_other_rows_that_have_values(seed: int, n: int) -> None:
    context = np.column_stack([skewed(n, seed), np.full(n, np.nan)])
    done = Completion.of(context)
    known = ~np.isnan(context)
    np.testing.assert_array_equal(done.rows[known], context[known])
    assert np.isnan(done.rows[:, 2]).all()  # no row has the feature
    for j in range(2):
        assert np.isin(done.rows[:, j], context[known[:, j], j]).all()


# --- quantile map

values = st.floats(-1e6, 1e6, allow_subnormal=False)
columns = st.integers(2, 60).flatmap(lambda n: arrays(np.float64, (n, 2), elements=values))


def transform(rows: np.ndarray, knots: Knots) -> np.ndarray:
    return to_normal(torch.from_numpy(rows), knots).numpy()


@given(columns, arrays(np.float64, (20, 2), elements=values))
@example(np.array([[5e-304, 0.0], [0.0, 0.0]]), np.full((20, 2), 1e6))
def test_order_of_values_is_kept(context: np.ndarray, queries: np.ndarray) -> None:
    knots = fit_knots(torch.from_numpy(context))
    ordered = np.sort(queries, axis=0)
    assert (np.diff(transform(ordered, knots), axis=0) >= 0).all()


@given(columns)
def test_tails_grow_beyond_the_outer_knots(context: np.ndarray) -> None:
    knots = fit_knots(torch.from_numpy(context))
    far = knots.values[:, -1].numpy() + np.array([[1.0], [2.0], [3.0]]) * knots.scale.numpy()
    steps = np.diff(transform(far, knots), axis=0)
    np.testing.assert_allclose(steps, 1.0, rtol=1e-3)


@pytest.mark.parametrize("n", [50, 1000])
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
