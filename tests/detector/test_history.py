"""Random samples of the records of a partition."""

from __future__ import annotations

from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import QuantileTransformer

from fomo_stream.detector.history import Reservoir
from fomo_stream.model.quantile_map import knots_of


def numbered(numbers: np.ndarray) -> np.ndarray:
    """Rows that say which record they are of."""
    return numbers.astype(float)[:, None]


def filled(reservoir: Reservoir, numbers: np.ndarray) -> Reservoir:
    reservoir.admit(numbers, numbered(numbers))
    return reservoir


Steps = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 50), st.sampled_from([0, 0, 0, 1, 5000])), max_size=12)


@given(st.integers(2, 40), Steps, st.integers(0, 99), st.booleans())
def test_the_rows_with_the_highest_priorities_are_held(
    capacity: int, steps: list[tuple[int, int, int]], seed: int, restart: bool
) -> None:
    """Each step offers records that follow, records from earlier on, and some that come much later."""
    reservoir, stop = Reservoir(capacity, 1, seed), 0
    offered: set[int] = set()
    for fresh, old, gap in steps:
        earlier = np.arange(max(0, stop - old), stop)[::-2]
        numbers = np.concatenate([earlier, np.arange(stop + gap, stop + gap + fresh)])
        stop += gap + fresh
        filled(reservoir, numbers)
        offered.update(numbers.tolist())
        everything = np.array(sorted(offered), dtype=np.int64)
        by_priority = everything[np.argsort(-reservoir._priority(everything), kind="stable")]
        np.testing.assert_array_equal(reservoir.numbers, np.sort(by_priority[:capacity]))
        np.testing.assert_array_equal(reservoir.rows, numbered(reservoir.numbers))
        assert len(reservoir) == len(reservoir.numbers)
        if restart:
            again = Reservoir(capacity, 1, seed)
            again.recover(cast(dict[str, bytes], reservoir.copy().changes("r")), "r")
            reservoir = again


@given(st.integers(2, 40), Steps, st.data(), st.booleans())
def test_the_quantiles_are_those_of_the_rows_at_every_moment(
    capacity: int, steps: list[tuple[int, int, int]], data: st.DataObject, restart: bool
) -> None:
    """As scikit-learn fits them to these rows from scratch. Values are missing, and many are equal."""
    reservoir, rng = Reservoir(capacity, 3, fitted=2), np.random.default_rng(capacity)
    for n, old, _ in steps:
        numbers = reservoir._newest + 1 + np.arange(n)
        rows = np.round(rng.normal(size=(n, 3)), 1)
        rows[rng.random((n, 3)) < 0.2] = np.nan
        reservoir.admit(numbers, rows)
        if old % 3 == 0 and len(reservoir):
            reservoir.discard(np.array(data.draw(st.lists(st.sampled_from(reservoir.numbers.tolist()), unique=True))))
        if restart:
            again = Reservoir(capacity, 3, fitted=2)
            again.recover(cast(dict[str, bytes], reservoir.copy().changes("r")), "r")
            reservoir = again
        rows = reservoir.rows[:, :2]
        if np.isnan(rows).all(axis=0).any() or len(rows) < 2:
            continue
        n_quantiles = int((~np.isnan(rows)).sum(axis=0).max())
        theirs = QuantileTransformer(n_quantiles=n_quantiles, subsample=None).fit(rows)
        np.testing.assert_allclose(knots_of(reservoir.quantiles)[0].T, theirs.quantiles_, rtol=1e-12, atol=1e-12)
