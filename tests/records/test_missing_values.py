"""Numbers that mean "missing": rows and features are as if there was no value. Numbers that look like it."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fomo_stream.cli.parser import parse
from fomo_stream.errors import SchemaError
from fomo_stream.records.inference import infer_schema, input_notes
from fomo_stream.records.missing_values import MarkCandidates
from fomo_stream.records.schema import Schema
from fomo_stream.settings.commands import ScoreSettings

NUMBERS = (-9999, -9999.0, "-9999", 7, 3.5, "3.5", True, 404, "404", float(np.float32(-99.9)), -99.9, None, "idle")
records = st.lists(
    st.fixed_dictionaries(
        {},
        optional={name: st.sampled_from(NUMBERS) for name in ("a", "b", "kind")}
        | {"d": st.fixed_dictionaries({}, optional={"e": st.sampled_from(NUMBERS)})},
    ),
    min_size=1,
    max_size=30,
)
MARKS: dict[Any, tuple[float, ...]] = {"a": (7.0, -99.9), "d.e": (3.5,), "kind": (404.0,), "*": (-9999.0,)}
OF_NUMBERS = {-9999.0, "-9999"}
MISSING = {
    "a": {*OF_NUMBERS, 7, -99.9, float(np.float32(-99.9))},
    "b": OF_NUMBERS,
    "d.e": {*OF_NUMBERS, 3.5, "3.5"},
    "kind": {404, "404"},
}


def blanked(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for record in batch:
        own = {name: None if value in MISSING[name] else value for name, value in record.items() if name != "d"}
        inner = {"d": {"e": None}} if record.get("d", {}).get("e") in MISSING["d.e"] else {}
        found.append({**record, **own, **inner})
    return found


@given(records)
def test_rows_and_features_are_those_without_these_values(batch: list[dict[str, Any]]) -> None:
    names, categorical = ("a", "b", "d.e", "kind"), frozenset({"kind"})
    rows = Schema(names, categorical, marks=MARKS).rows(batch)
    np.testing.assert_array_equal(rows, Schema(names, categorical).rows(blanked(batch)))
    try:
        expected, left_out = infer_schema(blanked(batch), categorical=("kind",))
    except SchemaError:
        return
    assert infer_schema(batch, categorical=("kind",), marks=MARKS) == (
        Schema(expected.features, expected.categorical, expected.counters, MARKS),
        left_out,
    )


# --- what looks like a mark

RNG = np.random.default_rng(0)
COLUMNS = {
    "normal": RNG.normal(20, 1, 2000),
    "heavy": RNG.standard_t(3, 2000),
    "amounts": RNG.lognormal(3, 1, 2000).round(2),
    "levels": RNG.integers(0, 12, 2000).astype(float),
    "percent": RNG.uniform(0, 100, 2000).round(1),
}


def with_value(column: str, value: float, every: int, first: int = 3) -> NDArray[np.float64]:
    values = COLUMNS[column].copy()
    values[first::every] = value
    return values


def notes(values: NDArray[np.float64], name: str = "x") -> list[str]:
    """At the first 200 records, and at the end."""
    suspects = MarkCandidates([name], values[:200, None])
    found = list(suspects.notes("the first "))
    for at in range(200, len(values), 100):
        suspects.follow(values[at : at + 100, None])
    return [*found, *suspects.notes()]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(("value", "every"), [(-9999.0, 3), (123456.5, 20), (3.4028234663852886e38, 60)])
def test_one_exact_value_far_from_all_others_is_named_with_the_flag_that_makes_it_missing(
    column: str, value: float, every: int
) -> None:
    first, last = notes(with_value(column, value, every), "kW, load")
    assert "of the first 200 records, far from all others (" in first
    assert f"in {len(range(3, 2000, every)):,} of 2,000 records" in last
    flag = shlex.split(last)[-2:]
    assert parse(ScoreSettings, flag).marks == {"kW, load": (value,)}
    (late,) = notes(with_value(column, value, every, first=900))  # which the first records do not have
    assert f"in {len(range(900, 2000, every)):,} of 2,000 records, far from all others (" in late


@pytest.mark.filterwarnings("error")
@given(st.lists(st.sampled_from([1e308, -1e308, 1.7e308, 5e-324, -0.0, 1.0, 2.0, math.nan]), min_size=1, max_size=40))
def test_no_numbers_are_too_large_or_too_few_to_be_looked_at(values: list[float]) -> None:
    assert len(notes(np.array(values * 3))) <= 2


@pytest.mark.parametrize(
    "values",
    [
        *COLUMNS.values(),
        with_value("normal", 0.0, 20),  # off
        with_value("normal", -9999.0, 1000),  # twice
        np.where(np.arange(2000) % 9 == 0, 9000 + COLUMNS["levels"], COLUMNS["normal"]),  # another mode
        np.where(np.arange(2000) % 9 == 0, COLUMNS["normal"], 9999.0),  # what most have
        np.full(2000, 9999.0),
        np.where(np.arange(2000) % 5 == 0, 999.0, 1.0),  # two states
    ],
)
def test_what_is_a_measurement_is_not_named(values: NDArray[np.float64]) -> None:
    assert notes(values) == []


def test_a_log_names_the_features_and_none_of_their_values() -> None:
    records = [{"temp": -9999.0 if i % 20 == 0 else 20 + i % 7 / 10} for i in range(200)]
    schema = Schema(("temp",))
    (shown,), (logged,) = (list(input_notes(schema, records, values=values)) for values in (True, False))
    assert "-9999" in shown
    assert "temp" in logged
    assert not any(character.isdigit() for character in logged)
