"""What is kept of a partition: its last records, and random samples of records."""

from __future__ import annotations

from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import QuantileTransformer

from fomo_stream.detector.history import History, Reservoir
from fomo_stream.detector.results import Scores
from fomo_stream.detector.step.follow import Batch
from fomo_stream.detector.step.judge import OUTLIER
from fomo_stream.model.quantile_map import knots_of

# --- history

Batches = st.lists(st.integers(0, 12), max_size=10)
LAGS, VIEWS = 1, 2


def batch_of(numbers: np.ndarray) -> Batch:
    """Records whose vectors, series and beginnings follow from their numbers."""
    vectors = numbers[:, None, None] * np.array([100.0, 99.0, 0.5, 0.25])[:, None]  # itself, before, level, spread
    relative = numbers[:, None, None] + np.array([0.0, 0.25, 0.5])[:, None]
    relative[numbers % 4 == 1] = np.nan  # of a new key
    gaps = (numbers % 3 == 0)[:, None]
    still, far = np.zeros(gaps.shape, np.int64), numbers % 6 == 0
    return Batch(vectors, gaps, numbers % 7, numbers % 5 == 0, relative, relative[:, :2], still, far, still == 0)


def logits_of(numbers: np.ndarray) -> np.ndarray:
    return np.column_stack([1.0 * numbers, -2.0 * numbers])


def scores_of(numbers: np.ndarray) -> Scores:
    by_key = np.where(numbers % 4 == 1, np.nan, numbers * (-1.0) ** numbers)
    return Scores.of(logits_of(numbers), np.ones(len(numbers), np.int64), np.zeros(len(numbers)), by_key)


def remembered(sizes: list[int], rows: int = 10, scores: int = 15) -> tuple[History, np.ndarray]:
    """A memory of records whose remembered logits are 100 times their number, and those."""
    history, numbers = History(1, VIEWS, rows, scores, LAGS, movement=True), np.arange(sum(sizes))
    for part in np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []:
        history.append(batch_of(part), scores_of(part), (100.0 * part).astype(np.float64), part % 3 == 0)
    return history, 100.0 * numbers


def recovered(history: History) -> History:
    twin, entries = History(1, VIEWS, 10, 15, LAGS, movement=True), history.copy().changes("history")
    twin.recover({name: value for name, value in entries.items() if value is not None}, "history", history.records)
    return twin


@given(Batches)
def test_the_last_rows_and_scores_are_found_by_number(sizes: list[int]) -> None:
    memory, logit = remembered(sizes)
    n = len(logit)
    assert memory.records == n
    numbers = np.arange(-3, n + 3)
    known = numbers[(numbers >= memory.oldest) & (numbers < memory.records)]
    np.testing.assert_array_equal(known, np.arange(max(0, n - 10), n))
    for history in (memory, memory.copy(), recovered(memory)):
        np.testing.assert_array_equal(history.vectors(known), batch_of(known).vectors)
        np.testing.assert_array_equal(history.relative(known), batch_of(known).relative)
    numbers, own, kept, outlier, slots, far = memory.scored(n - 15, n)
    np.testing.assert_array_equal(slots, numbers % 7)
    np.testing.assert_array_equal(far, numbers % 6 == 0)
    np.testing.assert_array_equal(numbers, np.arange(max(0, n - 15), n))
    np.testing.assert_array_equal(kept, logit[-15:])
    np.testing.assert_array_equal(own, scores_of(numbers).logit)
    np.testing.assert_array_equal(outlier, numbers % 3 == 0)
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
    expected = np.setdiff1d(np.arange(max(0, before - size), before), outliers)
    numbers, _, kept, *_ = memory.scored(before - size, before)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(kept, 100.0 * expected)


@given(Batches, st.sets(st.integers(0, 60)))
def test_scores_that_are_noted_later_are_those_of_the_records(sizes: list[int], which: set[int]) -> None:
    memory, logit = remembered(sizes)
    n, first = len(logit), max(0, len(logit) - 15)
    numbers = np.array(sorted(number for number in which if number < n), dtype=np.int64)
    logits, expected = logits_of(np.arange(n)), logit.copy()
    logits[numbers], expected[numbers] = 0.5, -7.0
    noted = np.full((len(numbers), VIEWS), 0.5), np.full(len(numbers), -7.0), np.ones(len(numbers), dtype=bool)
    memory.note(numbers, *noted)
    for history in (memory, memory.copy()):  # those that are forgotten are passed over
        np.testing.assert_array_equal(history.logits(first, n), logits[first:])
        np.testing.assert_array_equal(history.remembered(np.arange(first, n)), expected[first:])


def test_equal_rows_are_found_missing_values_included() -> None:
    memory = History(2, 1, 10, 10, LAGS, movement=True)
    rows = np.array([[1, np.nan], [1, 2], [1, np.nan], [np.nan, 1]])
    filled = np.where(
        np.isnan(rows), np.array([[7, 7], [7, 7], [8, 8], [np.nan, 8]]), rows
    )  # whatever stands in for them
    vectors = np.stack([filled, *np.random.default_rng(0).normal(size=(3, 4, 2))], axis=1)  # ... and was before them
    unknown = np.full((4, 3, 2), np.nan)
    still = np.zeros(rows.shape, np.int64)
    none = np.zeros(4, bool)
    batch = Batch(
        vectors, np.isnan(rows), np.zeros(4, np.int64), none, unknown, unknown[:, :2], still, none, still == 0
    )
    memory.append(batch, Scores.unknown(4, 1), np.zeros(4), np.zeros(4, bool))
    both, first = np.array([0, 1]), np.array([0])
    assert [memory.find(row, both).tolist() for row in rows] == [[0, 2], [1], [0, 2], [3]]
    assert memory.find(np.array([1.0, 3.0]), both).tolist() == []
    assert memory.find(np.array([1.0, 3.0]), first).tolist() == [0, 1, 2]


# --- reservoir


def numbered(numbers: np.ndarray) -> np.ndarray:
    """Rows that say which record they are of."""
    return numbers.astype(float)[:, None]


def filled(reservoir: Reservoir, numbers: np.ndarray) -> Reservoir:
    reservoir.admit(numbers, numbered(numbers))
    return reservoir


@given(st.integers(2, 40), st.integers(0, 150), st.integers(0, 99), st.data())
def test_neither_batches_nor_order_of_admissions_matter(capacity: int, n: int, seed: int, data: st.DataObject) -> None:
    numbers = np.array(data.draw(st.permutations(range(n))), dtype=np.int64)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    at_once = filled(Reservoir(capacity, 1, seed), np.arange(n))
    in_parts = Reservoir(capacity, 1, seed)
    for part in np.split(numbers, cuts):
        filled(in_parts, part)
    np.testing.assert_array_equal(at_once.numbers, in_parts.numbers)
    np.testing.assert_array_equal(in_parts.rows, numbered(in_parts.numbers))
    assert len(at_once) == min(capacity, n)


Steps = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 50), st.sampled_from([0, 0, 0, 1, 5000])), max_size=12)


@given(st.integers(2, 40), Steps, st.integers(0, 99), st.booleans())
def test_the_rows_with_the_highest_priorities_are_held(
    capacity: int, steps: list[tuple[int, int, int]], seed: int, restart: bool
) -> None:
    """Each step offers records that follow, records from earlier on, and some that come much later."""
    reservoir, stop = Reservoir(capacity, 1, seed), 0
    offered: set[int] = set()
    for fresh, old, gap in steps:
        earlier = np.arange(max(0, stop - old), stop)[::-2]
        numbers = np.concatenate([earlier, np.arange(stop + gap, stop + gap + fresh)])
        stop += gap + fresh
        filled(reservoir, numbers)
        offered.update(numbers.tolist())
        everything = np.array(sorted(offered), dtype=np.int64)
        by_priority = everything[np.argsort(-reservoir._priority(everything), kind="stable")]
        np.testing.assert_array_equal(reservoir.numbers, np.sort(by_priority[:capacity]))
        np.testing.assert_array_equal(reservoir.rows, numbered(reservoir.numbers))
        assert len(reservoir) == len(reservoir.numbers)
        if restart:
            again = Reservoir(capacity, 1, seed)
            again.recover(cast(dict[str, bytes], reservoir.copy().changes("r")), "r")
            reservoir = again


def test_every_record_is_as_likely_to_stay() -> None:
    kept = np.concatenate([filled(Reservoir(200, 1, seed=seed), np.arange(2000)).numbers for seed in range(50)])
    counts = np.histogram(kept, bins=10, range=(0, 2000))[0]
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(900)  # binomial, 10,000 draws


@given(st.integers(0, 60), st.data())
def test_discarded_rows_leave_room(n: int, data: st.DataObject) -> None:
    reservoir = filled(Reservoir(20, 1), np.arange(n))
    held = reservoir.numbers
    gone = np.array(data.draw(st.lists(st.sampled_from(held.tolist()), unique=True)) if n else [], dtype=np.int64)
    emptied = reservoir.discard(np.append(gone, 10**6))  # one that it does not hold
    assert len(emptied) == len(gone)
    np.testing.assert_array_equal(reservoir.numbers, np.setdiff1d(held, gone))
    filled(reservoir, np.arange(1000, 1000 + len(gone)))
    assert set(range(1000, 1000 + len(gone))) <= set(reservoir.numbers.tolist())
    assert len(reservoir) == min(20, len(held))


@given(st.integers(2, 40), Steps, st.data(), st.booleans())
def test_the_quantiles_are_those_of_the_rows_at_every_moment(
    capacity: int, steps: list[tuple[int, int, int]], data: st.DataObject, restart: bool
) -> None:
    """As scikit-learn fits them to these rows from scratch. Values are missing, and many are equal."""
    reservoir, rng = Reservoir(capacity, 3, fitted=2), np.random.default_rng(capacity)
    for n, old, _ in steps:
        numbers = reservoir._newest + 1 + np.arange(n)
        rows = np.round(rng.normal(size=(n, 3)), 1)
        rows[rng.random((n, 3)) < 0.2] = np.nan
        reservoir.admit(numbers, rows)
        if old % 3 == 0 and len(reservoir):
            reservoir.discard(np.array(data.draw(st.lists(st.sampled_from(reservoir.numbers.tolist()), unique=True))))
        if restart:
            again = Reservoir(capacity, 3, fitted=2)
            again.recover(cast(dict[str, bytes], reservoir.copy().changes("r")), "r")
            reservoir = again
        rows = reservoir.rows[:, :2]
        if np.isnan(rows).all(axis=0).any() or len(rows) < 2:
            continue
        n_quantiles = int((~np.isnan(rows)).sum(axis=0).max())
        theirs = QuantileTransformer(n_quantiles=n_quantiles, subsample=None).fit(rows)
        np.testing.assert_allclose(knots_of(reservoir.quantiles)[0].T, theirs.quantiles_, rtol=1e-12, atol=1e-12)
