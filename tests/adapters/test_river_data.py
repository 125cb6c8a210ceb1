"""Data that a user gives to `FoMoDetector`: its rows, what is refused, and what it warns of as missing."""

from __future__ import annotations

import datetime
import math
import pickle
import random
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream import FoMoDetector
from fomo_stream.adapters.open_detector import OpenRows
from fomo_stream.errors import CheckpointError, ConfigError, SchemaError
from fomo_stream.limits import MAX_FEATURES

Record = dict[Any, Any]


def warned(act: Callable[..., Any], *arguments: Any) -> list[str]:
    """What the user is warned of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act(*arguments)
    return [str(one.message) for one in found]


# --- open rows


def test_further_features_than_a_row_can_have_are_ignored() -> None:
    reader = OpenRows(("kind",))
    record = {"kind": "x", **{f"f{i:04}": float(i) for i in range(MAX_FEATURES + 100)}}
    rows = reader.rows([record], learn=True)
    assert rows[0, 1:].tolist() == list(range(MAX_FEATURES - 1))
    assert reader.rows([{"late": 1.0, "f0000": 7.0}], learn=True)[0, 1] == 7.0
    assert reader.width == MAX_FEATURES


def test_a_new_feature_comes_after_all_columns() -> None:
    reader = OpenRows(())
    np.testing.assert_array_equal(reader.rows([{"b": 1.0}, {"b": 2.0}], learn=True), [[1], [2]])
    np.testing.assert_array_equal(reader.rows([{"a": 5.0, "b": 3.0}]), [[3]])  # not known before it is learned
    rows = reader.rows([{"a": 5.0, "b": 3.0}, {}, {"a": 6.0}], learn=True)
    np.testing.assert_array_equal(rows, [[3, 5], [np.nan, np.nan], [np.nan, 6]])


PLAIN = st.sampled_from([0.0, -0.0, 1, True, 1.0, None, math.nan, math.inf, -math.inf, 10**400, -(10**400), 1e308])
HOSTILE = st.one_of(
    PLAIN,
    st.floats(),
    st.sampled_from(["1.5", " -2e3", "eco", "", "nan", "007", "1e999", b"1"]),
    st.decimals(),
    st.fractions(),
    st.sampled_from([np.float64(2), np.float32(0.1), np.int64(7), np.bool_(True), np.array(1.0), np.array([1.0, 2.0])]),
    st.sampled_from([pd.NA, pd.NaT, datetime.date(2024, 1, 1), [1.0], {"b": 1.0}, {1}, 1j]),
)
KNOWN = {"b": 2.0, "a": 1.0}
OTHERS = {"key": HOSTILE, "kind": HOSTILE, "new": HOSTILE, None: HOSTILE}
RECORDS = st.one_of(
    st.fixed_dictionaries({"a": PLAIN, "b": PLAIN}),
    st.fixed_dictionaries({}, optional={"a": PLAIN, "b": PLAIN, **OTHERS}),
    st.fixed_dictionaries({}, optional={"a": HOSTILE, "b": HOSTILE, **OTHERS}),
)
STEPS = st.lists(st.tuples(RECORDS, st.permutations([False, True])), min_size=1, max_size=6)
PARAMETERS: list[dict[str, Any]] = [
    {"categorical": ()},
    {"categorical": (), "key": "key"},
    {"categorical": ("kind",), "key": "key", "counters": ["a"]},
    {"categorical": (), "key": "a", "counters": ["a"]},
    {"categorical": (), "missing": {"a": (1.0,)}},
]


@settings(max_examples=100)  # a millisecond each
@given(st.sampled_from(PARAMETERS), st.booleans(), STEPS)
def test_one_dict_is_read_as_several_are(parameters: dict[str, Any], is_known: bool, steps: list[Any]) -> None:
    """Several, and what is a dict by its methods alone, are always read in the general way; warnings are the same."""
    readers = [OpenRows(**parameters) for _ in range(3)]
    live: Record = {}
    forms: list[Callable[[], list[Any]]] = [lambda: [live], lambda: [live, live], lambda: [OrderedDict(live)]]

    def read(at: int, learn: bool) -> tuple[list[str], list[Any], bytes]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            quick = readers[at].quick_row(forms[at](), learn)
            rows = readers[at].rows(forms[at](), learn) if quick is None else quick
        assert at == 0 or quick is None
        return [str(one.message) for one in found], readers[at].names, rows[:1].tobytes()

    for record, order in [(KNOWN, [True])] * is_known + steps:
        live.clear()
        live.update(record)
        for learn in order:
            first = read(0, learn)
            assert first == read(1, learn)
            assert first == read(2, learn)


@given(
    st.lists(st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u8", "?", "Int64", "boolean", "object"]), max_size=4),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_a_frame_of_numbers_is_read_as_its_records_are(types: list[str], n: int, rng: random.Random) -> None:
    large = [0, 1, 2, 100, 2**62 + 1, -7]
    cells = [rng.sample(large, n) if kind in ("i8", "Int64") else [1, 0, 1][:n] for kind in types]
    columns = [pd.Series(column, dtype=kind) for column, kind in zip(cells, types, strict=True)]
    frame = pd.DataFrame(dict(enumerate(columns)))
    of_frame, of_dicts = OpenRows((2,)), OpenRows((2,))
    expected = of_dicts.rows(frame.to_dict("records"), learn=True)
    assert of_frame.rows(frame, learn=True).tobytes() == expected.tobytes()


def test_a_record_that_is_changed_after_it_was_scored_is_learned_as_it_is_then() -> None:
    scored, other = FoMoDetector(min_context=20), FoMoDetector(min_context=20)
    rng = random.Random(0)
    for i in range(60):
        record = {"a": rng.gauss(0, 1), "b": rng.gauss(0, 1)}
        changed = record | ({"a": 9.0} if i % 3 else {"new": 1.0} if i > 45 else {})
        scored.score_one(record)
        record.update(changed)
        scored.learn_one(record)
        other.learn_one(changed)
    assert pickle.dumps(scored) == pickle.dumps(other)


# --- river refused


def test_a_model_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("fomo ", str(tmp_path / "missing.safetensors")):
        for make in (lambda model: FoMoDetector(model=model), lambda model: FoMoDetector().clone({"model": model})):
            with pytest.raises(CheckpointError, match="fomo, paper-100, streams") as caught:  # it names those that are
                make(name)
            assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "given",
    [
        [[1.0, 2.0]],
        {"flow": 1.0},
        np.zeros(3),
        np.zeros((1, 2, 3)),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        None,
        "flow",
        pd.Series([1.0]),
        pa.chunked_array([[1.0]]),
    ],
    ids=str,
)
def test_what_is_no_table_is_refused_and_is_no_record_either(given: Any) -> None:
    for method in (FoMoDetector().score_many, FoMoDetector().learn_many):
        with pytest.raises(SchemaError):
            method(given)
    if not isinstance(given, dict):
        with pytest.raises(SchemaError, match=f"a record is a dict .*, not {type(given).__name__}"):
            FoMoDetector().score_one(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("categorical", "mode"),
        ("categorical", [["mode"]]),
        ("views", []),
        ("reasons", 0),
        ("context_size", 100.5),
        ("alert_rate", float("nan")),
    ],
)
def test_an_impossible_parameter_is_refused_at_once_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="view" if name == "views" else name) as caught:
        FoMoDetector(**{name: value})
    assert isinstance(caught.value, ValueError)


# --- what is not read


def test_the_warning_is_on_the_line_of_the_user() -> None:
    with pytest.warns(UserWarning, match="text") as found:
        FoMoDetector().learn_one({"a": "1,5"})
    assert [one.filename for one in found] == [__file__]


TABLES: list[Callable[[list[Record]], Any]] = [
    list,
    pd.DataFrame,
    lambda records: pd.DataFrame(records, dtype="string"),
    lambda records: pd.DataFrame(records).astype("category"),
    lambda records: pd.DataFrame(records)[["a", "b"]].to_numpy(),
    pa.Table.from_pylist,
]


@pytest.mark.parametrize("table", TABLES, ids=range(len(TABLES)))
def test_numbers_as_text_are_read_in_every_table_and_this_is_said_once(table: Callable[[list[Record]], Any]) -> None:
    X = table([{"a": "7", "b": None}, {"a": "1.5", "b": " -2e3"}])
    first, second = ("0", "1") if isinstance(X, np.ndarray) else ("'a'", "'b'")
    rows = OpenRows((0, 1) if isinstance(X, np.ndarray) else ("a", "b"))
    with pytest.warns(UserWarning, match="read as numbers"):
        np.testing.assert_array_equal(OpenRows(()).rows(X, learn=True), [[7, np.nan], [1.5, -2000]])
    assert warned(rows.rows, X) == []  # of categories
    for method in ("learn_many", "score_many", "explain_many"):
        detector = FoMoDetector()
        detector.learn_many([{"a": 1.0, "b": 2.0, 0: 1.0, 1: 1.0}])
        (message,) = warned(getattr(detector, method), X)
        assert message == f"FoMoDetector: read as numbers although they are text: {first}, {second}"
        assert warned(detector.score_many, X) == []
        assert warned(pickle.loads(pickle.dumps(detector)).score_many, X) == []


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.decimals(), st.fractions())


@given(
    st.lists(
        st.fixed_dictionaries({"a": NUMBERS, "b": NUMBERS, "c": st.sampled_from(["1", "2", None, ""])}), max_size=6
    )
)
def test_numbers_missing_values_and_categories_never_warn(records: list[Record]) -> None:
    detector = FoMoDetector(categorical=["c"])
    for X in (records, pd.DataFrame(records, columns=["a", "b", "c"], dtype=object)):
        assert all("gets no score" in message for message in warned(detector.score_many, X))
        assert warned(detector.learn_many, X) == []


MISSING = [{}, *({"a": value} for value in (None, float("nan"), float("inf"), 10**400, pd.NA, pd.NaT, " ", "nan"))]


@pytest.mark.parametrize("record", MISSING, ids=str)
def test_a_record_that_is_only_missing_has_no_score_and_this_is_said_once(record: Record) -> None:
    detector = FoMoDetector()
    assert (detector.score_one(record), detector.p_value_one(record)) == (0.0, 1.0)  # nothing is known yet
    detector.learn_one({"a": 1.0})
    before = pickle.dumps(detector)
    assert warned(detector.learn_one, record) == []
    assert pickle.dumps(detector) == before  # it is not learned
    (message,) = warned(detector.score_many, pd.DataFrame([record]))
    assert "a record gets no score (NaN), as it has no value of any known feature" in message
    assert warned(detector.score_one, record) == []
    assert math.isnan(detector.score_one(record))
    assert math.isnan(detector.p_value_one(record))
    assert not detector.is_outlier_one(record)
    assert detector.explain_one(record) == []
    assert detector.score_one({"a": 1.0}) == 0.0  # too few records are known


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("3,14", "text"),
        ("2024-01-01T12:00Z", "a time"),
        (datetime.date(2024, 1, 1), "a time"),
        ({"b": 1.0}, "dict"),
    ],
)
def test_a_value_that_is_no_number_warns_once(value: Any, kind: str) -> None:
    for form in (list, lambda records: pd.DataFrame(records, dtype=object)):
        detector, X = FoMoDetector(), form([{"a": value, "b": None}])
        (message,) = warned(detector.learn_many, X)
        assert f"'a' ({kind})" in message
        assert warned(detector.learn_many, X) == []


def test_fields_that_no_record_has_are_told_once_after_the_first_records() -> None:
    """A mistyped name would else be without effect, and nobody would see it."""
    rng = np.random.default_rng(0)
    batch = [{"pump": f"p{i % 4}", "x": x} for i, x in enumerate(rng.normal(size=200).tolist())]
    names = {"categorical": ["moed"], "counters": ["enrgy"], "key": "pmup", "missing_values": {"y": -1, "*": -9}}
    detector = FoMoDetector(min_context=1000, derive=["count(10m)"], time="at", **names)  # type: ignore[arg-type]
    told = [*warned(detector.learn_many, batch[:199]), *warned(detector.learn_many, batch[199:])]
    (message,) = [text for text in told if "check the names" in text]
    assert message.endswith("has a value of 'moed', 'enrgy', 'y', 'pmup', 'at'; check the names of the fields")
    assert not [text for text in warned(detector.learn_many, batch) if "check the names" in text]


def test_a_time_that_cannot_be_read_is_told_once() -> None:
    detector = FoMoDetector(min_context=1000, derive=["count(10m)"], time="at", key="pump")
    batch = [{"pump": "p", "x": float(i), "at": at} for i, at in enumerate(["2026-10-01", None, float("nan")])]
    assert warned(detector.learn_many, batch) == []
    (message,) = warned(detector.learn_many, [{"pump": "p", "x": 1.0, "at": "yesterday"}] * 2)
    assert message.endswith("a record has no time in 'at', as 'yesterday' is not readable as one")
    assert warned(detector.learn_many, batch) == []


def test_columns_that_mislead_and_names_among_the_categories_are_told_once_after_the_first_records() -> None:
    rng = np.random.default_rng(0)
    batch = [
        {"order_id": 7919 * i % 10_007, "row": i, "energy": i + rng.random(), "user": f"user{i}", "site": i % 9}
        for i in range(200)
    ]
    detector = FoMoDetector(min_context=1000, counters=["energy"], categorical=["user", "site"])
    assert [warned(detector.learn_one, record) for record in batch[:199]] == [[]] * 199
    names, mislead = warned(detector.learn_one, batch[199] | {"late": 1.0})
    assert "'order_id' (near-unique identifier), 'row' (monotone counter); " in mislead
    assert mislead.endswith("leave them out, or name totals in counters, so that their growth is scored")
    assert names.endswith("seen once or twice: 'user'; leave them out")
    assert warned(detector.learn_many, batch) == []


def test_a_record_of_unknown_features_warns_once() -> None:
    detector = FoMoDetector()
    assert warned(detector.score_one, {"A": 1.0}) == []  # nothing is known yet
    detector.learn_one({"a": 1.0, "b": 1.0})
    others: list[Any] = [[{"A": 1.0}], [{"b": 1.0}, {"A": 1.0}], pd.DataFrame({"A": [1.0]}), np.ones((1, 2))]
    for X in others:
        detector = FoMoDetector()
        detector.learn_one({"a": 1.0, "b": 1.0})
        (message,) = warned(detector.score_many, X)
        assert message.endswith(f"unknown: {'0, 1' if isinstance(X, np.ndarray) else repr('A')}; known are 'a', 'b'")
        assert warned(detector.score_many, X) == []
        assert warned(detector.score_many, [{"A": 1.0, "b": 1.0}, {}]) == []
