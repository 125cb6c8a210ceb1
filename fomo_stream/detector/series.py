"""Series: each record with the past of its key, the movement of the key's values, and their usual values."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from fomo_stream.detector import changelog
from fomo_stream.detector.changelog import joined_name
from fomo_stream.detector.keys import MAX_KEYS, UNKEYED, Digests, Key, Keys
from fomo_stream.detector.relative import PRIOR_VARIANCE, Pooled, distances_between_keys, weights, within_keys
from fomo_stream.detector.seasons import Cycle, Seasons
from fomo_stream.detector.step import follow as step
from fomo_stream.detector.step.follow import (
    HALF_LIFE,
    RELATIVE_VECTORS,
    RUN_SIZES,
    Batch,
    Counts,
    FixedInputs,
    Rows,
    new_batch,
)
from fomo_stream.detector.step.slots import MAX_KEYED_WITHOUT_RECURRENCE, MIN_KEYED_RECORDS, MIN_RECURRING_SHARE
from fomo_stream.errors import DamagedStateError
from fomo_stream.limits import MAX_LAGS
from fomo_stream.model.bulk import Bulk
from fomo_stream.model.kernels.handles import Handle

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

NOTHING: Int = np.zeros(0, np.int64)
NO_FLAGS = np.zeros(0, bool)
MOVEMENT_VECTORS = 2  # vectors: level and spread
MIN_SCALE_CHANGE = 0.25  # scores; a smaller change of scale does not convert keys, as each entry is written again
# records so far, those with a key, those with a known key, keys in use, whether it is known what is usual for all
COUNTERS = struct.Struct("<qqqq?")
ADDED_COLUMNS = ("when", "clock", "pace", "paces")  # columns that older states do not have
MEMORY = (("logits", "u1"), ("mean", "f4"))  # of `Memory`: how many logits, and their mean
OPEN = ("open", "u1")  # of `Alerts`: in how many more records an incident of the series can continue
BUSY = ("busy", "f4")  # of `KeyScopes`: how busy the key is


class Series(changelog.State):
    """Follows the series of a partition: the values before each record, and their level and spread.

    `follow` gives each record as vectors of d values: the record itself; the `lags` records before it of its series
    (shingling, as in Random Cut Forest); and with `movement` the level and the spread of each feature there, this
    record included. Level: mean of the values, each older one with half the weight every HALF_LIFE values. Spread:
    logarithm of the root mean square of changes against the level before, weighed alike. NaN: not known yet. The two
    vectors are rounded to 32 bits, as the history keeps them.

    From `learn_scale` on, it also gives the distance of each value from the usual values of its key, if the key is
    known; see `Pooled`. Categories (`categorical`: their columns) do not count there.

    For `counters` (their columns), fields that only grow, it gives their growth per record; where times are known and
    it took longer, the growth in the usual time between two records.

    A missing value is unknown. The last value of the feature in the series stands in for it, for at most
    STAND_IN_RECORDS records; level and spread stay as they are. For later records a far value counts as
    the nearest one that is not far.

    A series is known by its key. A record without a key belongs to the series of the whole partition, number 0. So does
    a record with a key not seen before while fewer than half of the records had a known key (a key may be the id of the
    record). `forget` keeps the `max_keys` series that were used last; one that comes back starts again without a past.
    The results of a record depend on the records before it, never on how these are split over calls.

    >>> series = Series(n_features=1, lags=2, movement=False)
    >>> series.follow(np.array([[1.0], [2.0], [3.0], [40.0]]), ["a", "a", "a", "b"]).vectors[:, :, 0]
    array([[ 1., nan, nan],
           [ 2.,  1., nan],
           [ 3.,  2.,  1.],
           [40., nan, nan]])
    """

    parts: ClassVar = {"seasons": "seasons"}
    documents: ClassVar = {"_settings": "settings", "_scale": "scale", "_still": "still/counts", "_runs": "still/runs"}

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
        self._handle: tuple[Any, Any, Handle] | None = None  # what it is of, and the handle
        self.keys = Keys(max_keys, self._columns, ADDED_COLUMNS)
        self._set_scale(None)
        self._still, self._runs = np.zeros((2, n_features), np.int64), np.zeros((RUN_SIZES, n_features), np.int64)
        self._firsts = np.zeros((2, n_features))
        self._totals = np.zeros(3, np.int64)  # records so far, those with a key, and those whose key was known
        self._totals_log = changelog.SingleEntry()
        own = {"lags": lags, "movement": int(movement), "features": n_features}
        self._settings = json.dumps({**own, "max_keys": max_keys, "relative": int(relative)}).encode()
        self._recovered()

    @property
    def n_vectors(self) -> int:
        """Vectors of a record."""
        return 1 + self.lags + (MOVEMENT_VECTORS if self.movement else 0)

    @property
    def is_numeric(self) -> Bool:
        """The mask (d,) of features that are not categories."""
        return ~np.isin(np.arange(self.n_features), self.categorical)

    @property
    def _columns(self) -> list[tuple[Any, ...]]:
        """The columns of the state of a series, see `Rows`; zeros for a series without records."""
        d = self.n_features
        c, moves, scores = len(self.counters), d * (self.movement or self.relative), d * self.relative
        times = [(name, kind) for name, kind in (("clock", "f8"), ("pace", "f8"), ("paces", "u1"))] if c else []
        return [
            ("has_records", "?"),
            OPEN,
            *MEMORY,
            BUSY,
            *[(name, kind, (d,)) for name, kind in (("known", "u1"), ("age", "u1"), ("last", "f8"), ("equal", "u2"))],
            *[(name, kind, (c,)) for name, kind in (("total", "f8"), ("since", "u2"), ("when", "f8"))],
            *times,
            *([("records", "u4")] if self.lags else []),
            ("past", "f8", (self.lags, d)),
            *[(name, "f4", (moves,)) for name in ("offset", "root")],
            *[(name, "f4", (scores,)) for name in ("level", "variance")],
            ("slow", "f4", (d if self.seasons is not None else 0,)),
            ("seen", "u4", (d if self.seasons is not None else 0,)),
        ]

    def follow(self, values: Float, keys: Sequence[Key] | Digests | None = None, bulk: Bulk | None = None) -> Batch:
        """The next records, from their values (n, d), NaN = missing.

        Further columns: their places in cycles, and with counters their times in seconds.

        keys: (n,) of each record; None: all without; bulk: which values are far; None: that is not known yet.
        """
        return self._follow(np.ascontiguousarray(values), keys, bulk, learn=True)

    def peek(self, values: Float, keys: Sequence[Key] | Digests | None = None, bulk: Bulk | None = None) -> Batch:
        """The same, but nothing changes."""
        return self._follow(np.ascontiguousarray(values), keys, bulk, learn=False)

    def _follow(self, values: Float, keys: Sequence[Key] | Digests | None, bulk: Bulk | None, learn: bool) -> Batch:
        batch = new_batch(len(values), self.n_features, self.n_vectors)
        handle = Handle(batch)  # it has to live as long as its address is in use
        self.note(values, keys, bulk, learn, handle.address)
        return batch

    def note(
        self, values: Float, keys: Sequence[Key] | Digests | None, bulk: Bulk | None, learn: bool, batch: int
    ) -> None:
        """As `follow`, or as `peek` without `learn`, into the `Batch` that the handle of this address begins with."""
        moves = (NOTHING, NOTHING, NO_FLAGS) if keys is None else self._resolve(keys, learn)
        state = self._state(bulk)  # held until the end: another thread may make a new one meanwhile
        step.follow(state.address, values, *moves, learn, batch)
        if learn:
            self.keys.mark(UNKEYED if keys is None else moves[1])
            self._totals[0] += len(values) if keys is None else 0

    def _resolve(self, keys: Sequence[Key] | Digests, learn: bool) -> tuple[Int, Int, Bool]:
        keys = keys if isinstance(keys, Digests) else Digests.of(keys)
        totals = self._totals if learn else self._totals.copy()
        limits = MIN_KEYED_RECORDS, MAX_KEYED_WITHOUT_RECURRENCE, MIN_RECURRING_SHARE
        return self.keys.resolve(*keys, totals, limits, learn)

    def _state(self, bulk: Bulk | None) -> Handle:
        """The handle of the state, and of what does not change while records are followed."""
        last, made = self.keys.columns["last"], self._handle
        if made is None or made[0] is not last or made[1] is not bulk:
            n, nothing, columns = self.keys.size, np.zeros((7, 0)), self.keys.columns
            zeros = {"clock": "f8", "pace": "f8", "paces": "u1", "records": "u4"}  # where they are not kept
            rows = Rows(**{key: columns.get(key, np.zeros(n, zeros.get(key, "f8"))) for key in Rows._fields})
            fixed = FixedInputs(
                nothing if self.pooled is None else self.pooled.table,
                nothing if bulk is None else np.stack(bulk),
                self.is_numeric,
                np.array(self.counters, dtype=np.int64),
                np.stack([weights(HALF_LIFE), weights()]),
                np.array([self._n_cycles]),
                np.array([self.movement, self.relative]),
            )
            profiles = (self.seasons or Seasons(self.n_features, ())).profiles
            made = self._handle = last, bulk, Handle(rows, profiles, self._counts, fixed)
        return made[2]

    def skip(self, values: Float, keys: Sequence[Key]) -> None:
        """Skip records (n, d): only the counters of known series continue from their totals."""
        if not self.counters or not len(values):
            return
        _, keyed, recurred = self._totals.tolist()
        recur = 2 * recurred >= keyed or keyed < MIN_KEYED_RECORDS
        slots = self.keys.find_all(Digests.of(keys).digests)
        moves = [(i, slot) for i, slot in enumerate(slots.tolist()) if slot != UNKEYED]
        moves += [(i, UNKEYED) for i, key in enumerate(keys) if key is None or not recur]
        if moves:
            at, of_series = (np.array(column) for column in zip(*sorted(moves), strict=True))
            state = self._state(None)
            step.skip_records(state.address, np.ascontiguousarray(values), at, of_series)
            self.keys.mark(of_series)

    def forget(self) -> None:
        """Forget the keys that were used least recently, if there are too many."""
        self.keys.forget()

    def learn_scale(self, columns: Sequence[Float]) -> None:
        """Learn what is usual for all keys from the values (m,) of each feature in a sample, ascending."""
        within = np.full(self.n_features, PRIOR_VARIANCE)
        pooled = Pooled.fit(columns, within)
        if self.pooled is not None:
            pooled = self._rescale(self.pooled, pooled)
            count, variance = (self.keys.column(name, self.keys.in_use) for name in ("known", "variance"))
            pooled = replace(pooled, within=within_keys(count, variance, distances_between_keys(*self._counts.firsts)))
        if self.seasons is not None and self.pooled is not None:
            self.seasons.rescale(self.pooled, pooled)
        self._set_scale(pooled)

    def _rescale(self, old: Pooled, new: Pooled) -> Pooled:
        """Return the new scale for features where it differs much, else the old one, in which the levels of keys are.

        These are converted to the new scale: each entry of a key is written again.
        """
        middle = new.scores(old.raw(np.array([[-1.0, 0.0, 1.0]]).T * np.ones(self.n_features)))
        differs = np.abs(middle - np.array([[-1.0, 0.0, 1.0]]).T).max(axis=0) > MIN_SCALE_CHANGE
        new = new.where(differs, old)
        if not differs.any() or not len(self.keys):
            return new
        slots = self.keys.in_use
        level, variance = (self.keys.column(name, slots).astype(np.float64) for name in ("level", "variance"))
        step = np.sqrt(np.maximum(variance, 0.0))
        width = (new.scores(old.raw(level + step)) - new.scores(old.raw(level - step))) / 2.0
        level[:, differs] = new.scores(old.raw(level))[:, differs]
        variance[:, differs] = width[:, differs] ** 2
        self.keys.write(slots, level=level, variance=variance)
        return new

    def _set_scale(self, pooled: Pooled | None) -> None:
        self.pooled = pooled
        self._handle = None
        self._scale = None if pooled is None else save(pooled.to_arrays())

    def learn_usual(self, values: Float, slots: Int) -> Float:
        """Learn the usual values of each key from its records before `learn_scale`: values (n, d), slots (n,).

        Returns their distances from these (n, RELATIVE_VECTORS, d).
        """
        relative = np.full((len(values), RELATIVE_VECTORS, self.n_features), np.nan)
        keyed = np.flatnonzero((slots > UNKEYED) & (self.keys.column("used", slots) > 0))
        if len(keyed):
            unique, at = np.unique(slots[keyed], return_inverse=True)
            of_keyed = relative[keyed]
            state = self._state(None)
            step.learn_usual(state.address, values[keyed], at, slots[keyed], of_keyed)
            relative[keyed] = of_keyed
            self.keys.mark(unique)
        return relative

    def learn_moves(self, values: Float, slots: Int, bulk: Bulk) -> Float:
        """Level and spread (n, MOVEMENT_VECTORS, d) after the first records, once their far values are known.

        values: (n, d), NaN = missing; slots: (n,) numbers of their series. NaN of series that were forgotten.
        """
        moves = np.full((len(values), MOVEMENT_VECTORS, self.n_features), np.nan)
        with_records = np.flatnonzero(self.keys.column("has_records", slots))
        if len(with_records):
            unique, at = np.unique(slots[with_records], return_inverse=True)
            of_known = moves[with_records]
            state = self._state(None)
            step.learn_moves(state.address, bulk.limited(values[with_records]), at, slots[with_records], of_known)
            moves[with_records] = of_known
            self.keys.mark(unique)
        return moves

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self, name: str = "") -> changelog.Entries:
        """Entries of the series that were used or forgotten since the last call; at first of all."""
        entries = self.keys.changes(joined_name(name, "key"))
        if not self.n_features and self._totals_log.value:
            return entries  # no record is followed here
        counters = COUNTERS.pack(*self._totals.tolist(), len(self.keys), self.pooled is not None)
        firsts = b"" if self.pooled is None else self._counts.firsts.tobytes()
        entries |= super().changes(name)
        return entries | self._totals_log.changes(joined_name(name, "keys"), counters + firsts)

    def recover(self, entries: changelog.StoredEntries, name: str = "", *scalars: Any) -> None:
        """Replace the present state by that of the entries.

        Raises StateError when they are of other lags or features, or damaged; the object must not be used then.
        """
        settings = json.loads(self._settings)
        stored = changelog.Document().recover(entries, joined_name(name, "settings"))
        changelog.check_same(json.loads(stored), settings, settings)
        keys = joined_name(name, "keys")
        try:
            changelog.required_entry(entries, keys)
            value = self._totals_log.recover(entries, keys)
            counters, firsts = value[: COUNTERS.size], value[COUNTERS.size :]
            *self._totals[:], count, is_scaled = COUNTERS.unpack(counters)
            self.keys.recover(entries, joined_name(name, "key"), count)
            self._scale = b"" if is_scaled else None
            super().recover(entries, name)
            scale = {} if self._scale is None else load(self._scale)
            self._set_scale(Pooled.from_arrays(scale) if is_scaled else None)
            self._counts.firsts[:] = 0.0
            if is_scaled and "common" not in scale:  # an older state: it treats keys as alike
                self._counts.firsts[0] = count
            elif is_scaled or firsts:
                self._counts.firsts[:] = np.frombuffer(firsts, "<f8").reshape(2, self.n_features if is_scaled else 0)
        except (ValueError, KeyError, struct.error) as error:
            raise DamagedStateError(f"the state is damaged: series cannot be read ({error})") from None

    def _recovered(self) -> None:
        self._counts = Counts(self._still[0], self._still[1], self._runs, self._firsts)
        self._handle = None


def flat(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Vectors (n, vectors, d) side by side: (n, vectors * d), contiguous, as safetensors can only store such arrays."""
    n, n_vectors, d = vectors.shape
    return np.ascontiguousarray(vectors.reshape(n, n_vectors * d))
