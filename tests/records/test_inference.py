"""Inference of features from the first records."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_records import flat, scalars

from fomo_stream.errors import SchemaError
from fomo_stream.records.inference import (
    NoFeaturesError,
    TooManyFeaturesError,
    infer_schema,
    input_notes,
    misleading_columns,
)
from fomo_stream.records.schema import Schema


def test_features_are_the_numeric_and_boolean_leaves_sorted_by_path() -> None:
    record = {"z": 1.5, "motor": {"rpm": 900, "on": True, "tags": [1]}, "a": 2, "site": "north", "gone": None}
    batch: list[dict[str, Any]] = [dict(record) for _ in range(100)]
    for i in range(5):
        batch[10 * i] |= {"seldom": i % 3, **({"rare": 1.0} if i else {})}
    schema, left_out = infer_schema(batch)
    assert schema.features == ("a", "motor.on", "motor.rpm", "seldom", "z")
    rare = {"rare": "present in only 4 of 100 records"}
    assert left_out == {"gone": "no value so far", "motor.tags": "a list", "site": "text", **rare}


@pytest.mark.parametrize("batch", [[], [{"a": "x"}], [{"a": math.nan}]])
def test_without_any_number_the_error_says_what_to_name(batch: list[dict[str, Any]]) -> None:
    with pytest.raises(SchemaError, match="name the features to use"):
        infer_schema(batch)


keys = st.text("abfom", min_size=1, max_size=4)
plain_records = st.dictionaries(keys, st.one_of(scalars, st.dictionaries(keys, scalars, max_size=3)), max_size=6)


@given(st.lists(plain_records, max_size=15))
def test_each_leaf_is_left_out_or_a_feature_with_at_least_one_number(batch: list[dict[str, Any]]) -> None:
    batch = [{"always": 1.5}, *batch]  # so that there is a feature
    schema, left_out = infer_schema(batch)
    assert list(schema.features) == sorted(schema.features)
    assert set(schema.features).isdisjoint(left_out)
    assert {*schema.features, *left_out} == {path for record in batch for path in flat(record)}
    assert not np.isnan(schema.rows(batch)).all(axis=0).any()


def test_names_that_would_take_too_long_to_look_up_are_passed_over() -> None:
    records = [{"a": i % 7, "b." * 501: i % 7, "c": {"d" * 998: i % 7, "e" * 999: i % 7}} for i in range(50)]
    assert infer_schema(records)[0].features == ("a", "c." + "d" * 998)


# --- where the rules begin and end


def reason(path: str, values: list[Any]) -> str | None:
    """Why a field with these values, one for each record, is left out; None if it is a feature."""
    name, _, leaf = path.rpartition(".")
    batch = [{"x": i % 7, **({name: {leaf: value}} if name else {leaf: value})} for i, value in enumerate(values)]
    schema, left_out = infer_schema(batch)
    assert (path in schema.features) != (path in left_out)
    return left_out.get(path)


def shuffled(values: Iterable[Any]) -> list[Any]:
    listed = list(values)
    return random.Random(0).sample(listed, len(listed))


def rising(n: int, falls: int = 0, start: float = 0.0, scale: float = 1.0) -> list[float]:
    """n numbers that rise by unequal steps; `falls` of the steps go down."""
    steps = np.random.default_rng(1).uniform(1, 3, n - 1)
    steps[2 : 2 + 2 * falls : 2] *= -0.01
    return [start + scale * value for value in (0.0, *np.cumsum(steps).tolist())]


def whole(values: Iterable[float]) -> list[int]:
    return [round(10 * value) for value in values]


LARGE = 2**53
IDS = random.Random(0).sample(range(100_000, 900_000), 100)
TRACES = [LARGE + 1000 * value for value in IDS]


ID, COUNTER, TIME = "near-unique identifier", "monotone counter", "a time"
REASONS: list[tuple[str, list[Any], str | None]] = [
    # identifiers are distinct integers with a telling name, or very large
    ("order_id", IDS[:3], ID),
    ("order_id", IDS[:2], None),  # two values say nothing
    ("order_id", [value + 0.5 for value in IDS], None),
    ("order_id", IDS[:50] * 2, ID),
    ("order_id", IDS[:49] * 2 + IDS[:2], None),  # fewer than half are distinct
    ("is_key", [True, False, True], None),
    ("trace", TRACES[:10], ID),
    ("trace", TRACES[:9], None),  # too few to tell
    ("trace", [*TRACES[:99], TRACES[0]], ID),
    ("trace", [*TRACES[:98], *TRACES[:2]], None),  # not all are distinct
    ("trace", [*IDS[:99], LARGE**2], None),  # one large value among small ones
    ("density", [float(f"{value}e14") for value in IDS], None),  # few digits: it is measured
    # counters go in equal steps, or have a telling name and one direction
    ("n", [5 * i for i in range(10)], COUNTER),
    ("n", [5 * i for i in range(9)], None),  # too few to tell
    ("n", [True, *range(2, 21)], COUNTER),
    ("n", shuffled(range(50)), COUNTER),
    ("n", shuffled(range(49)), None),  # only a long sample may be out of order
    ("n", [i + (i > 30) + (i > 60) for i in range(100)], COUNTER),  # two gaps
    ("n", np.cumsum([1, 1, 2] * 33).tolist(), None),  # counts that rise by unequal steps
    ("n", [0.9 * i - 72.0 for i in range(100)], COUNTER),  # through zero, with the rounding errors of larger values
    ("level", [20 + 0.1 * i + 1e-12 * (i % 3) for i in range(100)], None),  # noise of a sensor
    ("seq", whole(rising(11, falls=1)), COUNTER),
    ("seq", whole(rising(11, falls=2)), None),
    ("seq", rising(20), None),  # counters are integers
    ("amount", whole(rising(20)), None),
    # times are epochs, or have a name and only rise
    ("value", rising(101, falls=10, start=1.7e9), TIME),
    ("value", rising(101, falls=11, start=1.7e9), None),
    ("value", sorted(2 * rising(50, start=1.7e9)), TIME),  # each time twice
    ("value", [1.7e9] * 100, None),  # a constant is no clock
    ("value", rising(100, start=5e9), None),  # after the year 2100
    ("elapsed_time", rising(10), TIME),
    ("elapsed_time", rising(9), None),
    ("time_in_state_s", rising(10), None),  # only the last two words of a name count
    # text is a time if all of it is in ISO 8601
    ("when", ["2025-10-01", "2025-10-02", None, " ", "n/a"], TIME),
    ("when", ["2025-10-01T12:00:00Z", "2025-10-01 12:00:00.5+02:00", " 2025-10-01T12:00 "], TIME),
    ("when", ["2025-10-01", "soon"], "text"),
    ("when", ["20251001", "20251002"], TIME),
    ("when", ["20251001", "20251002", "20251099"], None),
    # a field is text when most of its values are; missing values say nothing
    ("mixed", ["high", 2.5] * 50, None),
    ("mixed", ["high", *["high", 2.5] * 50], "text"),
    # text is numeric if all of it is decimal numbers that are no names
    ("amount", ["0.42", "-3", " 1E+2 ", "", None, "N/A"] * 9, None),
    ("amount", ["0.42", "free"] * 9, "text"),
    ("amount", [*["0.42", "free"] * 9, "3"], "text, mostly numbers"),
    ("zip", ["01067", "10115"] * 9, "text"),
    ("telephone", ["+4915112", "+4915113"] * 9, "text"),
    ("card", ["4000123412341234", "4000123412341235"] * 9, "text of long whole numbers"),
    ("bytes", ["512", "4000123412341235"] * 9, None),
    ("order_id", list(map(str, IDS)), ID),
    ("n", list(map(str, range(20))), COUNTER),
    # only the field of the result itself is an earlier one
    ("fomo.score", [0.5, 0.25], "result of an earlier run"),
    ("fomo_level", [0.5, 0.25], None),
]


@pytest.mark.parametrize(("path", "values", "why"), REASONS)
def test_why_a_field_is_no_feature(path: str, values: list[Any], why: str | None) -> None:
    assert reason(path, values) == why


def test_parts_of_a_time_are_no_features_and_names_alone_decide_nothing() -> None:
    date = {
        "year": [2026] * 40,
        "Month": [1] * 31 + [2] * 9,
        "day": [*range(1, 32), *range(1, 10)],
        "hour": [0, 23] * 20,
    }
    date["hour"] = [0, 23] * 20
    other = {"date_year": [2025, 2026] * 20, "date_month": [None, "7"] * 20, "logins_month": [3, 9] * 20}
    odd = {"x.year": [2026] * 40, "x.day": [*range(1, 33), *range(1, 9)], "logins_day": [1, 2] * 20}
    columns = {**date, **other, **odd}
    records = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    schema, left_out = infer_schema(records, categorical=("day",))
    assert left_out == dict.fromkeys(["Month", "hour", "year", "date_month", "date_year"], "part of a time")
    assert set(schema.features) == {"day", "logins_month", *odd}
    for measured in (
        {"year": 2026, "load": 3},
        {"hour_0": 1, "hour_1": 2, "day1": 3, "day2": 1},
        {"minute": 3, "second": 4, "年": 5},
        {"errors": {"minute": 2, "hour": 12, "day": 20}},
    ):
        assert infer_schema([measured] * 40)[1] == {}, "each may be a measurement"


@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9])  # seconds, milliseconds, microseconds, nanoseconds
def test_times_since_1970_are_recognised_in_every_unit_by_name_or_direction(unit: float) -> None:
    for year in (2001, 2099):
        moments = rising(40, start=(year - 1970) * 31_556_952 * unit, scale=unit)
        for times in (moments, [f"{moment:.0f}" for moment in moments]):
            assert reason("created_at", shuffled(times)) == "a time"
            assert reason("value", times) == "a time"


def test_what_the_user_may_not_expect_of_the_features_is_noted() -> None:
    """A category is told from names by how often its values come: most records share theirs with two others or more."""
    rng = random.Random(0)
    batch: list[dict[str, Any]] = [
        {"money": {"paid": f"{rng.random():.2f}"}, "x": i % 7, "user": rng.randrange(5000), "city": rng.randrange(40)}
        for i in range(200)
    ]
    schema, _ = infer_schema(batch, categorical=("user", "city"))
    texts, rare = input_notes(schema, batch)
    assert texts == "read as numbers although they are text: money.paid"
    assert "most of their values are seen once or twice: user; leave" in rare
    assert list(input_notes(schema, [{"x": 1, "city": i} for i in range(49)])) == []  # too few to tell
    assert list(input_notes(schema, [{"x": 1, "city": i // 3} for i in range(60)])) == []


# --- categories, and the key of the series


def test_fields_named_as_categorical_are_features_whatever_they_look_like() -> None:
    batch = [
        {"x": i % 7, "site": "north", "customer_id": 7919 * i % 1000, "timestamp": 1.7e9 + i, "deep": {"tag": None}}
        for i in range(50)
    ]
    names = ("site", "customer_id", "timestamp", "deep.tag")
    schema, left_out = infer_schema(batch, categorical=names, other={"site": "key of the series"})
    assert schema == Schema(("customer_id", "deep.tag", "site", "timestamp", "x"), frozenset(names))
    assert left_out == {}
    assert set(infer_schema(batch)[1]) == set(names)
    schema, left_out = infer_schema(batch, other={"x": "key of the series"}, categorical=("site",))
    assert (schema.features, left_out["x"]) == (("site",), "key of the series")


def test_categorical_fields_count_against_the_limit_of_inferred_features() -> None:
    wide = [{f"f{i}": i % 3 for i in range(1000)} | {"site": "north"}] * 3
    assert len(infer_schema(wide)[0].features) == 1000
    with pytest.raises(TooManyFeaturesError):
        infer_schema(wide, categorical=("site",))


def test_a_record_with_absurdly_many_names_takes_no_features_from_the_others() -> None:
    rng = random.Random(0)
    good = [{"flow": rng.gauss(0, 1), "motor": {"rpm": rng.gauss(0, 1)}} for _ in range(19)]
    for odd in ({f"n{i}": rng.random() for i in range(62_000)}, {f"n{i}": {"t": "x"} for i in range(62_000)}):
        for batch in ([odd, *good], [*good * 10, odd]):
            schema, left_out = infer_schema(batch)
            assert schema.features == ("flow", "motor.rpm")
            assert "names" in left_out["..."]


@pytest.mark.parametrize(("value", "same"), [("2026-10-01", True), (0.5, False)])
def test_absurdly_many_names_take_bounded_time(value: Any, same: bool) -> None:
    batch = [{f"n{i if same else (at, i)}": value for i in range(20_000)} for at in range(10)]
    began = time.process_time()
    with pytest.raises((TooManyFeaturesError, NoFeaturesError)):
        infer_schema(batch)
    assert time.process_time() - began < 4


@pytest.mark.parametrize("n_keys", [1, 4])
def test_totals_of_counters_are_recognised_in_their_series(n_keys: int) -> None:
    rng = np.random.default_rng(1)
    machine = [str(i % n_keys) for i in range(200)]
    totals, batch = np.zeros((n_keys, 2)), []
    for i in range(200):
        at = i % n_keys
        totals[at] += [0.5 + 0.01 * rng.random(), rng.integers(0, 9)]
        if i in (90, 91, 92, 93):
            totals[at] = 0.0
        batch.append({"energy": totals[at, 0], "made": float(totals[at, 1]), "angle": i * 0.01 % 7, "x": rng.normal()})
    counted = {"energy", "made"}
    schema, _ = infer_schema(batch, series=machine)
    assert schema.counters == counted
    assert counted < set(schema.features)
    assert infer_schema(batch, counters=("none",))[0].counters == set()
    assert infer_schema(batch, counters=("x",))[0].counters == {"x"}
    assert any("counters" in note and "energy" in note for note in input_notes(schema, batch))
    if n_keys > 1:  # mixed, they fall
        assert infer_schema(batch)[0].counters == set()
        ids = [str(i) for i in range(200)]  # keys that do not recur are those of records
        assert infer_schema(batch[::4], series=ids[::4])[0].counters == {"energy"}


# --- columns that mislead --------------------------------------------------------------------------------------

MEASURED: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "temperature": lambda rng, n: rng.normal(20, 2, n),
    "amount": lambda rng, n: np.round(rng.lognormal(3, 1, n), 2),
    "price_cents": lambda rng, n: rng.integers(1, 10**6, n),
    "requests_total": lambda rng, n: rng.poisson(40, n),
    "response_time": lambda rng, n: rng.exponential(30, n),
    "memory": lambda rng, n: rng.integers(1_600_000_000, 1_700_000_000, n),
    "room_id": lambda rng, n: rng.integers(0, max(2, n // 4), n),
    "on": lambda rng, n: rng.random(n) < 0.3,
    "line": lambda rng, n: rng.integers(0, 6, n),
    "constant": lambda rng, n: np.full(n, 7.0),
    "level": lambda rng, n: np.cumsum(rng.normal(0, 1, n)),
    "seasonal": lambda rng, n: np.sin(np.arange(n) / 40) + rng.normal(0, 0.1, n),
    "drifting": lambda rng, n: np.arange(n) / n + rng.normal(0, 0.2, n),
    "warming": lambda rng, n: np.round(20 + np.arange(n) / 50 + rng.normal(0, 0.3, n), 1),
}


def test_measured_numbers_stay_however_they_look() -> None:
    rng, n = np.random.default_rng(0), 200
    slow = np.linspace(20, 35, n)
    columns = {name: np.asarray(make(rng, n)).tolist() for name, make in MEASURED.items()} | {
        "rising": (slow + rng.normal(0, 1e-4, n)).tolist(),
        "rising_counts": np.round(20_000 + np.cumsum(rng.integers(1, 6, n))).tolist(),
        "rising_steps": np.round(slow).tolist(),
        "huge": [1e308] * n,
        "sometimes": [1.5 if i % 3 else None for i in range(n)],
        "mixed": ["n/a" if i % 5 == 0 else 2.5 for i in range(n)],
    }
    schema, left_out = infer_schema(
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    )
    assert (schema.features, left_out) == (tuple(sorted(columns)), {})


@given(
    st.integers(0, 2**32), st.integers(0, 3000), st.sampled_from([0.0, 0.3]), st.sampled_from([1.0, -1.0, 1e-6, 1e6])
)
def test_nothing_is_said_of_columns_that_measure(seed: int, n: int, missing: float, unit: float) -> None:
    rng = np.random.default_rng(seed)
    rows = np.column_stack([make(rng, n) for make in MEASURED.values()]).astype(np.float64)
    rows[:, 0] *= unit  # of a measurement of any unit
    rows[rng.random(rows.shape) < missing] = np.nan
    assert misleading_columns(list(MEASURED), rows) == []


@given(st.integers(0, 2**32), st.integers(200, 3000))
def test_columns_that_name_records_or_only_grow_are_found_and_those_known_are_not(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    columns = {
        "order_id": rng.choice(10**7, n, replace=False),
        0: np.arange(n),
        "shuffled": rng.permutation(n),
        "at": 1_700_000_000 + np.cumsum(rng.integers(1, 100, n)),
        "sold": np.cumsum(rng.exponential(1, n)),
        "load": rng.normal(0, 1, n),
    }
    rows = np.column_stack(list(columns.values())).astype(np.float64)
    found = misleading_columns(list(columns), rows)
    assert [one.split(" (")[0] for one in found] == ["'order_id'", "0", "'shuffled'", "'at'", "'sold'"]
    assert misleading_columns(list(columns), rows, skip=range(5)) == []


def test_named_features_that_mislead_are_noted_and_inferred_ones_need_no_note() -> None:
    rng = np.random.default_rng(0)
    batch = [
        {"order_id": int(i), "load": rng.normal(), "sold": at + rng.random()}
        for at, i in enumerate(rng.permutation(10**6)[:200])
    ]
    (note,) = input_notes(Schema(("load", "order_id", "sold")), batch)
    assert "'order_id' (near-unique identifier), 'sold' (it only grows)" in note
    assert "--exclude" in note
    (counters,) = input_notes(infer_schema(batch)[0], batch)
    assert counters.startswith("counters")
