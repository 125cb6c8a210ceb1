"""The log of a sketch brings it back from checkpoints and rows of the history, however slowly records are learned."""

from __future__ import annotations

from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.detector.config import STEP
from fomo_stream.detector.history import History
from fomo_stream.detector.quantile_sketch import QuantileSketch
from fomo_stream.detector.sketch_log import LoggedSketch

ROWS, FEATURES = 150, 3  # of the history


def sketch() -> QuantileSketch:
    return QuantileSketch(FEATURES, 50.0, size=16, chunk=32)


def state_of(logged: LoggedSketch) -> dict[str, bytes]:
    entries = cast(dict[str, bytes], logged.copy().changes("s"))
    return entries | {name: array.tobytes() for name, array in logged.sketch.to_arrays().items()}


shares = st.lists(st.sampled_from([0.0, 0.05, 0.5, 1.0]), min_size=1, max_size=25)


@settings(deadline=None, max_examples=100)
@given(shares, st.integers(0, 2**32 - 1), st.floats(0, 0.5))
def test_the_log_and_the_history_bring_back_the_same_sketch(given: list[float], seed: int, late: float) -> None:
    """given: share of the records learned in each step; late: the chance that a step learns any old records too."""
    rng = np.random.default_rng(seed)
    history, one, log = History(FEATURES, ROWS, ROWS), LoggedSketch(sketch(), ROWS), dict[str, bytes]()
    for share in given:
        rows = rng.normal(size=(STEP, FEATURES))
        history.append(rows, np.zeros(STEP), np.zeros(STEP))
        numbers = np.arange(history.records - STEP, history.records)[rng.random(STEP) < share]
        if rng.random() < late:  # feedback
            unlearned = np.arange(history.oldest, history.records)
            unlearned = unlearned[~history.learned(unlearned)]
            numbers = rng.permutation(np.union1d(numbers, unlearned[rng.random(len(unlearned)) < 0.3]))
        history.learn(numbers)
        one.update(numbers, history.rows(numbers))
        if rng.random() < 0.05:
            one.restart(sketch(), rng.normal(size=(20, FEATURES)))
        one.settle(history.records)
        log |= cast(dict[str, bytes], one.changes("s"))
        again = LoggedSketch(sketch(), ROWS)
        again.recover(log, "s", one.sketch.count, history)
        assert state_of(again) == state_of(one)
        assert again.changes("s") == {}
        one = again if rng.random() < 0.5 else one


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_rows_that_the_history_keeps_are_learned_as_by_a_sketch_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, plain = LoggedSketch(sketch(), ROWS), sketch()
    for first in range(0, 20 * STEP, STEP):
        rows = rng.normal(size=(STEP, FEATURES))
        one.update(np.arange(first, first + STEP), rows)
        plain.update(rows)
        one.settle(first + STEP)
    assert {name: array.tobytes() for name, array in one.sketch.to_arrays().items()} == {
        name: array.tobytes() for name, array in plain.to_arrays().items()
    }


def test_points_are_written_rarely() -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    rows = 5_000
    one = LoggedSketch(QuantileSketch(1, 500.0, size=64, chunk=256), rows)
    written = []
    for first in range(0, n, STEP):
        one.update(np.arange(first, first + STEP), rng.normal(size=(STEP, 1)))
        one.settle(first + STEP)
        written.append(any("points" in key for key in one.changes("s")))
    assert 2 <= sum(written) <= 1 + n / (rows - 3 * 256)
