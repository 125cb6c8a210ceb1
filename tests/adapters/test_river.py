from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from river import checks

from fomo_stream import FoMoDetector
from fomo_stream.errors import StateError

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


def test_memory_stays_the_same_however_long_the_stream() -> None:
    """River's own check would pass a detector that keeps every record: it lets the second half add thrice the first."""
    detector = FoMoDetector(context_size=20, min_context=10, adapt_after=100)
    sizes = []
    for seed in range(6):  # it remembers 5,000 records
        detector.learn_many(records(3000, seed))
        sizes.append(detector._raw_memory_usage)
    # the size goes up and down with generations that are being built
    assert min(sizes[4:]) - max(sizes[2:4]) < 10_000  # of 3,000 records more


def records(n: int, seed: int = 0) -> list[Record]:
    rng = random.Random(seed)
    return [{"a": rng.gauss(0, 1), "b": rng.gauss(5, 2), "c": rng.random()} for _ in range(n)]


def trained(n: int = 150) -> FoMoDetector:
    detector = FoMoDetector(context_size=100, min_context=50)
    detector.learn_many(records(n))
    return detector


def test_many_records_score_as_one_by_one() -> None:
    at_once, one_by_one = trained(), trained()
    assert_many_score_as_one_by_one(at_once, one_by_one, records(40, 1))


def assert_many_score_as_one_by_one(at_once: FoMoDetector, one_by_one: FoMoDetector, batch: list[Record]) -> None:
    """Bit for bit until a generation takes effect, which scores the earlier records again; then nearly."""
    many, n_exact = at_once.score_many(batch), 0
    at_once.learn_many(batch)
    inner = one_by_one._inner.detector
    assert inner is not None
    generation = inner.generation
    for record, score in zip(batch, many.tolist(), strict=True):
        found = one_by_one.score_one(record)
        if inner.generation == generation:
            assert found == score
            n_exact += 1
        assert found == pytest.approx(score, abs=0.15)  # a few ranks among 100 to 200 records
        one_by_one.learn_one(record)
    assert n_exact > 5
    probe = records(20, 3)
    np.testing.assert_array_equal(at_once.score_many(probe), one_by_one.score_many(probe))


def test_frames_arrays_and_dicts_agree() -> None:
    batch = records(30, 1)
    frame = pd.DataFrame(batch)
    np.testing.assert_array_equal(trained().score_many(batch), trained().score_many(frame))
    numbered = FoMoDetector(context_size=100, min_context=50)
    numbered.learn_many(pd.DataFrame(records(150)).to_numpy())
    np.testing.assert_array_equal(trained().score_many(frame), numbered.score_many(frame.to_numpy()))


@pytest.mark.parametrize("scored_first", [False, True])
def test_learning_many_at_once_is_learning_one_by_one(scored_first: bool) -> None:
    rng = random.Random(3)
    batch = [r if rng.random() > 0.05 else {name: v + 12 for name, v in r.items()} for r in records(500, 3)]
    at_once, one_by_one = trained(), trained()
    if scored_first:
        at_once.score_many(batch)
    at_once.learn_many(batch)
    for record in batch:
        one_by_one.learn_one(record)
    assert at_once._inner.detector is not None
    assert one_by_one._inner.detector is not None
    assert at_once._inner.detector.generation > 1
    assert at_once._inner.detector.copy().changes() == one_by_one._inner.detector.copy().changes()


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), "text", 10**400])
def test_values_that_are_no_numbers_count_as_missing(missing: Any) -> None:
    detector = trained()
    assert detector.score_one({"a": 0.1, "b": 5.0, "c": missing}) == detector.score_one({"a": 0.1, "b": 5.0})


def test_features_that_appear_are_learned() -> None:
    detector = trained()
    rng = random.Random(9)
    before = detector.score_one({"a": 0.0, "b": 5.0, "c": 0.5, "new": 1e6})
    assert before == detector.score_one({"a": 0.0, "b": 5.0, "c": 0.5})
    first, *rest = ({**record, "new": rng.gauss(0, 1)} for record in records(1500, 4))
    detector.learn_one(first)
    detector.learn_many(rest)
    assert detector.score_one({"a": 0.0, "b": 5.0, "c": 0.5, "new": 1e6}) > before


def test_an_empty_record_is_scored_and_not_learned() -> None:
    detector = FoMoDetector()
    assert detector.score_one({}) == 0.0
    detector.learn_one({})
    knowing = trained()
    before = pickle.dumps(knowing)
    knowing.learn_one({})
    knowing.learn_one({"a": None, "b": float("nan")})
    assert pickle.dumps(knowing) == before


def logit_of(detector: FoMoDetector, x: Record) -> float:
    """How odd a record is; its score says how rare that is now."""
    return float(detector._inner.results([x], "remembered_logit", 0.0)[0])


def test_feedback_takes_a_record_into_the_context_and_out_of_it() -> None:
    detector = FoMoDetector(context_size=1000, min_context=50)  # enough room for all
    detector.learn_many(records(150))
    strange = {"a": 9.0, "b": 30.0, "c": 5.0}
    alone = logit_of(detector, strange)
    detector.learn_many([strange] * 3 + records(50, 4))
    detector.feedback_many([strange] * 3, [False] * 3)
    detector.learn_many(records(400, 5))
    assert logit_of(detector, strange) < alone - 2.0
    for _ in range(3):  # all have a verdict: the last is revoked, and nothing else, however often
        detector.feedback_many([strange], [True])
    assert logit_of(detector, strange) < alone - 2.0
    detector.learn_many(records(800, 6))
    assert logit_of(detector, strange) < alone - 2.0


def test_feedback_reaches_a_detector_fresh_from_a_pickle() -> None:
    detector = trained()
    copy, ignorant = (pickle.loads(pickle.dumps(detector)) for _ in range(2))
    strange = [{"a": 9.0 + i, "b": 30.0, "c": 5.0} for i in range(40)]
    for one in (detector, copy, ignorant):
        one.learn_many(strange)
    for one in (detector, copy):
        one.feedback_many(strange, [False] * len(strange))
    for one in (detector, copy, ignorant):
        one.learn_many(records(650, 5))
    np.testing.assert_array_equal(detector.score_many(strange), copy.score_many(strange))
    assert (detector.score_many(strange) < ignorant.score_many(strange)).all()


# --- categories and lags


def parcels(n: int, seed: int = 0) -> list[Record]:
    rng = random.Random(seed)
    return [{"weight": rng.gauss(0, 1), "zone": rng.choice([1, 2, 3]), "carrier": rng.choice("xy")} for _ in range(n)]


def test_a_new_category_is_outlying_and_a_missing_one_is_not() -> None:
    detector = FoMoDetector(context_size=100, min_context=50, categorical=("carrier", "zone"))
    detector.learn_many(parcels(150))
    usual = {"weight": 0.0, "zone": 2, "carrier": "x"}
    for strange in ({"carrier": "z"}, {"zone": 4}):
        assert detector.score_one(usual | strange) > 0.95 > detector.score_one(usual)
    for missing in ({"carrier": None}, {"zone": float("nan")}, {"carrier": pd.NA}):
        assert detector.score_one(usual | missing) < 0.9
    assert detector.score_one(usual | {"zone": 2.0}) == detector.score_one(usual | {"zone": "2"})


def test_frames_arrays_and_dicts_agree_on_categories() -> None:
    batch = parcels(150)
    batch[3]["carrier"] = None
    frame = pd.DataFrame(batch).astype({"zone": "category", "carrier": "string"})
    named = FoMoDetector(context_size=100, min_context=50, categorical=("zone", "carrier"))
    framed, numbered = named.clone(), FoMoDetector(context_size=100, min_context=50, categorical=(1, 2))
    named.learn_many(batch)
    framed.learn_many(frame)
    numbered.learn_many(frame.to_numpy())
    probe = parcels(20, 1)
    np.testing.assert_array_equal(framed.score_many(probe), named.score_many(probe))
    np.testing.assert_array_equal(numbered.score_many(pd.DataFrame(probe).to_numpy()), named.score_many(probe))


def lagged(**changes: Any) -> FoMoDetector:
    return FoMoDetector(**{"context_size": 100, "min_context": 50, "lags": 2, **changes})


def test_what_is_learned_is_the_past_of_what_comes_and_scoring_changes_nothing() -> None:
    scoring, silent, other = lagged(views="past"), lagged(views="past"), lagged(views="past")
    for record in records(100):
        scoring.score_one(record)
        scoring.score_one({"a": 99.0})
        for detector in (scoring, silent, other):
            detector.learn_one(record)
    probe = records(20, 1)
    expected = silent.score_many(probe)
    for _ in range(2):
        np.testing.assert_array_equal(scoring.score_many(probe), expected)
    other.learn_one({"a": 30.0, "b": 30.0, "c": 30.0})
    changed = other.score_many(probe) != expected
    assert changed[:2].all()  # the two that have it in their past


def test_a_jump_is_outlying_where_only_the_past_tells() -> None:
    rng = np.random.default_rng(0)
    slow = 10 * np.sin(np.arange(1500) / 30) + rng.normal(0, 0.1, 1500)
    stream = [{"x": x} for x in slow.tolist()]
    jumps = [1300, 1350, 1400, 1450]
    for jump in jumps:
        stream[jump] = {"x": -slow[jump] if abs(slow[jump]) > 4 else slow[jump] + 8}
    ranks = []
    for lags, views in ((0, "all"), (2, "past")):
        detector = FoMoDetector(context_size=300, min_context=100, lags=lags, views=views)
        detector.learn_many(stream[:1250])
        scores = detector.score_many(stream[1250:])
        ranks.append(np.mean([(scores <= scores[jump - 1250]).mean() for jump in jumps]))
    assert ranks[0] < 0.9 < 0.95 < ranks[1]


def test_features_and_categories_that_appear_are_learned_with_their_past() -> None:
    detector = lagged(categorical=("kind",))
    detector.learn_many(records(150))
    known = records(1, 9)[0]
    before = detector.score_one(known | {"new": 1e6, "kind": "odd"})
    assert before == detector.score_one(known)
    rng = random.Random(9)
    detector.learn_many([record | {"new": rng.gauss(0, 1), "kind": "usual"} for record in records(1500, 4)])
    assert detector.score_one(known | {"new": 0.0, "kind": "usual"}) < detector.score_one(
        known | {"new": 0.0, "kind": "odd"}
    )
    assert detector.score_one(known | {"new": 0.0}) < detector.score_one(known | {"new": 1e6})


def test_a_pickle_keeps_the_past_and_the_categories() -> None:
    detector = lagged(categorical=("a",))
    detector.learn_many(records(150))
    copy = pickle.loads(pickle.dumps(detector))
    probe = records(20, 8)
    np.testing.assert_array_equal(detector.score_many(probe), copy.score_many(probe))


def test_a_state_of_another_version_is_refused_however_often_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(trained())
    monkeypatch.setattr("fomo_stream.detector.config.FORMAT", 99)
    copy = pickle.loads(pickled)
    for _ in range(2):
        with pytest.raises(StateError, match="another version"):
            copy.score_one({"a": 1.0})


def test_a_state_of_another_kernel_is_refused() -> None:
    detector = FoMoDetector(context_size=100, min_context=50, kernel="torch")
    detector.learn_many(records(60))
    copy = pickle.loads(pickle.dumps(detector))
    copy._inner.kernel = "numba"  # as if "auto" had chosen another one on the host where it is loaded
    with pytest.raises(StateError, match="kernel is torch in the state, numba now"):
        copy.score_many(records(1))


def test_pickle_goes_on_where_it_stopped_and_carries_no_weights() -> None:
    detector = trained()
    copy = pickle.loads(pickle.dumps(detector))
    again = pickle.loads(pickle.dumps(copy))  # before the first use
    batch = records(400, 7)
    for one in (detector, copy, again):
        one.learn_many(batch)
    probe = records(20, 8)
    np.testing.assert_array_equal(detector.score_many(probe), copy.score_many(probe))
    np.testing.assert_array_equal(detector.score_many(probe), again.score_many(probe))
    assert b"fusion_raw" not in pickle.dumps(detector)
