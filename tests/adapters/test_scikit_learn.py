"""`ZeroShotDetector`: its contract, and the data that users have: frames, categories, dates, texts, missing values."""

from __future__ import annotations

import datetime
import pickle
import warnings
from collections.abc import Callable, Hashable
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from fomo_stream import FoMoDetector, ZeroShotDetector
from fomo_stream.errors import FomoWarning, SchemaError
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.checkpoint import save_model
from fomo_stream.model.zero_shot import ZeroShotModel

# --- scikit learn


@parametrize_with_checks([ZeroShotDetector(model="streams")])
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.fixture
def inliers() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(400, 5))


def test_members_are_of_samples_averaged_and_seeded(inliers: np.ndarray) -> None:
    queries = np.random.default_rng(2).normal(size=(30, 5))
    one, again, single = (
        ZeroShotDetector(n_members=n, context_size=50, random_state=3).fit(inliers) for n in (4, 4, 1)
    )
    assert [len(member.rows) for member in one.members_] == [50] * 4
    scores = one.score_samples(queries)
    np.testing.assert_array_equal(scores, again.score_samples(queries))
    assert 0.5 < np.corrcoef(scores, single.score_samples(queries))[0, 1] < 1 - 1e-9


def test_pickle_knows_categories_and_does_not_carry_weights_or_encodings() -> None:
    frame = machines(1000)
    detector = ZeroShotDetector(categorical=["mode"], random_state=0).fit(frame)
    data = pickle.dumps(detector)
    assert len(data) < 100 * len(frame)
    copy = pickle.loads(data)
    np.testing.assert_array_equal(copy.score_samples(frame), detector.score_samples(frame))
    assert copy.explain(frame.iloc[7:8]) == detector.explain(frame.iloc[7:8])


def test_wider_data_than_the_model_takes_is_split_over_members(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "narrow.safetensors"
    config = ModelConfig(raw_features=4, evidence=False, fusion=False, layers=1, width=8, heads=2, routers=3)
    save_model(ZeroShotModel(config), path)
    inliers = np.random.default_rng(0).normal(size=(50, 10))
    detector = ZeroShotDetector(model=str(path), n_members=6, random_state=0).fit(inliers)
    assert all(len(member.columns) <= 4 for member in detector.members_)
    assert len(set(np.concatenate([member.columns for member in detector.members_]).tolist())) > 4
    assert np.isfinite(detector.score_samples(inliers + 1)).all()
    explained = detector.explain(10 * np.eye(10), top=10)
    assert len({one["feature"] for reasons in explained for one in reasons}) > 4
    categories = ZeroShotDetector(model=str(path), categorical=[0, 1, 2], n_members=6).fit(inliers.round())
    assert np.isfinite(categories.score_samples(inliers)).all()  # their pairs take a column, too


# --- data


def machines(n: int = 200, seed: int = 0) -> pd.DataFrame:
    """Row 7 has a mode of its own."""
    rng = np.random.default_rng(seed)
    count = pd.array(rng.integers(0, 5, n), dtype="Int64")
    made = pd.DataFrame({"flow": rng.normal(size=n), "mode": rng.choice(["eco", "full"], n), "count": count})
    made.loc[3, "count"] = pd.NA
    made.loc[7, "mode"] = "odd"
    return made


# --- categories


def test_frames_arrays_and_lists_agree() -> None:
    frame = machines()
    forms: list[tuple[Any, Any]] = [
        (frame, ["mode"]),
        (frame, np.array([-2])),
        (frame, [False, True, False]),
        (frame.astype({"mode": "category", "count": object}), ["mode"]),
        (frame.astype({"mode": "string", "count": "float"}), ["mode"]),
        (frame.to_numpy(), [1]),
        (frame.to_numpy().tolist(), (1,)),
        (pa.Table.from_pandas(frame), ["mode"]),
    ]
    made = [ZeroShotDetector(categorical=names, random_state=0).fit(X) for X, names in forms]
    for detector, (X, _) in zip(made, forms, strict=True):
        assert detector.categorical_ == (1,)
        np.testing.assert_array_equal(detector.decision_scores_, made[0].decision_scores_)
        np.testing.assert_array_equal(detector.score_samples(X), made[0].score_samples(frame))


@pytest.mark.parametrize(("n_numbers", "n_categories"), [(1, 1), (2, 4)])
def test_new_rows_are_called_outliers_as_rarely_as_the_training_rows(n_numbers: int, n_categories: int) -> None:
    rng = np.random.default_rng(0)
    rows = np.c_[rng.normal(size=(1000, n_numbers)), rng.integers(0, n_categories, 1000)]
    detector = ZeroShotDetector(contamination=0.05, categorical=[n_numbers], random_state=0).fit(rows[:400])
    assert 0.01 < (detector.predict(rows[400:]) == -1).mean() < 0.1
    assert (detector.predict(np.c_[rows[400:, :-1], np.full(600, 99)]) == -1).mean() > 0.9  # a new category


# --- numbers


COLUMNS: dict[str, Any] = {
    "Int64": pd.array([1, None, 3, 4], dtype="Int64"),
    "boolean": pd.array([True, None, False, True], dtype="boolean"),
    "arrow": pd.array([1, None, 3, 2], dtype="int64[pyarrow]"),
    "NA": pd.Series([1, pd.NA, 2.5, np.float32(3)], dtype=object),
    "decimal": pd.Series([Decimal("1.5"), None, Decimal(2), 1], dtype=object),
    "category": pd.Categorical([1, None, 2, 1]),
    "bool": [True, False, False, True],
    "nothing": [None, None, None, None],
    "no date": pd.Series([pd.NaT, 1, 2, 3], dtype=object),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_type_of_column_that_holds_numbers_counts(kind: str) -> None:
    frame = pd.DataFrame({"plain": [0.1, 0.7, 0.4, 0.9], "column": COLUMNS[kind]})
    values = [np.nan if pd.isna(value) else float(value) for value in COLUMNS[kind]]
    expected = np.column_stack([frame["plain"], values])
    for X in (frame, frame.astype(object).to_numpy()):
        view = ZeroShotDetector(random_state=0).fit(X).members_[0]
        np.testing.assert_array_equal(view.rows, expected[view.kept])


TEXTS = [["1.5", None, " -2e3", "NA"], pd.array(["1.5", None, "-2000", ""], dtype="string")]


@pytest.mark.parametrize("texts", TEXTS, ids=range(len(TEXTS)))
def test_a_column_whose_texts_are_all_numbers_counts_and_this_is_said(texts: Any) -> None:
    numbers = pd.DataFrame({"plain": [0.1, 0.7, 0.4, 0.9], "column": [1.5, np.nan, -2000, np.nan]})
    for X, name in ((numbers.assign(column=texts), "'column'"), (numbers.assign(column=texts).to_numpy(object), "1")):
        with pytest.warns(UserWarning, match=f"read as numbers although they are text: {name}$") as found:
            detector = ZeroShotDetector(random_state=0).fit(X)
        assert [one.filename for one in found] == [__file__]
        with warnings.catch_warnings(action="error"):
            scores = detector.score_samples(X)
        np.testing.assert_array_equal(scores, ZeroShotDetector(random_state=0).fit(numbers).score_samples(numbers))


def test_a_row_without_any_value_has_no_score_and_is_no_context(inliers: np.ndarray) -> None:
    gaps = np.insert(inliers, [3, 50], np.nan, axis=0)
    with pytest.warns(UserWarning, match=r"a row without any value gets no score \(NaN\)"):
        detector = ZeroShotDetector(random_state=0).fit(gaps)
    is_gap = np.isnan(gaps).all(axis=1)
    assert not is_gap[detector.members_[0].kept].any()
    np.testing.assert_array_equal(np.isnan(detector.decision_scores_), is_gap)
    with pytest.warns(UserWarning, match="is called an inlier"):
        assert detector.predict(gaps)[is_gap].tolist() == [1, 1]
    with pytest.warns(UserWarning, match="gets no score"):
        assert detector.explain(gaps[is_gap]) == [[], []]
    with pytest.raises(SchemaError, match="fewer than 2 rows with a value"):
        ZeroShotDetector().fit(gaps[2:4])


# --- refused, with the column's name


REFUSED = {
    "text of numbers and of a name": ("text", ["1", "2", "3", "007"]),
    "text of times": ("dates", ["2024-05-17", None, "2024-05-18T12:00Z", "2024-05-17"]),
    "text and numbers": ("text", pd.Series([1, "secret", 2, 3], dtype=object)),
    "category": ("text", pd.Categorical(["secret", "b", "b", "b"])),
    "bytes": ("text", [b"secret"] * 4),
    "with a zone": ("dates", pd.to_datetime(["2024-05-17"] * 4).tz_localize("Europe/Berlin")),
    "duration": ("dates", pd.to_timedelta([1, 2, 3, 4], unit="s")),
    "date": ("dates", pd.Series([1, datetime.date(2024, 5, 17), None, 2], dtype=object)),
    "NumPy's": ("dates", pd.Series([1, np.timedelta64(5, "s"), 2, 3], dtype=object)),
    "large": ("an integer that is too large", pd.Series([1, 2, 3, 10**400], dtype=object)),
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")  # of a list
@pytest.mark.parametrize("kind", REFUSED)
def test_dates_and_texts_are_refused_with_the_name_of_their_column(kind: str) -> None:
    holds, column = REFUSED[kind]
    frame = pd.DataFrame({"plain": [0.1, 0.7, 0.4, 0.9], "column": column})
    good = frame[["plain"]].assign(column=1.0)
    cells = frame.astype(object).to_numpy()
    for X, other, name in ((frame, good, "'column'"), (cells, good.to_numpy(), "1"), (cells.tolist(), good, "1")):
        fitted = ZeroShotDetector().fit(other)
        for refused in (ZeroShotDetector().fit, fitted.predict, fitted.explain):
            with pytest.raises(SchemaError, match=f"^column {name} holds {holds}") as caught:
                refused(X)
            assert isinstance(caught.value, ValueError)
            assert "secret" not in str(caught.value)
            assert "2024" not in str(caught.value)
    assert ZeroShotDetector(categorical=["column"]).fit(frame).categorical_ == (1,)


@pytest.mark.parametrize(
    ("categorical", "problem"),
    [
        (["mood"], "'mood' is not in X"),
        ([-4], "-4 is not in X, which has 3"),
        ("mode", "array"),
        ([True], "categorical has 1 truth value, X 3 columns"),
    ],
)
def test_a_categorical_column_that_is_not_there_is_refused(categorical: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ZeroShotDetector(categorical=categorical).fit(machines())


def test_what_is_no_table_is_refused_with_a_remedy() -> None:
    column = "one Series"
    tables: list[tuple[Any, str]] = [
        ([{"flow": 1.0}, {"flow": 2.0}], "pandas.DataFrame"),
        (pd.Series([1.0, "eco"]), column),
        (pa.chunked_array([[1.0, 2.0]]), column),
        (np.array([(1.0, 2.0)] * 20, dtype=[("a", "f8"), ("b", "f8")]), "record array; give a frame"),
    ]
    for given, remedy in tables:
        with pytest.raises(SchemaError, match=remedy):
            ZeroShotDetector().fit(given)


def test_a_type_that_is_no_number_may_be_a_category() -> None:
    frame = machines().assign(month=pd.period_range("2024", periods=200, freq="M"))
    with pytest.raises(TypeError, match=r"'month'.*categorical"):
        ZeroShotDetector(categorical=["mode"]).fit(frame)
    with pytest.warns(UserWarning, match="most of their values are seen once or twice: 'month'; leave them out"):
        assert ZeroShotDetector(categorical=["mode", "month"]).fit(frame).categorical_ == (1, 3)


def test_missing_values_of_a_column_that_is_not_there_warn(inliers: np.ndarray) -> None:
    detector = ZeroShotDetector(missing_values={"temp": -9999, 7: -1, 2: -1, "*": -5})
    with pytest.warns(FomoWarning, match="missing_values names columns that X lacks: 'temp', 7$"):
        detector.fit(inliers)


def test_one_huge_value_in_fit_hides_no_usual_row(inliers: np.ndarray) -> None:
    """Its square is not a finite number."""
    value = -1e160
    rows = np.vstack([inliers, [value, 0, 0, 0, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector = ZeroShotDetector(random_state=0).fit(rows)
    assert detector.predict(np.array([[0.0, 0, 0, 0, 0], [0, 9, 0, 0, 0], [value, 0, 0, 0, 0]])).tolist() == [1, -1, -1]


# --- names that are known elsewhere


def test_contamination_is_the_alert_rate_of_training_rows_with_outliers() -> None:
    rows, rate = np.random.default_rng(0).normal(size=(100, 3)), 0.3
    known = ZeroShotDetector(contamination=rate, random_state=0)
    for detector in (known, clone(known), ZeroShotDetector(random_state=0).set_params(contamination=rate)):
        assert detector.get_params()["contamination"] == rate
        assert detector.fit(rows).labels_.mean() == pytest.approx(rate, abs=0.01)
        assert len(detector.members_[0].rows) == 100 - 100 * rate
    of_inliers = ZeroShotDetector(alert_rate=rate).fit(rows)
    assert len(of_inliers.members_[0].rows) == 100
    assert (of_inliers.predict(rows) == -1).mean() == pytest.approx(rate, abs=0.015)


@pytest.mark.parametrize(("size", "members"), [(5000, 1), (60, 3)])
def test_training_rows_have_scores_and_labels_as_in_pyod(size: int, members: int) -> None:
    rows = np.random.default_rng(0).normal(size=(150, 3))
    rows[::30] = 8 * np.vstack([np.eye(3), -np.eye(3)[:2]])
    detector = ZeroShotDetector(contamination=0.1, context_size=size, n_members=members, random_state=0).fit(rows)
    # as PyOD makes them of its scores
    assert detector.threshold_ == pytest.approx(np.percentile(detector.decision_scores_, 90), rel=1e-12)
    np.testing.assert_array_equal(detector.labels_, detector.decision_scores_ > detector.threshold_)
    assert detector.labels_[::30].all()
    assert detector.labels_.sum() == 15
    np.testing.assert_array_equal(detector.decision_scores_, -detector.score_samples(rows))
    np.testing.assert_array_equal(detector.labels_ == 1, detector.predict(rows) == -1)
    again = ZeroShotDetector(contamination=0.1, context_size=size, n_members=members, random_state=0)
    np.testing.assert_array_equal(again.fit_predict(rows), detector.predict(rows))
    assert detector.offset_ == -detector.threshold_


# --- explanations


def test_the_guilty_column_is_named_with_its_value() -> None:
    frame = machines()
    detector = ZeroShotDetector(categorical=["mode"], random_state=0).fit(frame)
    new = pd.DataFrame({"flow": [0.1, 30.0, 0.1], "mode": ["eco", "eco", "turbo"], "count": [2, 2, 2]})
    usual, far, strange = detector.explain(new)
    assert far[0]["feature"] == "flow"
    assert far[0]["value"] == 30.0
    assert strange[0]["feature"] == "mode"
    assert strange[0]["value"] == "turbo"
    assert "turbo" in str(strange)
    assert len(usual) <= 3
    assert [len(one) for one in detector.explain(new, top=1)] == [min(1, len(usual)), 1, 1]
    for top in (0, 1.5, "2", None):
        for method in (detector.explain, detector.attended_context):
            with pytest.raises(ValueError, match="'top' parameter"):
                method(new, top=cast(Any, top))
    assert len(detector.explain(new, top=cast(int, np.int64(1)))[1]) == 1


def test_a_row_of_the_context_is_explained_as_if_it_were_new() -> None:
    rows = np.random.default_rng(0).normal(size=(120, 4))
    rows[:4] = 9 * np.eye(4)
    detector = ZeroShotDetector(n_members=3, random_state=0).fit(rows)
    found = detector.explain(rows[:4])
    assert [one[0]["feature"] for one in found] == [0, 1, 2, 3]
    assert all(one[0]["share"] > 0.5 for one in found)


@pytest.mark.parametrize("as_frame", [False, True])
def test_columns_that_mislead_are_told_by_fit(as_frame: bool) -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=100), np.arange(100), np.full(100, 3.0)])
    detector = ZeroShotDetector()
    with pytest.warns(FomoWarning, match=r"(1|'row') \(monotone counter\); .*; leave them out$") as told:
        detector.fit(pd.DataFrame(rows, columns=["flow", "row", "constant"]) if as_frame else rows)
    assert [Path(one.filename).name for one in told] == [Path(__file__).name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector.fit(rows[:, [0, 2]])


# --- outliers among the rows of fit; arrays of other kinds


@pytest.mark.parametrize(("n", "k", "spread"), [(300, 3, 0.0), (600, 30, 1.0)])
def test_outliers_that_are_alike_do_not_hide_each_other_in_fit(n: int, k: int, spread: float) -> None:
    rng = np.random.default_rng(n + k)
    X = rng.normal(size=(n, 4))
    X[-k:] = 6 + spread * rng.normal(size=(k, 4))
    labels = ZeroShotDetector(random_state=0, contamination=k / n).fit_predict(X)
    assert (labels[-k:] == -1).sum() >= 0.9 * k


@pytest.mark.parametrize("offset", [0.0, 5000.0])
def test_a_training_row_that_is_rounded_is_the_same_row(offset: float) -> None:
    X = np.random.default_rng(0).normal(size=(300, 4))
    X[::60] += 8
    X = X.round(3) * 10 + offset
    X[5, 1] = np.nan
    detector = ZeroShotDetector(random_state=0, alert_rate=0.005).fit(X)
    for rounded in (X.astype(np.float32), X.round(4) + 1e-9):
        np.testing.assert_allclose(detector.score_samples(rounded), -detector.decision_scores_, atol=1e-3)


@pytest.mark.parametrize(("constant", "step"), [(-0.1, 0.0), (1e9, 1e-12)])
def test_another_value_in_a_column_that_varies_little_is_no_training_row(constant: float, step: float) -> None:
    flag = np.arange(300) % 2
    X = np.column_stack([flag, constant * (1 + step * (flag ^ (np.arange(300) % 3 == 0)))])
    detector = ZeroShotDetector().fit(X)
    assert detector.predict(np.vstack([X[:2], [[0, 1.5 * constant], [1, 1e30]]])).tolist() == [1, 1, -1, -1]


def test_a_column_without_values_is_named(inliers: np.ndarray) -> None:
    empty = inliers.copy()
    empty[:, 3] = np.nan
    with pytest.warns(FomoWarning, match="columns without any value are not scored: 3"):
        ZeroShotDetector().fit(empty)


@pytest.mark.parametrize("mark", [-9999.0, np.finfo(np.float64).min])
def test_a_number_that_means_missing_is_missing_in_both_adapters_as_masked_cells_are(
    inliers: np.ndarray, mark: float
) -> None:
    marks: dict[Hashable, Any] = {"*": [65535, mark]}
    frame = pd.DataFrame(inliers[:, :3], columns=list("abc"))
    marked, gaps = frame.copy(), frame.copy()
    marked.loc[5:40, "b"], gaps.loc[5:40, "b"] = mark, np.nan
    expected = ZeroShotDetector(random_state=0).fit(gaps).decision_scores_
    one = ZeroShotDetector(random_state=0, missing_values=marks).fit(marked)
    np.testing.assert_array_equal(one.decision_scores_, expected)
    masked = np.ma.masked_array(marked.to_numpy(), mask=gaps.isna().to_numpy())
    np.testing.assert_array_equal(ZeroShotDetector(random_state=0).fit(masked).decision_scores_, expected)
    streams = FoMoDetector(min_context=50, missing_values=marks), FoMoDetector(min_context=50)
    for stream, rows in zip(streams, (marked, gaps), strict=True):
        stream.learn_many(rows)
    scores = [stream.score_many(rows) for stream, rows in zip(streams, (marked, gaps), strict=True)]
    np.testing.assert_array_equal(scores[0], scores[1])


def test_marks_of_missing_values_are_numbers_by_feature() -> None:
    for wrong in ([-9999], {"b": "x"}, {"b": [True]}):
        with pytest.raises(ValueError, match="missing_values"):
            FoMoDetector(missing_values=cast(Any, wrong))
