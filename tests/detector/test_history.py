from __future__ import annotations

from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.detector.history import INLIER, OUTLIER, UNKNOWN, History

Batches = st.lists(st.integers(0, 12), max_size=10)


def remembered(sizes: list[int], rows: int = 10, scores: int = 15) -> tuple[History, np.ndarray]:
    """A memory of records whose rows and scores are 100 times their number, and those scores."""
    memory, logit = History(1, rows, scores), 100.0 * np.arange(sum(sizes))
    for part in np.split(logit, np.cumsum(sizes)[:-1]) if sizes else []:
        memory.append(part[:, None], part, part / 1e6)
    return memory, logit


@given(Batches)
def test_the_last_rows_and_scores_are_found_by_number(sizes: list[int]) -> None:
    memory, logit = remembered(sizes)
    n = len(logit)
    assert memory.records == n
    numbers = np.arange(-3, n + 3)
    known = (numbers >= memory.oldest) & (numbers < memory.records)
    np.testing.assert_array_equal(numbers[known], np.arange(max(0, n - 10), n))
    np.testing.assert_array_equal(memory.rows(numbers[known])[:, 0], logit[-10:])
    np.testing.assert_array_equal(memory.gate_p(numbers[known]), logit[-10:] / 1e6)
    np.testing.assert_array_equal(memory.window(15, n), logit[-15:])


@given(Batches, st.integers(1, 15), st.data())
def test_a_window_ends_where_asked_and_leaves_outliers_out(sizes: list[int], size: int, data: st.DataObject) -> None:
    memory, logit = remembered(sizes)
    n = len(logit)
    before = data.draw(st.integers(max(0, n - 15 + size), n)) if n > 15 - size else n
    outliers = np.array(sorted(data.draw(st.sets(st.integers(max(0, n - 10), max(n - 1, 0)), max_size=n))), dtype=int)
    memory.judge(outliers, np.full(len(outliers), OUTLIER, dtype=np.int8))
    expected = np.setdiff1d(np.arange(max(0, before - size), before), outliers) * 100.0
    np.testing.assert_array_equal(memory.window(size, before), expected)


@given(Batches, st.integers(0, 2**32 - 1))
def test_rejected_records_are_counted_without_outliers(sizes: list[int], seed: int) -> None:
    memory, _ = remembered(sizes)
    n, rng = memory.records, np.random.default_rng(seed)
    known = np.arange(memory.oldest, n)
    memory.judge(known, rng.integers(0, 3, len(known)).astype(np.int8))
    memory.learn(known[rng.random(len(known)) < 0.5])
    first, stop = np.sort(rng.integers(memory.oldest, n + 1, 2)).tolist()
    normal = [i for i in range(first, stop) if memory.verdict(np.array([i]))[0] != OUTLIER]
    assert memory.not_outliers(first, stop).tolist() == normal
    rejected = [i for i in normal if not memory.learned(np.array([i]))[0]]
    assert memory.rejected(first, stop) == (len(rejected), len(normal))


def test_unscored_records_are_in_no_window_until_they_are_scored() -> None:
    memory = History(1, 5, 8)
    memory.append(np.zeros((4, 1)), np.full(4, np.nan), np.full(4, np.nan))
    assert len(memory.window(8, 4)) == 0
    memory.rescore(np.array([-2, 1, 3]), np.array([9.0, 7.0, 5.0]))  # one that is forgotten is passed over
    np.testing.assert_array_equal(memory.window(8, 4), [5.0, 7.0])


def test_what_became_of_a_record_is_forgotten_with_its_row() -> None:
    memory, _ = remembered([10])
    everything = np.arange(10)
    memory.judge(everything, np.full(10, INLIER, dtype=np.int8))
    memory.learn(everything)
    assert (memory.verdict(everything) == INLIER).all()
    assert memory.learned(everything).all()
    memory.append(np.ones((15, 1)), np.ones(15), np.ones(15))
    now = np.arange(15, 25)
    assert (memory.verdict(now) == UNKNOWN).all()
    assert not memory.learned(now).any()


def test_equal_rows_are_found_missing_values_included() -> None:
    memory = History(2, 10, 10)
    rows = np.array([[1, np.nan], [1, 2], [1, np.nan], [np.nan, 1]])
    memory.append(rows, np.zeros(4), np.zeros(4))
    both = np.arange(2)
    assert [memory.find(row, both).tolist() for row in rows] == [[0, 2], [1], [0, 2], [3]]
    assert memory.find(rows[1, :1], both[:1]).tolist() == [0, 1, 2]


@given(Batches, st.integers(0, 20))
def test_a_copy_and_a_recovered_history_go_on_alike_on_their_own(sizes: list[int], more: int) -> None:
    one, _ = remembered(sizes)
    log, recovered = one.copy().changes("h"), History(1, 10, 15)
    recovered.recover(cast(dict[str, bytes], log), "h", one.records)
    copied = one.copy()
    one.append(np.ones((5, 1)), np.ones(5), np.ones(5))
    assert copied.copy().changes("h") == recovered.copy().changes("h") == log
    one = recovered.copy()
    for history in (one, copied, recovered):
        history.append(np.ones((more, 1)), np.ones(more), np.ones(more))
    assert one.copy().changes("h") == copied.copy().changes("h") == recovered.copy().changes("h")


@given(Batches)
def test_a_wider_copy_has_the_same_records_with_values_missing(sizes: list[int]) -> None:
    one, _ = remembered(sizes)
    wide, known = one.copy(2), np.arange(one.oldest, one.records)
    np.testing.assert_array_equal(wide.rows(known)[:, :1], one.rows(known))
    assert np.isnan(wide.rows(known)[:, 1:]).all()
    np.testing.assert_array_equal(wide.window(15, one.records), one.window(15, one.records))
