"""`FoMoDetector`: River's contract, and its results beside those of the detector that it is made of."""

from __future__ import annotations

import math
import pickle
import random
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from river import checks

from fomo_stream import Detector, DetectorConfig, FoMoDetector, ZeroShotDetector, load_model
from fomo_stream.detector.results import Results
from fomo_stream.errors import ConfigError, FomoWarning, SchemaError, StateError
from fomo_stream.model import scoring
from fomo_stream.model.architecture import Model
from fomo_stream.records.derivations import parse_derivations, split_derivations
from fomo_stream.records.derived import DerivedFeatures

# --- river

Record = dict[str, Any]


MAX_RECORDS = 320  # of a check's data: the last of them are scored by a second generation


class GeneratedCreditCard:
    """Stands in for River's downloaded data set: numeric features, rare far records. Each takes some milliseconds, so
    checks that ask for thousands get `MAX_RECORDS`."""

    def take(self, n: int) -> Iterator[tuple[Record, int]]:
        rng = random.Random(0)
        for _ in range(min(n, MAX_RECORDS)):
            fraud = rng.random() < 0.05
            x = {f"V{j}": rng.gauss(0, 6 if fraud else 1) for j in range(8)}
            yield {**x, "Amount": rng.expovariate(0.1)}, int(fraud)


def river_checks() -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("river.datasets.CreditCard", GeneratedCreditCard)
        models = [FoMoDetector(**params) for params in FoMoDetector._unit_test_params()]
        return [pytest.param(m, c, id=c.__name__) for m in models for c in checks.yield_checks(m)]


@pytest.mark.parametrize(("model", "check"), river_checks())
def test_river_contract(model: FoMoDetector, check: Callable[[Any], None]) -> None:
    check(model.clone())


@pytest.fixture
def _short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 records in place of 5,000."""
    monkeypatch.setattr(DetectorConfig, "history_rows", 1000)


@pytest.mark.usefixtures("_short_memory")
def test_memory_stays_the_same_however_long_the_stream() -> None:
    """River's own check would pass a detector that keeps every record: it lets the second half add thrice the first."""
    detector = FoMoDetector(context_size=20, min_context=10, adapt_after=100, views="fast")
    sizes = []
    for seed in range(6):
        detector.learn_many(records(600, seed))
        sizes.append(detector._raw_memory_usage)
    # the size goes up and down with generations that are being built
    assert min(sizes[4:]) - max(sizes[2:4]) < 10_000  # of 600 records more


def records(n: int, seed: int = 0) -> list[Record]:
    rng = random.Random(seed)
    return [{"a": rng.gauss(0, 1), "b": rng.gauss(5, 2), "c": rng.random()} for _ in range(n)]


def taught(n: int = 150) -> FoMoDetector:
    detector = FoMoDetector(context_size=100, min_context=50)
    detector.learn_many(records(n))
    return detector


def test_many_at_once_are_scored_and_learned_as_one_by_one() -> None:
    """Scores are the same bits until a generation takes effect, which scores the earlier records again."""
    rng = random.Random(3)
    batch = [r if rng.random() > 0.05 else {name: v + 12 for name, v in r.items()} for r in records(300, 3)]
    at_once, one_by_one = taught(), taught()
    many = at_once.score_many(batch)
    at_once.learn_many(batch)
    for i, record in enumerate(batch):
        if i < 40:
            assert one_by_one.score_one(record) == (many[i] if i < 6 else pytest.approx(many[i], abs=0.15))
        one_by_one.learn_one(record)
    probe = records(20, 3)
    for method in ("score_many", "p_value_many", "is_outlier_many", "explain_many"):
        assert list(getattr(at_once, method)(probe)) == list(getattr(one_by_one, method)(probe))


def test_feedback_takes_a_record_into_the_context_and_out_of_it() -> None:
    detector = FoMoDetector(context_size=1000, min_context=50)  # enough room for all
    detector.learn_many(records(150))
    strange = {"a": 9.0, "b": 30.0, "c": 5.0}
    alone = detector.p_value_one(strange)
    detector.learn_many([strange] * 10 + records(50, 4))
    copy = pickle.loads(pickle.dumps(detector))
    for one in (detector, copy):
        one.feedback_many([strange] * 10, [False] * 10)
        one.learn_many(records(400, 5))
    known = detector.p_value_one(strange)
    assert known == copy.p_value_one(strange) > 2 * alone
    for _ in range(3):  # all have a verdict: the last is revoked, and nothing else, however often
        detector.feedback_many([strange], [True])
    detector.learn_many(records(400, 6))
    assert detector.p_value_one(strange) > 2 * alone


# --- categories and lags


def lagged(**changes: Any) -> FoMoDetector:
    return FoMoDetector(**{"context_size": 100, "min_context": 50, "lags": 2, **changes})


@pytest.mark.parametrize("detector", [FoMoDetector, ZeroShotDetector])
def test_the_earlier_name_of_a_parameter_works_with_a_warning(detector: Any) -> None:
    with pytest.warns(FomoWarning, match="kernel is called backend now"):
        one = detector(kernel="torch")
    assert one.backend == "torch"
    state = one.__getstate__() or one.__dict__
    older = detector.__new__(detector)
    older.__setstate__(
        {"kernel": state["backend"], **{name: part for name, part in state.items() if name != "backend"}}
    )
    assert older.backend == "torch"
    with pytest.warns(FomoWarning):
        assert load_model("default", "cpu", **{"kernel": "torch"}).kernel == "torch"


def test_a_new_feature_is_as_if_all_records_before_had_lacked_it() -> None:
    """With keys, totals and verdicts, and from a pickle."""
    rng = random.Random(0)

    def made(n: int, **more: Any) -> list[Record]:
        fields = [{"a": rng.gauss(0, 1), "total": 2.0 * i + rng.random(), "who": rng.choice("pqr")} for i in range(n)]
        return [record | more for record in fields]

    first, later = made(400), made(300, new=1.0)
    one, other = (FoMoDetector(**SIZES, key="who", counters=["total"]) for _ in range(2))
    one.learn_many(first)
    other.learn_many([record | {"new": None} for record in first])
    for each in (one, other):
        each.feedback_many(first[200:260], [True] * 60)
    one = pickle.loads(pickle.dumps(one))
    for part in (later[:1], later[1:200], later[200:]):
        for each in (one, other):
            each.learn_many(part)
            each.feedback_many(first[100:101], [True])
        np.testing.assert_array_equal(one.score_many(later), other.score_many(later))
    np.testing.assert_array_equal(one.p_value_many(later), other.p_value_many(later))
    assert one.explain_one(later[0] | {"new": 9.0}) == other.explain_one(later[0] | {"new": 9.0})


@pytest.mark.usefixtures("_short_memory")
def test_after_a_long_stream_a_new_feature_changes_little_at_first() -> None:
    """More records than are learned again: usual ones are as usual as before, and odd ones as odd."""
    detector = FoMoDetector(context_size=300)
    detector.learn_many(records(2000))
    usual = records(300, 5)
    odd = [record | {"a": 30.0} for record in usual]
    before = detector.score_many(usual), detector.score_many(odd)
    detector.learn_many([record | {"new": 1.0} for record in records(50, 6)])
    after = detector.score_many(usual), detector.score_many(odd)
    assert np.corrcoef(before[0], after[0])[0, 1] > 0.9
    assert np.abs(before[0].mean() - after[0].mean()) < 0.05
    assert min(before[1].min(), after[1].min()) > 0.99
    assert detector.is_outlier_one(odd[0])
    assert not detector.is_outlier_one(usual[0])


def test_what_is_gone_is_said() -> None:
    with pytest.raises(ConfigError, match="missing_is is gone"):
        cast(Any, FoMoDetector)(missing_is="odd")


def test_a_state_of_another_version_is_refused_however_often_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(taught())
    monkeypatch.setattr("fomo_stream.detector.config.FORMAT", 99)
    copy = pickle.loads(pickled)
    for _ in range(2):
        with pytest.raises(StateError, match="another version"):
            copy.score_one({"a": 1.0})


@pytest.mark.filterwarnings("ignore:FoMoDetector. no categories")
def test_pickle_goes_on_where_it_stopped_and_carries_no_weights() -> None:
    detector = lagged(categorical=("a",))
    detector.learn_many(records(150))
    copy = pickle.loads(pickle.dumps(detector))
    again = pickle.loads(pickle.dumps(copy))  # before the first use
    batch = records(400, 7)
    for one in (detector, copy, again):
        one.learn_many(batch)
    probe = records(20, 8)
    np.testing.assert_array_equal(detector.score_many(probe), copy.score_many(probe))
    np.testing.assert_array_equal(detector.score_many(probe), again.score_many(probe))
    assert b"fusion_raw" not in pickle.dumps(detector)


# --- river results

SIZES: dict[str, Any] = {"context_size": 100, "min_context": 50, "alert_rate": 0.05}
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
    values = rows(230)
    values[200, 2] += 20
    core, detector, outliers = in_core(values), FoMoDetector(**SIZES), 0
    for i, x in enumerate(as_records(values)):
        if i == 50 or i >= 190:
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
    compute = scoring.score_in_views

    def counted(model: Model, found: np.ndarray, *given: np.ndarray) -> np.ndarray:
        scored.append(len(found))
        return compute(model, found, *given)

    monkeypatch.setattr("fomo_stream.detector.detector.score_in_views", counted)
    for x in as_records(rows(5, 1)):
        scored.clear()
        detector.is_outlier_one(x)
        detector.p_value_one(x)
        detector.score_one(dict(reversed(x.items())))
        detector.explain_one(x)
        detector.learn_one(x)
        assert scored == [1]


def test_threads_can_score_while_others_learn() -> None:
    detector, rng = FoMoDetector(context_size=60, min_context=20), random.Random(0)
    given = [{"a": rng.gauss(0, 1), "b": rng.gauss(0, 1)} for _ in range(800)]
    detector.learn_many(given[:100])

    def work(at: int) -> float:
        score = detector.score_one(given[at])
        if at % 4 == 0:
            detector.learn_one(given[at])
        return score

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            scores = list(pool.map(work, range(100, 800)))
    finally:
        sys.setswitchinterval(switch_s)
    assert all(0.0 <= score < 1.0 for score in scores)
    assert detector._inner.detector is not None
    assert detector._inner.detector.records == 100 + 175


def test_what_was_scored_before_a_change_is_not_used_after_it() -> None:
    detector = FoMoDetector(**SIZES)
    detector.learn_many(as_records(rows(260)))
    x = {"flow": 0.3, "pressure": 9.0, "speed": 0.1}
    before = detector.p_value_one(x)
    odd = rows(260)[::40]
    detector.feedback_many(as_records(odd), [True] * len(odd))  # odd ones leave the scores that it is compared with
    assert detector.p_value_one(x) < before


# --- explanations


@pytest.mark.parametrize("names", [("flow", "speed", "mode"), (1, ("a", 2), None), ("a.b", "1", True)])
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
    assert number["range"] is not None
    assert number["usual"] is not None
    low, high = number["range"]
    assert 2 < low < number["usual"] < high < 8
    assert category["feature"] == names[2]
    assert (category["cause"], category["value"], category["frequency"]) == ("category", "new", 0.0)
    assert 0.5 < number["share"] <= 1


def test_an_explanation_is_a_list_and_a_sentence_and_changes_nothing(trained: FoMoDetector) -> None:
    before = pickle.dumps(trained)
    explained = trained.explain_one({"flow": 0.1, "pressure": 0.2, "speed": -30.0})
    assert explained[0]["feature"] == "speed"
    assert "speed" in str(explained)
    assert "-30" in str(explained)
    assert str(explained) == explained.sentence
    assert pd.DataFrame(explained)["feature"].tolist() == [one["feature"] for one in explained]
    assert len(explained) <= 3
    records = as_records(rows(9))
    assert trained.explain_many(one for one in records) == trained.explain_many(records)
    assert pickle.dumps(trained) == before


# --- frames


def rows_of_frame(n: int) -> pd.DataFrame:
    return pd.DataFrame(rows(n, 3), columns=NAMES, index=pd.date_range("2024-01-01", periods=n, freq="h"))


METHODS = {"score_many": "score", "p_value_many": "p_value", "is_outlier_many": "is_outlier"}


@pytest.mark.parametrize("method", METHODS)
def test_a_frame_gets_a_series_with_its_index_and_records_may_come_from_a_generator(
    trained: FoMoDetector, method: str
) -> None:
    frame, find, name = rows_of_frame(8), getattr(trained, method), METHODS[method]
    records: list[Any] = frame.to_dict("records")
    found, expected = find(frame), find(records)
    assert isinstance(expected, np.ndarray)
    pd.testing.assert_series_equal(found, pd.Series(expected, index=frame.index, name=name))
    assert found.dtype == (bool if name == "is_outlier" else float)
    assert find(pa.Table.from_pandas(frame, preserve_index=False)).to_pylist() == expected.tolist()
    np.testing.assert_array_equal(find(one for one in records), expected)


EMPTY: list[Any] = [
    [],
    pd.DataFrame(),
    pd.DataFrame({"flow": []}),
    pd.DataFrame(index=["a", "b"]),
    np.array([]),
    np.zeros((0, 3)),
    pa.table({}),
]


@pytest.mark.filterwarnings("ignore:FoMoDetector. a record gets no score")
@pytest.mark.parametrize("empty", EMPTY, ids=range(len(EMPTY)))
@pytest.mark.parametrize("is_new", [True, False])
def test_empty_input_is_fine_for_every_method(trained: FoMoDetector, empty: Any, is_new: bool) -> None:
    detector = FoMoDetector(**SIZES) if is_new else trained
    n, record = len(empty), as_records(rows(1))[0]
    nan = float("nan")
    unknowns = (0.0, 1.0, False) if is_new else (nan, nan, False)
    for method, unknown in zip(METHODS, unknowns, strict=True):
        found = getattr(detector, method)(empty)
        np.testing.assert_array_equal(found, [unknown] * n)
        if isinstance(empty, pd.DataFrame):
            pd.testing.assert_index_equal(found.index, empty.index)
    assert detector.explain_many(empty) == [[]] * n
    before = detector.score_one(record)
    detector.learn_many(empty)
    detector.feedback_many(empty, [False] * n)
    if not is_new:  # features that it learns from a table without rows may change last digits
        assert detector.score_one(record) == pytest.approx(before, abs=0.05)


# --- verdicts


@pytest.mark.parametrize("verdicts", [[True], [True, False, True], [True, "no"], [True, None], [0.0, np.nan], [1, -1]])
def test_what_is_no_verdict_on_each_record_is_refused(trained: FoMoDetector, verdicts: list[Any]) -> None:
    n = len(verdicts)
    words = "verdict" if n == 2 else f"{n} verdicts? for 2 records"
    with pytest.raises(SchemaError, match=words):
        trained.feedback_many(as_records(rows(2)), verdicts)


# --- keys


def readings(n: int) -> list[Record]:
    """Records of 40 devices, each with a level of its own."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 40, n)
    flow, noise = np.linspace(10, 200, 40)[which] + rng.normal(size=n), rng.normal(size=n)
    columns = which.tolist(), flow.tolist(), noise.tolist()
    return [{"device": f"d{d}", "flow": v, "noise": e} for d, v, e in zip(*columns, strict=True)]


def test_a_record_without_a_key_is_of_the_series_of_all_such_records() -> None:
    """But a text that means missing elsewhere is a key: NA is Namibia."""
    records = readings(900)

    def learned(key: Any) -> FoMoDetector:
        detector = FoMoDetector(key="device", min_context=100)
        detector.learn_many([record | {"device": key} if i % 3 else record for i, record in enumerate(records)])
        return detector

    ask, without = {"flow": 20.0, "noise": 0.0}, learned(None)
    assert without.score_one(ask) == learned(pd.NA).score_one(ask)
    for absent in (None, float("nan"), pd.NaT, np.datetime64("NaT"), ""):
        assert without.score_one(ask) == without.score_one(ask | {"device": absent})
    na, pl = (learned(name).score_one(ask | {"device": name}) for name in ("NA", "PL"))
    assert na == pl
    with pytest.raises(ConfigError, match=r"key is the name of one field, not \['device'\]"):
        FoMoDetector(key=["device"])  # type: ignore[arg-type]  # the mistake that is refused


def test_a_reference_decides_from_the_first_record_on() -> None:
    rng = np.random.default_rng(0)
    good = [{"machine": "ab"[i % 2], "load": rng.normal(50 * (i % 2)), "heat": rng.normal()} for i in range(800)]
    detector = FoMoDetector(key="machine", reference=pd.DataFrame(good))
    odd = {"machine": "a", "load": 50.0, "heat": 0.0}
    assert (detector.is_outlier_one(good[0]), detector.is_outlier_one(odd)) == (False, True)
    assert "in the reference usually" in str(detector.explain_one(odd))
    for _ in range(300):
        detector.learn_one(odd)
    again = pickle.loads(pickle.dumps(detector))
    for one in (detector, again):
        assert one.is_outlier_one(odd)
        assert one.score_one(odd) == detector.score_one(odd)
    with pytest.warns(FomoWarning, match="the reference has no value of 'new'"):
        detector.learn_one(odd | {"new": 1.0})
    assert detector.is_outlier_one(odd | {"new": 1.0})
    with pytest.warns(FomoWarning, match="the reference has no value of .*'device'"):
        FoMoDetector(key="device", reference=good)
    of_iterator = FoMoDetector(key="machine", reference=iter(good))
    assert of_iterator.clone().is_outlier_one(odd)
    none: list[dict[str, Any]] = [{"load": None, "heat": math.nan}]
    assert FoMoDetector(reference=[*good, *none * 5000]).score_one(odd) == FoMoDetector(reference=good).score_one(odd)
    with pytest.raises(SchemaError, match="20 usable rows"):
        FoMoDetector(reference=good[:20])
    for nothing in ([], none, pd.DataFrame()):
        with pytest.raises(SchemaError, match="no record with a value"):
            FoMoDetector(reference=nothing)


# --- derived features


def payments(n: int) -> list[Record]:
    rng, at = random.Random(0), datetime(2026, 1, 1, tzinfo=UTC)
    found = []
    for _ in range(n):
        at += timedelta(seconds=rng.choice([5, 400, 4000]))
        user = rng.choice("uvw")
        found.append({"user": user, "amount": rng.gauss(20, 5), "device": user + rng.choice("aaab"), "at": at})
    return found


DERIVED: dict[str, Any] = {
    "derive": ["count(10m), sum(amount, 1h)", "new(device)", "change(amount)"],
    "key": "user",
    "time": "at",
}


def test_derived_features_are_those_of_a_stream_job() -> None:
    """From records one by one, in parts, as a frame and from a pickle; looks change nothing."""
    given = payments(400)
    job = DerivedFeatures(parse_derivations(split_derivations(DERIVED["derive"])), 100)
    times = [round(one["at"].timestamp() * 1000) for one in given]
    made = job.follow(given, [record["user"] for record in given], times)
    made = [{name: value for name, value in one.items() if name not in ("at", "device")} for one in made]
    plain = FoMoDetector(**SIZES, key="user")
    plain.learn_many(made[:300])
    one_by_one, in_parts, framed = (FoMoDetector(**SIZES, **DERIVED) for _ in range(3))
    for record in given[:300]:
        one_by_one.score_one(record)
        one_by_one.learn_one(record)
    in_parts.learn_many(given[:170])
    in_parts = pickle.loads(pickle.dumps(in_parts))
    in_parts.score_many(given[150:200])
    in_parts.learn_many(given[170:300])
    framed.learn_many(pd.DataFrame(given[:300]))
    wanted = plain.score_many(made[300:])
    assert len(set(wanted)) > 50
    for each in (one_by_one, in_parts, framed):
        np.testing.assert_array_equal(each.score_many(given[300:]), wanted)
    np.testing.assert_array_equal(framed.score_many(pd.DataFrame(given[300:])).to_numpy(), wanted)
    odd = [{**given[-1], "at": given[-1]["at"] + timedelta(seconds=i)} for i in range(20)]
    assert "count(10m)" in str(one_by_one.explain_many(odd)[-1])
    assert math.isnan(one_by_one.score_one({"user": "u", "at": given[-1]["at"]}))


def test_feedback_finds_a_record_whatever_is_derived_of_it() -> None:
    given = payments(400)
    told, silent = (FoMoDetector(**SIZES, **DERIVED) for _ in range(2))
    for each in (told, silent):
        each.learn_many(given[:300])
    told.feedback_many(given[250:280], [True] * 30)
    for each in (told, silent):
        each.learn_many(given[300:])
    assert (told.score_many(given[250:280]) > silent.score_many(given[250:280])).any()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"derive": ["count(10m)"]}, "derive: count(10m) needs time, the name of the field with the time of a record"),
        ({"derive": "cuont(10m)", "time": "at"}, "derive: cuont(10m): there is no such function; did you mean count?"),
        ({"derive": 5}, "derive is a list of names, such as"),
    ],
)
def test_a_derived_feature_that_cannot_be_is_refused(flags: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        FoMoDetector(**flags)
