"""Scores, p-values, verdicts and explanations of `FoMoDetector`, beside those of the detector that it is made of."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fomo_stream import Detector, DetectorConfig, FoMoDetector, load_model
from fomo_stream.detector.panel import Panel
from fomo_stream.detector.results import Results, Scores
from fomo_stream.errors import SchemaError

Record = dict[Any, Any]
SIZES: dict[str, Any] = {"context_size": 100, "min_context": 50, "alert_rate": 0.02}
NAMES = ["flow", "pressure", "speed"]


def rows(n: int, seed: int = 0) -> np.ndarray:
    """Every fortieth row is far off in one feature."""
    rng = np.random.default_rng(seed)
    made = rng.normal(size=(n, 3))
    made[::40, 1] += 9
    return made


def as_records(values: np.ndarray) -> list[Record]:
    return [dict(zip(NAMES, row, strict=True)) for row in values.tolist()]


@pytest.fixture(scope="module")
def trained() -> FoMoDetector:
    detector = FoMoDetector(**SIZES)
    detector.learn_many(as_records(rows(260)))
    return detector


def in_core(values: np.ndarray) -> Results:
    detector = Detector(load_model(), 3, DetectorConfig(**SIZES, explain="all"))
    return detector.process(values)


def test_one_record_at_a_time_gives_what_the_core_gives() -> None:
    values = rows(330)
    core, detector, outliers = in_core(values), FoMoDetector(**SIZES), 0
    for i, x in enumerate(as_records(values)):
        if i == 50 or i >= 280:
            if i == 50:
                assert core.generation[i] == 1
            assert detector.p_value_one(x) == core.p_value[i]
            assert detector.is_outlier_one(x) == core.outlier[i]
            assert detector.score_one(x) == core.score[i]
            reasons = core.reasons[i] or ()
            explained = detector.explain_one(x)
            assert [one["feature"] for one in explained] == [NAMES[reason.feature] for reason in reasons]
            assert [one["cause"] for one in explained] == [reason.cause for reason in reasons]
            outliers += bool(core.outlier[i])
        detector.learn_one(x)
    assert outliers


def test_all_results_of_a_record_are_computed_once_and_learning_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = FoMoDetector(**SIZES)
    detector.learn_many(as_records(rows(120)))
    scored: list[int] = []
    compute = Panel.scores

    def counted(panel: Panel, rows: list[np.ndarray], records: int) -> Scores:
        scored.append(len(rows[0]))
        return compute(panel, rows, records)

    monkeypatch.setattr(Panel, "scores", counted)
    for x in as_records(rows(5, 1)):
        scored.clear()
        detector.is_outlier_one(x)
        detector.p_value_one(x)
        detector.score_one(dict(reversed(x.items())))
        detector.explain_one(x)
        detector.learn_one(x)
        assert scored == [1]


def test_what_was_scored_before_a_change_is_not_used_after_it() -> None:
    detector = FoMoDetector(**SIZES)
    detector.learn_many(as_records(rows(260)))
    x = {"flow": 0.3, "pressure": 9.0, "speed": 0.1}
    before = detector.p_value_one(x)
    odd = rows(260)[::40]
    detector.feedback_many(as_records(odd), [True] * len(odd))  # odd ones leave the scores that it is compared with
    assert detector.p_value_one(x) < before


def test_p_values_are_valid_from_the_first_record_on() -> None:
    rng = np.random.default_rng(0)
    detector = FoMoDetector(context_size=100, min_context=50, views="fast")
    found = []
    for x in as_records(rng.normal(size=(600, 3))):
        found.append(detector.p_value_one(x))
        detector.learn_one(x)
    p = np.array(found)
    assert ((p > 0) & (p <= 1)).all()
    for level in (0.05, 0.1, 0.3, 0.6):
        assert (p <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / len(p))


# --- explanations


@pytest.mark.parametrize("names", [("flow", "speed", "mode"), (1, ("a", 2), None), ("1", 1, 1.5), ("a.b", "a", True)])
def test_reasons_have_the_names_and_values_that_were_given(names: tuple[Any, ...]) -> None:
    rng = random.Random(0)
    detector = FoMoDetector(**SIZES, categorical=[names[2]])
    records = [dict(zip(names, (rng.gauss(0, 1), rng.gauss(5, 1), rng.choice("xy")), strict=True)) for _ in range(150)]
    detector.learn_many(records)
    number, category = (
        detector.explain_one(records[0] | {name: value})[0] for name, value in ((names[1], 40.0), (names[2], "new"))
    )
    assert number["feature"] == names[1]
    assert number["feature"].__class__ is names[1].__class__
    assert (number["cause"], number["value"]) == ("value", 40.0)
    low, high = number["range"]
    assert 2 < low < number["usual"] < high < 8
    assert category["feature"] == names[2]
    assert (category["cause"], category["value"], category["frequency"]) == ("category", "new", 0.0)
    assert 0.5 < number["share"] <= 1


def test_an_explanation_is_a_list_and_a_sentence(trained: FoMoDetector) -> None:
    explained = trained.explain_one({"flow": 0.1, "pressure": 0.2, "speed": -30.0})
    assert explained[0]["feature"] == "speed"
    assert "speed" in str(explained)
    assert "-30" in str(explained)
    assert str(explained) == explained.sentence
    assert pd.DataFrame(explained)["feature"].tolist() == [one["feature"] for one in explained]
    assert len(explained) <= 3


def test_explaining_changes_nothing(trained: FoMoDetector) -> None:
    inner = trained._inner.detector
    assert inner is not None
    before = inner.copy().changes()
    trained.explain_many(rows_of_frame(5))
    assert inner.copy().changes() == before


@pytest.mark.parametrize("method", ["score_many", "p_value_many", "is_outlier_many", "explain_many"])
def test_records_may_come_from_a_generator(trained: FoMoDetector, method: str) -> None:
    records = as_records(rows(45))
    expected = getattr(trained, method)(records)
    assert list(getattr(trained, method)(one for one in records)) == list(expected)
    assert len(expected) == len(records)


# --- frames


def rows_of_frame(n: int) -> pd.DataFrame:
    return pd.DataFrame(rows(n, 3), columns=NAMES, index=pd.date_range("2024-01-01", periods=n, freq="h"))


METHODS = [("score_many", "score"), ("p_value_many", "p_value"), ("is_outlier_many", "is_outlier")]


@pytest.mark.parametrize(("method", "name"), METHODS)
def test_a_frame_gets_a_series_with_its_index(trained: FoMoDetector, method: str, name: str) -> None:
    frame = rows_of_frame(8)
    found = getattr(trained, method)(frame)
    expected = getattr(trained, method)(frame.to_dict("records"))
    assert isinstance(expected, np.ndarray)
    pd.testing.assert_series_equal(found, pd.Series(expected, index=frame.index, name=name))
    table = getattr(trained, method)(pa.Table.from_pandas(frame, preserve_index=False))
    assert table.to_pylist() == expected.tolist()
    assert found.dtype == (bool if name == "is_outlier" else float)


EMPTY: list[Any] = [
    [],
    pd.DataFrame(),
    pd.DataFrame({"flow": []}),
    pd.DataFrame(index=["a", "b"]),
    pd.DataFrame({"other": [1.0]}).iloc[:0],
    np.array([]),
    np.zeros((0, 0)),
    np.zeros((0, 3)),
    pa.table({}),
]


@pytest.mark.parametrize("empty", EMPTY, ids=range(len(EMPTY)))
@pytest.mark.parametrize("is_new", [True, False])
def test_empty_input_is_fine_for_every_method(trained: FoMoDetector, empty: Any, is_new: bool) -> None:
    detector = FoMoDetector(**SIZES) if is_new else trained
    n = len(empty)
    for method, unknown in zip((method for method, _ in METHODS), (0.0, 1.0, False), strict=True):
        found = getattr(detector, method)(empty)
        assert list(found) == [unknown] * n
        if isinstance(empty, pd.DataFrame):
            pd.testing.assert_index_equal(found.index, empty.index)
    assert detector.explain_many(empty) == [[]] * n
    records = 0 if detector._inner.detector is None else detector._inner.detector.records
    detector.learn_many(empty)
    detector.feedback_many(empty, [False] * n)
    assert (0 if detector._inner.detector is None else detector._inner.detector.records) == records


def test_every_type_of_column_that_holds_numbers_counts() -> None:
    columns: dict[str, Any] = {
        "integer": pd.array([1, None, 3], dtype="Int64"),
        "boolean": pd.array([True, None, False], dtype="boolean"),
        "float": pd.array([1.5, None, 2.5], dtype="Float64"),
        "arrow": pd.array([1, None, 3], dtype="int64[pyarrow]"),
        "object": pd.Series([1, None, 2.5], dtype=object),
        "decimal": pd.Series([Decimal(1), None, Decimal("2.5")], dtype=object),
        "plain": [True, False, True],
        "text": ["1", None, "x"],
        "date": pd.to_datetime(["2024-01-01"] * 3),
    }
    detector = FoMoDetector(**SIZES)
    with pytest.warns(UserWarning, match="'text'"):
        found = detector._inner._rows.rows(pd.DataFrame(columns), learn=True)
    by_name = dict(zip(detector._inner._rows.names, found.T.tolist(), strict=True))
    nan = float("nan")
    expected = {
        "integer": [1, nan, 3],
        "boolean": [1, nan, 0],
        "float": [1.5, nan, 2.5],
        "arrow": [1, nan, 3],
        "object": [1, nan, 2.5],
        "decimal": [1, nan, 2.5],
        "plain": [1, 0, 1],
        "text": [nan] * 3,
        "date": [nan] * 3,
    }
    assert set(by_name) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(by_name[name], values, err_msg=name)


# --- verdicts


@pytest.mark.parametrize("verdicts", [[True], [True, False, True], [True, "no"], [True, None], [0.0, np.nan], [1, -1]])
def test_what_is_no_verdict_on_each_record_is_refused(trained: FoMoDetector, verdicts: list[Any]) -> None:
    with pytest.raises(SchemaError, match="verdict"):
        trained.feedback_many(as_records(rows(2)), verdicts)


@pytest.mark.parametrize(
    ("n", "wrong", "words"), [(2, 1, "1 verdict for 2 records"), (1, 2, "2 verdicts for 1 record;")]
)
def test_a_wrong_number_of_verdicts_is_said(trained: FoMoDetector, n: int, wrong: int, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        trained.feedback_many(as_records(rows(n)), [True] * wrong)
