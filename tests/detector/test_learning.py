"""What contexts are made of, when they are renewed, and which shifts are announced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import CONFIG as FREE
from streams import new, process

from fomo_stream.detector.alerts import Shifts
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.scoring import encode_rows, logits_of

# --- learning


def test_a_generation_is_made_of_what_was_known_at_its_trigger() -> None:
    rng = np.random.default_rng(3)
    config = DetectorConfig(context_size=100, min_context=50, lag=10, views=("trimmed", "recent"))
    one, rows = Detector(shared_model(), 2, config), rng.normal(size=(1400, 2))
    one.process(rows)
    probe = rng.normal(size=(20, 2))
    found = one.score_rows(probe).by_view
    generation = one.inspect().generations["trimmed"]
    # the map is of the rows that are left out, too
    sample = one._shared.view_set.builders(one.records)[0][1].spec.rows
    trimmed = encode_rows(shared_model(), rows[generation.numbers], list(np.sort(sample, axis=0).T))
    np.testing.assert_array_equal(found[:, 0], logits_of(shared_model(), trimmed, probe))
    recent = one.inspect().generations["recent"]
    encoded = encode_rows(shared_model(), rows[recent.numbers])
    assert recent.ranges is not None  # it is the view that adds extremes, and there is none of the history
    extremes = 2 * recent.ranges.beyond(probe)
    np.testing.assert_array_equal(found[:, 1], logits_of(shared_model(), encoded, probe) + extremes)


def test_generations_come_one_by_one_and_recent_has_the_last_records_whatever_they_are() -> None:
    one, size, every = new(replace(FREE, lag=8, own_contexts=0)), FREE.context_size, FREE.recent_every
    begun: list[int] = []
    for first in range(430):
        before = one.generation
        process(one, first, first + 1)
        assert one.generation <= before + 1
        if one.generation:
            numbers = one.inspect().generations["recent"].numbers
            if not begun or numbers[-1] != begun[-1]:
                begun.append(int(numbers[-1]))
                assert len(begun) == 1 or numbers.tolist() == list(range(numbers[-1] + 1 - size, numbers[-1] + 1))
    gaps = np.diff(begun)
    assert (gaps >= every).all()
    assert (gaps <= every + 5 * STEP).all()
    assert all(generation.number > 1 for generation in one.inspect().generations.values())


def test_after_a_lasting_shift_few_records_alert() -> None:
    rng = np.random.default_rng(1)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=200))
    one.process(rng.normal(size=(1200, 3)))
    scored = one.process(rng.normal(size=(3000, 3)) + 20)
    assert scored.outlier[:10].all()
    assert scored.outlier[-1000:].mean() < 0.03
    back = one.process(rng.normal(size=(500, 3)))  # the old normal is still known
    assert (back.logit < one.score_rows(np.full((1, 3), 10.0)).logit[0]).mean() > 0.9


@pytest.mark.parametrize("admit", ["auto", "feedback", "all"])
def test_policies_admit_what_their_names_say(admit: str) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(900, 3))
    rows[400:500] += 15
    one = Detector(shared_model(), 3, DetectorConfig(context_size=1000, admit=admit))
    one.process(rows)
    learned = one.inspect().reservoir
    stepped = 200 + (900 - 200) // STEP * STEP
    assert learned.tolist() == list(range(200 if admit == "feedback" else stepped))
    assert ("trimmed" in [view.name for view in one.views]) == (admit != "all")
    one.feedback(np.arange(300, 600), np.arange(300, 600) >= 450)
    one.process(rng.normal(size=(64, 3)))
    learned = one.inspect().reservoir
    assert np.isin(np.arange(300, 450), learned).all()  # feedback is heeded by each of them
    assert not np.isin(np.arange(450, 600), learned).any()
    if admit == "feedback":
        assert learned.tolist() == [*range(200), *range(300, 450)]


# --- lasting shifts

CONFIG = DetectorConfig(context_size=200, min_context=200, adapt_after=500, views=("trimmed", "recent"))


def watched(steps: list[bool], adapt_after: int = 160) -> list[int]:
    """The shifts announced after each step. Some look shifted: odd in the history and normal among recent records."""
    shifts, found = Shifts(adapt_after), []
    for shifted in steps:
        shifts.watch(np.full(STEP, shifted), np.ones(STEP, dtype=bool))
        found.append(shifts.number)
    return found


@given(st.integers(1, 60))
def test_a_lasting_shift_is_announced_once(n: int) -> None:
    first = watched([True] * n)
    assert first == [int(i >= 5) for i in range(1, n + 1)]  # 160 records are 5 steps
    again = watched([True] * n + [False] * 3 + [True] * 5)  # the history has known the first one
    assert again[-1] == first[-1] + 1


@given(st.lists(st.integers(1, 4), max_size=8))
def test_bursts_are_no_lasting_shifts(bursts: list[int]) -> None:
    steps = [shifted for burst in bursts for shifted in [True] * burst + [False]]
    assert set(watched(steps)) <= {0}


def test_a_shift_of_a_stream_is_announced_once_and_the_next_one_too() -> None:
    rng = np.random.default_rng(1)
    one = Detector(shared_model(), 3, CONFIG)
    one.process(rng.normal(size=(3000, 3)))
    assert one.shifts == 0
    one.process(rng.normal(size=(500, 3)) + 20)
    assert one.shifts == 0
    one.process(rng.normal(size=(256 + 5 * STEP, 3)) + 20)  # the recent view has to know it first
    assert one.shifts == 1
    one.process(rng.normal(size=(700, 3)) + 20)
    assert one.shifts == 1
    never = Detector(shared_model(), 3, replace(CONFIG, adapt_after=0))
    never.process(rng.normal(size=(1200, 3)))
    never.process(rng.normal(size=(1500, 3)) + 20)
    assert never.shifts == 0


# --- missing values


def correlated(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of six features in pairs that go together, one in twenty lacks a value: values, and which rows these are."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.normal(size=(n, 3)), 2, axis=1) + 0.2 * rng.normal(size=(n, 6))
    gaps = np.flatnonzero(rng.random(n) < 0.05)
    rows[gaps, rng.integers(0, 6, len(gaps))] = np.nan
    return rows, np.any(np.isnan(rows), axis=1)


@pytest.mark.parametrize(("smooth", "views"), [(False, "default"), (True, "fast")])
def test_a_gap_makes_no_record_odd(smooth: bool, views: str) -> None:
    """Whether the last value tells the missing one, or only the other values of the record do."""
    rows, is_gap = correlated(2500, 1)
    if smooth:
        steps = np.random.default_rng(2).normal(0, 0.02, rows.shape)
        rows = np.where(np.isnan(rows), np.nan, np.cumsum(steps, axis=0))
    logit = Detector(shared_model(), 6, DetectorConfig(views=(views,))).process(rows).logit
    known = ~np.isnan(logit)
    assert (logit[known & is_gap] > np.quantile(logit[known & ~is_gap], 0.99)).mean() < 0.03
