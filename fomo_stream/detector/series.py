"""Series: each record together with the past of its key, how the values of that key move, and what is usual for it."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from fomo_stream.detector.changelog import Document, Entries, StoredEntries, check_same, value_of
from fomo_stream.detector.keys import MAX_KEYS, WHOLE, Key, Keys, digest_of
from fomo_stream.detector.relative import (
    FARTHEST,
    MOST_COUNTED,
    RELATIVE,
    WITHIN,
    Pooled,
    Usual,
    apart_of,
    weights,
    within_keys,
)
from fomo_stream.detector.seasons import Cycle, Seasons
from fomo_stream.detector.still import Stillness
from fomo_stream.errors import DamagedStateError
from fomo_stream.limits import MAX_LAGS
from fomo_stream.model.bulk import Bulk

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

HALF_LIFE = 3.0  # values of a feature after which an older one counts half in its level and spread
MOVEMENT = 2  # vectors: level and spread
RECENT = 10  # records of a series for which a value stands in for those missing after it
SEVERAL = 1.5  # records: growth in more is a mean
FIRST_GAPS = 8  # times between records, which count as they are
TINY = 1e-6  # of the level: a smaller spread counts as this
FEW_KEYED = 32  # records with a key that say whether keys recur
ENOUGH_KEYED = 10_000  # records with a key after which no more series begin, if keys do not recur at all:
MUCH = 0.25  # by which a scale differs from another so that what is known of keys is converted
NEVER = 0.01  # if fewer than this share of them had a known key
# records so far, those with a key, those with a known key, keys in use, whether it is known what is usual for all
COUNTERS = struct.Struct("<qqqq?")
# Of series with counters: the time of the last record, in seconds, 0: unknown; the logarithm of the usual time between
# two, and of how many that is the mean
PACE: tuple[tuple[Any, ...], ...] = (("clock", "f8"), ("pace", "f8"), ("paces", "u1"))
SINCE_PACE = ("when", *(name for name, _ in PACE))  # columns that states of before do not have
MEMORY = (("logits", "u1"), ("mean", "f4"))  # of `Memory`: how many logits, and their mean
OPEN = ("open", "u1")  # of `Alerts`: in how many more records an incident of the series can continue
BUSY = ("busy", "f4")  # of `Owns`: how busy the key is
SLOWEST = 3000  # scores of a key after which its slow mean forgets, so that a day is no level
LONGEST_RUN = 65_535  # records that are counted
LARGEST = float(np.finfo(np.float32).max)


class Batch(NamedTuple):
    """n records with the past of their series. See `Series.follow`."""

    vectors: Float  # (n, vectors, d)
    gaps: Bool  # (n, d) values that are missing, even where an earlier one stands in
    slots: Int  # (n,) number of each record's series, from 0; a number is used again for another series
    begins: Bool  # (n,) whether no record before belongs to its series
    # how far the values, and their movement, are from what is usual for the key; NaN: unknown; see `Pooled.relative`
    relative: Float  # (n, RELATIVE, d)
    usual: Float  # (n, 3, d) that level and spread, as scores, and how far off it may be
    still: Int  # (n, d) how many values before are equal to this one, where it stands still; else 0; see `Stillness`
    far: Bool  # (n,) whether any value is far; see `Bulk`
    ordinary: Bool  # (n, d) values that are those of nearly all records

    def vectors_for(self, sees: str) -> Float:
        """What a view that sees this looks at."""
        return self.relative if sees == "relative" else self.vectors

    @classmethod
    def concatenate(cls, parts: Sequence[Batch]) -> Batch:
        """The records of all parts, at least one, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def part(self, records: slice | Int) -> Batch:
        """Some of the records."""
        return Batch(**{name: array[records] for name, array in self._asdict().items()})


class Series:
    """Follows the series of a partition: the values before each record, and their level and spread.

    `follow` gives each record as vectors of d values: the record itself; the `lags` records before it of its series
    (shingling, as in Random Cut Forest); and with `movement` the level and the spread of each feature there, this
    record included. Level: mean of the values, each older one with half the weight every HALF_LIFE values. Spread:
    logarithm of the root mean square of changes against the level before, weighed alike. NaN: not known yet. The two
    vectors are rounded to 32 bits, as the history keeps them.

    From `learn_scale` on, it also says how far each value is from what its key usually has, if the key is known; see
    `Pooled`. Categories (`categorical`: their columns) do not count there.

    Of `counters` (their columns), fields that only grow, it gives by how much they have grown a record instead; in the
    usual time between two, where it took longer, if times are known.

    A missing value is unknown. The last value of the feature in the series stands in for it, for at most
    RECENT records; level and spread stay as they are. In all that is said of later records a value that is far counts
    as the nearest one that is not.

    A series is known by its key. A record without a key belongs to the series of the whole partition, number 0. So does
    a record with a key not seen before while fewer than half of the records had a known key (a key may be the id of the
    record). `forget` keeps the `max_keys` series that were used last; one that comes back starts again without a past.
    All that is said of a record depends on the records before it, never on how they are split over calls.

    >>> series = Series(n_features=1, lags=2, movement=False)
    >>> series.follow(np.array([[1.0], [2.0], [3.0], [40.0]]), ["a", "a", "a", "b"]).vectors[:, :, 0]
    array([[ 1., nan, nan],
           [ 2.,  1., nan],
           [ 3.,  2.,  1.],
           [40., nan, nan]])
    """

    def __init__(
        self,
        n_features: int,
        lags: int = 0,
        movement: bool = True,
        max_keys: int = MAX_KEYS,
        relative: bool = True,
        categorical: tuple[int, ...] = (),
        counters: tuple[int, ...] = (),
        cycles: tuple[Cycle, ...] = (),
    ) -> None:
        if not 0 <= lags <= MAX_LAGS:
            raise ValueError(f"lags must be between 0 and {MAX_LAGS}, not {lags}")
        self.n_features, self.lags, self.movement, self.max_keys = n_features, lags, movement, max_keys
        self.relative, self.categorical, self.counters = relative, categorical, counters
        self.seasons = Seasons(n_features, cycles) if cycles and relative else None
        self._n_cycles = len(cycles)
        self.keys = Keys(max_keys, self._columns, SINCE_PACE)
        self._set_scale(None)
        self._stillness = Stillness(n_features)
        self._of_before = False  # whether the log lacks what this version adds
        self._firsts = np.zeros((2, n_features))  # keys with a value, and the sum of how far their first ones were off
        self._keyed = self._recurred = 0  # records with a key, and those whose key was known
        self._uses = 0  # records so far
        self._begin_log()

    @property
    def n_vectors(self) -> int:
        """Vectors of a record."""
        return 1 + self.lags + (MOVEMENT if self.movement else 0)

    @property
    def is_numeric(self) -> Bool:
        """Which features (d,) are no categories."""
        return ~np.isin(np.arange(self.n_features), self.categorical)

    @property
    def _columns(self) -> list[tuple[Any, ...]]:
        """What is kept of a series; all zeros of one without records."""
        d = self.n_features
        columns: list[tuple[Any, ...]] = [
            ("has_records", "?"),  # belong to it; at first a key's record may belong to the series of the partition
            OPEN,
            *MEMORY,
            BUSY,
            ("count", "u1", (d,)),  # known values, at most MOST_COUNTED
            ("age", "u1", (d,)),  # records since the last one
            ("last", "f8", (d,)),  # the last one
            ("equal", "u2", (d,)),  # values before that one which are equal to it
        ]
        if self.counters:  # the last total, and how many records ago; 0: none is known
            c = len(self.counters)
            columns += [("total", "f8", (c,)), ("since", "u2", (c,)), ("when", "f8", (c,)), *PACE]  # when: that total
        if self.lags:
            # the number of records, and the last ones, newest first
            columns += [("records", "u4"), ("past", "f8", (self.lags, d))]
        if self.movement or self.relative:
            # the level less the last value, so that 32 bits are enough; the root mean square of changes
            columns += [("offset", "f4", (d,)), ("root", "f4", (d,))]
        if self.relative:  # of the key's scores, see `Pooled`
            columns += [("level", "f4", (d,)), ("variance", "f4", (d,))]
        if self.seasons is not None:  # the mean of many of its scores, and their number
            columns += [("slow", "f4", (d,)), ("seen", "u4", (d,))]
        return columns

    def follow(self, values: Float, keys: Sequence[Key] | None = None, bulk: Bulk | None = None) -> Batch:
        """The next records, from their values (n, d), NaN = missing.

        Further columns: their places in cycles, and with counters their times in seconds.

        keys: (n,) of each record; None: all without; bulk: which values are far; None: that is not known yet.
        """
        return self._follow(values, keys, bulk, learn=True)

    def peek(self, values: Float, keys: Sequence[Key] | None = None, bulk: Bulk | None = None) -> Batch:
        """The same, but nothing changes."""
        counters = self._keyed, self._recurred, self._uses
        batch = self._follow(values, keys, bulk, learn=False)
        self._keyed, self._recurred, self._uses = counters
        return batch

    def _follow(self, values: Float, keys: Sequence[Key] | None, bulk: Bulk | None, learn: bool) -> Batch:
        n, d = len(values), self.n_features
        values, places, times = values[:, :d], values[:, d : d + self._n_cycles], self._times(values)
        unknown = np.full((n, RELATIVE + 3, d), np.nan)
        batch = Batch(
            np.empty((n, self.n_vectors, d)),
            np.isnan(values),
            np.zeros(n, dtype=np.int64),
            np.zeros(n, dtype=bool),
            unknown[:, :RELATIVE],
            unknown[:, RELATIVE:],
            np.zeros((n, d), np.int64),
            np.zeros(n, dtype=bool),
            np.zeros((n, d), dtype=bool),
        )
        if keys is None:
            self._uses += n
            if n:
                whole = np.arange(n), np.zeros(n, np.int64), np.ones(n, bool)
                self._advance(*whole, values, places, times, batch, bulk, learn)
            return batch
        moves: list[tuple[int, int, bool]] = []  # record, number of the series, whether the record belongs to it
        new: dict[bytes, int] = {}  # numbers of keys that are only looked at

        for i, key in enumerate(keys):
            self._uses += 1
            if key is None:
                moves.append((i, WHOLE, True))
                continue
            digest = digest_of(key)
            slot = self.keys.find(digest)
            if slot is None:
                slot = new.get(digest)
            is_known = slot is not None
            self._keyed += 1
            self._recurred += is_known
            recur = 2 * self._recurred >= self._keyed or self._keyed < FEW_KEYED
            if is_known or recur or self._keyed < ENOUGH_KEYED or self._recurred >= NEVER * self._keyed:
                if learn:
                    slot = self.keys.take(digest, self._uses)
                elif slot is None:
                    slot = new[digest] = self.keys.unused(len(new))
                moves.append((i, slot, is_known or recur))
            if not recur:
                moves.append((i, WHOLE, not is_known))
        if moves:
            at, slots, belongs = (np.array(column) for column in zip(*moves, strict=True))
            self._advance(at, slots, belongs, values, places, times, batch, bulk, learn)
        return batch

    def _times(self, values: Float) -> Float:
        """The times (n,) of records, in seconds, from their values with further columns; NaN: unknown."""
        at = self.n_features + self._n_cycles
        return values[:, at] if values.shape[1] > at else np.full(len(values), np.nan)

    def _advance(
        self,
        at: Int,
        slots: Int,
        belongs: Bool,
        values: Float,
        places: Float,
        times: Float,
        batch: Batch,
        bulk: Bulk | None,
        learn: bool,
    ) -> None:
        """Add the records values[at] to the series of these numbers (k,), in order, and note them in the batch.

        belongs: (k,) which of the records belong to the series; places: (n, cycles) see `Seasons`; times: (n,).
        """
        turns = _Turns.of(slots)
        order, which, series = turns.order, turns.which, turns.series
        at, belongs = at[order], belongs[order]
        members = np.flatnonzero(belongs)[np.argsort(at[belongs])]  # those that belong to their series, as they came
        rows, x = self.keys[series], values[at]
        if self.counters:
            x[:, self.counters], taken = _growth(rows, x[:, self.counters], times[at], turns)
        known = ~np.isnan(x)
        added = turns.total(known)
        count = np.minimum(rows["count"][which].astype(np.int64) + turns.before(known), MOST_COUNTED)  # values before
        vectors = np.full((len(at), self.n_vectors, self.n_features), np.nan)
        is_compared = self.relative and (self.seasons is not None or series.max() > WHOLE)
        far = np.zeros(x.shape, bool) if bulk is None else bulk.far(x)
        batch.ordinary[at] = bulk is not None and bulk.ordinary(x)
        expected = None
        if self.pooled is not None and is_compared:
            of_key = series[which] > WHOLE
            season = self._season(rows, x, known, of_key, turns, members, places[at[members]], learn)
            level = None if season is None else season.level
            of_keys = known & of_key[:, None]
            apart = self._apart(self.pooled, x, of_keys & (count == 0), at, learn)
            expected = self.pooled.expected(rows, x, of_keys, count, turns.rounds, apart, level)
            if season is not None and not of_key.all():
                expected = expected.of_season(season, ~of_key, known, self.pooled.scores(x))
            far &= ~expected.is_near  # what is usual for the key, or the time
        near = x if bulk is None or not far.any() else np.where(far, bulk.limited(x), x)
        limited = near if self.pooled is None or expected is None else self.pooled.limited(near, expected)
        batch.far[at] = far.any(axis=1)
        if self.movement or is_compared:
            moves = _moved(rows, near, limited, known, count, turns)
        if self.movement:
            vectors[:, -MOVEMENT:] = moves
        runs, ended = _runs(rows, near, known, count, turns)
        still = self._stillness.look(self._moving(known)[members], runs[members], ended[members], learn)
        batch.still[at[members]] = np.where(still, runs[members], 0)
        filled = _filled(rows, x, near, known, count, turns)
        vectors[:, 0] = filled
        if self.lags:
            _with_past(rows, vectors[:, : 1 + self.lags], turns)
            rows["records"] += turns.total(np.ones(len(at), bool)).astype(np.uint32)
        if self.pooled is not None and expected is not None:
            told = belongs & expected.known.any(axis=1)
            batch.relative[at[told]] = self.pooled.relative(expected, moves)[told]
            batch.relative[at[told & ~of_key], 1:] = np.nan  # a season says nothing of level and spread
            told = belongs & (of_key | expected.known.any(axis=1))
            batch.usual[at[told]] = np.stack([expected.level, expected.spread, expected.doubt], axis=1)[told]
            batch.relative[:, :, self.categorical] = np.nan
        if self.counters and (self.movement or is_compared):
            is_mean = np.zeros(x.shape, bool)
            is_mean[:, self.counters] = taken > SEVERAL
            if is_mean.any():  # it need not go with the rest of the record
                known &= ~(is_mean & _is_near(x, moves, count))
        noted = at[belongs]
        batch.gaps[noted] = ~known[belongs]
        batch.vectors[noted], batch.slots[noted] = vectors[belongs], series[which][belongs]
        batch.begins[noted] = ~(rows["has_records"][which] | (turns.before(belongs) > 0))[belongs]
        if learn:
            rows["has_records"] |= turns.total(belongs) > 0
            rows["count"] = np.minimum(rows["count"] + added, MOST_COUNTED)
            self.keys.put(series, rows)

    def _apart(self, pooled: Pooled, x: Float, is_first: Bool, at: Int, learn: bool) -> Float:
        """How far keys are from each other, at each of records x (k, d), by the first values of the keys before.

        is_first: (k, d) which values are; at: (k,) their order.
        """
        if not is_first.any():
            return np.broadcast_to(apart_of(*self._firsts), x.shape)
        order = np.argsort(at, kind="stable")
        found = np.stack([is_first, np.where(is_first, np.abs(pooled.scores(x)), 0.0)], axis=1)[order]
        totals = np.cumsum(np.concatenate([self._firsts[None], found]), axis=0)
        if learn:
            self._firsts = totals[-1]
        apart = np.empty(x.shape)
        apart[order] = apart_of(totals[:-1, 0], totals[:-1, 1])
        return apart

    def _season(
        self, rows: Any, x: Float, known: Bool, of_key: Bool, turns: _Turns, members: Int, places: Float, learn: bool
    ) -> Usual | None:
        """What is usual for records x (k, d) at their places; `rows` are moved on. None: there are no cycles.

        members: (m,) those that say what is usual, as they came; places: (m, cycles) of these.
        """
        if self.seasons is None or self.pooled is None:
            return None
        scores = np.where(known, self.pooled.scores(x), np.nan)
        scores -= _slow(rows, scores, known & of_key[:, None], turns)
        of_all = Usual(np.zeros(x.shape, bool), np.zeros(x.shape), np.ones(x.shape))
        seasons = self.seasons if learn else self.seasons.copy()
        for whole, found in zip(of_all, seasons.follow(scores[members], places), strict=True):
            whole[members] = found
        of_all.known[:, self.categorical] = False
        of_all.level[~of_all.known] = 0.0
        return of_all

    def _moving(self, known: Bool) -> Bool:
        """Which of the known values (k, d) can stand still: those that are no categories."""
        known = known.copy()
        known[:, self.categorical] = False
        return known

    def pass_over(self, values: Float, keys: Sequence[Key]) -> None:
        """Records (n, d) that nothing else is learned of: the counters of known series go on from their totals."""
        if not self.counters or not len(values):
            return
        recur = 2 * self._recurred >= self._keyed or self._keyed < FEW_KEYED
        slots = [None if key is None else self.keys.find(digest_of(key)) for key in keys]
        moves = [(i, slot) for i, slot in enumerate(slots) if slot is not None]
        moves += [(i, WHOLE) for i, key in enumerate(keys) if key is None or not recur]
        if moves:
            at, of_series = (np.array(column) for column in zip(*sorted(moves), strict=True))
            turns = _Turns.of(of_series)
            rows, at = self.keys[turns.series], at[turns.order]
            _growth(rows, values[at][:, self.counters], self._times(values)[at], turns)
            self.keys.write(turns.series, **{name: rows[name] for name in ("total", "since", *SINCE_PACE)})

    def forget(self) -> None:
        """Forget the keys that were used least recently, if there are too many."""
        self.keys.forget()

    def learn_scale(self, columns: tuple[Float, ...]) -> None:
        """Learn what is usual for all keys from the values (m,) of each feature in a sample, ascending."""
        within = np.full(self.n_features, WITHIN)
        pooled = Pooled.fit(columns, within)
        if self.pooled is not None:
            self._rescale(self.pooled, pooled)
            rows = self.keys.of_all_keys()
            pooled = replace(pooled, within=within_keys(rows["count"], rows["variance"], apart_of(*self._firsts)))
        if self.seasons is not None and self.pooled is not None:
            self.seasons.rescale(self.pooled, pooled)
        self._set_scale(pooled)

    def _rescale(self, old: Pooled, new: Pooled) -> None:
        """Take another scale for the levels of keys, where it differs much: each entry of a key is written again."""
        middle = new.scores(old.raw(np.array([[-1.0, 0.0, 1.0]]).T * np.ones(self.n_features)))
        differs = np.abs(middle - np.array([[-1.0, 0.0, 1.0]]).T).max(axis=0) > MUCH
        if not differs.any() or not len(self.keys):
            return
        slots = self.keys.in_use
        level, variance = (self.keys.column(name, slots).astype(np.float64) for name in ("level", "variance"))
        step = np.sqrt(np.maximum(variance, 0.0))
        width = (new.scores(old.raw(level + step)) - new.scores(old.raw(level - step))) / 2.0
        level[:, differs] = new.scores(old.raw(level))[:, differs]
        variance[:, differs] = width[:, differs] ** 2
        self.keys.write(slots, level=level, variance=variance)

    def _set_scale(self, pooled: Pooled | None) -> None:
        self.pooled = pooled
        self._scale = b"" if pooled is None else save(pooled.to_arrays())

    def learn_usual(self, values: Float, slots: Int) -> Float:
        """Learn what is usual for each key from its records before the first `learn_scale`: values (n, d), slots (n,).

        Returns how far they are from that (n, RELATIVE, d).
        """
        relative = np.full((len(values), RELATIVE, self.n_features), np.nan)
        keyed = np.flatnonzero((slots > WHOLE) & (self.keys.column("used", slots) > 0))
        if len(keyed):
            turns = _Turns.of(slots[keyed])
            rows, x = self.keys[turns.series], values[keyed][turns.order]
            known = ~np.isnan(x)
            count = np.minimum(turns.before(known), MOST_COUNTED)
            assert self.pooled is not None
            apart = self._apart(self.pooled, x, known & (count == 0), keyed[turns.order], learn=True)
            expected = self.pooled.expected(rows, x, known, count, turns.rounds, apart)
            moves = _moved(np.zeros_like(rows), x, self.pooled.limited(x, expected), known, count, turns)
            relative[keyed[turns.order]] = self.pooled.relative(expected, moves)
            relative[:, :, self.categorical] = np.nan
            self.keys.put(turns.series, rows)
        return relative

    def learn_moves(self, values: Float, slots: Int, bulk: Bulk) -> Float:
        """Level and spread (n, MOVEMENT, d) after the first records, once it is known which of their values are far.

        values: (n, d), NaN = missing; slots: (n,) numbers of their series. NaN of series that were forgotten.
        """
        moves = np.full((len(values), MOVEMENT, self.n_features), np.nan)
        known_at = np.flatnonzero(self.keys.column("has_records", slots))
        if len(known_at):
            turns = _Turns.of(slots[known_at])
            x = bulk.limited(values[known_at][turns.order])
            known, rows = ~np.isnan(x), np.zeros_like(self.keys[turns.series])
            count = np.minimum(turns.before(known), MOST_COUNTED)
            has_moves = self.movement or self.relative
            if has_moves:
                moves[known_at[turns.order]] = _moved(rows, x, x, known, count, turns)
            _filled(rows, x, x, known, count, turns)
            names = ("last", "offset", "root") if has_moves else ("last",)
            self.keys.write(turns.series, **{name: rows[name] for name in names})
        return moves

    def copy(self) -> Series:
        """Independent series, the same now."""
        twin = copy(self)
        twin.keys = self.keys.copy()
        twin.seasons = None if self.seasons is None else self.seasons.copy()
        twin._stillness = self._stillness.copy()
        twin._firsts = self._firsts.copy()
        twin._begin_log()
        return twin

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Entries of the series that were used or forgotten since the last call; at first of all."""
        entries = self._settings_log.changes("settings", json.dumps(self._settings).encode())
        rows = self.keys.changes("key")
        if rows or entries or self._of_before:
            self._of_before = False
            is_scaled = self.pooled is not None
            counters = COUNTERS.pack(self._uses, self._keyed, self._recurred, len(self.keys), is_scaled)
            entries["keys"] = counters + (self._firsts.astype("<f8").tobytes() if is_scaled else b"")
        if self.pooled is not None:
            entries |= self._scale_log.changes("scale", self._scale)
        if self.seasons is not None:
            entries |= self.seasons.changes("seasons")
        entries |= self._stillness.changes("still")
        return entries | rows

    def recover(self, entries: StoredEntries) -> None:
        """Take the state from the entries, in place of the present state.

        Raises StateError when they are of other lags or features, or damaged; the object must not be used then.
        """
        self._begin_log()
        check_same(json.loads(self._settings_log.recover(entries, "settings")), self._settings, self._settings)
        try:
            value = value_of(entries, "keys")
            counters, firsts = value[: COUNTERS.size], value[COUNTERS.size :]
            self._uses, self._keyed, self._recurred, count, is_scaled = COUNTERS.unpack(counters)
            scale = load(self._scale_log.recover(entries, "scale")) if is_scaled else None
            self._set_scale(None if scale is None else Pooled.from_arrays(scale))
            self.keys.recover(entries, "key", count)
            self._stillness.recover(entries, "still")
            self._firsts = np.zeros((2, self.n_features))
            self._of_before = scale is not None and "common" not in scale
            if self._of_before:  # it knows keys as if all were alike
                self._firsts[0] = count
            elif scale is not None or firsts:
                self._firsts = np.frombuffer(firsts, "<f8").reshape(2, self.n_features if is_scaled else 0).copy()
            if self.seasons is not None:
                self.seasons.recover(entries, "seasons")
        except (ValueError, KeyError, struct.error) as error:
            raise DamagedStateError(f"the state is damaged: series cannot be read ({error})") from None

    @property
    def _settings(self) -> dict[str, int]:
        return {
            "lags": self.lags,
            "movement": int(self.movement),
            "features": self.n_features,
            "max_keys": self.max_keys,
            "relative": int(self.relative),
        }

    def _begin_log(self) -> None:
        """Start with an empty log."""
        self._settings_log, self._scale_log = Document(), Document()
        self._stillness.begin_log()


class _Turns(NamedTuple):
    """k records of several series in rounds: the first ones of all series, then the second ones, and so on.

    The series with more records come first: so the series of a round are the first ones of all.
    """

    series: Int  # (m,) their numbers
    order: Int  # (k,) of the records, round by round
    which: Int  # (k,) position in `series`, in this order
    rounds: list[slice]
    by_series: Int  # (k,) positions in this order, series by series
    starts: Int  # (m,) where each series begins there

    @classmethod
    def of(cls, slots: Int) -> _Turns:
        """Of records of the series of these numbers (k,), k >= 1, in order."""
        n = len(slots)
        if (slots == slots[0]).all():  # as without keys
            at = np.arange(n)
            return cls(slots[:1], at, np.zeros(n, np.int64), [slice(i, i + 1) for i in range(n)], at, at[:1])
        series, which, counts = np.unique(slots, return_inverse=True, return_counts=True)
        by_count = np.argsort(-counts, kind="stable")
        place = np.empty_like(by_count)
        place[by_count] = np.arange(len(series))
        which, counts = place[which], counts[by_count]
        ends = np.cumsum(counts)
        by_series = np.argsort(which, kind="stable")
        turn = np.empty_like(which)
        turn[by_series] = np.arange(len(which)) - np.repeat(ends - counts, counts)
        order = np.lexsort((which, turn))
        edges = np.append(0, np.cumsum(np.bincount(turn))).tolist()
        rounds = [slice(a, b) for a, b in pairwise(edges)]
        which = which[order]
        return cls(series[by_count], order, which, rounds, np.argsort(which, kind="stable"), ends - counts)

    def before(self, flags: Bool) -> Int:
        """How many of the records of its series before each have a flag: of flags (k, ...) in this order."""
        sorted_flags = flags[self.by_series].astype(np.int64)
        total: Int = np.cumsum(sorted_flags, axis=0) - sorted_flags
        found: Int = np.empty_like(total)
        found[self.by_series] = total
        return found - total[self.starts][self.which]

    def total(self, flags: Bool) -> Int:
        """How many records of each series (m,) have a flag."""
        return np.add.reduceat(flags[self.by_series].astype(np.int64), self.starts, axis=0)


def _moved(rows: Any, x: Float, limited: Float, known: Bool, count: Int, turns: _Turns) -> Float:
    """The movement (k, MOVEMENT, d) after records x (k, d), of which these values are known, and `count` were before.

    limited: (k, d) the records, in which values that are far off may be less so. rows: of the series, moved on.
    """
    values, totals = np.where(known, limited, 0.0), weights(HALF_LIFE)
    of_level = known / totals[count + 1]
    of_square = np.where(count > 0, known / np.maximum(totals[count], 1.0), 0.0)  # the first value is no change
    last, offset, root = rows["last"].copy(), rows["offset"], rows["root"]
    level = last + offset
    levels, roots = np.empty(x.shape), np.empty(x.shape)
    for turn in turns.rounds:  # one by one, so that no bit depends on how records are split over calls
        m = turn.stop - turn.start
        now, is_known = level[:m], known[turn]
        change = (values[turn] - now) * is_known
        square = root[:m].astype(np.float64) ** 2
        square += (change * change - square) * of_square[turn]
        root[:m] = np.minimum(np.sqrt(square), LARGEST)
        now += change * of_level[turn]
        np.copyto(last[:m], x[turn], where=is_known)
        offset[:m] = np.clip(now - last[:m], -LARGEST, LARGEST)
        np.add(last[:m], offset[:m], out=now)
        levels[turn], roots[turn] = now, root[:m]
    after = count + known
    levels = np.where(after > 0, levels, np.nan)
    with np.errstate(invalid="ignore"):
        spread = 0.5 * np.log(roots**2 + (TINY * levels) ** 2 + 1e-300)
    spread[after < 2] = np.nan
    vectors = np.clip(np.stack([levels, spread], axis=1), -LARGEST, LARGEST)
    return vectors.astype(np.float32).astype(np.float64)


def _slow(rows: Any, scores: Float, known: Bool, turns: _Turns) -> Float:
    """The slow mean of each key before its scores (k, d); 0 where none is known. `rows` are moved on."""
    means, seen, found = rows["slow"].astype(np.float64), rows["seen"].astype(np.int64), np.zeros(scores.shape)
    for turn in turns.rounds:
        m, is_known = turn.stop - turn.start, known[turn]
        found[turn] = np.where(is_known, means[:m], 0.0)
        seen[:m] += is_known
        change = np.where(is_known, scores[turn] - means[:m], 0.0)
        means[:m] = (means[:m] + change / np.clip(seen[:m], 1, SLOWEST)).astype(np.float32)
    rows["slow"], rows["seen"] = means, np.minimum(seen, 2**32 - 1)
    return found


def _growth(rows: Any, totals: Float, times: Float, turns: _Turns) -> tuple[Float, Float]:
    """By how much counters (k, c) have grown a record since their last known total, and in how many usual times between
    two records, NaN = unknown; `rows` are moved on.

    times: (k,) in seconds, NaN = unknown. Where they are known, it is the growth in the usual time between two records
    of the series, if it took longer: so a record after a missing one does not look as if more was used.
    NaN where that is not known: at the first total of a series, and where it has fallen, as the counter began again.
    """
    growth, taken = np.full((2, *totals.shape), np.nan)
    last, since = rows["total"], rows["since"].astype(np.int64)
    for turn in turns.rounds:
        m, is_known = turn.stop - turn.start, ~np.isnan(totals[turn])
        has_grown = is_known & (since[:m] > 0) & (totals[turn] >= last[:m])
        taken[turn] = _records_taken(rows[:m], times[turn], is_known)
        records = np.where(np.isnan(taken[turn]), np.maximum(since[:m], 1), np.maximum(taken[turn], 1.0))
        growth[turn] = np.where(has_grown, (totals[turn] - last[:m]) / records, np.nan)
        since[:m] = np.where(is_known, 1, np.minimum(since[:m] + (since[:m] > 0), LONGEST_RUN))
        np.copyto(last[:m], totals[turn], where=is_known)
    rows["total"], rows["since"] = last, since
    return growth, taken


def _is_near(x: Float, moves: Float, count: Int) -> Bool:
    """Which values (k, d) are at most FARTHEST spreads off the level before them, by that and the spread after them."""
    share = 1.0 / weights(HALF_LIFE)[np.minimum(count, MOST_COUNTED - 1) + 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        change = (x - moves[:, 0]) / (1.0 - share)
        square = (np.exp(2.0 * moves[:, 1]) - share * change * change) / (1.0 - share)
        return np.asarray(change * change <= FARTHEST * FARTHEST * square)


def _records_taken(rows: Any, times: Float, is_known: Bool) -> Float:
    """Usual times between two records (m, c) since the last totals of counters; NaN = unknown.

    rows: (m,) of series, of which what they know of times is moved on.
    """
    has_time = ~np.isnan(times)
    now, clock = np.where(has_time, times, 0.0), rows["clock"].copy()
    gap = now - clock
    is_gap = has_time & (clock > 0.0) & (gap > 0.0)
    # A gap counts as one of half to twice the usual time, once some are known: neither a pause nor a burst says much of
    # that. The mean is of logarithms
    count, pace = rows["paces"].astype(np.int64), rows["pace"]
    most = np.where(count >= FIRST_GAPS, np.log(2.0), np.inf)
    change = np.clip(np.log(np.where(is_gap, gap, 1.0)) - pace, -most, most)
    passed = (now[:, None] - rows["when"]) / np.exp(pace)[:, None]
    by_time = has_time[:, None] & (rows["when"] > 0.0) & (count[:, None] > 0)
    taken = np.where(by_time, passed, np.nan)
    rows["pace"] = np.where(is_gap, pace + change / np.minimum(count + 1, MOST_COUNTED), pace)
    rows["paces"] = np.minimum(count + is_gap, MOST_COUNTED)
    rows["clock"] = np.where(has_time, now, clock)
    rows["when"] = np.where(is_known, now[:, None], rows["when"])
    return taken


def _runs(rows: Any, x: Float, known: Bool, count: Int, turns: _Turns) -> tuple[Int, Int]:
    """How many values of the series before each of x (k, d) are equal to it, and how long a run ended with it: (k, d).

    known: which values are; count: (k, d) known ones before; `rows` are moved on.
    """
    last, equal = rows["last"].copy(), rows["equal"].astype(np.int64)
    runs, ended = np.zeros(x.shape, np.int64), np.zeros(x.shape, np.int64)
    for turn in turns.rounds:
        m, is_known = turn.stop - turn.start, known[turn]
        is_equal = is_known & (x[turn] == last[:m]) & (count[turn] > 0)
        np.copyto(ended[turn], equal[:m], where=is_known & ~is_equal)
        equal[:m] = np.where(is_equal, np.minimum(equal[:m] + 1, LONGEST_RUN), np.where(is_known, 0, equal[:m]))
        runs[turn] = equal[:m]
        np.copyto(last[:m], x[turn], where=is_known)
    rows["equal"] = equal
    return runs * known, ended


def _filled(rows: Any, x: Float, near: Float, known: Bool, count: Int, turns: _Turns) -> Float:
    """Records x (k, d) with the last value of the series where one is missing; `rows` are moved on.

    near: (k, d) the values as those after them know them.
    """
    if known.all():  # as usual
        rows["last"], rows["age"] = near[turns.by_series[np.append(turns.starts[1:], len(x)) - 1]], 0
        return x
    last, age = rows["last"], rows["age"]
    filled = x.copy()
    for turn in turns.rounds:
        m = turn.stop - turn.start
        is_known = known[turn]
        np.copyto(last[:m], near[turn], where=is_known)
        age[:m] = np.where(is_known, 0, np.minimum(age[:m], RECENT) + 1)
        stands_in = ~is_known & (age[:m] <= RECENT) & (count[turn] > 0)
        np.copyto(filled[turn], last[:m], where=stands_in)
    rows["last"], rows["age"] = last, age
    return filled


def _with_past(rows: Any, vectors: Float, turns: _Turns) -> None:
    """Fill in the records before: vectors (k, 1 + lags, d), of which the first ones are known; `rows` are moved on."""
    past, lags = rows["past"], vectors.shape[1] - 1
    past[np.arange(lags) >= rows["records"][:, None]] = np.nan
    for turn in turns.rounds:
        m = turn.stop - turn.start
        vectors[turn, 1:] = past[:m]
        past[:m] = vectors[turn, :-1]


def flat(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Vectors (n, vectors, d) side by side: (n, vectors * d), contiguous, as safetensors can only store such arrays."""
    n, n_vectors, d = vectors.shape
    return np.ascontiguousarray(vectors.reshape(n, n_vectors * d))
