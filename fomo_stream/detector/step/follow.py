"""Follow records: find the past of their series, the movement of their values, and the usual values of key and time.

The outer loop is over records, the inner ones over features, on the row of the record's series. `series`, `relative`
and `seasons` say what the numbers mean. A record meets them in this order: growth of counters, usual values of the key
and the time, level and spread, runs of equal values, gaps, the records before.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.step.slots import first_of_series
from fomo_stream.model.architecture import VALUE_LIMIT
from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.handles import cube, first_of_cube, first_of_row, first_of_table, row, table, words_at

Float = NDArray[np.float64]
Int = NDArray[np.int64]

RELATIVE_VECTORS = 3  # vectors: of the value, of its level, and of the size of its changes
HALF_LIFE = 3.0  # values of a feature after which an older one counts half in its level and spread
USUAL_HALF_LIFE = 150.0  # ... and in what is usual for its key
STAND_IN_RECORDS = 10  # records of a series: for so many a value stands in for missing ones after it
MAX_SINGLE_GROWTH = 1.5  # usual times between records: growth over a longer time is a mean
UNLIMITED_GAPS = 8  # first times between records of a series; they are not limited yet
MIN_RELATIVE_SPREAD = 1e-6  # of the level: a smaller spread counts as this
MAX_SLOW_VALUES = 3000  # values in the slow mean of a key: enough that it does not follow the course of a day
MAX_RUN = 65_535  # equal values that are counted, as a uint16 holds them
MAX_SINGLE = float(np.finfo(np.float32).max)
MAX_COUNTED_VALUES = 255  # values of a key that are counted

LEVEL_COUNTS = 2.0  # values of a key that weigh as much as the partition in the key's level ...
SPREAD_COUNTS = 8.0  # ... and in its spread
MAX_ALIKE_DISTANCE = 2.0  # `distance_between_keys` from which on the spread of one key says nothing about other keys
MAX_SPREADS = 3.0  # a value that is further off changes levels and spreads as if it were this far
MAX_DEVIATION = 1e6  # deviations: a larger one counts as this
MIN_WIDTH = 1e-9  # of the unit: a smaller distance counts as this
MAX_SCORE = 140.0  # its sinh is about VALUE_LIMIT; a larger score has the value of this one

MIN_VALUES_FOR_RUNS = 500  # known values of a feature before it can stand still
MAX_EQUAL_SHARE = 0.1  # share of the values that equal the value before; a feature with more cannot stand still
MIN_IMPROBABILITY = 20.0  # minus the logarithm of the probability of the run
MIN_RUN = 5  # equal values after the first one
MAX_LONG_RUNS = 1  # earlier runs that were at least half as long
RUN_SIZES = 16  # runs are counted by the powers of 2 that they reach

MAX_VISITS = 8  # visits in the mean of a bin: a new visit has at least the weight 1 / MAX_VISITS
MAX_CYCLES = 4  # cycles in the mean of errors: it tells whether a season explains much
MIN_EXPLAINED = 0.5  # share of the variance around the mean of a cycle; a season that explains less is not used
MIN_EXPLAINED_ALONE = 0.75  # ... the same share while a finer cycle (the week, for a day) is not tested yet
MIN_VARIANCE = 1e-3  # of scores around the mean: else a value that never changes would be explained
PRIOR_VISITS = 4.0  # visits: the spread of all bins has this weight in the spread of a bin
RECENT_BINS = 6.0  # bins in the mean of the last errors, which widens spreads

CENTER, UNIT, MEAN, DEVIATION, WITHIN, COMMON, STEADY = range(7)  # rows of `FixedInputs.pooled`
LOW, HIGH, MIN_NEAR, MAX_NEAR, NEARLY_ALL = range(5)  # rows of `FixedInputs.bulk`
EXPLAINS, OF_TIME, AROUND, OF_KEY, COURSE = range(5)  # rows of what `_season_of` writes


class Rows(NamedTuple):
    """The state of each of K series; a series without records has zeros. d features, c counters, l lags."""

    has_records: NDArray[
        np.bool_
    ]  # (K,) whether records belong to it; a key's first ones may belong to the partition's
    known: NDArray[np.uint8]  # (K, d) number of known values, at most MAX_COUNTED_VALUES
    age: NDArray[np.uint8]  # (K, d) records since the last one
    last: Float  # (K, d) the last one
    equal: NDArray[np.uint16]  # (K, d) values before that one which are equal to it
    total: Float  # (K, c) the last total of a counter ...
    since: NDArray[np.uint16]  # (K, c) ... and how many records ago it was; 0: none is known
    when: Float  # (K, c) the time of that total
    clock: Float  # (K,) the time of the last record, in seconds; 0: unknown
    pace: Float  # (K,) the logarithm of the usual time between two ...
    paces: NDArray[np.uint8]  # (K,) ... and of how many that is the mean
    records: NDArray[np.uint32]  # (K,) their number, and the last ones, newest first:
    past: Float  # (K, l, d)
    offset: NDArray[np.float32]  # (K, d) the level less the last value, so that 32 bits are enough
    root: NDArray[np.float32]  # (K, d) the root mean square of changes
    level: NDArray[np.float32]  # (K, d) of the key's scores, see `Pooled`
    variance: NDArray[np.float32]  # (K, d)
    slow: NDArray[np.float32]  # (K, d) the mean of many of its scores ...
    seen: NDArray[np.uint32]  # (K, d) ... and their number


class Profiles(NamedTuple):
    """Seasons of p cycles, one after the other: N bins in all, of d features. Without cycles all are empty."""

    inner: Int  # (p,) bins of a cycle
    first: Int  # (p + 1,) number of the first bin of each, and N
    # of each bin: visits so far, and sums of the one that is not part of it yet
    visits: NDArray[np.uint8]  # (N, d)
    mean: Float  # (N, d)
    variance: Float  # (N, d)
    open: NDArray[np.uint32]  # (N, d)
    sum: Float  # (N, d)
    square: Float  # (N, d) of distances from the prediction, at the first visit from 0
    written: NDArray[np.bool_]  # (N,) bins that have changed
    # of each cycle
    bin: Int  # (p,) now; -1: none yet
    tested: Int  # (p, d) visits that were predicted
    recent: Float  # (p, d) mean square of distances in the last bins, in spreads
    error: Float  # (p, d) mean square of the profile, of its mean, ...
    error_of_mean: Float  # (p, d)
    counted: Int  # (p, d) ... and in the visit now: their sums
    summed: Float  # (p, d)
    summed_of_mean: Float  # (p, d)
    of_mean: Float  # (p, d) mean and variance of all bins; NaN: none is known
    of_variance: Float  # (p, d)
    course: Float  # (p, d) variance of the levels of all bins
    level: Float  # (N, d) of each bin, see `find_levels`


class Counts(NamedTuple):
    """Counts of d features over all records."""

    values: Int  # (d,) known ones
    equal: Int  # (d,) those that are equal to the one before in their series
    runs: Int  # (RUN_SIZES, d) of equal values that have ended, by the power of 2 that they reached
    firsts: Float  # (2, d) keys with a value, and the sum of the distances of their first values from the middle of all


class FixedInputs(NamedTuple):
    """The inputs that do not change while records are followed."""

    pooled: Float  # (7, d) what is usual for all keys, see `Pooled`; (7, 0): not known yet
    bulk: Float  # (5, d) which values are far, see `Bulk`; (5, 0): not known yet
    numeric: NDArray[np.bool_]  # (d,) features that are not categories
    counters: Int  # (c,) columns of counters
    weights: Float  # (2, MAX_COUNTED_VALUES + 2) sums of the weights of n values, by HALF_LIFE and by USUAL_HALF_LIFE
    places: Int  # (1,) columns with places in cycles
    does: NDArray[np.bool_]  # (2,) whether level and spread are computed, and whether keys are compared


class Batch(NamedTuple):
    """n records with the past of their series. See `Series.follow`."""

    vectors: Float  # (n, vectors, d)
    gaps: NDArray[np.bool_]  # (n, d) values that are missing, even where an earlier one stands in
    slots: Int  # (n,) number of each record's series, from 0; a number is used again for another series
    begins: NDArray[np.bool_]  # (n,) whether no record before belongs to its series
    # how far the values, and their movement, are from what is usual for the key; NaN: unknown; see `Pooled`
    relative: Float  # (n, RELATIVE_VECTORS, d)
    usual: Float  # (n, 3, d) that level and spread, as scores, and how far off it may be
    still: Int  # (n, d) how many values before are equal to this one, where it stands still; else 0
    far: NDArray[np.bool_]  # (n,) whether any value is far; see `Bulk`
    is_common: NDArray[np.bool_]  # (n, d) values that are those of nearly all records

    def vectors_for(self, view_input: str) -> Float:
        """Return the vectors that a view with this input compares."""
        return self.relative if view_input in ("relative", "key_value") else self.vectors

    def part(self, records: slice | Int) -> Batch:
        """Return some of the records."""
        return Batch._make(array[records] for array in self)


def new_batch(n: int, d: int, n_vectors: int) -> Batch:
    """Allocate n records of d features."""
    vectors, relative, usual = np.zeros((n, n_vectors, d)), np.zeros((n, RELATIVE_VECTORS, d)), np.zeros((n, 3, d))
    gaps, is_common, flags = np.zeros((n, d), bool), np.zeros((n, d), bool), np.zeros((2, n), bool)
    slots, still = np.zeros(n, np.int64), np.zeros((n, d), np.int64)
    return Batch(vectors, gaps, slots, flags[0], relative, usual, still, flags[1], is_common)


@exact_kernel
def batch_at(address, n):
    """Return the first n records of the `Batch` that a handle begins with."""
    w = words_at(address)
    return Batch(
        first_of_cube(w, 0, n, np.float64),
        first_of_table(w, 1, n, np.bool_),
        first_of_row(w, 2, n, np.int64),
        first_of_row(w, 3, n, np.bool_),
        first_of_cube(w, 4, n, np.float64),
        first_of_cube(w, 5, n, np.float64),
        first_of_table(w, 6, n, np.int64),
        first_of_row(w, 7, n, np.bool_),
        first_of_table(w, 8, n, np.bool_),
    )


@exact_kernel
def _state(address):
    """Return the state at the address of its handle, see `Series`."""
    words = words_at(address)
    rows = Rows(
        row(words, 0, np.bool_),
        table(words, 1, np.uint8),
        table(words, 2, np.uint8),
        table(words, 3, np.float64),
        table(words, 4, np.uint16),
        table(words, 5, np.float64),
        table(words, 6, np.uint16),
        table(words, 7, np.float64),
        row(words, 8, np.float64),
        row(words, 9, np.float64),
        row(words, 10, np.uint8),
        row(words, 11, np.uint32),
        cube(words, 12, np.float64),
        table(words, 13, np.float32),
        table(words, 14, np.float32),
        table(words, 15, np.float32),
        table(words, 16, np.float32),
        table(words, 17, np.float32),
        table(words, 18, np.uint32),
    )
    profiles = Profiles(
        row(words, 19, np.int64),
        row(words, 20, np.int64),
        table(words, 21, np.uint8),
        table(words, 22, np.float64),
        table(words, 23, np.float64),
        table(words, 24, np.uint32),
        table(words, 25, np.float64),
        table(words, 26, np.float64),
        row(words, 27, np.bool_),
        row(words, 28, np.int64),
        table(words, 29, np.int64),
        table(words, 30, np.float64),
        table(words, 31, np.float64),
        table(words, 32, np.float64),
        table(words, 33, np.int64),
        table(words, 34, np.float64),
        table(words, 35, np.float64),
        table(words, 36, np.float64),
        table(words, 37, np.float64),
        table(words, 38, np.float64),
        table(words, 39, np.float64),
    )
    counts = Counts(
        row(words, 40, np.int64), row(words, 41, np.int64), table(words, 42, np.int64), table(words, 43, np.float64)
    )
    fixed = FixedInputs(
        table(words, 44, np.float64),
        table(words, 45, np.float64),
        row(words, 46, np.bool_),
        row(words, 47, np.int64),
        table(words, 48, np.float64),
        row(words, 49, np.int64),
        row(words, 50, np.bool_),
    )
    return rows, profiles, counts, fixed


@exact_kernel
def _copy_rows(numbers, slots, rows):
    """Copy the rows of the series with these numbers (k,), each once; their positions in the copy go into slots
    (k,)."""
    first, m = first_of_series(numbers), 0
    for k in range(len(numbers)):
        slots[k] = m if first[k] == k else slots[first[k]]
        m += first[k] == k
    d, c, lags, moves, scores, slow = (
        rows.known.shape[1],
        rows.total.shape[1],
        rows.past.shape[1],
        rows.offset.shape[1],
        rows.level.shape[1],
        rows.slow.shape[1],
    )
    copy = Rows(
        np.zeros(m, np.bool_),
        np.zeros((m, d), np.uint8),
        np.zeros((m, d), np.uint8),
        np.zeros((m, d)),
        np.zeros((m, d), np.uint16),
        np.zeros((m, c)),
        np.zeros((m, c), np.uint16),
        np.zeros((m, c)),
        np.zeros(m),
        np.zeros(m),
        np.zeros(m, np.uint8),
        np.zeros(m, np.uint32),
        np.zeros((m, lags, d)),
        np.zeros((m, moves), np.float32),
        np.zeros((m, moves), np.float32),
        np.zeros((m, scores), np.float32),
        np.zeros((m, scores), np.float32),
        np.zeros((m, slow), np.float32),
        np.zeros((m, slow), np.uint32),
    )
    for k in range(len(numbers)):
        s, n = slots[k], numbers[k]
        if first[k] < k or n >= len(rows.known):  # copied already, or the series of a new key, which has no row
            continue
        copy.has_records[s] = rows.has_records[n]
        for j in range(d):
            copy.known[s, j], copy.age[s, j] = rows.known[n, j], rows.age[n, j]
            copy.last[s, j], copy.equal[s, j] = rows.last[n, j], rows.equal[n, j]
            for lag in range(lags):
                copy.past[s, lag, j] = rows.past[n, lag, j]
        for j in range(moves):
            copy.offset[s, j], copy.root[s, j] = rows.offset[n, j], rows.root[n, j]
        for j in range(scores):
            copy.level[s, j], copy.variance[s, j] = rows.level[n, j], rows.variance[n, j]
        for j in range(slow):
            copy.slow[s, j], copy.seen[s, j] = rows.slow[n, j], rows.seen[n, j]
        for j in range(c):
            copy.total[s, j], copy.since[s, j], copy.when[s, j] = rows.total[n, j], rows.since[n, j], rows.when[n, j]
        if c:
            copy.clock[s], copy.pace[s], copy.paces[s] = rows.clock[n], rows.pace[n], rows.paces[n]
        if lags:
            copy.records[s] = rows.records[n]
    return copy


@exact_kernel
def limit(rows):
    """Limit the values of rows (n, d) to those that the model takes; a value that is not finite becomes NaN."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            x = rows[i, j]
            rows[i, j] = min(max(x, -VALUE_LIMIT), VALUE_LIMIT) if math.isfinite(x) else np.nan


@exact_kernel
def follow(state, values, at, numbers, belongs, learn, batch):
    """Add n records to their series, in order, and write a `Batch` of them, at the address of a handle.

    values: (n, d + p) or (n, d + p + 1), the last columns are positions in cycles and the time in seconds, NaN =
    unknown. at, numbers, belongs: (k,) for each addition of a record to a series: the record, the number of the series,
    and whether the record belongs to it. (The first records of a key are also added to the series of the partition.)
    (0,): all are added to that series alone. learn: whether the state changes. state: the address of a handle, see
    `Series`.
    """
    rows, profiles, counts, fixed = _state(state)
    out = batch_at(batch, len(values))
    if len(at) == 0:
        at, numbers, belongs = np.arange(len(values)), np.zeros(len(values), np.int64), np.ones(len(values), np.bool_)
    out.vectors[:], out.relative[:], out.usual[:] = np.nan, np.nan, np.nan
    out.slots[:], out.begins[:], out.far[:] = 0, False, False
    out.still[:], out.is_common[:] = 0, False
    slots = numbers
    if not learn:  # the loop below writes: into copies, of the rows that it needs
        slots = np.empty_like(numbers)
        rows = _copy_rows(numbers, slots, rows)
        counts = Counts(counts.values.copy(), counts.equal.copy(), counts.runs.copy(), counts.firsts.copy())
        profiles = Profiles(
            profiles.inner, profiles.first, profiles.visits.copy(), profiles.mean.copy(), profiles.variance.copy(),
            profiles.open.copy(), profiles.sum.copy(), profiles.square.copy(), profiles.written.copy(),
            profiles.bin.copy(), profiles.tested.copy(), profiles.recent.copy(), profiles.error.copy(),
            profiles.error_of_mean.copy(), profiles.counted.copy(), profiles.summed.copy(),
            profiles.summed_of_mean.copy(), profiles.of_mean.copy(), profiles.of_variance.copy(),
            profiles.course.copy(), profiles.level.copy(),
        )  # fmt: skip
    d, n_cycles, weights = out.gaps.shape[1], fixed.places[0], fixed.weights
    moving, compares = fixed.does[0], fixed.does[1]
    x, near, limited, filled = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    is_known, far, is_expected = np.empty(d, np.bool_), np.empty(d, np.bool_), np.empty(d, np.bool_)
    count, taken, season = np.empty(d, np.int64), np.empty(d), np.empty((5, d))
    level, spread, score, near_score, doubt = np.empty(d), np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    alike, moves = np.empty(d, np.bool_), np.empty((2, d))
    n_vectors, lags = out.vectors.shape[1], rows.past.shape[1]
    has_pooled, has_bulk = fixed.pooled.shape[1] > 0, fixed.bulk.shape[1] > 0
    has_seasons = len(profiles.inner) > 0
    _write_no_season(season)
    for i in range(len(values)):
        for j in range(d):
            out.gaps[i, j] = np.isnan(values[i, j])
    for k in range(len(at)):
        i, s, of_key, belonging = at[k], slots[k], numbers[k] > 0, belongs[k]
        is_compared = compares and (of_key or has_seasons)
        places, time = (
            values[i, d : d + n_cycles],
            values[i, d + n_cycles] if values.shape[1] > d + n_cycles else np.nan,
        )
        for j in range(d):
            x[j] = values[i, j]
            taken[j] = np.nan
        if len(fixed.counters):
            _grow(x, taken, time, s, rows, fixed.counters)
        for j in range(d):
            is_known[j] = not np.isnan(x[j])
            count[j] = rows.known[s, j]
            far[j] = has_bulk and (x[j] < fixed.bulk[MIN_NEAR, j] or x[j] > fixed.bulk[MAX_NEAR, j])
            is_expected[j] = False
        knows_usual = has_pooled and is_compared
        if knows_usual:
            if has_seasons:
                _find_season(x, is_known, of_key, belonging, places, s, rows, profiles, fixed, score, season)
            for j in range(d):
                if of_key:
                    is_expected[j] = is_known[j] and count[j] > 0
                    _expect(
                        x[j], is_known[j], count[j], season[OF_KEY, j], s, j, rows, counts, fixed,
                        level, spread, score, near_score, doubt, alike,
                    )  # fmt: skip
                else:
                    is_expected[j], alike[j], doubt[j] = is_known[j] and season[EXPLAINS, j] > 0.0, True, 1.0
                    level[j], spread[j] = season[OF_TIME, j], season[AROUND, j]
                    score[j] = score_of(x[j], j, fixed.pooled) if is_known[j] else 0.0
                    near_score[j] = min(
                        max(score[j], level[j] - MAX_SPREADS * spread[j]), level[j] + MAX_SPREADS * spread[j]
                    )
                far[j] = far[j] and not (
                    is_expected[j] and near_score[j] == score[j]
                )  # a value that is far for all may be usual for its key
        any_far = any_expected = False
        for j in range(d):
            any_far = any_far or far[j]
            any_expected = any_expected or is_expected[j]
            near[j] = min(max(x[j], fixed.bulk[LOW, j]), fixed.bulk[HIGH, j]) if far[j] else x[j]
            limited[j] = near[j]
            if is_expected[j] and near_score[j] != score[j]:
                limited[j] = raw_of(near_score[j], j, fixed.pooled)
        if moving or is_compared:
            update_movement(near, limited, is_known, count, s, rows, weights, moves)
        _count_runs(near, is_known, count, belonging, i, s, rows, counts, fixed.numeric, out.still)
        for j in range(d):
            filled[j] = x[j]
            if is_known[j]:
                rows.last[s, j], rows.age[s, j] = near[j], 0
            else:
                rows.age[s, j] = min(rows.age[s, j], STAND_IN_RECORDS) + 1
                if rows.age[s, j] <= STAND_IN_RECORDS and count[j] > 0:
                    filled[j] = rows.last[s, j]
        if belonging:
            out.slots[i], out.begins[i], out.far[i] = numbers[k], not rows.has_records[s], any_far
            rows.has_records[s] = True
            for j in range(d):
                out.vectors[i, 0, j] = filled[j]
                for lag in range(lags):
                    out.vectors[i, 1 + lag, j] = rows.past[s, lag, j] if lag < rows.records[s] else np.nan
                if moving:
                    out.vectors[i, n_vectors - 2, j], out.vectors[i, n_vectors - 1, j] = moves[0, j], moves[1, j]
                out.gaps[i, j] = not is_known[j]
                if taken[j] > MAX_SINGLE_GROWTH and (
                    moving or is_compared
                ):  # a mean over several records need not fit the rest of the row
                    out.gaps[i, j] = (
                        _is_near_level(x[j], moves[0, j], moves[1, j], count[j], weights) or not is_known[j]
                    )
                out.is_common[i, j] = has_bulk and x[j] == fixed.bulk[NEARLY_ALL, j]
            if knows_usual and (of_key or any_expected):
                for j in range(d):
                    out.usual[i, 0, j], out.usual[i, 1, j], out.usual[i, 2, j] = level[j], spread[j], doubt[j]
                    if is_expected[j] and fixed.numeric[j]:
                        width = spread[j]
                        if season[COURSE, j] > 0.0:
                            width = math.sqrt(spread[j] * spread[j] + season[COURSE, j])
                        comparison = score[j], level[j], spread[j], width, alike[j], moves[0, j], moves[1, j], j
                        compare_with_key(*comparison, fixed.pooled, out.relative[i])
                        if not of_key:  # a season says nothing about level and spread
                            out.relative[i, 1, j] = out.relative[i, 2, j] = np.nan
        for j in range(d):
            for lag in range(lags - 1, 0, -1):
                rows.past[s, lag, j] = rows.past[s, lag - 1, j] if lag - 1 < rows.records[s] else np.nan
            if lags:
                rows.past[s, 0, j] = filled[j]
            rows.known[s, j] = min(count[j] + is_known[j], MAX_COUNTED_VALUES)
        if lags:
            rows.records[s] += 1


@exact_kernel
def _grow(x, taken, time, s, rows, counters):
    """Write the growth of counters per record since their last known total into x (d,), NaN = unknown.

    taken: (d,) the time of that growth, in usual times between two records. Where times are known and the growth took
    longer, it is scaled to one usual time: without that, the record after a missing one made an alarm. The growth
    is unknown at the first total of a series, and where the total has fallen, because the counter began again.
    """
    has_time = not np.isnan(time)
    pace, paces = rows.pace[s], rows.paces[s]
    for c in range(len(counters)):
        j = counters[c]
        total, last, since = x[j], rows.total[s, c], int(rows.since[s, c])
        x[j] = np.nan
        if has_time and rows.when[s, c] > 0.0 and paces > 0:
            taken[j] = (time - rows.when[s, c]) / math.exp(pace)
        is_known = not np.isnan(total)
        if is_known and since > 0 and total >= last:
            x[j] = (total - last) / (max(since, 1) if np.isnan(taken[j]) else max(taken[j], 1.0))
        if is_known:
            rows.total[s, c], rows.since[s, c] = total, 1
            rows.when[s, c] = time if has_time else 0.0
        elif since > 0:
            rows.since[s, c] = min(since + 1, MAX_RUN)
    gap = time - rows.clock[s]
    if has_time and rows.clock[s] > 0.0 and gap > 0.0:
        # Once some times are known, a gap is limited to half and twice the usual time: neither a pause nor a burst says
        # much about it. The mean is over logarithms.
        change = math.log(gap) - pace
        if paces >= UNLIMITED_GAPS:
            change = min(max(change, -math.log(2.0)), math.log(2.0))
        rows.pace[s] = pace + change / min(paces + 1, MAX_COUNTED_VALUES)
        rows.paces[s] = min(paces + 1, MAX_COUNTED_VALUES)
    if has_time:
        rows.clock[s] = time


@exact_kernel
def skip_records(state, values, at, slots):
    """Let counters continue from the totals of skipped records, from which nothing else is learned; see `follow`."""
    rows, _, _, fixed = _state(state)
    x, taken = np.empty(rows.known.shape[1]), np.empty(rows.known.shape[1])
    last = len(x) + fixed.places[0]
    for k in range(len(at)):
        for j in range(len(x)):
            x[j] = values[at[k], j]
            taken[j] = np.nan
        time = values[at[k], last] if values.shape[1] > last else np.nan
        _grow(x, taken, time, slots[k], rows, fixed.counters)


@exact_kernel
def score_of(x, j, pooled):
    """Return the score of a value x of feature j; scores are comparable between keys."""
    return (math.asinh((x - pooled[CENTER, j]) / pooled[UNIT, j]) - pooled[MEAN, j]) / pooled[DEVIATION, j]


@exact_kernel
def raw_of(score, j, pooled):
    """Return the value of a score."""
    inner = min(max(pooled[MEAN, j] + pooled[DEVIATION, j] * score, -MAX_SCORE), MAX_SCORE)
    return pooled[CENTER, j] + pooled[UNIT, j] * math.sinh(inner)


@exact_kernel
def distance_between_keys(keys, distances):
    """Return the mean distance of keys from the middle of all, in deviations of all records, at least 1.

    It is large where keys are not alike. keys: those with a first value; distances: the sum over these values.
    """
    return MAX_DEVIATION if keys < 2.0 else max(distances / keys, 1.0)


@exact_kernel
def _expect(x, is_known, count, season, s, j, rows, counts, fixed, level, spread, score, near_score, doubt, alike):
    """Predict feature j from the past of its key: write level, spread, score, near_score, doubt and alike, (d,) each.

    Level and spread are those of the `count` values before. While these are few, they are shrunk to those of all keys
    (empirical Bayes). The spread is that of a prediction, so it includes the uncertainty of the level. near_score is
    the score, limited to MAX_SPREADS spreads from the level: only this much of an outlier is learned. doubt: the
    possible error of the level, in deviations of all records; alike: whether keys have similar spreads. season: the
    score that is usual at the time, which is not part of a key's level.
    """
    key_distance = distance_between_keys(counts.firsts[0, j], counts.firsts[1, j])
    if is_known and count == 0:
        counts.firsts[0, j] += 1.0
        counts.firsts[1, j] += abs(score_of(x, j, fixed.pooled))
    n = fixed.weights[1, count]
    own_level, own_variance = np.float64(rows.level[s, j]), np.float64(rows.variance[s, j])
    share = n / (n + LEVEL_COUNTS / (key_distance * key_distance))
    of_own, within = n / (n + SPREAD_COUNTS), fixed.pooled[WITHIN, j]
    expected, off = share * own_level, (1.0 - share) * key_distance
    doubt[j], alike[j] = max(off, 1.0), key_distance < MAX_ALIKE_DISTANCE
    if key_distance < MAX_ALIKE_DISTANCE or n < 2.0:
        mixed = of_own * own_variance + SPREAD_COUNTS * within / (n + SPREAD_COUNTS)
    else:  # spreads of keys may differ by orders of magnitude: their logarithms are mixed
        own = math.log(max(own_variance, MIN_WIDTH)) * of_own
        mixed = math.exp(own + math.log(within) * (1.0 - of_own))
    width = math.sqrt(mixed * (1.0 + 1.0 / (n + 1.0)) + off * off)
    value = (score_of(x, j, fixed.pooled) if is_known else 0.0) - season
    near = min(max(value, expected - MAX_SPREADS * width), expected + MAX_SPREADS * width)
    if is_known:
        gain, change = 1.0 / fixed.weights[1, count + 1], near - own_level
        rows.level[s, j] = own_level + change * gain
        rows.variance[s, j] = own_variance + (change * (near - rows.level[s, j]) - own_variance) * gain
    level[j], spread[j], score[j], near_score[j] = expected + season, width, value + season, near + season


@exact_kernel
def _half_width(level, spread, j, pooled):
    """Return half of the distance between the values one spread below and one spread above a level."""
    width = raw_of(level + spread, j, pooled) - raw_of(level - spread, j, pooled)
    return max(width, MIN_WIDTH * pooled[UNIT, j]) / 2.0


@exact_kernel
def _single(x):
    """Limit a number and round it to 32 bits: the history keeps such numbers, and a record has to equal its own row
    there."""
    return np.nan if np.isnan(x) else np.float64(np.float32(min(max(x, -MAX_DEVIATION), MAX_DEVIATION)))


@exact_kernel
def compressed(x):
    """Return a number of spreads, beyond MAX_SPREADS by its logarithm (asinh): see `views.VIEWS`."""
    return _single(MAX_SPREADS * math.asinh(x / MAX_SPREADS))


@exact_kernel
def compare_with_key(score, level, spread, width, alike, moved_level, moved_spread, j, pooled, out):
    """Write the distance of feature j from the usual values of its key into out (RELATIVE_VECTORS, d): see `Pooled`.

    width: the spread together with the usual changes within a cycle. Movement is compared with it, because values move
    through these changes, also where they stay near the level of the time.
    """
    change = moved_spread - math.log(_half_width(level, width, j, pooled))
    if not alike:  # a small spread is not odd: keys differ too much to say so
        change = max(change, 0.0) if change == change else change
    moved = score_of(moved_level, j, pooled)
    out[0, j] = _single((score - level) / spread)
    out[1, j] = _single((moved - level) / spread + (moved - score) * (1.0 / width - 1.0 / spread))
    out[2, j] = _single(change)
    # The value that most records have is not odd for a key, unless the key's own level is different: a flag that goes
    # back to 0, which nearly all records have, is normal.
    of_all = -pooled[MEAN, j] / pooled[DEVIATION, j]
    if pooled[COMMON, j] > 0.0 and score == of_all and abs(level - of_all) < pooled[COMMON, j]:
        out[0, j] = out[1, j] = 0.0
        if pooled[STEADY, j] > 0.0:
            out[2, j] = 0.0


@exact_kernel
def update_movement(near, limited, is_known, count, s, rows, weights, out):
    """Update level and spread of a series by a record, and write them into out (2, d); NaN = not known yet.

    near: (d,) its values as the next record knows them; limited: (d,) its values as they count in level and spread;
    count: (d,) known values before.
    """
    for j in range(len(near)):
        root, level = rows.root[s, j], rows.last[s, j] + rows.offset[s, j]
        if is_known[j]:
            # np.float64, because numba computes float32 * float32, and float(x), in 32 bits
            change, square = limited[j] - level, np.float64(root) * np.float64(root)
            if count[j] > 0:  # the first value does not change anything
                square += (change * change - square) / max(weights[0, count[j]], 1.0)
            root = np.float32(min(math.sqrt(square), MAX_SINGLE))
            level += change / weights[0, count[j] + 1]
            offset = np.float32(min(max(level - near[j], -MAX_SINGLE), MAX_SINGLE))
            rows.root[s, j], rows.offset[s, j] = root, offset
            level = near[j] + offset
        after = count[j] + is_known[j]
        out[0, j] = out[1, j] = np.nan
        if after > 0:
            out[0, j] = np.float64(np.float32(min(max(level, -MAX_SINGLE), MAX_SINGLE)))
        if after > 1:
            size = np.float64(root) * np.float64(root) + (MIN_RELATIVE_SPREAD * level) * (MIN_RELATIVE_SPREAD * level)
            out[1, j] = np.float64(np.float32(0.5 * math.log(size + 1e-300)))


@exact_kernel
def _is_near_level(x, level, spread, count, weights):
    """Return whether a value is at most MAX_SPREADS spreads off the level before it.

    Level and spread are those after the value; its own part in both is taken out.
    """
    share = 1.0 / weights[0, min(count, MAX_COUNTED_VALUES - 1) + 1]
    change = (x - level) / (1.0 - share)
    square = (math.exp(2.0 * spread) - share * change * change) / (1.0 - share)
    return change * change <= MAX_SPREADS * MAX_SPREADS * square


@exact_kernel
def _count_runs(near, is_known, count, belonging, i, s, rows, counts, numeric, still):
    """Count equal values in a row, and write their number into still (n, d) where a feature stands still.

    A feature stands still if its run of equal values is improbable, and if at most MAX_LONG_RUNS earlier runs were half
    as long.
    """
    for j in range(len(near)):
        if not is_known[j]:
            continue
        before = int(rows.equal[s, j])
        is_equal = count[j] > 0 and near[j] == rows.last[s, j]
        run = min(before + 1, MAX_RUN) if is_equal else 0
        rows.equal[s, j] = run
        if not belonging or not numeric[j]:
            continue
        if run >= MIN_RUN and counts.values[j] >= MIN_VALUES_FOR_RUNS:
            share = (counts.equal[j] + 1) / (counts.values[j] + 2)
            if share < MAX_EQUAL_SHARE and -run * math.log(share) > MIN_IMPROBABILITY:
                longer = 0
                for size in range(_power(run // 2), RUN_SIZES):
                    longer += counts.runs[size, j]
                if longer <= MAX_LONG_RUNS:
                    still[i, j] = run
        counts.values[j] += 1
        counts.equal[j] += is_equal
        if not is_equal and before > 0:
            counts.runs[_power(before), j] += 1


@exact_kernel
def _power(n):
    """Return the largest power of 2 that a length reaches, at most RUN_SIZES - 1."""
    power = 0
    while n > 1 and power < RUN_SIZES - 1:
        n //= 2
        power += 1
    return power


@exact_kernel
def _find_season(x, is_known, of_key, belonging, places, s, rows, profiles, fixed, score, season):
    """Write the usual values at the time of a record into season (5, d), see `_season_of`, then learn the record.

    score: (d,) working memory. The slow mean of a key is taken out of its scores first: seasons are shared by all keys.
    """
    _write_no_season(season)
    for j in range(len(x)):
        score[j] = score_of(x[j], j, fixed.pooled) if is_known[j] else np.nan
        if is_known[j] and of_key:
            mean = np.float64(rows.slow[s, j])
            rows.seen[s, j] = min(int(rows.seen[s, j]) + 1, 4294967295)
            rows.slow[s, j] = mean + (score[j] - mean) / min(max(rows.seen[s, j], 1), MAX_SLOW_VALUES)
            score[j] -= mean
    if belonging:
        _season_of(score, places, profiles, season)
    for j in range(len(x)):
        if not fixed.numeric[j]:
            season[EXPLAINS, j] = season[OF_TIME, j] = season[OF_KEY, j] = season[COURSE, j] = 0.0


@exact_kernel
def _write_no_season(season):
    """Write that no season is known into season (5, d)."""
    season[:] = 0.0
    season[AROUND] = 1.0


@exact_kernel
def follow_seasons(scores, places, profiles, out):
    """Write the seasons into out (n, 5, d), see `_season_of`, for scores (n, d), places (n, p)."""
    for i in range(len(scores)):
        _write_no_season(out[i])
        _season_of(scores[i], places[i], profiles, out[i])


@exact_kernel
def _season_of(score, places, profiles, season):
    """Write the season at the places of a record into season (5, d), then learn the record.

    EXPLAINS: whether the profile explains much; OF_TIME, AROUND: then the level, and the spread of records around it.
    OF_KEY: the part of the finest cycle's level, less its mean, that counts for a key; COURSE: its variance. Without
    keys, a feature has nothing else to be compared with, so a profile counts fully or not. For a key it counts as far
    as it is known to help, see `_gain`: if some features of a record had a season, and others that depend on them had
    none, then usual records would not be alike.

    score: (d,) NaN = unknown; places: (p,), NaN or outside of the cycle = unknown.
    """
    d, finest = len(score), len(profiles.inner) - 1
    best, levels = np.full(d, np.inf), np.empty((finest + 1, d))
    for p in range(finest + 1):
        is_known = 0.0 <= places[p] < profiles.first[p + 1] - profiles.first[p]
        place = places[p] if is_known else np.nan
        bin = int(place) if is_known else -1
        _enter_bin(p, bin, profiles)
        _predict(p, place, profiles, levels[p])
        for j in range(d):
            error, of_mean = profiles.error[p, j], profiles.error_of_mean[p, j]
            if np.isnan(levels[p, j]) or of_mean <= MIN_VARIANCE:
                continue
            if p == finest and profiles.tested[p, j] >= profiles.inner[0]:
                gain = _gain(p, j, profiles)
                season[OF_KEY, j] = gain * (levels[p, j] - profiles.of_mean[p, j])
                season[COURSE, j] = gain * gain * profiles.course[p, j]
            is_finest_tested = profiles.tested[finest, j] >= _tests_of_cycle(finest, profiles)
            least = MIN_EXPLAINED if p == finest or is_finest_tested else MIN_EXPLAINED_ALONE
            is_tested = profiles.tested[p, j] >= _tests_of_cycle(p, profiles)
            if is_tested and error <= (1.0 - least) * of_mean and error < best[j]:
                best[j] = error
                wider = math.sqrt(max(profiles.recent[p, j], 1.0))
                season[EXPLAINS, j], season[OF_TIME, j] = 1.0, levels[p, j]
                season[AROUND, j] = _spread_of_bin(p, bin, j, profiles) * wider
    for p in range(finest + 1):
        if profiles.bin[p] >= 0:
            _add_to_bin(p, score, season, levels[p], profiles)


@exact_kernel
def _tests_of_cycle(p, profiles):
    """Return how many visits are predicted until a whole cycle is predicted by its own bins, not by coarser ones."""
    return profiles.inner[p] * (2 if p else 1)


@exact_kernel
def _gain(p, j, profiles):
    """Return the factor of the profile p that makes its squared errors smallest, from 0 to 1.

    It is a regression: the covariance of scores and profile, which follows from the errors of the profile, those of its
    mean, and its variance, over this variance. While the second of the shortest cycles is tested it grows from 0: so no
    record is the first one with a season.
    """
    course, tested = profiles.course[p, j], profiles.tested[p, j] / profiles.inner[0]
    common = (profiles.error_of_mean[p, j] + course - profiles.error[p, j]) / 2.0
    return min(max(common / course, 0.0), 1.0) * min(tested - 1.0, 1.0) if course > 0.0 else 0.0


@exact_kernel
def _spread_of_bin(p, bin, j, profiles):
    """Return the spread of records around the profile p in a bin."""
    at = profiles.first[p] + bin
    visits, variance = np.float64(profiles.visits[at, j]), profiles.variance[at, j]
    return math.sqrt((visits * variance + PRIOR_VISITS * profiles.of_variance[p, j]) / (visits + PRIOR_VISITS) + 1e-12)


@exact_kernel
def _enter_bin(p, bin, profiles):
    """Start a bin of cycle p, and close the one before; -1: the bin is unknown, and nothing happens."""
    now = profiles.bin[p]
    if bin == -1 or bin == now:
        return
    inner, first, stop = profiles.inner[p], profiles.first[p], profiles.first[p + 1]
    for j in range(profiles.mean.shape[1]):
        if now >= 0 and profiles.counted[p, j] > 0:
            gain, n = 1.0 / min(profiles.tested[p, j] + 1, MAX_CYCLES * inner), profiles.counted[p, j]
            error, spread = profiles.summed[p, j] / n, _spread_of_bin(p, now, j, profiles)
            size = min(error / (spread * spread), MAX_SPREADS * MAX_SPREADS)
            profiles.recent[p, j] += (size - profiles.recent[p, j]) / RECENT_BINS
            profiles.error[p, j] += (error - profiles.error[p, j]) * gain
            profiles.error_of_mean[p, j] += (profiles.summed_of_mean[p, j] / n - profiles.error_of_mean[p, j]) * gain
            profiles.tested[p, j] += 1
        profiles.counted[p, j] = 0
        profiles.summed[p, j] = profiles.summed_of_mean[p, j] = 0.0
    profiles.bin[p] = bin
    merged = False
    for b in range(stop - first):
        # a visit becomes part of the profile half a cycle later: so a prediction knows only earlier cycles
        if (bin - b) % inner >= max(1, inner // 2) or b // inner != bin // inner:
            merged = _merge(first + b, profiles) or merged
    if merged:
        for finer in range(p, len(profiles.inner)):
            find_levels(finer, profiles)


@exact_kernel
def _merge(b, profiles):
    """Merge the open visit of bin b into the profile. Returns whether there was one."""
    is_open = False
    for j in range(profiles.mean.shape[1]):
        is_open = is_open or profiles.open[b, j] > 0
    if not is_open:
        return False
    for j in range(profiles.mean.shape[1]):
        n, visits = profiles.open[b, j], profiles.visits[b, j]
        if n > 0:
            mean, gain = profiles.sum[b, j] / n, 1.0 / min(visits + 1, MAX_VISITS)
            size = profiles.square[b, j] / n - (mean * mean if visits == 0 else 0.0)  # at first nothing was predicted
            profiles.mean[b, j] += (mean - profiles.mean[b, j]) * gain
            profiles.variance[b, j] += (max(size, 0.0) - profiles.variance[b, j]) * gain
            profiles.visits[b, j] = min(visits + 1, MAX_VISITS)
        profiles.open[b, j] = 0
        profiles.sum[b, j] = profiles.square[b, j] = 0.0
    profiles.written[b] = True
    return True


@exact_kernel
def find_levels(p, profiles):
    """Compute the levels of the bins of cycle p, and what they have in common, after the profile has changed.

    The level is the mean over visits, where the level in the coarser cycle (the hour, for the hour of a week) counts as
    one more visit: so a week is known after a day, and corrected by each week.
    """
    first = profiles.first[p]
    coarser = profiles.first[p - 1] if p else first
    for j in range(profiles.mean.shape[1]):
        n, visited, mean, variance, square = 0, 0, 0.0, 0.0, 0.0
        for b in range(first, profiles.first[p + 1]):
            visits, level = np.float64(profiles.visits[b, j]), profiles.mean[b, j]
            if visits > 0.0:
                visited += 1
                variance += profiles.variance[b, j]
            below = profiles.level[coarser + (b - first) % (first - coarser), j] if p else np.nan
            if not np.isnan(below):
                level = (visits * level + below) / (visits + 1.0)
            elif visits == 0.0:
                level = np.nan
            profiles.level[b, j] = level
            if not np.isnan(level):
                n += 1
                off = level - mean
                mean += off / n
                square += off * (level - mean)
        profiles.of_mean[p, j], profiles.course[p, j] = (mean, square / n) if n else (np.nan, 0.0)
        if visited:
            profiles.of_variance[p, j] = variance / visited
        else:
            profiles.of_variance[p, j] = profiles.of_variance[p - 1, j] if p else 0.0


@exact_kernel
def _predict(p, place, profiles, out):
    """Write the profile p at a place into out (d,): interpolate between the middles of two bins; NaN = unknown."""
    if np.isnan(place):
        out[:] = np.nan
        return
    inner, first = profiles.inner[p], math.floor(place - 0.5)
    share, start = place - 0.5 - first, int(place // inner * inner)
    low = profiles.first[p] + start + (int(first) - start) % inner
    high = profiles.first[p] + start + (int(first) + 1 - start) % inner
    for j in range(len(out)):
        at_low, at_high = profiles.level[low, j], profiles.level[high, j]
        if np.isnan(at_low) or np.isnan(at_high):
            out[j] = at_high if np.isnan(at_low) else at_low
        else:
            out[j] = (1.0 - share) * at_low + share * at_high


@exact_kernel
def _add_to_bin(p, score, season, predicted, profiles):
    """Add a record with scores (d,) and predicted scores (d,) to the current bin of cycle p."""
    b = profiles.first[p] + profiles.bin[p]
    for j in range(len(score)):
        if np.isnan(score[j]):
            continue
        off = score[j] - predicted[j]
        if not np.isnan(off):
            of_mean = score[j] - profiles.of_mean[p, j]
            profiles.counted[p, j] += 1
            profiles.summed[p, j] += off * off
            profiles.summed_of_mean[p, j] += of_mean * of_mean
        # A score that is far off is not learned. If such scores stay, the profile explains too little and is not used;
        # then they are learned.
        if season[EXPLAINS, j] > 0.0 and abs(score[j] - season[OF_TIME, j]) > MAX_SPREADS * season[AROUND, j]:
            continue
        around = 0.0 if np.isnan(off) or profiles.visits[b, j] == 0 else predicted[j]
        profiles.open[b, j] += 1
        profiles.sum[b, j] += score[j]
        profiles.square[b, j] += (score[j] - around) * (score[j] - around)
    profiles.written[b] = True


@exact_kernel
def learn_usual(state, values, at, slots, out):
    """Learn the usual values of keys from their first records (n, d), once the usual values of all are known.

    slots: (n,) numbers of their series; at: (n,) the same series, counted from 0. Writes the distances of records from
    the usual values into out (n, RELATIVE_VECTORS, d).
    """
    rows, _, counts, fixed = _state(state)
    start = _copy_rows(at + len(rows.known), np.empty_like(at), rows)
    n, d = values.shape
    is_known, limited, moves, count = np.empty(d, np.bool_), np.empty(d), np.empty((2, d)), np.empty(d, np.int64)
    level, spread, score, near_score, alike = np.empty(d), np.empty(d), np.empty(d), np.empty(d), np.empty(d, np.bool_)
    doubt = np.empty(d)
    for i in range(n):
        for j in range(d):
            is_known[j], count[j], limited[j] = not np.isnan(values[i, j]), start.known[at[i], j], values[i, j]
            _expect(
                values[i, j], is_known[j], count[j], 0.0, slots[i], j, rows, counts, fixed,
                level, spread, score, near_score, doubt, alike,
            )  # fmt: skip
            if is_known[j] and count[j] > 0 and near_score[j] != score[j]:
                limited[j] = raw_of(near_score[j], j, fixed.pooled)
        update_movement(values[i], limited, is_known, count, at[i], start, fixed.weights, moves)
        for j in range(d):
            if is_known[j] and count[j] > 0 and fixed.numeric[j]:
                compare_with_key(
                    score[j], level[j], spread[j], spread[j], alike[j], moves[0, j], moves[1, j], j, fixed.pooled,
                    out[i],
                )  # fmt: skip
        _keep_last(values[i], is_known, count, at[i], start)


@exact_kernel
def learn_moves(state, values, at, slots, out):
    """Write level and spread after the first records (n, d) into out (n, 2, d); their far values are limited by now.

    slots, at: see `learn_usual`. The series continue from there.
    """
    rows, _, _, fixed = _state(state)
    start = _copy_rows(at + len(rows.known), np.empty_like(at), rows)
    moves = rows.offset.shape[1] > 0
    n, d = values.shape
    is_known, count = np.empty(d, np.bool_), np.empty(d, np.int64)
    for i in range(n):
        for j in range(d):
            is_known[j], count[j] = not np.isnan(values[i, j]), start.known[at[i], j]
        if moves:
            update_movement(values[i], values[i], is_known, count, at[i], start, fixed.weights, out[i])
        _keep_last(values[i], is_known, count, at[i], start)
    for i in range(n):
        s, k = slots[i], at[i]
        for j in range(d):
            rows.last[s, j] = start.last[k, j]
            if moves:
                rows.offset[s, j], rows.root[s, j] = start.offset[k, j], start.root[k, j]


@exact_kernel
def _keep_last(values, is_known, count, s, rows):
    for j in range(len(values)):
        if is_known[j]:
            rows.last[s, j], rows.known[s, j] = values[j], min(count[j] + 1, MAX_COUNTED_VALUES)
