"""Values far beyond a gap tell nothing of what is usual, in both kernels."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from fomo_stream.model.bulk import Bulk, without_far
from fomo_stream.model.checkpoint import load_model
from fomo_stream.model.scoring import encode_rows, logits_of

SENTINELS = (-9999.0, 65535.0, 1e9, -3.4e38)


@given(st.integers(0, 1000), st.sampled_from(SENTINELS), st.integers(1, 40), st.floats(1e-3, 10.0))
def test_what_is_far_does_not_depend_on_other_columns_and_leaves_the_others_as_they_are(
    seed: Any, value: Any, count: Any, scale: Any
) -> None:
    rows = np.random.default_rng(seed).normal(size=(300, 2)) * scale
    plain = Bulk.of_rows(rows)
    assert not plain.far(rows).any()
    rows[:count, 0] = value
    bulk = Bulk.of_rows(rows)
    np.testing.assert_array_equal(bulk.far(rows), (rows == value) & [True, False])
    np.testing.assert_array_equal(without_far(np.sort(rows[:, 0])), np.sort(rows[count:, 0]))
    assert np.abs(bulk.limited(rows)[:, 0]).max() <= np.abs(rows[count:, 0]).max()
    assert (plain.low[1], plain.high[1]) == (bulk.low[1], bulk.high[1])


@pytest.mark.parametrize(
    "column",
    [
        np.zeros(300),
        np.repeat([0.0, 1.0], [290, 10]),  # a rare flag
        np.append(np.random.default_rng(0).normal(size=299), 15.0),  # an outlier
        np.append(np.random.default_rng(0).normal(size=270), np.linspace(200.0, 900.0, 30)),  # bursts of all sizes
        np.array([1.0, 2.0, 1e9]),  # too few
    ],
)
def test_a_constant_a_flag_an_outlier_and_bursts_have_no_far_values(column: Any) -> None:
    assert not Bulk.of_rows(column[:, None]).far(column[:, None]).any()


@pytest.mark.parametrize(("model", "value"), [("streams", 65535.0), ("fomo", -9999.0), ("streams", -3.4e38)])
def test_far_values_leave_the_order_of_other_rows_and_both_kernels_agree(model: str, value: float) -> None:
    rng = np.random.default_rng(1)
    context, queries = rng.normal(size=(300, 4)), 3 * rng.normal(size=(60, 4))
    marked = context.copy()
    marked[: 9 if abs(value) < 1e6 else 1, 2] = value  # of several that are further off 32 bits keep no distance
    models = [load_model(model, "cpu", kernel) for kernel in ("numba", "torch")]
    numba, torch = (logits_of(one, encode_rows(one, marked), queries) for one in models)
    np.testing.assert_allclose(numba, torch, atol=1e-4 if model == "streams" else 1e-3)
    clean = logits_of(models[0], encode_rows(models[0], context), queries)
    assert spearmanr(numba, clean).statistic > 0.98


@given(st.sampled_from([1e7, -3e9, 2.0**40, 5e11]))
def test_a_large_offset_hides_nothing(offset: Any) -> None:
    model = load_model("streams", "cpu", "numba")
    rng = np.random.default_rng(2)
    context, queries = rng.normal(size=(200, 3)), 3 * rng.normal(size=(30, 3))
    moved = [logits_of(model, encode_rows(model, context + by), queries + by) for by in (0.0, offset)]
    np.testing.assert_allclose(moved[1], moved[0], atol=0.02)
