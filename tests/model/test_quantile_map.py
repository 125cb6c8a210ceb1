from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm
from sklearn.preprocessing import QuantileTransformer

from fomo_stream.model.quantile_map import Knots, fit_knots, to_normal

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
