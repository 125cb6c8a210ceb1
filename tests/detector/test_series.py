from __future__ import annotations

import pickle
import tracemalloc
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import compacted

from fomo_stream.detector.past_values import Key, PastValues
from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_FEATURES

SMALL = settings(max_examples=50, deadline=None)
keys = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d", b"", "\udc80"]))
streams = st.lists(st.tuples(keys, st.one_of(st.floats(-9, 9), st.just(float("nan")))), max_size=30)
cuts = st.lists(st.integers(0, 30), max_size=4)


def rows_of(stream: Sequence[tuple[Key, float]]) -> tuple[np.ndarray, list[Key]]:
    """Rows of two features, and their keys."""
    numbers = np.array([[number, 10 + number] for _, number in stream]).reshape(-1, 2)
    return numbers, [key for key, _ in stream]


def fed(past: PastValues, stream: Sequence[tuple[Key, float]], cuts: Sequence[int] = ()) -> np.ndarray:
    """Rows of the stream with their past values, made in several calls."""
    values, keys = rows_of(stream)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    parts = [past.rows(values[a:b], keys[a:b]) for a, b in pairwise(edges)]
    return np.concatenate(parts)


def one_by_one(stream: Sequence[tuple[Key, float]], lags: int, max_keys: int) -> np.ndarray:
    """What rows with their past are, written down naively."""
    seen: OrderedDict[Key, list[np.ndarray]] = OrderedDict()
    out = []
    values, keys = rows_of(stream)
    for key, row in zip(keys, values, strict=True):
        past = seen.pop(key, [np.full(2, np.nan)] * lags)
        out.append(np.concatenate([row, *past]))
        seen[key] = [row, *past][:lags]
        if len(seen) > max_keys:
            seen.popitem(last=False)
    return np.array(out).reshape(-1, 2 * (lags + 1))


@SMALL
@given(streams, st.integers(0, 4), st.integers(1, 5), cuts)
def test_each_row_has_the_rows_before_it_of_its_key(
    stream: list[tuple[Key, float]], lags: int, max_keys: int, cuts: list[int]
) -> None:
    found = fed(PastValues(lags, 2, max_keys), stream, cuts)
    np.testing.assert_array_equal(found, one_by_one(stream, lags, max_keys))


@SMALL
@given(streams, st.integers(0, 4), cuts)
def test_without_keys_all_rows_are_one_series(stream: list[tuple[Key, float]], lags: int, cuts: list[int]) -> None:
    values, _ = rows_of(stream)
    alike = [("same", number) for _, number in stream]
    np.testing.assert_array_equal(PastValues(lags, 2).rows(values), fed(PastValues(lags, 2), alike, cuts))


@SMALL
@given(streams, streams, st.integers(0, 3), st.integers(1, 4))
def test_peeking_shows_what_comes_and_remembers_nothing(
    before: list[tuple[Key, float]], after: list[tuple[Key, float]], lags: int, max_keys: int
) -> None:
    past = PastValues(lags, 2, max_keys)
    fed(past, before)
    values, keys = rows_of(after)
    seen = [past.peek(values, keys), past.peek(values, keys), past.rows(values, keys)]
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[0], seen[2])


@SMALL
@given(streams, streams, st.integers(1, 3), st.integers(1, 4))
def test_a_copy_and_recovered_past_values_go_on_alike_on_their_own(
    before: list[tuple[Key, float]], after: list[tuple[Key, float]], lags: int, max_keys: int
) -> None:
    original, recovered = PastValues(lags, 2, max_keys), PastValues(lags, 2, max_keys)
    fed(original, before)
    log = original.copy().changes()
    recovered.recover(cast(dict[str, bytes], log))
    copied = original.copy()
    expected = fed(original, after)
    assert copied.copy().changes() == log
    np.testing.assert_array_equal(expected, fed(copied, after))
    np.testing.assert_array_equal(expected, fed(recovered, after))
    assert copied.copy().changes() == recovered.copy().changes() == original.copy().changes()


def test_memory_is_bounded_however_many_and_long_the_keys_are() -> None:
    past = PastValues(lags=2, n_features=1, max_keys=100)
    values = np.arange(5000.0)[:, None]
    past.rows(values, [str(i) * 1000 for i in range(5000)])
    assert len(pickle.dumps(past)) < 100 * 300
    assert sum(key.startswith("series/") for key in past.copy().changes()) == 100
    late = past.rows(np.zeros((2, 1)), [str(i) * 1000 for i in (4900, 0)])
    np.testing.assert_array_equal(late, [[0, 4900, np.nan], [0, np.nan, np.nan]])


def test_a_history_does_not_keep_the_batch_it_came_from() -> None:
    past = PastValues(lags=1, n_features=1)
    tracemalloc.start()
    try:
        past.rows(np.zeros((100_000, 1)))
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_a_categorical_column_repeats_with_every_lag() -> None:
    past = PastValues(lags=2, n_features=3)
    rows = past.rows(np.array([[0, 1, 2], [10, 11, 12], [20, 21, 22]]))
    assert past.columns((1,)) == (1, 4, 7)
    assert rows[2, list(past.columns((0, 2)))].tolist() == [20, 22, 10, 12, 0, 2]
    assert PastValues(0, 3).columns((2,)) == (2,)


@SMALL
@given(streams, streams)
def test_features_that_are_added_have_no_past(before: list[tuple[Key, float]], after: list[tuple[Key, float]]) -> None:
    past, narrow = PastValues(2, 2), PastValues(2, 2)
    fed(past, before)
    fed(narrow, before)
    past.widen(3)
    values, keys = rows_of(after)
    wide = past.rows(np.column_stack([values, np.arange(len(values))]), keys).reshape(-1, 3, 3)
    np.testing.assert_array_equal(wide[:, :, :2].reshape(-1, 6), narrow.rows(values, keys))
    first = [i for i, key in enumerate(keys) if key not in keys[:i]]
    assert np.isnan(wide[first, 1:, 2]).all()


def test_rows_that_would_be_too_wide_are_refused() -> None:
    assert PastValues(9, MAX_FEATURES // 10).width == MAX_FEATURES
    with pytest.raises(SchemaError, match=r"--features, or lower --lags"):
        PastValues(10, MAX_FEATURES // 10)
    assert PastValues(0, 5000).width == 5000
    with pytest.raises(ValueError, match="between 0 and 100"):
        PastValues(-1, 1)


def test_rows_that_the_model_cannot_take_are_refused() -> None:
    PastValues(4, 20).check(100, "narrow")
    PastValues(4, 21).check(0, "any")
    with pytest.raises(SchemaError, match=r"narrow takes up to 100 features, the rows have 105 \(21 and 4 earlier"):
        PastValues(4, 21).check(100, "narrow")
    with pytest.raises(SchemaError, match=r"the rows have 101; name the ones to use with --features$"):
        PastValues(0, 101).check(100, "narrow")


def test_series_that_come_and_go_between_commits_leave_no_trace() -> None:
    past = PastValues(1, 1, max_keys=10)
    past.rows(np.zeros((10, 1)), list("abcdefghij"))
    assert sum(key.startswith("series/") for key in past.changes()) == 10
    past.rows(np.zeros((5000, 1)), [str(i) for i in range(5000)])
    entries = past.changes()
    assert sum(value is None for value in entries.values()) == 10
    assert sum(value is not None for value in entries.values()) == 10


def test_the_order_of_use_is_kept_over_several_recoveries() -> None:
    log: list[tuple[str, bytes | None]] = []
    for keys in ("abc", "d", "a", "e", "f"):
        past = PastValues(1, 1, max_keys=4)
        if log:
            past.recover(compacted(log))
        past.rows(np.zeros((len(keys), 1)), list(keys))
        log += past.changes().items()
    known = PastValues(1, 1, max_keys=4)
    known.recover(compacted(log))
    assert [np.isnan(known.peek(np.zeros((1, 1)), [key])[0, 1]) for key in "abcdef"] == [0, 1, 1, 0, 0, 0]


def test_a_look_ahead_is_no_change_and_more_features_are_one_of_every_series() -> None:
    past = PastValues(1, 1)
    past.rows(np.zeros((3, 1)), list("abc"))
    log = list(past.changes().items())
    past.peek(np.ones((3, 1)), list("cde"))
    assert past.changes() == {}
    past.widen(2)
    log += past.changes().items()
    wide = PastValues(1, 2)
    wide.recover(compacted(log))
    assert wide.copy().changes() == past.copy().changes()


def test_a_smaller_limit_of_series_holds_for_what_is_recovered_too() -> None:
    log: list[tuple[str, bytes | None]] = []
    many, few = PastValues(1, 1, max_keys=10), PastValues(1, 1, max_keys=3)
    many.rows(np.arange(10.0)[:, None], list("abcdefghij"))
    log += many.changes().items()
    few.recover(compacted(log))
    log += few.changes().items()
    assert sum(key.startswith("series/") for key in compacted(log)) == 3
    assert [few.peek(np.zeros((1, 1)), [key])[0, 1] for key in "hij"] == [7, 8, 9]
