"""`attend`: how near the rows are that queries attend to."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from pretrain.commands.attend import NEAR, distances


def test_attended_rows_are_compared_with_random_and_dense_ones() -> None:
    rng = np.random.default_rng(0)
    context = rng.normal(size=(300, 3)) * [1.0, 100.0, 1e-6]
    queries = rng.normal(size=(40, 3)) * [3.0, 300.0, 3e-6]
    apart = cdist(queries / context.std(0), context / context.std(0))
    attended, by_chance, dense = distances(context, queries, -apart)
    np.testing.assert_allclose(attended, np.sort(apart, axis=1)[:, :NEAR].sum(1))
    assert (attended <= by_chance).all()
    assert (attended <= dense).all()
    farthest = distances(context, queries, apart)[0]
    assert (farthest >= by_chance).all()
    assert np.array_equal(by_chance, distances(context, queries, apart)[1])


def test_constant_columns_and_missing_values() -> None:
    context = np.ones((20, 2))
    context[:, 1] = np.arange(20.0)
    context[3, 1] = np.nan
    for found in distances(context, context[:4], np.ones((4, 20))):
        assert np.isfinite(found).all()
