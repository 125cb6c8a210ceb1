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
    context[3, 1], context[:, 0] = np.nan, 1.0  # a constant column
    assert np.isfinite(distances(context, context[:4], apart[:4])).all()
