"""Counts by value: exact for few values, rounded for many, and the same in any order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fomo_stream.replaying.tally.axis import Axis
from fomo_stream.replaying.tally.keyed_counts import KeyedCounts, keys_of, values_of

VALUES = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1.0, 1e-300, 1e300, -1e300])
CHUNKS = st.lists(st.lists(st.tuples(VALUES, st.integers(0, 1)), max_size=30), max_size=6)
Chunk = list[tuple[float, int]]


def counted(chunks: list[Chunk], limit: int = 8) -> KeyedCounts:
    counts = KeyedCounts(limit, (2,))
    for chunk in chunks:
        counts.add(*columns(chunk))
    return counts


def columns(chunk: Chunk) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    return np.array([value for value, _ in chunk], float), np.array([label for _, label in chunk], np.int64)


def assert_same(a: KeyedCounts, b: KeyedCounts) -> None:
    assert a.shift == b.shift
    np.testing.assert_array_equal(a.keys, b.keys)
    np.testing.assert_array_equal(a.counts, b.counts)


@given(st.lists(VALUES, min_size=2, max_size=20))
def test_keys_have_the_order_of_the_values_and_give_them_back(values: list[float]) -> None:
    array = np.array(values)
    keys = keys_of(array)
    np.testing.assert_array_equal(values_of(keys), array)
    np.testing.assert_array_equal(keys[:, None] < keys[None], array[:, None] < array[None])


@given(CHUNKS)
def test_few_distinct_values_are_counted_exactly(chunks: list[Chunk]) -> None:
    values, labels = columns([pair for chunk in chunks for pair in chunk])
    counts = counted(chunks, limit=1000)
    low, high = counts.cells()
    np.testing.assert_array_equal(low, np.unique(values))
    np.testing.assert_array_equal(high, low)
    np.testing.assert_array_equal(counts.counts[:, 1], [labels[values == value].sum() for value in low])


@given(CHUNKS)
def test_rounded_counts_do_not_depend_on_order_or_merging(chunks: list[Chunk]) -> None:
    whole = counted(chunks)
    assert len(whole.keys) <= 8
    assert whole.counts.sum() == sum(len(chunk) for chunk in chunks)
    assert_same(counted(chunks[::-1]), whole)
    half = len(chunks) // 2
    for parts in ((chunks[:half], chunks[half:]), (chunks[half:], chunks[:half])):
        merged = counted(parts[0])
        merged.merge(counted(parts[1]))
        assert_same(merged, whole)
    assert_same(KeyedCounts.from_arrays(8, whole.arrays()), whole)


@given(CHUNKS)
def test_no_more_bits_are_cut_off_than_needed(chunks: list[Chunk]) -> None:
    counts = counted(chunks)
    values, _ = columns([pair for chunk in chunks for pair in chunk])
    if counts.shift:
        assert len(np.unique(keys_of(values) >> np.uint64(counts.shift - 1))) > 8
    low, high = counts.cells()
    place = np.searchsorted(low, values, "right") - 1
    assert (low[place] <= values).all()
    assert (values <= high[place]).all()


TIMES = st.lists(st.integers(-(2**45), 2**45) | st.integers(0, 50), min_size=1, max_size=20)


@given(TIMES, TIMES, st.integers(2, 9))
def test_counts_by_bin_are_the_same_when_bins_are_joined_later(first: list[int], second: list[int], size: int) -> None:
    def binned(times: list[int]) -> tuple[Axis, NDArray[np.int64]]:
        axis = Axis(size).holding(min(times), max(times))
        return axis, np.bincount(axis.places(np.array(times)), minlength=size)

    whole, counts = binned(first + second)
    (a, of_a), (b, of_b) = binned(first), binned(second)
    assert whole.bins <= size
    assert a.joined(b) == b.joined(a) == whole
    np.testing.assert_array_equal(a.folded(of_a, whole) + b.folded(of_b, whole), counts)
    np.testing.assert_array_equal(b.folded(of_b[None], whole, axis=1)[0], b.folded(of_b, whole))
    peaks = a.folded(np.where(of_a > 0, of_a, np.nan), whole, by=np.fmax, empty=np.nan)
    np.testing.assert_array_equal(~np.isnan(peaks), a.folded(of_a, whole) > 0)


@given(TIMES, st.integers(2, 9))
def test_bins_are_as_narrow_as_their_number_allows(times: list[int], size: int) -> None:
    axis = Axis(size).holding(min(times), max(times))
    assert axis.starts()[0] <= min(times)
    assert max(times) < axis.starts()[-1] + axis.width
    assert axis.width == 1 or (max(times) // (axis.width // 2)) - (min(times) // (axis.width // 2)) >= size
