"""Feedback: what verdicts change, and that neither their order nor their calls matter."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import MODEL, detector, recovered, state_of, stream

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results, Status
from fomo_stream.errors import SchemaError
from fomo_stream.model.checkpoint import shared_model

# --- feedback


def test_the_first_context_knows_the_verdicts_before_it() -> None:
    one = detector()
    one.process(stream(7))
    one.feedback(np.arange(4), np.ones(4, dtype=bool))
    before = state_of(one)
    with pytest.raises(SchemaError, match="3 rows are too few"):
        one.flush_warm_up()
    assert state_of(one) == before
    one.feedback(np.arange(1), np.zeros(1, dtype=bool))
    one.flush_warm_up()
    assert len(one.cross_scored()) == one.context_rows == 4


def test_a_label_takes_the_record_out_of_every_view_and_leaves_its_neighbours() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=1000, min_context=192, recent_every=64))
    one.process(rng.normal(size=(700, 3)))
    one.feedback(np.arange(600, 700, 2), np.ones(50, dtype=bool))
    one.process(rng.normal(size=(1, 3)))
    assert not np.isin(np.arange(600, 700, 2), one.inspect().reservoir).any()
    one.process(rng.normal(size=(250, 3)))  # all views are renewed
    for view in ("trimmed", "all", "recent", "movement"):
        held = one.inspect().generations[view].numbers
        assert not np.isin(np.arange(600, 700, 2), held).any()
        neighbours = np.isin(np.arange(601, 700, 2), held)
        assert neighbours.mean() > 0.6 if view == "trimmed" else neighbours.all()


def test_feedback_admits_and_what_somebody_vouches_for_is_not_trimmed() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1500, 3))
    rows[700:800] += 15
    one = Detector(shared_model(), 3, DetectorConfig(context_size=2500, admit="feedback"))
    one.process(rows)
    assert not np.isin(np.arange(700, 800), one.inspect().reservoir).any()
    assert one.feedback(np.arange(700, 800), np.zeros(100, dtype=bool)) == 100
    probe = rng.normal(size=(1, 3)) + 15
    one.process(rng.normal(size=(1, 3)))
    before = one.score_rows(probe).by_view[0]
    assert np.isin(np.arange(700, 800), one.inspect().reservoir).all()
    one.process(rng.normal(size=(300, 3)))  # generations later
    after = one.score_rows(probe).by_view[0]
    for view in (0, 1):
        assert after[view] < before[view] - 1
    assert np.isin(np.arange(700, 800), one.inspect().generations["trimmed"].numbers).all()


def test_records_like_known_outliers_score_higher_than_others_as_far_away() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=300))
    one.process(rng.normal(size=(600, 3)))
    like, unlike = np.array([[8.0, 0.0, 0.0]]), np.array([[-8.0, 0.0, 0.0]])  # as far from the middle
    one.process(like + 0.5 * rng.normal(size=(64, 3)))
    other = one.copy()
    one.feedback(np.arange(600, 664), np.ones(64, dtype=bool))
    later = rng.normal(size=(1000, 3))  # some generations later

    def difference(each: Detector) -> float:
        each.process(later)
        return float(each.score_rows(like).logit[0] - each.score_rows(unlike).logit[0])

    assert difference(other) < 0.3  # it does not know that these were outliers
    assert difference(one) > 0.6


def test_a_context_survives_that_all_of_it_is_called_outliers() -> None:
    one = detector()
    one.process(stream(100))
    one.feedback(np.arange(100), np.ones(100, dtype=bool))
    rows = stream(190, 1)
    assert np.isfinite(one.process(rows[:1]).logit).all()  # by the context of before
    assert one.context_rows == 0
    assert np.isfinite(one.process(rows[1:100]).logit).all()
    one.feedback(np.arange(100, 200), np.zeros(100, dtype=bool))
    one.process(stream(190, 2))
    for view in ("trimmed", "all", "recent", "movement"):
        assert (one.inspect().generations[view].numbers >= 100).all()


def test_verdicts_during_the_warm_up_prolong_it_and_can_be_revoked() -> None:
    rows = stream(60)
    one = detector()
    one.process(rows[:19])
    one.feedback(np.arange(19), np.ones(19, dtype=bool))
    one.feedback(np.arange(3), np.zeros(3, dtype=bool))
    status = one.process(rows[19:20]).status
    assert one.context_rows == 4  # the three and the new one
    status += one.process(rows[20:]).status
    assert [s is Status.WARMING_UP for s in status] == [True] * 17 + [False] * 24
    assert {0, 1, 2} <= set(one.inspect().reservoir.tolist())


# --- verdicts

FEATURES = 2
FIELDS = ("remembered_logit", "logit", "by_view", "p_value", "outlier", "generation", "severity")
Verdict = tuple[int, bool]  # number of the record, whether it is an outlier


# verdicts that are given before the same record, of those on one record the last counts; the rows that follow, and keys
Place = tuple[list[Verdict], np.ndarray, list[Key]]


def shifting(n: int, seed: int) -> np.ndarray:
    """Rows, now and then one far off, values missing, and every 130 records a lasting shift."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, FEATURES)) * np.where(rng.random((n, 1)) < 0.1, 9, 1)
    rows += 40 * (np.arange(n) // 130)[:, None]
    rows[rng.random((n, FEATURES)) < 0.05] = np.nan
    return rows


@st.composite
def configs(draw: st.DrawFn) -> DetectorConfig:
    context_size = draw(st.integers(20, 60))
    return DetectorConfig(
        context_size=context_size,
        min_context=draw(st.integers(10, min(30, context_size))),
        admit=draw(st.sampled_from(["auto", "feedback", "all"])),
        lags=draw(st.integers(0, 1)),
        adapt_after=64,
        lag=draw(st.integers(4, 40)),
        recent_every=draw(st.integers(32, 96)),
        calibration_size=60,
        feedback_memory=90,
        refresh=0.1,
        alert_rate=0.1,
    )


@st.composite
def streams(draw: st.DrawFn) -> list[Place]:
    n = 160
    number = draw(st.integers(0, 99))
    rows = shifting(n, number)
    keys = np.random.default_rng(number).choice(np.array([None, "a", "b", "c", "d", "e"], dtype=object), n).tolist()
    cuts = sorted({0, n, *draw(st.sets(st.integers(1, n - 1), min_size=1, max_size=5))})
    places: list[Place] = []
    judged: list[int] = []
    for first, stop in pairwise(cuts):
        back = draw(st.lists(st.integers(1, min(first, 100)), max_size=15)) if first else []
        again = draw(st.lists(st.sampled_from(judged[-20:]), max_size=8)) if judged else []
        numbers = [*(first - k for k in back), *again]
        places.append(([(number, draw(st.booleans())) for number in numbers], rows[first:stop], keys[first:stop]))
        judged += numbers
    return places


def give(one: Detector, verdicts: list[Verdict]) -> int:
    numbers = np.array([number for number, _ in verdicts], dtype=np.int64)
    return one.feedback(numbers, np.array([outlier for _, outlier in verdicts]))


def assert_same(found: Results, expected: Results, at: slice) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name)[at], err_msg=name)


def in_calls(verdicts: list[Verdict], data: st.DataObject) -> list[list[Verdict]]:
    """The verdicts that count in any order, others on the same records before them, in several calls."""
    given = data.draw(st.permutations(list(dict(verdicts).items())))
    for number, outlier in data.draw(st.permutations(given)):
        if data.draw(st.booleans()):
            given.insert(data.draw(st.integers(0, given.index((number, outlier)))), (number, not outlier))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(given)), max_size=4)))
    return [given[a:b] for a, b in zip([0, *cuts], [*cuts, len(given)], strict=True)]


@settings(max_examples=6)
@given(configs(), streams(), st.data())
def test_how_verdicts_are_split_over_calls_makes_no_difference(
    config: DetectorConfig, places: list[Place], data: st.DataObject
) -> None:
    """Nor does a recovery between them, or that some rows are scored before them and learned after them."""
    whole, other = (Detector(MODEL, FEATURES, config) for _ in range(2))
    for verdicts, rows, keys in places:
        give(whole, list(dict(verdicts).items()))
        expected = whole.process(rows, keys)
        n = data.draw(st.integers(0, min(config.lag, len(rows))))
        asked = other.peek(rows[:n], keys[:n])
        for call in in_calls(verdicts, data):
            give(other, call)
            if data.draw(st.booleans()):
                other = recovered(cast(dict[str, bytes], other.copy().changes()), config=config)
        assert_same(other.score_rows(rows[:1], keys[:1]), expected, slice(0, 1))
        if not other.generation:
            assert (expected.generation[: other.room] == 0).all()
        other.learn(asked)
        if n < len(rows):
            assert_same(other.process(rows[n:], keys[n:]), expected, slice(n, None))
    assert state_of(whole) == state_of(other)
