from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.regimes import Regimes
from fomo_stream.model.checkpoint import shared_model

CONFIG = DetectorConfig(context_size=200, min_context=200, adapt_after=500, views=("trimmed", "recent"))


def watched(steps: list[bool], adapt_after: int = 160) -> list[int]:
    """The regime after each step, of which some look shifted: odd in the history and normal among recent records."""
    regimes, found = Regimes(adapt_after), []
    regimes.begin()
    for shifted in steps:
        regimes.watch(np.full(STEP, shifted), np.ones(STEP, dtype=bool))
        found.append(regimes.number)
    return found


@given(st.integers(1, 60))
def test_a_lasting_shift_is_announced_once(n: int) -> None:
    assert watched([True] * n) == [1 + (i >= 5) for i in range(1, n + 1)]  # 160 records are 5 steps


@given(st.lists(st.integers(1, 4), max_size=8))
def test_bursts_are_no_regimes(bursts: list[int]) -> None:
    steps = [shifted for burst in bursts for shifted in [True] * burst + [False]]
    assert set(watched(steps)) <= {1}


def test_one_step_in_ten_may_look_otherwise() -> None:
    most = ([True] * 19 + [False]) * 10
    assert watched(most, adapt_after=20 * STEP)[-1] == 2
    assert watched(([True] * 8 + [False] * 2) * 20, adapt_after=20 * STEP)[-1] == 1


def test_another_shift_is_announced_after_the_history_has_known_the_last() -> None:
    assert watched([True] * 30 + [False] * 3 + [True] * 30)[-1] == 3


@pytest.mark.parametrize(("odd", "normal"), [(True, False), (False, True), (False, False)])
def test_only_what_is_odd_in_the_history_and_normal_among_recent_records_counts(odd: bool, normal: bool) -> None:
    regimes = Regimes(STEP)
    regimes.begin()
    regimes.watch(np.full(STEP, odd), np.full(STEP, normal))
    assert regimes.number == 1


def test_a_shift_of_a_stream_is_announced_once_and_the_next_one_too() -> None:
    rng = np.random.default_rng(1)
    one = Detector(shared_model(), 3, CONFIG)
    assert (one.process(rng.normal(size=(3000, 3))).regime[200:] == 1).all()
    first = one.process(rng.normal(size=(1500, 3)) + 20).regime
    begun = int(np.argmax(first == 2))
    assert 500 <= begun <= 500 + 256 + 5 * STEP  # the recent view has to know it first
    assert first[-1] == 2
    never = Detector(shared_model(), 3, replace(CONFIG, adapt_after=0))
    never.process(rng.normal(size=(1200, 3)))
    assert (never.process(rng.normal(size=(1500, 3)) + 20).regime == 1).all()


def test_bursts_of_a_stream_are_no_regime() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 3))
    for first in (1000, 1600, 2200):
        rows[first : first + 300] += 20
    assert (Detector(shared_model(), 3, CONFIG).process(rows).regime[200:] == 1).all()


def test_without_a_view_of_recent_records_nothing_is_announced() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 3, replace(CONFIG, views=("fast",)))
    one.process(rng.normal(size=(1200, 3)))
    assert (one.process(rng.normal(size=(1500, 3)) + 20).regime == 1).all()
