"""Rows of records: categories, missing values, and the past of a series."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.detector.categories import category_code
from fomo_stream.errors import SchemaError
from fomo_stream.records.inference import TooManyFeaturesError, infer_schema
from fomo_stream.records.rows import RowReader
from fomo_stream.records.schema import Schema

SMALL = settings(max_examples=50, deadline=None)
anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just([1]), st.just({})
)
records = st.fixed_dictionaries(
    {}, optional={"a": anything, "c": anything, "d": st.fixed_dictionaries({"e": anything})}
)


# --- categorical features


@SMALL
@given(st.lists(records, max_size=5))
def test_a_categorical_column_holds_the_codes_of_whatever_is_there(batch: list[dict[str, Any]]) -> None:
    rows = Schema(("c", "a", "d.e"), frozenset({"c", "d.e"})).rows(batch)
    codes = [[category_code(record.get("c")), category_code(record.get("d", {}).get("e"))] for record in batch]
    np.testing.assert_array_equal(rows[:, [0, 2]], np.array(codes).reshape(-1, 2))
    np.testing.assert_array_equal(rows[:, [1]], Schema(("a",)).rows(batch))


def test_categorical_fields_are_added_to_the_features_that_are_named() -> None:
    schema = Schema.of(("x", "site"), ("site", "kind"))
    assert schema == Schema(("x", "site", "kind"), frozenset({"site", "kind"}))
    assert schema.categorical_columns == (1, 2)
    assert Schema(("x",)).categorical_columns == ()


def test_a_categorical_field_that_is_no_feature_is_refused() -> None:
    with pytest.raises(SchemaError, match="'site' is not a feature"):
        Schema(("x",), frozenset({"site"}))


def test_fields_named_as_categorical_are_features_whatever_they_look_like() -> None:
    batch = [
        {"x": i % 7, "site": "north", "customer_id": 7919 * i % 1000, "timestamp": 1.7e9 + i, "deep": {"tag": None}}
        for i in range(50)
    ]
    names = ("site", "customer_id", "timestamp", "deep.tag")
    schema, left_out = infer_schema(batch, categorical=names)
    assert schema == Schema(("customer_id", "deep.tag", "site", "timestamp", "x"), frozenset(names))
    assert left_out == {}
    assert set(infer_schema(batch)[1]) == set(names)


def test_categories_alone_are_enough() -> None:
    assert infer_schema([{"site": "north"}] * 9, categorical=("site",))[0].features == ("site",)


def test_categorical_fields_count_against_the_limit_of_inferred_features() -> None:
    wide = [{f"f{i}": i % 3 for i in range(1000)} | {"site": "north"}] * 9
    assert len(infer_schema(wide)[0].features) == 1000
    with pytest.raises(TooManyFeaturesError):
        infer_schema(wide, categorical=("site",))


def test_the_field_that_tells_series_apart_is_no_feature_unless_it_is_a_category() -> None:
    batch = [{"x": i % 7, "device": i % 3} for i in range(50)]
    assert infer_schema(batch)[0].features == ("device", "x")
    schema, left_out = infer_schema(batch, key="device")
    assert (schema.features, left_out) == (("x",), {"device": "key of the series"})
    assert infer_schema(batch, key="device", categorical=("device",))[0].features == ("device", "x")


# --- what is missing, and the past

keys = st.sampled_from(["p", "q", None])


@SMALL
@given(st.lists(st.tuples(keys, records), max_size=12), st.integers(0, 3), st.integers(0, 12))
def test_rows_stand_beside_their_past_and_count_what_they_lack_themselves(
    stream: list[tuple[str | None, dict[str, Any]]], lags: int, cut: int
) -> None:
    schema = Schema(("a", "c"), frozenset({"c"}))
    reader = RowReader(schema, lags)
    parts = [reader.read([r for _, r in part], [k for k, _ in part]) for part in (stream[:cut], stream[cut:])]
    past: dict[str | None, list[float]] = {}
    expected, missing = [], []
    for key, record in stream:
        row = schema.rows([record])[0].tolist()
        missing.append(sum(map(math.isnan, row)))
        if missing[-1] < 2:  # a record without any value is no part of its series
            past[key] = (row + past.get(key, [math.nan] * 2 * lags))[: 2 * (lags + 1)]
            expected.append(past[key])
    rows = np.array(expected).reshape(-1, 2 * (lags + 1))
    np.testing.assert_array_equal(np.concatenate([part.rows for part in parts]), rows)
    np.testing.assert_array_equal(np.concatenate([part.missing for part in parts]), missing)
    np.testing.assert_array_equal(np.concatenate([part.usable for part in parts]), np.array(missing) < 2)
    assert reader.width == rows.shape[1]
    assert reader.categorical == tuple(range(1, reader.width, 2))
