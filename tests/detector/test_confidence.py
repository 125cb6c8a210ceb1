"""Confidence: low where a context is small or in dispute, and the same bits whatever the way to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitions import MODEL
from streams import SMALL, detector, generation_of, stream

from fomo_stream.detector.calibration import p_values
from fomo_stream.detector.confidence import FEW, SAMPLE_ROWS, Samples, confidence, vote
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.scoring import committee_logits

shares = st.floats(1e-4, 1.0)


@given(shares, shares)
def test_a_rarer_record_is_more_odd_to_a_context(one: float, other: float) -> None:
    a, b = vote(np.array([min(one, other), max(one, other)]))
    assert -1 < b <= a < 1
    assert vote(np.array([0.05]))[0] == 0


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6))
def test_confidence_is_full_where_all_agree_and_none_where_they_contradict_each_other(said: list[float]) -> None:
    votes = [np.array([one, 1.0, -1.0]) for one in said]
    found = confidence(votes)
    assert 0 <= found[0] <= 1
    np.testing.assert_array_equal(found[1:], 1.0)
    np.testing.assert_allclose(confidence([*votes, *(-one for one in votes)]), 0.0, atol=1e-12)


def test_a_small_context_has_little_confidence() -> None:
    for rows in (4, 20, 60, 300):
        one = detector(DetectorConfig(min_context=rows, context_size=300))
        found = one.process(np.random.default_rng(0).normal(size=(rows + 32, 3))).confidence
        assert np.isnan(found[:rows]).all()
        assert (found[rows:] <= rows / (rows + FEW)).all()


@pytest.mark.parametrize("views", ["default", "fast"])
def test_confidence_is_low_while_the_views_disagree_on_a_shift(views: str) -> None:
    rows = np.random.default_rng(0).normal(size=(2400, 3))
    rows[1200:] += 4
    one = detector(DetectorConfig(context_size=300, recent_every=64, views=(views,)))
    found = one.process(rows).confidence
    before, dispute, after = found[1000:1200].mean(), found[1500:1700].mean(), found[-200:].mean()
    assert dispute < 0.8 * min(before, after)


@given(st.integers(4, 90), st.integers(0, 99))
def test_samples_are_of_the_older_and_the_newer_half_and_are_compared_by_the_fusion(n: int, seed: int) -> None:
    model, rng = shared_model(), np.random.default_rng(seed)
    rows, probe = rng.normal(size=(n, 2)), rng.normal(size=(7, 2)) * 3
    samples = Samples.of(model, rows, (seed,))
    assert samples is not None
    draw, half = np.random.default_rng((seed,)), n // 2
    votes = []
    for first, stop in ((0, half), (half, n)):
        members = first + draw.choice(stop - first, min(SAMPLE_ROWS, half), replace=False)
        (logits,) = committee_logits(model, np.vstack([rows, probe]), members[None])
        votes.append(vote(p_values(logits[n:], np.sort(np.delete(logits[:n], members)))))
    np.testing.assert_array_equal(samples.vote(model, probe), (votes[0] + votes[1]) / 2)


def test_samples_are_asked_about_doubtful_records_alone() -> None:
    one = detector()
    one.process(stream(200))
    made, probe = generation_of(one, "all"), stream(200, seed=1)
    own, of_samples = made.votes(one.model, probe, made.logits(one.model, probe))
    doubtful = p_values(made.logits(one.model, probe), made.own) < 0.1
    assert 5 < doubtful.sum() < 150
    np.testing.assert_array_equal(of_samples[~doubtful], own[~doubtful])
    assert (of_samples[doubtful] != own[doubtful]).mean() > 0.9


def test_a_recovered_detector_has_the_same_samples_and_confidence() -> None:
    one = detector()
    one.process(stream(260))
    again = detector()
    again.recover({key: value for key, value in one.copy().changes().items() if value is not None})
    more = stream(600)[260:]
    np.testing.assert_array_equal(again.process(more).confidence, one.process(more).confidence)


def test_where_samples_would_cost_too_much_the_views_speak_alone() -> None:
    one = Detector(MODEL, 2, SMALL)  # as with a model of raw features, or the kernel of torch
    found = one.process(np.random.default_rng(0).normal(size=(300, 2)))
    assert generation_of(one, "all").samples is None
    assert np.isfinite(found.confidence[SMALL.min_context :]).all()
