"""Rows of records: numbers, categories, missing values, and the past of a series."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from random_records import flat, keys, records

from fomo_stream.records.category_codes import category_code
from fomo_stream.records.schema import Schema, is_number_text

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just([1]), st.just({})
)
small_records = st.fixed_dictionaries(
    {}, optional={"a": scalars, "c": scalars, "d": st.fixed_dictionaries({"e": scalars})}
)


# --- numeric features


@given(st.lists(records, min_size=1, max_size=6), st.lists(keys, min_size=1, max_size=6, unique=True))
def test_rows_agree_with_flattening_each_record(batch: list[dict[str, Any]], names: list[str]) -> None:
    def naive(value: Any) -> float:
        try:
            is_number = isinstance(value, (int, float)) and math.isfinite(value)
            return float(value) if is_number or is_number_text(value) else math.nan
        except OverflowError:
            return math.nan

    # Where {"a.b": 1} and {"a": {"b": 2}} both stand in one record the name is ambiguous: the next test.
    batch = [record for record in batch if not any("." in key for key in record)]
    names = [name for name in names if name.count(".") < 2]
    if names and batch:
        expected = [[naive(flat(record).get(name)) for name in names] for record in batch]
        np.testing.assert_array_equal(Schema(tuple(names)).rows(batch), np.array(expected))


def test_a_key_with_dots_is_preferred_to_a_nested_one() -> None:
    rows = Schema(("a.b", "a.b.c")).rows(
        [{"a.b": 1, "a": {"b": 2}}, {"a": {"b": 2}}, {"a.b": {"c": 3}}, {"a": {"b.c": 4}}, {"a": {"b": {"c": 5}}}]
    )
    np.testing.assert_array_equal(rows, [[1, np.nan], [2, np.nan], [np.nan, 3], [np.nan, 4], [np.nan, 5]])


@given(st.one_of(st.integers(-(10**300), 10**300), st.floats(allow_nan=False, allow_infinity=False)), st.booleans())
def test_a_number_as_text_is_that_number(number: float, is_spaced: bool) -> None:
    for text in (str(number), str(Decimal(number)), json.dumps(number)):
        rows = Schema(("a",)).rows([{"a": number}, {"a": f" {text}\n" if is_spaced else text}])
        assert rows[0, 0] == rows[1, 0]


# --- categorical features


@given(st.lists(small_records, max_size=5))
def test_a_categorical_column_holds_the_codes_of_all_values(batch: list[dict[str, Any]]) -> None:
    rows = Schema(("c", "a", "d.e"), frozenset({"c", "d.e"})).rows(batch)
    codes = [[category_code(record.get("c")), category_code(record.get("d", {}).get("e"))] for record in batch]
    np.testing.assert_array_equal(rows[:, [0, 2]], np.array(codes).reshape(-1, 2))
    np.testing.assert_array_equal(rows[:, [1]], Schema(("a",)).rows(batch))


def test_categorical_fields_are_added_to_the_features_that_are_named() -> None:
    schema = Schema.of(("x", "site"), ("site", "kind"))
    assert schema == Schema(("x", "site", "kind"), frozenset({"site", "kind"}))
    assert schema.categorical_columns == (1, 2)
