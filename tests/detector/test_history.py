from __future__ import annotations

from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.detector.history import OUTLIER, History
from fomo_stream.detector.series import Batch

Batches = st.lists(st.integers(0, 12), max_size=10)
LAGS, VIEWS = 1, 2


def batch_of(numbers: np.ndarray) -> Batch:
    """Records whose vectors, series and beginnings follow from their numbers."""
    vectors = numbers[:, None, None] * np.array([100.0, 99.0, 0.5, 0.25])[:, None]  # itself, before, level, spread
    return Batch(vectors, numbers % 7, numbers % 5 == 0)


def logits_of(numbers: np.ndarray) -> np.ndarray:
    return np.column_stack([1.0 * numbers, -2.0 * numbers])


def remembered(sizes: list[int], rows: int = 10, scores: int = 15) -> tuple[History, np.ndarray]:
    """A memory of records whose remembered logits are 100 times their number, and those."""
    memory, numbers = History(1, VIEWS, rows, scores, LAGS, movement=True), np.arange(sum(sizes))
    for part in np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []:
        memory.append(batch_of(part), logits_of(part), (100.0 * part).astype(np.float64))
    return memory, 100.0 * numbers


@given(Batches)
def test_the_last_rows_and_scores_are_found_by_number(sizes: list[int]) -> None:
    memory, logit = remembered(sizes)
    n = len(logit)
    assert memory.records == n
    numbers = np.arange(-3, n + 3)
    known = numbers[(numbers >= memory.oldest) & (numbers < memory.records)]
    np.testing.assert_array_equal(known, np.arange(max(0, n - 10), n))
    np.testing.assert_array_equal(memory.vectors(known), batch_of(known).vectors)
    np.testing.assert_array_equal(memory.windows(15, n), (logit[-15:], logit[-15:]))
    scored = np.arange(max(0, n - 15), n)
    for first in (int(scored.min(initial=n)), n - len(scored) // 2):
        last = scored[scored >= first]
        np.testing.assert_array_equal(memory.logits(first, n), logits_of(last))
        slots, begins = memory.series(first, n)
        np.testing.assert_array_equal(slots, last % 7)
        np.testing.assert_array_equal(begins, last % 5 == 0)


@given(Batches, st.integers(1, 15), st.data())
def test_a_window_ends_where_asked_and_leaves_outliers_out(sizes: list[int], size: int, data: st.DataObject) -> None:
    memory, logit = remembered(sizes)
    n = len(logit)
    before = data.draw(st.integers(max(0, n - 15 + size), n)) if n > 15 - size else n
    outliers = np.array(sorted(data.draw(st.sets(st.integers(max(0, n - 10), max(n - 1, 0)), max_size=n))), dtype=int)
    memory.judge(outliers, np.full(len(outliers), OUTLIER, dtype=np.int8))
    expected = np.setdiff1d(np.arange(max(0, before - size), before), outliers) * 100.0
    np.testing.assert_array_equal(memory.windows(size, before), (expected, expected))


@given(Batches, st.lists(st.floats(-3000, 3000), max_size=15))
def test_one_window_has_the_larger_one_of_the_scores_of_a_record(sizes: list[int], again: list[float]) -> None:
    memory, came = remembered(sizes)
    n, came = len(came), came[-15:]
    now = came.copy()
    again = again[: len(now)]
    now[len(now) - len(again) :] = again
    memory.remember(n - len(again), np.array(again))
    expected = np.sort(now), np.sort(np.maximum(now, came))
    for history in (memory, memory.copy()):
        np.testing.assert_array_equal(history.windows(15, n), expected)


@given(Batches, st.integers(0, VIEWS - 1), st.sets(st.integers(0, 60)))
def test_another_score_in_one_view_changes_only_that(sizes: list[int], view: int, which: set[int]) -> None:
    memory, logit = remembered(sizes)
    n, first = len(logit), max(0, len(logit) - 15)
    numbers = np.array(sorted(number for number in which if number < n), dtype=np.int64)
    expected = logits_of(np.arange(n))
    expected[numbers, view] = 0.5
    kept = numbers[numbers >= first]  # those that are forgotten are passed over
    assert memory.rescore(view, numbers, np.full(len(numbers), 0.5)) == (kept[0] if len(kept) else n)
    np.testing.assert_array_equal(memory.logits(first, n), expected[first:])
    np.testing.assert_array_equal(memory.windows(15, n), (logit[-15:], logit[-15:]))


def test_equal_rows_are_found_missing_values_included() -> None:
    memory = History(2, 1, 10, 10, LAGS, movement=True)
    rows = np.array([[1, np.nan], [1, 2], [1, np.nan], [np.nan, 1]])
    vectors = np.stack([rows, *np.random.default_rng(0).normal(size=(3, 4, 2))], axis=1)  # whatever was before them
    memory.append(Batch(vectors, np.zeros(4, np.int64), np.zeros(4, bool)), np.zeros((4, 1)), np.zeros(4))
    assert [memory.find(row).tolist() for row in rows] == [[0, 2], [1], [0, 2], [3]]
    assert memory.find(np.array([1.0, 3.0])).tolist() == []


def more_of(history: History, n: int) -> None:
    numbers = history.records + np.arange(n)
    history.append(batch_of(numbers), logits_of(numbers), np.ones(n))


@given(Batches, st.integers(0, 20))
def test_a_copy_and_a_recovered_history_go_on_alike_on_their_own(sizes: list[int], more: int) -> None:
    one, _ = remembered(sizes)
    log, recovered = one.copy().changes("h"), History(1, VIEWS, 10, 15, LAGS, movement=True)
    recovered.recover(cast(dict[str, bytes], log), "h", one.records)
    copied = one.copy()
    more_of(one, 5)
    assert copied.copy().changes("h") == recovered.copy().changes("h") == log
    one = recovered.copy()
    for history in (one, copied, recovered):
        more_of(history, more)
    assert one.copy().changes("h") == copied.copy().changes("h") == recovered.copy().changes("h")


@given(Batches, st.sampled_from([[0, 1], [1], [0]]))
def test_a_wider_copy_has_the_same_records_with_values_missing(sizes: list[int], views: list[int]) -> None:
    one, _ = remembered(sizes)
    wide, known = one.copy(2, views), np.arange(one.oldest, one.records)
    np.testing.assert_array_equal(wide.vectors(known)[:, :, :1], one.vectors(known))
    assert np.isnan(wide.vectors(known)[:, :, 1:]).all()
    np.testing.assert_array_equal(wide.windows(15, one.records), one.windows(15, one.records))
    first = max(0, one.records - 15)
    np.testing.assert_array_equal(wide.logits(first, one.records), one.logits(first, one.records)[:, views])
    np.testing.assert_array_equal(wide.series(first, one.records), one.series(first, one.records))
