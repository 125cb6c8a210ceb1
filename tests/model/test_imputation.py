"""A missing value says nothing: it becomes what the transform maps to its middle."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.imputation import fit_imputation, impute
from fomo_stream.model.quantile_map import fit_knots, to_normal
from fomo_stream.model.scoring import encode_rows, logits_of


def skewed(n: int, seed: int) -> np.ndarray:
    """Rows of a log-normal and a uniform feature, a fifth of the values missing; the first row is complete."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack([np.exp(2 * rng.normal(size=n)), rng.random(n)])
    rows[1:][rng.random((n - 1, 2)) < 0.2] = np.nan
    return rows


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(5, 300))
def test_a_missing_value_is_imputed_at_the_middle_of_the_transformed_space(seed: int, n: int) -> None:
    context = skewed(n, seed)
    imputation = fit_imputation(torch.from_numpy(context)[None])
    imputed = impute(torch.full((1, 1, 2), torch.nan, dtype=torch.float64), imputation)[0]
    for j in range(2):
        known = torch.from_numpy(context[~np.isnan(context[:, j]), j])[:, None]
        normal = to_normal(imputed[:, [j]], fit_knots(known)).item()
        assert abs(norm.cdf(normal) - 0.5) <= 1 / len(known)  # zero, as near as one of so many values can be


def test_a_record_without_a_value_scores_as_one_with_the_median() -> None:
    model, context = shared_model(), skewed(201, 0)
    cache = encode_rows(model, context)
    record = np.array([[np.nan, 0.5], [5.0, np.nan]])
    median = np.where(np.isnan(record), fit_imputation(torch.from_numpy(context)[None]).fill[0].numpy(), record)
    np.testing.assert_array_equal(logits_of(model, cache, record), logits_of(model, cache, median))
    extreme = np.where(np.isnan(record), 1e4, record)
    assert (logits_of(model, cache, record) < logits_of(model, cache, extreme)).all()
