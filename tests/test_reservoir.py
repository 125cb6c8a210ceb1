from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.reservoir import Reservoir


def numbered(n: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + n, dtype=float)[:, None]


@given(st.integers(2, 40), st.lists(st.integers(0, 30), max_size=8), st.integers(0, 99))
def test_admissions_do_not_depend_on_how_they_are_batched(capacity: int, sizes: list[int], seed: int) -> None:
    rows = numbered(sum(sizes))
    at_once, one_by_one = Reservoir(capacity, 1, seed), Reservoir(capacity, 1, seed)
    at_once.admit(rows)
    for row in rows:
        one_by_one.admit(row[None])
    np.testing.assert_array_equal(at_once.rows, one_by_one.rows)
    assert len(at_once) == min(capacity, len(rows))


@given(st.integers(2, 30), st.integers(0, 200))
def test_slots_tell_where_rows_went(capacity: int, n: int) -> None:
    reservoir, mirror = Reservoir(capacity, 1), {}
    for i in range(n):
        slot = int(reservoir.admit(numbered(1, i))[0])
        mirror[slot] = float(i)
    np.testing.assert_array_equal(reservoir.rows[:, 0], [mirror[s] for s in sorted(mirror)])


def test_last_row_is_always_in() -> None:
    reservoir = Reservoir(10, 1)
    for i in range(500):
        reservoir.admit(numbered(1, i))
        assert i in reservoir.rows


def test_mean_age_is_the_capacity() -> None:
    reservoir = Reservoir(1000, 1)
    reservoir.admit(numbered(50_000))
    assert np.mean(50_000 - reservoir.rows) == pytest.approx(1000, rel=0.15)


@given(st.integers(0, 60), st.data())
def test_discarded_slots_are_filled_first(n: int, data: st.DataObject) -> None:
    reservoir = Reservoir(20, 1)
    reservoir.admit(numbered(n))
    gone = data.draw(st.lists(st.sampled_from(range(20)), unique=True, max_size=len(reservoir)).map(np.array))
    gone = np.array([slot for slot in gone.tolist() if slot < len(reservoir)], dtype=np.int64)
    kept = {v for i, v in enumerate(reservoir.rows[:, 0].tolist()) if i not in gone.tolist()}
    reservoir.discard(gone)
    assert set(reservoir.rows[:, 0].tolist()) == kept
    reservoir.admit(numbered(len(gone), 1000))
    assert kept <= set(reservoir.rows[:, 0].tolist())


@given(st.integers(0, 100), st.integers(0, 50))
def test_snapshot_and_restore_go_on_alike(before: int, after: int) -> None:
    first, second = Reservoir(25, 1, seed=4), Reservoir(25, 1, seed=4)
    first.admit(numbered(before))
    second.restore(first.snapshot())
    first.admit(numbered(after, before))
    second.admit(numbered(after, before))
    np.testing.assert_array_equal(first.rows, second.rows)


def test_find_takes_missing_as_equal() -> None:
    reservoir = Reservoir(5, 2)
    reservoir.admit(np.array([[1.0, np.nan], [1.0, 2.0]]))
    assert reservoir.find(np.array([1.0, np.nan])).tolist() == [0]


@pytest.mark.parametrize("capacity", [1, 5001])
def test_capacity_out_of_range_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="2 to 5000"):
        Reservoir(capacity, 1)
