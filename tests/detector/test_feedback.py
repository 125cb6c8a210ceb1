"""Verdicts on records, and what becomes of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import state_of
from streams import SMALL, detector, pool_of, same, stream

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Status
from fomo_stream.errors import SchemaError
from fomo_stream.model.checkpoint import shared_model


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


def test_feedback_removes_and_admits_and_recalibrates() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1500, 3))
    rows[700:800] += 15
    one = Detector(shared_model(), 3, DetectorConfig(context_size=2500))
    one.process(rows)
    held = set(pool_of(one).tolist())
    assert not held & set(range(710, 790))
    taken = sorted(held & set(range(1000, 1200)))[:50]
    assert one.feedback(np.array([*range(700, 800), *taken]), np.array([False] * 100 + [True] * 50)) == 150
    one.process(rng.normal(size=(1, 3)))
    held = set(pool_of(one).tolist())
    assert set(range(700, 800)) <= held
    assert not held & set(taken)
    probe = rng.normal(size=(1, 3)) + 15
    before = one.score_rows(probe).logit[0]
    one.process(rng.normal(size=(600, 3)))  # a generation later
    assert one.score_rows(probe).logit[0] < before - 1
    assert np.isin(np.arange(700, 800), one.context_numbers).all()  # what somebody vouches for is not trimmed


def test_outliers_by_feedback_are_no_standard_for_others() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1200, 3))
    wrong = rng.random(1200) < 0.05
    wrong[:200] = False
    rows[wrong] += 9
    one = Detector(shared_model(), 3)
    one.process(rows)
    probe = np.full((1, 3), 9.0)
    assert not one.score_rows(probe).outlier[0]  # one in twenty were like this
    one.feedback(np.flatnonzero(wrong), np.ones(wrong.sum(), dtype=bool))
    assert one.score_rows(probe).outlier[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_records_like_known_outliers_score_higher_than_others_as_far_away(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=300))
    one.process(rng.normal(size=(600, 3)))
    like, unlike = np.array([[8.0, 0.0, 0.0]]), np.array([[-8.0, 0.0, 0.0]])  # as far from the middle
    one.process(like + 0.5 * rng.normal(size=(64, 3)))

    def difference() -> float:
        return float(one.score_rows(like).logit[0] - one.score_rows(unlike).logit[0])

    before = difference()
    one.feedback(np.arange(600, 664), np.ones(64, dtype=bool))
    one.process(rng.normal(size=(1000, 3)))  # some generations later
    assert abs(before) < 0.3
    assert difference() > 0.6


@cache
def after_500(seed: int) -> Detector:
    """A detector that has processed so many rows; to be copied."""
    one = detector()
    one.process(stream(500, seed))
    return one


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_feedback_is_idempotent_and_its_order_does_not_matter(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2))
    numbers = data.draw(st.lists(st.integers(250, 520), unique=True, max_size=40))
    outlier = {number: data.draw(st.booleans()) for number in numbers}
    shuffled = data.draw(st.permutations(numbers))
    one, other = after_500(seed).copy(), after_500(seed).copy()
    for each, order in ((one, numbers), (other, shuffled)):
        given, verdict = np.array(order, dtype=np.int64), np.array([outlier[n] for n in order], dtype=bool)
        oldest = max(0, 500 - SMALL.history_rows)
        known = (given >= oldest) & (given < 500)
        assert each.feedback(given, verdict) == known.sum()
        assert each.feedback(given, verdict) == 0
    assert same(one.process(stream(200, 5)), other.process(stream(200, 5)))


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
    assert (one.context_numbers >= 100).all()


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
    assert {0, 1, 2} <= set(pool_of(one).tolist())


def test_feedback_can_keep_an_incident_from_becoming_a_regime() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=100, min_context=50, adapt_after=100))
    one.process(rng.normal(size=(300, 3)))
    held = one.context_rows
    for first in range(300, 900, 60):
        one.process(rng.normal(size=(60, 3)) + 20)
        one.feedback(np.arange(first, first + 60), np.ones(60, dtype=bool))
    assert one.regime == 1
    assert one.context_rows == held


def test_a_new_feature_may_come_when_outliers_are_known() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 2, DetectorConfig(context_size=50, min_context=20))
    one.process(rng.normal(size=(400, 2)))
    one.feedback(np.arange(300, 340), np.ones(40, dtype=bool))
    one.process(rng.normal(size=(700, 2)))
    assert one._state.timeline.current is not None
    assert one._state.timeline.current.result().outliers is not None
    assert np.isfinite(one.widened(3).process(rng.normal(size=(10, 3))).logit).all()


def test_a_verdict_can_be_revoked() -> None:
    rows = stream(150)
    one = detector()
    one.process(rows[:148])
    number = pool_of(one)[-1:]
    for outlier, row in ((True, 148), (False, 149)):
        one.feedback(number, np.array([outlier]))
        one.process(rows[row : row + 1])  # takes effect now
        assert (number in pool_of(one)) != outlier


def test_a_verdict_on_a_record_in_quarantine_is_heeded() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 3, DetectorConfig(min_context=192))
    one.process(rng.normal(size=(320, 3)))
    newest = np.arange(310, 320)
    one.feedback(newest, np.ones(10, dtype=bool))
    one.process(rng.normal(size=(64, 3)))
    held = pool_of(one)
    assert not np.isin(newest, held).any()
    assert np.isin(np.arange(320, 340), held).all()
