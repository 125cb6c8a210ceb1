from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from fomo_stream.detector import series
from fomo_stream.detector.changelog import Document
from fomo_stream.detector.keys import UNKEYED, Key, Keys, digest_of
from fomo_stream.detector.series import MOVEMENT_VECTORS, Series
from fomo_stream.detector.step.follow import HALF_LIFE, STAND_IN_RECORDS, Batch
from fomo_stream.detector.step.slots import MIN_KEYED_RECORDS
from fomo_stream.errors import DamagedStateError, StateError

FORGET = 7  # records
ENOUGH = 60  # in place of ENOUGH_KEYED, so that it matters
cuts = st.lists(st.integers(0, 90), max_size=4)


class Stream(NamedTuple):
    """Rows of two features, and their keys."""

    values: np.ndarray
    keys: list[Key]


@st.composite
def streams(draw: st.DrawFn, most: int = 90) -> Stream:
    """From few keys to a new one for every record, and some without; values that are missing, equal or far off."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, n_keys = draw(st.integers(0, most)), draw(st.sampled_from([1, 3, 6, 30, 10**6]))
    values = rng.normal(size=(n, 2)) * rng.choice([0.0, 1.0, 1e9], n)[:, None]
    values[rng.random((n, 2)) < draw(st.sampled_from([0.0, 0.2, 0.9]))] = np.nan
    without = rng.random(n) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    kinds: list[Callable[[int], Key]] = [str, lambda i: b"%d" % i, lambda i: f"\udc80{i}"]
    kind = draw(st.sampled_from(kinds))
    keys = [None if no else kind(key) for no, key in zip(without, rng.integers(0, n_keys, n).tolist(), strict=True)]
    return Stream(values, keys)


@pytest.fixture(autouse=True, scope="module")
def few_are_enough() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "MAX_KEYED_WITHOUT_RECURRENCE", ENOUGH)
        patch.setattr(series, "MIN_RECURRING_SHARE", 0.5)
        yield


def follow(one: Series, stream: Stream, cuts: Sequence[int] = ()) -> Batch:
    """The records of the stream with their past, in several calls; keys are forgotten after every FORGET records."""
    n = len(stream.keys)
    edges = sorted({0, n, *(min(cut, n) for cut in cuts), *range(0, n, FORGET)})
    parts = [one.follow(stream.values[:0], stream.keys[:0])]
    for a, b in pairwise(edges):
        parts.append(one.follow(stream.values[a:b], stream.keys[a:b]))
        if b % FORGET == 0:
            one.forget()
    return Batch(*(np.concatenate(found) for found in zip(*parts, strict=True)))


class OneSeries:
    """All rows of a series, and how many records were said to belong to it."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.members = 0


class Naive:
    """What is said of each record, from all rows of its series, kept as lists."""

    def __init__(self, lags: int, max_keys: int) -> None:
        self.lags, self.max_keys = lags, max_keys
        self.whole = OneSeries()
        self.known: OrderedDict[Key, OneSeries] = OrderedDict()
        self.keyed = self.recurred = self.records = 0

    def row(self, key: Key, values: np.ndarray) -> tuple[np.ndarray, bool]:
        """The vectors of the next record, and whether its series begins."""
        if self.records % FORGET == 0:
            while len(self.known) > self.max_keys:
                self.known.popitem(last=False)
        self.records += 1
        if key is None:
            vectors, _ = self.of(self.whole, values)
            self.whole.members += 1
            return vectors, self.whole.members == 1
        is_known = key in self.known
        self.keyed, self.recurred = self.keyed + 1, self.recurred + is_known
        recur = self.keyed < MIN_KEYED_RECORDS or self.recurred >= self.keyed / 2
        found = None
        if is_known or recur or self.keyed < ENOUGH:
            one = self.known.pop(key, OneSeries())
            self.known[key] = one
            found = self.of(one, values)
        if not recur:
            of_whole = self.of(self.whole, values)
            found = found if is_known else of_whole
        assert found is not None
        vectors, belongs_to = found
        belongs_to.members += 1
        return vectors, belongs_to.members == 1

    def of(self, one: OneSeries, values: np.ndarray) -> tuple[np.ndarray, OneSeries]:
        rows = one.rows
        rows.append(values)
        past = [stood_in(rows[: max(0, len(rows) - lag)]) for lag in range(1 + self.lags)]
        moves = [level_and_spread([row[j] for row in rows]) for j in range(2)]
        return np.array([*past, *np.array(moves).T]), one


def stood_in(rows: list[np.ndarray]) -> np.ndarray:
    """The last of rows (d,), the last recent value in place of a missing one."""
    recent = rows[-1 - STAND_IN_RECORDS :]
    return np.array([next((row[j] for row in recent[::-1] if row[j] == row[j]), np.nan) for j in range(2)])


def mean_by_age(values: Sequence[float]) -> float:
    """Mean of values, oldest first; each counts half every HALF_LIFE of them."""
    shares = 0.5 ** (np.arange(len(values))[::-1] / HALF_LIFE)
    return float(np.dot(shares, values) / shares.sum()) if len(values) else np.nan


def level_and_spread(values: Sequence[float]) -> tuple[float, float]:
    known = [value for value in values if value == value]
    squares = [(value - mean_by_age(known[:i])) ** 2 for i, value in enumerate(known) if i]
    level = mean_by_age(known)
    return level, float(0.5 * np.log(mean_by_age(squares) + (1e-6 * level) ** 2 + 1e-300))


@given(streams(), st.integers(0, 4), st.integers(1, 8), cuts)
def test_a_record_has_its_past_and_its_movement_by_key_and_by_partition_where_keys_do_not_recur(
    stream: Stream, lags: int, max_keys: int, cuts: list[int]
) -> None:
    found = follow(Series(2, lags, max_keys=max_keys), stream, cuts)
    naive = Naive(lags, max_keys)
    expected = [naive.row(key, values) for key, values in zip(stream.keys, stream.values, strict=True)]
    vectors = np.array([vectors for vectors, _ in expected]).reshape(-1, 1 + lags + MOVEMENT_VECTORS, 2)
    np.testing.assert_array_equal(found.vectors[:, : 1 + lags], vectors[:, : 1 + lags])
    largest = np.nanmax(np.abs(stream.values), initial=0.0)  # a level is kept relative to the last value, with 32 bits
    np.testing.assert_allclose(found.vectors[:, 1 + lags], vectors[:, 1 + lags], rtol=1e-6, atol=1e-3 + 1e-6 * largest)
    np.testing.assert_allclose(found.vectors[:, 2 + lags], vectors[:, 2 + lags], rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(found.begins, [begins for _, begins in expected])
    np.testing.assert_array_equal(found.gaps, np.isnan(stream.values))


@given(streams(), st.integers(1, 6))
def test_a_slot_is_of_one_series_from_its_beginning_on(stream: Stream, max_keys: int) -> None:
    found = follow(Series(2, 1, max_keys=max_keys), stream)
    assert ((found.slots >= 0) & (found.slots <= max_keys + FORGET)).all()
    for slot in np.unique(found.slots):
        of_slot = np.flatnonzero(found.slots == slot)
        if slot:
            assert found.begins[of_slot[0]]
            for first, next_one in pairwise(of_slot):
                assert found.begins[next_one] or stream.keys[first] == stream.keys[next_one]


def test_memory_is_bounded_however_many_and_long_the_keys_are() -> None:
    one = Series(1, lags=2, max_keys=100)
    values = np.arange(5000.0)[:, None]
    follow(one, Stream(values, [str(i // 4) * 1000 for i in range(5000)]))  # each comes four times
    one.forget()
    assert len(pickle.dumps(one)) < 101 * 400
    entries = one.copy().changes()
    assert 99 <= sum(key.startswith("key/") for key in entries) <= 101  # and that of the partition
    late = one.follow(np.zeros((2, 1)), [str(i) * 1000 for i in (1200, 0)])
    np.testing.assert_array_equal(late.vectors[:, :3, 0], [[0, 4803, 4802], [0, np.nan, np.nan]])


def series_in(entries: dict[str, bytes | None]) -> list[bool]:
    """For each entry of a key: whether it is there, or else deleted."""
    return [value is not None for key, value in entries.items() if key.startswith("key/") and key != f"key/{UNKEYED}"]


def test_series_that_come_and_go_between_commits_leave_no_trace() -> None:
    one = Series(1, 1, max_keys=10)
    one.follow(np.zeros((10, 1)), list("abcdefghij"))
    assert series_in(one.changes()) == [True] * 10
    follow(one, Stream(np.zeros((5000, 1)), [str(i // 4) for i in range(5000)]))
    one.forget()
    entries = series_in(one.changes())  # most numbers are used again
    assert len(entries) <= 10 + FORGET
    assert sum(entries) == 10


# --- counters


def growth(totals: np.ndarray, keys: Sequence[Key]) -> np.ndarray:
    """By how much a counter has grown a record in its series: (n,), from totals (n,), one after the other."""
    last: dict[Key, tuple[int, float]] = {}
    seen: dict[Key, int] = {}
    found = np.full(len(totals), np.nan)
    for i, (total, key) in enumerate(zip(totals.tolist(), keys, strict=True)):
        seen[key] = seen.get(key, 0) + 1
        if total == total:
            if key in last and total >= last[key][1]:
                found[i] = (total - last[key][1]) / (seen[key] - last[key][0])
            last[key] = seen[key], total
    return found


@given(st.integers(0, 2**32 - 1), st.integers(0, 90), st.integers(1, 4), st.integers(0, 2), cuts)
def test_a_counter_is_followed_by_its_growth(seed: int, n: int, n_keys: int, lags: int, cuts: list[int]) -> None:
    """Its totals, with resets and gaps, say the same as a feature that holds the growth."""
    rng = np.random.default_rng(seed)
    keys: list[Key] = [None] * n if n_keys == 1 else [str(key) for key in rng.integers(0, n_keys, n).tolist()]
    totals = np.full(n, np.nan)
    for key in set(keys):
        at = np.flatnonzero([one == key for one in keys])
        steps = rng.integers(0, 5, len(at)).astype(np.float64)
        totals[at] = np.cumsum(steps) - np.maximum.accumulate(np.where(rng.random(len(at)) < 0.1, np.cumsum(steps), 0))
    totals[rng.random(n) < 0.2] = np.nan
    other = rng.normal(size=n)
    found = follow(Series(2, lags, counters=(1,)), Stream(np.column_stack([other, totals]), keys), cuts)
    expected = follow(Series(2, lags), Stream(np.column_stack([other, growth(totals, keys)]), keys))
    for name, values in found._asdict().items():
        np.testing.assert_array_equal(values, getattr(expected, name), err_msg=name)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(0, 30))
def test_a_counter_goes_on_through_records_that_are_passed_over(seed: int, n_keys: int, passed: int) -> None:
    """Nothing else of them is learned, and the growth after them is that of one record."""
    rng = np.random.default_rng(seed)
    n = 60
    keys: list[Key] = [None] * n if n_keys == 1 else [str(i % n_keys) for i in range(n)]
    totals = np.cumsum(rng.uniform(0, 5, n))[:, None]
    one, stop = Series(1, counters=(0,)), 20 + passed
    one.follow(totals[:20], keys[:20])
    one.skip(totals[20:stop], keys[20:stop])
    found = one.follow(totals[stop:], keys[stop:]).vectors[:, 0, 0]
    np.testing.assert_allclose(found, growth(totals[:, 0], keys)[stop:])


@pytest.mark.parametrize("size", [1, 300])
def test_growth_is_in_the_usual_time_between_records_where_rows_are_missing(size: int) -> None:
    rng = np.random.default_rng(0)
    kept = np.delete(np.arange(300), [100, 101, 200])
    energy, times = 1000 + np.cumsum(rng.uniform(0.8, 1.2, 300)), 1.7e9 + 60.0 * np.arange(300)
    rows = np.column_stack([energy, times])[kept]
    series = Series(1, counters=(0,))
    grown = np.concatenate([series.follow(rows[i : i + size]).vectors[:, 0, 0] for i in range(0, len(rows), size)])
    assert np.isnan(grown[0])
    np.testing.assert_allclose(grown[1:], np.diff(energy[kept]) / np.diff(kept), rtol=0.05)
    without = Series(1, counters=(0,)).follow(rows[:, :1]).vectors[:, 0, 0]
    np.testing.assert_allclose(without[1:], np.diff(energy[kept]))


@pytest.mark.parametrize("first", [0.001, 1.0, 3600.0])
def test_one_strange_time_at_the_start_does_not_change_growth_for_long(first: float) -> None:
    rng = np.random.default_rng(1)
    energy = 1000 + np.cumsum(rng.uniform(0.8, 1.2, 400))
    times = 1.7e9 + np.append(0.0, first + 60.0 * np.arange(399))
    grown = Series(1, counters=(0,)).follow(np.column_stack([energy, times])).vectors[:, 0, 0]
    np.testing.assert_allclose(grown[100:], np.diff(energy)[99:], rtol=0.25)


# --- recovery


def test_damaged_entries_and_other_settings_are_refused_by_name() -> None:
    one = Series(1, 1)
    one.follow(np.zeros((2, 1)), ["a", "b"])
    entries = cast(dict[str, bytes], one.changes())
    Series(1, 1).recover(entries)
    damages = [
        ({"key/nonsense": bytes(16)}, "series cannot be read"),
        ({"key/2": bytes(16)}, "a row of key has not"),
        ({"key/3": bytes(16)}, "key has 3 keys, not 2"),
        ({"keys": bytes(23)}, "series cannot be read"),
    ]
    for changed, message in damages:
        with pytest.raises(DamagedStateError, match=message):
            Series(1, 1).recover(entries | changed)
    with pytest.raises(StateError, match=r"lags is 1 in the state, 2 now; movement is 1 .*, 0 now"):
        Series(1, 2, movement=False).recover(entries)


def test_a_scale_of_the_version_before_goes_on_also_where_no_record_comes_before_the_next_commit() -> None:
    stream = Stream(np.random.default_rng(2).normal(size=(60, 2)), [f"k{i % 3}" for i in range(60)])
    one = Series(2, relative=True)
    one.follow(stream.values, stream.keys)
    one.learn_scale(tuple(np.sort(stream.values, axis=0).T))
    log = {name: value for name, value in one.changes().items() if value is not None}
    assert one.pooled is not None
    arrays = {name: array for name, array in one.pooled.to_arrays().items() if name not in ("common", "steady")}
    log |= cast(dict[str, bytes], Document().changes("scale", save(arrays)))
    log["keys"] = log["keys"][: series.COUNTERS.size]
    for _ in range(2):  # the second reads what the first has written without a record
        again = Series(2, relative=True)
        again.recover(log)
        log |= {name: value for name, value in again.changes().items() if value is not None}
    assert again.follow(stream.values[:2], stream.keys[:2]).slots.tolist() == [1, 2]


def test_a_state_without_times_of_counters_goes_on() -> None:
    columns: list[tuple[Any, ...]] = [("total", "f8", (1,)), ("when", "f8", (1,))]
    before, after = Keys(10, columns[:1]), Keys(10, columns, added=("when",))
    before.write(np.array([before.take(digest_of("a"), 1)]), total=[[5.0]])
    after.recover({name: value for name, value in before.changes("key").items() if value is not None}, "key", 1)
    slot = after.find(digest_of("a"))
    assert slot is not None
    assert (after.column("total", np.array([slot])).item(), after.column("when", np.array([slot])).item()) == (5.0, 0.0)
