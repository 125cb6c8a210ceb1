"""What a threshold on the score means: on records as before, on a stream that moves, and on one that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from streams import SMALL, detector, stream

from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.detector import Detector

N, SETTLED = 8000, 5000  # records, and those after which a share is counted
QUICK = DetectorConfig(context_size=300)
Rows = NDArray[np.float64]
Course = Callable[[Rows, Rows], Rows]


def sudden_shift(noise: Rows, time: Rows) -> Rows:
    return noise + 5.0 * (time > 0.5)


def slow_ramp(noise: Rows, time: Rows) -> Rows:
    return noise + 5.0 * time


def growing_variance(noise: Rows, time: Rows) -> Rows:
    return noise * (1 + 2 * time)


def new_cluster(noise: Rows, time: Rows) -> Rows:
    fresh: Rows = (time > 0.4) * (np.arange(len(noise))[:, None] % 3 == 0)
    return noise + 8.0 * fresh


def season(noise: Rows, time: Rows) -> Rows:
    return noise + 3.0 * np.sin(2 * np.pi * N / 1000 * time)


def other_correlation(noise: Rows, time: Rows) -> Rows:
    correlation = 0.9 - 1.8 * time
    return np.hstack([noise[:, :1], correlation * noise[:, :1] + np.sqrt(1 - correlation**2) * noise[:, 1:]])


def random_walk(noise: Rows, time: Rows) -> Rows:
    return noise + np.cumsum(0.05 * np.random.default_rng(1).normal(size=noise.shape), axis=0)


@pytest.mark.parametrize(
    "drift",
    [sudden_shift, slow_ramp, growing_variance, new_cluster, season, other_correlation, random_walk],
    ids=lambda d: d.__name__,
)
def test_few_ordinary_records_of_a_moving_stream_have_a_score_above_95_percent(drift: Course) -> None:
    rows = drift(np.random.default_rng(0).normal(size=(N, 3)), np.linspace(0, 1, N)[:, None])
    score = detector(QUICK).process(rows).score[SETTLED:]
    assert 0.005 < (score > 0.95).mean() <= 0.06


def test_where_records_are_equal_a_new_context_makes_none_of_them_odd() -> None:
    rows = np.random.default_rng(0).choice([0.0, 1.0, 5.0], size=(3000, 1)) * np.ones((1, 3))
    score = detector(QUICK).process(rows).score
    assert (score[np.isfinite(score)] > 0.95).mean() <= 0.06


@pytest.mark.parametrize("views", ["default", "fast"])
def test_where_nothing_ever_changes_nothing_is_odd(views: str) -> None:
    results = detector(replace(QUICK, views=(views,))).process(np.tile([1.0, 20.0, -0.3], (1000, 1)))
    assert not results.outlier.any()
    assert results.p_value[-1] > 0.5


@given(st.integers(0, 2**32 - 1), st.integers(0, 60))
def test_between_two_steps_scores_are_in_the_order_of_the_remembered_logits(seed: int, before: int) -> None:
    one = established(before)
    rows = np.random.default_rng(seed).normal(size=(STEP, 3)) * 3
    found = one.score_rows(rows[: one.room])
    order = np.argsort(found.remembered_logit)
    assert (np.diff(found.score[order]) >= 0).all()
    assert (np.diff(found.score[order])[np.diff(found.remembered_logit[order]) > 1e-9] > 0).all()
    assert (found.score[found.outlier] >= 1 - SMALL.alert_rate).all()
    assert (found.score[~found.outlier] <= 1 - SMALL.alert_rate + 1e-12).all()


@cache
def established(more: int) -> Detector:
    """A detector after some records; it is only asked."""
    one = detector()
    one.process(stream(200 + more))
    return one
