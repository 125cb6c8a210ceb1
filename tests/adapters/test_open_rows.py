from __future__ import annotations

import numpy as np
import pytest

from fomo_stream.adapters.open_rows import OpenRows
from fomo_stream.limits import MAX_FEATURES


def test_further_features_than_a_row_can_have_are_ignored() -> None:
    reader = OpenRows(("kind",))
    record = {"kind": "x", **{f"f{i:04}": float(i) for i in range(MAX_FEATURES + 100)}}
    rows = reader.rows([record], learn=True)
    assert rows.shape == (1, MAX_FEATURES)
    assert rows[0, 1:].tolist() == list(range(MAX_FEATURES - 1))
    assert reader.rows([{"late": 1.0, "f0000": 7.0}], learn=True)[0, 1] == 7.0
    assert reader.width == MAX_FEATURES
    assert reader.categorical == (0,)


def test_a_new_feature_comes_after_all_columns() -> None:
    reader = OpenRows(())
    np.testing.assert_array_equal(reader.rows([{"b": 1.0}, {"b": 2.0}], learn=True), [[1], [2]])
    np.testing.assert_array_equal(reader.rows([{"a": 5.0, "b": 3.0}]), [[3]])  # not known before it is learned
    rows = reader.rows([{"a": 5.0, "b": 3.0}, {}, {"a": 6.0}], learn=True)
    np.testing.assert_array_equal(rows, [[3, 5], [np.nan, np.nan], [np.nan, 6]])


@pytest.mark.parametrize("shape", [(0, 0), (0, 2)])
def test_no_records_give_no_rows(shape: tuple[int, int]) -> None:
    assert OpenRows(()).rows(np.zeros(shape), learn=True).shape == shape


def test_infinities_are_missing_in_arrays_as_in_dicts() -> None:
    of_array, of_dicts = OpenRows(()), OpenRows(())
    cells = np.array([[1.0, np.inf], [-np.inf, np.nan]])
    found = of_array.rows(cells, learn=True)
    np.testing.assert_array_equal(found, of_dicts.rows([dict(enumerate(row)) for row in cells.tolist()], learn=True))
    assert np.isnan(found).sum() == 3
