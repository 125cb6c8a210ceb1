from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.detector.history import Reservoir


def numbered(numbers: np.ndarray) -> np.ndarray:
    """Rows that say which record they are of."""
    return numbers.astype(float)[:, None]


def filled(reservoir: Reservoir, numbers: np.ndarray) -> Reservoir:
    reservoir.admit(numbers, numbered(numbers))
    return reservoir


@given(st.integers(2, 40), st.integers(0, 150), st.sampled_from([20.0, np.inf]), st.integers(0, 99), st.data())
def test_neither_batches_nor_order_of_admissions_matter(
    capacity: int, n: int, horizon: float, seed: int, data: st.DataObject
) -> None:
    numbers = np.array(data.draw(st.permutations(range(n))), dtype=np.int64)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    at_once = filled(Reservoir(capacity, 1, horizon, seed), np.arange(n))
    in_parts = Reservoir(capacity, 1, horizon, seed)
    for part in np.split(numbers, cuts):
        filled(in_parts, part)
    np.testing.assert_array_equal(at_once.numbers, in_parts.numbers)
    np.testing.assert_array_equal(in_parts.rows, numbered(in_parts.numbers))
    assert len(at_once) == min(capacity, n)


Steps = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 50), st.sampled_from([0, 0, 0, 1, 5000])), max_size=12)


@given(st.integers(2, 40), Steps, st.sampled_from([20.0, 1e9, np.inf]), st.integers(0, 99), st.booleans())
def test_the_rows_with_the_highest_priorities_are_held(
    capacity: int, steps: list[tuple[int, int, int]], horizon: float, seed: int, restart: bool
) -> None:
    """Each step offers records that follow, records from earlier on, and some that come much later."""
    reservoir, stop = Reservoir(capacity, 1, horizon, seed), 0
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
            again = Reservoir(capacity, 1, horizon, seed)
            again.recover(cast(dict[str, bytes], reservoir.copy().changes("r")), "r")
            reservoir = again


def test_without_a_horizon_every_record_is_as_likely_to_stay() -> None:
    kept = np.concatenate([filled(Reservoir(200, 1, seed=seed), np.arange(2000)).numbers for seed in range(50)])
    counts = np.histogram(kept, bins=10, range=(0, 2000))[0]
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(900)  # binomial, 10,000 draws


@pytest.mark.parametrize("horizon", [500.0, 5000.0])
def test_with_a_horizon_ages_are_exponential_beyond_the_newest(horizon: float) -> None:
    n = 40_000
    ages = np.concatenate([n - filled(Reservoir(50, 1, horizon, seed), np.arange(n)).numbers for seed in range(40)])
    # inclusion of age a: 1 - exp(-c e^(-a / horizon)), c so that 50 are expected; its mean, by numbers
    grid = np.arange(n)
    low, high = 1e-9, 1e3
    for _ in range(200):
        c = np.sqrt(low * high)
        inclusion = -np.expm1(-c * np.exp(-grid / horizon))
        low, high = (c, high) if inclusion.sum() < 50 else (low, c)
    assert ages.mean() == pytest.approx((grid * inclusion).sum() / inclusion.sum(), rel=0.1)


@given(st.integers(0, 60), st.data())
def test_discarded_rows_leave_room(n: int, data: st.DataObject) -> None:
    reservoir = filled(Reservoir(20, 1), np.arange(n))
    held = reservoir.numbers
    gone = np.array(data.draw(st.lists(st.sampled_from(held.tolist()), unique=True)) if n else [], dtype=np.int64)
    emptied = reservoir.discard(np.append(gone, 10**6))  # one that it does not hold
    assert len(emptied) == len(gone)
    np.testing.assert_array_equal(reservoir.numbers, np.setdiff1d(held, gone))
    filled(reservoir, np.arange(1000, 1000 + len(gone)))
    assert set(range(1000, 1000 + len(gone))) <= set(reservoir.numbers.tolist())
    assert len(reservoir) == min(20, len(held))


@given(st.integers(0, 90), st.integers(0, 40), st.integers(0, 9))
def test_a_copy_and_a_recovered_reservoir_go_on_alike_on_their_own(n: int, more: int, seed: int) -> None:
    one, recovered = filled(Reservoir(20, 1, 30.0, seed), np.arange(n)), Reservoir(20, 1, 30.0, seed)
    recovered.recover(cast(dict[str, bytes], one.copy().changes("r")), "r")
    copied, before = one.copy(), one.numbers
    for reservoir in (copied, recovered):
        filled(reservoir, np.arange(n, n + more))
    np.testing.assert_array_equal(one.numbers, before)
    filled(one, np.arange(n, n + more))
    assert one.copy().changes("r") == copied.copy().changes("r") == recovered.copy().changes("r")


@given(st.integers(0, 40), st.integers(1, 3))
def test_a_wider_copy_has_the_same_rows_with_values_missing(n: int, vectors: int) -> None:
    numbers = np.arange(n)
    one = Reservoir(20, 2 * vectors)
    one.admit(numbers, np.arange(2.0 * vectors) + 100 * numbered(numbers))
    wide = one.copy(3, vector=2)
    np.testing.assert_array_equal(wide.numbers, one.numbers)
    rows = wide.rows.reshape(-1, vectors, 5)  # each vector has the further features at its end
    np.testing.assert_array_equal(rows[:, :, :2], one.rows.reshape(-1, vectors, 2))
    assert np.isnan(rows[:, :, 2:]).all()
