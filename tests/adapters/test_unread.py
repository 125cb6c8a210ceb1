"""Values that a user gives as data, and that count as missing: `FoMoDetector` warns once, and says what to do."""

from __future__ import annotations

import csv
import datetime
import io
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import compose, evaluate, metrics, preprocessing, stream

from fomo_stream import FoMoDetector

Record = dict[Any, Any]
SIZES: dict[str, Any] = {"context_size": 60, "min_context": 30, "views": "fast"}


def readings(n: int = 90) -> str:
    """CSV; every tenth of the later rows is at fault."""
    rng = random.Random(0)
    rows = ["load,speed,mode,fault"]
    for i in range(n):
        fault = int(i > 50 and i % 10 == 0)
        rows.append(f"{rng.gauss(50, 5)},{rng.gauss(9, 1) + 9 * fault},{rng.choice(['eco', 'full'])},{fault}")
    return "\n".join(rows)


def of_csv_module() -> Iterator[Record]:
    return csv.DictReader(io.StringIO(readings()))


def of_river(**converters: Any) -> Iterator[tuple[Record, Any]]:
    return iter(stream.iter_csv(io.StringIO(readings()), target="fault", converters={"fault": int, **converters}))


def warned(act: Callable[[], Any]) -> list[str]:
    """What the user is warned of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in found]


def score_and_learn(detector: Any, records: Iterator[Any]) -> None:
    for x in records:
        detector.score_one(x)
        detector.learn_one(x)


# --- numbers as text


def test_rows_of_the_csv_module_warn_once_and_name_their_features() -> None:
    (message,) = warned(lambda: score_and_learn(FoMoDetector(**SIZES), of_csv_module()))
    assert "converters={'fault': float, 'load': float, 'speed': float}" in message
    assert "mode" not in message


def test_a_stream_of_river_without_converters_warns_and_with_them_it_is_scored() -> None:
    def auc(**converters: Any) -> float:
        detector = FoMoDetector(**SIZES)
        return float(evaluate.progressive_val_score(of_river(**converters), detector, metrics.ROCAUC()).get())

    (message,) = warned(lambda: auc())
    assert "converters={'load': float, 'speed': float}" in message
    (message,) = warned(lambda: auc(load=float))
    assert "converters={'speed': float}" in message
    assert warned(lambda: auc(load=float, speed=float)) == []
    assert auc(load=float, speed=float) > 0.8


def test_the_warning_is_on_the_line_of_the_user() -> None:
    with pytest.warns(UserWarning, match="text") as found:
        FoMoDetector().learn_one({"a": "1.5"})
    assert [one.filename for one in found] == [__file__]


TABLES: list[Callable[[list[Record]], Any]] = [
    list,
    pd.DataFrame,
    lambda records: pd.DataFrame(records).astype(object),
    lambda records: pd.DataFrame(records, dtype="string"),
    lambda records: pd.DataFrame(records).astype("category"),
    lambda records: pd.DataFrame(records)[["a", "b"]].to_numpy(),
    pa.Table.from_pylist,
]


@pytest.mark.parametrize("table", TABLES, ids=range(len(TABLES)))
def test_numbers_as_text_are_found_in_every_table(table: Callable[[list[Record]], Any]) -> None:
    records: list[Record] = [{"a": None, "b": None}, {"a": "1.5", "b": " -2e3"}]
    X = table(records)
    names = "0, 1" if isinstance(X, np.ndarray) else "'a', 'b'"
    for method in ("learn_many", "score_many", "explain_many"):
        detector = FoMoDetector()
        detector.learn_many([{"a": 1.0, "b": 2.0, 0: 1.0, 1: 1.0}])
        (message,) = warned(lambda: getattr(detector, method)(X))  # noqa: B023
        assert f"in {names};" in message
        assert warned(lambda: detector.score_many(X)) == []  # noqa: B023
        assert warned(lambda: pickle.loads(pickle.dumps(detector)).score_many(X)) == []  # noqa: B023


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.decimals(), st.fractions())


@given(
    st.lists(
        st.fixed_dictionaries({"a": NUMBERS, "b": NUMBERS, "c": st.sampled_from(["1", "2", None, ""])}), max_size=6
    )
)
@settings(max_examples=25)
def test_numbers_missing_values_and_categories_never_warn(records: list[Record]) -> None:
    detector = FoMoDetector(categorical=["c"])
    for X in (records, pd.DataFrame(records, columns=["a", "b", "c"], dtype=object)):
        assert warned(lambda: detector.score_many(X)) == []  # noqa: B023
        assert warned(lambda: detector.learn_many(X)) == []  # noqa: B023


# --- records without any value that counts


MISSING = [{}, *({"a": value} for value in (None, float("nan"), float("inf"), pd.NA, pd.NaT, "", " ", "nan"))]


@pytest.mark.parametrize("record", MISSING, ids=str)
def test_a_record_that_is_only_missing_is_fine(record: Record) -> None:
    detector = FoMoDetector()
    detector.learn_one({"a": 1.0})
    assert warned(lambda: score_and_learn(detector, iter([record]))) == []
    assert warned(lambda: detector.score_many(pd.DataFrame([record]))) == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [("eco", "text"), ("3,14", "text"), (datetime.date(2024, 1, 1), "date"), ({"b": 1.0}, "dict"), ([1.0], "list")],
)
def test_a_record_without_any_value_that_counts_warns_once(value: Any, kind: str) -> None:
    for form in (lambda value: [{"a": value}], lambda value: pd.DataFrame({"a": pd.Series([value], dtype=object)})):
        detector = FoMoDetector()
        (message,) = warned(lambda: detector.learn_many(form(value)))  # noqa: B023
        assert f"'a' ({kind})" in message
        assert warned(lambda: score_and_learn(detector, iter([{"a": value}]))) == []  # noqa: B023
        detector = FoMoDetector()
        assert warned(lambda: detector.learn_many([{"a": value, "b": 1.0}, {"a": None, "b": 1.0}])) == []  # noqa: B023


KINDS: dict[str, Record] = {
    "numbers that are text": {"a": "1.5", "b": "eco"},
    "without any number or category": {"a": None, "b": "eco"},
    "features are unknown": {"other": 1.0},
}


@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=6), st.booleans())
@settings(max_examples=40)
def test_each_mistake_warns_at_its_first_record_whatever_came_before(order: list[str], at_once: bool) -> None:
    detector = FoMoDetector()
    detector.learn_many([{"a": 1.0, "b": 2.0}])
    records = [KINDS[kind] for kind in order]
    if at_once:
        found = warned(lambda: detector.score_many(records))
        assert sorted(kind for kind in KINDS for one in found if kind in one) == sorted(set(order))
        assert len(found) == len(set(order))
        return
    for i, (kind, record) in enumerate(zip(order, records, strict=True)):
        found = warned(lambda: detector.score_one(record))  # noqa: B023
        assert len(found) == (kind not in order[:i])
        assert all(kind in one for one in found)


def test_values_are_not_shown() -> None:
    for value in ("secret", "4711"):
        (message,) = warned(lambda: FoMoDetector().learn_one({"a": value}))  # noqa: B023
        assert value not in message


# --- unknown features


def test_a_record_of_unknown_features_warns_once() -> None:
    detector = FoMoDetector()
    assert warned(lambda: detector.score_one({"A": 1.0})) == []  # nothing is known yet
    detector.learn_one({"a": 1.0, "b": 1.0})
    others: list[Any] = [[{"A": 1.0}], [{"b": 1.0}, {"A": 1.0}], pd.DataFrame({"A": [1.0]}), np.ones((1, 2))]
    for X in others:
        detector = FoMoDetector()
        detector.learn_one({"a": 1.0, "b": 1.0})
        (message,) = warned(lambda: detector.score_many(X))  # noqa: B023
        assert message.endswith(f"unknown: {'0, 1' if isinstance(X, np.ndarray) else repr('A')}; known are 'a', 'b'")
        assert warned(lambda: detector.score_many(X)) == []  # noqa: B023
        assert warned(lambda: detector.score_many([{"A": 1.0, "b": 1.0}, {}])) == []  # noqa: B023


def test_features_that_are_learned_as_they_come_never_warn() -> None:
    detector = FoMoDetector()
    assert warned(lambda: detector.learn_many([{name: 1.0} for name in "abc"])) == []


# --- pipelines


def test_a_pipeline_of_river_that_converts_does_not_warn() -> None:
    convert = compose.FuncTransformer(lambda x: {name: float(x[name]) for name in ("load", "speed")})
    for scaler in ((), (preprocessing.StandardScaler(),)):
        pipeline = compose.Pipeline(convert, *scaler, FoMoDetector(**SIZES))
        assert warned(lambda: score_and_learn(pipeline, of_csv_module())) == []  # noqa: B023
        x = {"load": "50", "speed": "99"}
        assert pipeline.score_one(x) > 0.9
        assert pipeline["FoMoDetector"].explain_one(pipeline.transform_one(x))[0]["feature"] == "speed"
