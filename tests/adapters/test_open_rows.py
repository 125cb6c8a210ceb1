from __future__ import annotations

import numpy as np
import pytest

from fomo_stream.adapters.open_rows import OpenRows


@pytest.mark.parametrize(("lags", "taken"), [(0, 1000), (1, 500), (100, 9)])
def test_further_features_than_a_row_can_have_are_ignored(lags: int, taken: int) -> None:
    reader = OpenRows(("kind",), lags)
    record = {"kind": "x", **{f"f{i:04}": float(i) for i in range(1100)}}
    values = reader.values([record], learn=True)
    assert values.shape == (1, taken)
    assert values[0, 1:].tolist() == list(range(taken - 1))
    assert reader.values([{"late": 1.0, "f0000": 7.0}], learn=True)[0, 1] == 7.0
    assert reader.width == taken * (lags + 1)


def test_a_new_feature_comes_after_all_columns_and_has_no_past() -> None:
    reader = OpenRows((), 1)
    first = reader.rows(reader.values([{"b": 1.0}, {"b": 2.0}], learn=True), learn=True)
    np.testing.assert_array_equal(first, [[1, np.nan], [2, 1]])
    values = reader.values([{"a": 5.0, "b": 3.0}, {}, {"a": 6.0}], learn=True)
    rows = reader.rows(values)
    np.testing.assert_array_equal(rows, [[3, 2, 5, np.nan], [np.nan] * 4, [np.nan, 3, 6, 5]])
    np.testing.assert_array_equal(reader.without_past(values[:1]), [[3, np.nan, 5, np.nan]])


@pytest.mark.parametrize("shape", [(0, 0), (0, 2)])
def test_no_records_give_no_rows(shape: tuple[int, int]) -> None:
    reader = OpenRows((), 2)
    assert reader.rows(reader.values(np.zeros(shape), learn=True)).shape == (0, 3 * shape[1])


def test_infinities_are_missing_in_arrays_as_in_dicts() -> None:
    of_array, of_dicts = OpenRows((), 0), OpenRows((), 0)
    cells = np.array([[1.0, np.inf], [-np.inf, np.nan]])
    found = of_array.values(cells, learn=True)
    np.testing.assert_array_equal(found, of_dicts.values([dict(enumerate(row)) for row in cells.tolist()], learn=True))
    assert np.isnan(found).sum() == 3
