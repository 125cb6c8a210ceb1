"""Verdicts on records, and what becomes of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import state_of
from streams import SMALL, context_of, detector, generation_of, pool_of, same, stream

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


def test_a_label_takes_the_record_out_of_every_view_and_leaves_its_neighbours() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=1000, min_context=192, recent_every=64))
    one.process(rng.normal(size=(700, 3)))
    one.feedback(np.arange(600, 700, 2), np.ones(50, dtype=bool))
    one.process(rng.normal(size=(1, 3)))
    assert not np.isin(np.arange(600, 700, 2), pool_of(one)).any()
    one.process(rng.normal(size=(250, 3)))  # all views are renewed
    for view in ("trimmed", "all", "recent", "movement"):
        held = context_of(one, view)
        assert not np.isin(np.arange(600, 700, 2), held).any()
        neighbours = np.isin(np.arange(601, 700, 2), held)
        assert neighbours.mean() > 0.6 if view == "trimmed" else neighbours.all()


def test_feedback_admits_and_what_somebody_vouches_for_is_not_trimmed() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1500, 3))
    rows[700:800] += 15
    one = Detector(shared_model(), 3, DetectorConfig(context_size=2500, admit="feedback"))
    one.process(rows)
    assert not np.isin(np.arange(700, 800), pool_of(one)).any()
    assert one.feedback(np.arange(700, 800), np.zeros(100, dtype=bool)) == 100
    probe = rng.normal(size=(1, 3)) + 15
    one.process(rng.normal(size=(1, 3)))
    before = one.score_rows(probe).by_view[0]
    assert np.isin(np.arange(700, 800), pool_of(one)).all()
    one.process(rng.normal(size=(300, 3)))  # generations later
    after = one.score_rows(probe).by_view[0]
    for view in (0, 1):
        assert after[view] < before[view] - 1
    assert np.isin(np.arange(700, 800), context_of(one, "trimmed")).all()


def test_likeness_to_known_outliers_is_taken_once() -> None:
    one = Detector(shared_model(), 3, DetectorConfig(context_size=300))
    one.process(np.random.default_rng(0).normal(size=(600, 3)))
    one.feedback(np.arange(500, 564), np.ones(64, dtype=bool))
    one.process(np.random.default_rng(1).normal(size=(1000, 3)))
    made = {view.name: generation_of(one, view.name) for view in one.views}
    assert [name for name, generation in made.items() if generation.outliers is not None] == ["all"]
    assert [name for name, generation in made.items() if generation.ranges is not None] == ["all"]
    assert [generation.once for generation in made.values()] == [0, 4, 0, 0]


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
    other = one.copy()
    one.feedback(np.arange(600, 664), np.ones(64, dtype=bool))
    later = rng.normal(size=(1000, 3))  # some generations later

    def difference(each: Detector) -> float:
        each.process(later)
        return float(each.score_rows(like).logit[0] - each.score_rows(unlike).logit[0])

    assert difference(other) < 0.3  # it does not know that these were outliers
    assert difference(one) > 0.6


@cache
def after_500(seed: int) -> Detector:
    """A detector that has processed so many rows; to be copied."""
    one = detector()
    one.process(stream(500, seed))
    return one


@settings(max_examples=6)
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
    for view in ("trimmed", "all", "recent", "movement"):
        assert (context_of(one, view) >= 100).all()


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


def test_an_incident_that_feedback_calls_outliers_enters_no_view() -> None:
    rng = np.random.default_rng(0)
    config = DetectorConfig(context_size=100, min_context=50, adapt_after=100, recent_every=32)
    one = Detector(shared_model(), 3, config)
    one.process(rng.normal(size=(300, 3)))
    for first in range(300, 380, 20):
        one.process(rng.normal(size=(20, 3)) + 20)
        one.feedback(np.arange(first, first + 20), np.ones(20, dtype=bool))
    one.process(rng.normal(size=(100, 3)))
    assert one.summary.regime == 1
    assert not np.isin(np.arange(300, 380), pool_of(one)).any()
    assert not np.isin(np.arange(300, 380), context_of(one, "recent")).any()


def test_a_new_feature_may_come_when_outliers_are_known() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 2, DetectorConfig(context_size=50, min_context=20))
    one.process(rng.normal(size=(400, 2)))
    one.feedback(np.arange(300, 340), np.ones(40, dtype=bool))
    one.process(rng.normal(size=(700, 2)))
    assert generation_of(one, "all").outliers is not None
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
