"""Series: each record together with the past of its key, how the values of that key move, and remembered logits."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Document, Entries, StoredEntries, Table, check_same, value_of
from fomo_stream.errors import DamagedStateError
from fomo_stream.limits import MAX_LAGS

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
Key = bytes | str | None  # None: the series of the whole partition

MAX_KEYS = 2000  # series by key
HALF_LIFE = 3.0  # values of a feature after which an older one counts half in its level and spread
MOVEMENT = 2  # vectors: level and spread
SUMS = 4  # rows of a series' state for them: values, their weights, squared changes, their weights
RECENT = 10  # records of a series for which a value stands in for those missing after it
LAST = 2  # rows of a series' state for that: the last value of each feature, and the records since
TINY = 1e-6  # of the level: a smaller spread counts as this
LARGEST = float(np.finfo(np.float32).max)
FEW_KEYED = 32  # records with a key that say whether keys recur
ENOUGH_KEYED = 5 * MAX_KEYS  # records with a key after which no more series begin, if keys do not recur
DIGEST_BYTES = 16
PREFIX = "series/"  # before a digest: the key of an entry of the log
KEYS = struct.Struct("<qqq")  # records so far, those with a key, and those with a known key
HEAD = struct.Struct("<qq?")  # at the start of its value: the fields of a state, less the rows


class Batch(NamedTuple):
    """n records with the past of their series. See `Series.follow`."""

    vectors: Float  # (n, vectors, d)
    gaps: Bool  # (n, d) values that are missing, even where an earlier one stands in
    slots: Int  # (n,) number of each record's series, 0 to max_keys; a number is used again for another series
    begins: NDArray[np.bool_]  # (n,) whether no record before belongs to its series

    def part(self, records: slice) -> Batch:
        """Some of the records."""
        return Batch(self.vectors[records], self.gaps[records], self.slots[records], self.begins[records])


class Series:
    """Follows the series of a partition: the values before each record, and their level and spread.

    `follow` gives each record as vectors of d values: the record itself; the `lags` records before it of its series
    (shingling, as in Random Cut Forest); and with `movement` the level and the spread of each feature there, this
    record included. Level: mean of the values, each older one with half the weight every HALF_LIFE values. Spread:
    logarithm of the root mean square of changes against the level before, weighed alike. NaN: not known yet. The two
    vectors are rounded to 32 bits, as the history keeps them.

    A missing value is unknown. With `fills` the last value of the feature in the series stands in for it, for at most
    RECENT records; level and spread stay as they are.

    A series is known by its key. A record without a key belongs to the series of the whole partition, number 0. So does
    a record with a key not seen before while fewer than half of the records had a known key (a key may be the id of the
    record). The `max_keys` series that were used last are kept; one that comes back later starts again without a past.
    All that is said of a record depends on the records before it, never on how they are split over calls.

    >>> series = Series(n_features=1, lags=2, movement=False)
    >>> series.follow(np.array([[1.0], [2.0], [3.0], [40.0]]), ["a", "a", "a", "b"]).vectors[:, :, 0]
    array([[ 1., nan, nan],
           [ 2.,  1., nan],
           [ 3.,  2.,  1.],
           [40., nan, nan]])
    """

    def __init__(
        self, n_features: int, lags: int = 0, movement: bool = True, max_keys: int = MAX_KEYS, fills: bool = True
    ) -> None:
        if not 0 <= lags <= MAX_LAGS:
            raise ValueError(f"lags must be between 0 and {MAX_LAGS}, not {lags}")
        self.n_features, self.lags, self.movement, self.max_keys = n_features, lags, movement, max_keys
        self.fills = fills
        self._known: OrderedDict[bytes, _State] = OrderedDict()  # by digest of the key, the last used one last
        self._keyed = self._recurred = 0  # records with a key, and those whose key was known
        self._uses = 0  # records so far
        self._begin_log()

    @property
    def n_vectors(self) -> int:
        """Vectors of a record."""
        return 1 + self.lags + (MOVEMENT if self.movement else 0)

    def follow(self, values: Float, keys: Sequence[Key] | None = None) -> Batch:
        """The next records, from their values (n, d), NaN = missing. keys: (n,) of each record; None: all without."""
        n = len(values)
        vectors = np.empty((n, self.n_vectors, self.n_features))
        batch = Batch(vectors, np.isnan(values), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool))
        start = 0
        for key, run in groupby([None] * n if keys is None else keys):
            stop = start + sum(1 for _ in run)
            if key is None:
                self._advance(WHOLE, values, slice(start, stop), batch)
            else:
                for i in range(start, stop):
                    self._follow_keyed(_digest(key), values, slice(i, i + 1), batch)
            start = stop
        return batch

    def peek(self, values: Float, keys: Sequence[Key] | None = None) -> Batch:
        """The same as from `follow`, but nothing changes."""
        return self.copy().follow(values, keys)

    def _follow_keyed(self, digest: bytes, values: Float, at: slice, batch: Batch) -> None:
        is_known = digest in self._known
        self._keyed += 1
        self._recurred += is_known
        recur = 2 * self._recurred >= self._keyed or self._keyed < FEW_KEYED
        if is_known or recur or self._keyed < ENOUGH_KEYED:
            self._advance(digest, values, at, batch if is_known or recur else None)
        if not recur:
            self._advance(WHOLE, values, at, None if is_known else batch)

    def _advance(self, digest: bytes, values: Float, at: slice, batch: Batch | None) -> None:
        """Add the records values[at] to a series, and note in `batch` what is said of them."""
        state = self._take(digest)
        rows = values[at]
        n = len(rows)
        self._uses += n
        vectors = np.empty((n, self.n_vectors, self.n_features))
        past, last, sums = np.split(state.rows, [self.lags, self.lags + LAST])
        if self.movement:
            sums, vectors[:, -MOVEMENT:] = _moved(sums, rows)
        if self.fills:
            last, rows = _filled(last, rows)
        vectors[:, 0] = rows
        if self.lags:
            joined = np.concatenate([past, rows])
            newest = np.arange(self.lags, len(joined))
            vectors[:, 1 : 1 + self.lags] = joined[newest[:, None] - np.arange(1, self.lags + 1)]
            past = joined[len(joined) - self.lags :]
        has_records = state.has_records or batch is not None
        self._known[digest] = _State(self._uses, state.slot, has_records, np.concatenate([past, last, sums]))
        self._changed.add(digest)
        if batch is not None:
            batch.vectors[at], batch.slots[at] = vectors, state.slot
            batch.begins[at.start] = not state.has_records

    def _take(self, digest: bytes) -> _State:
        """The state of a series, perhaps of a new one."""
        state = self._known.pop(digest, None)
        if state is not None:
            return state
        slot = 0 if digest == WHOLE else self._free_slot()
        empty = np.full((self._state_rows, self.n_features), np.nan)
        empty[self.lags + 1 :] = 0.0
        return _State(0, slot, False, empty)

    @property
    def _state_rows(self) -> int:
        return self.lags + LAST + SUMS * self.movement

    def _free_slot(self) -> int:
        by_key = len(self._known) - (WHOLE in self._known)
        if by_key < self.max_keys:
            return 1 + by_key
        digest = next(digest for digest in self._known if digest != WHOLE)
        slot = self._known.pop(digest).slot
        # only entries that the log has need to be deleted there; so memory is bounded, however many come and go
        (self._changed.add if digest in self._logged else self._changed.discard)(digest)
        return slot

    def copy(self, more: int = 0) -> Series:
        """Independent series, the same now, with `more` further features that no record has."""
        twin = copy(self)
        twin.n_features += more
        twin._known = self._known.copy()
        for digest, state in self._known.items() if more else ():
            rows = with_missing_features(state.rows, more)
            rows[self.lags + 1 :, self.n_features :] = 0.0
            twin._known[digest] = state._replace(rows=rows)
        twin._begin_log()
        return twin

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Entries of the series that were used or forgotten since the last call; at first of all."""
        entries = self._settings_log.changes("settings", json.dumps(self._settings).encode())
        if self._changed or entries:
            entries["keys"] = KEYS.pack(self._uses, self._keyed, self._recurred)
        for digest in self._changed:
            state = self._known.get(digest)
            name = PREFIX + digest.hex()
            entries[name] = None if state is None else HEAD.pack(*state[:-1]) + state.rows.tobytes()
            (self._logged.discard if state is None else self._logged.add)(digest)
        self._changed.clear()
        return entries

    def recover(self, entries: StoredEntries) -> None:
        """Take the state from the entries, in place of the present state.

        Raises StateError when they are of other lags or features, or damaged; the object must not be used then.
        """
        self._begin_log()
        check_same(json.loads(self._settings_log.recover(entries, "settings")), self._settings, self._settings)
        try:
            named = {key.removeprefix(PREFIX): value for key, value in entries.items() if key.startswith(PREFIX)}
            states = {bytes.fromhex(digest): self._read(value) for digest, value in named.items()}
            self._uses, self._keyed, self._recurred = KEYS.unpack(value_of(entries, "keys"))
        except (ValueError, struct.error) as error:
            raise DamagedStateError(f"the state is damaged: series cannot be read ({error})") from None
        self._known = OrderedDict(sorted(states.items(), key=lambda item: item[1].used))
        self._changed.clear()
        self._logged.update(states)

    @property
    def _settings(self) -> dict[str, int]:
        return {
            "lags": self.lags,
            "movement": int(self.movement),
            "features": self.n_features,
            "max_keys": self.max_keys,
            "fills": int(self.fills),
        }

    def _begin_log(self) -> None:
        """Start with an empty log."""
        self._settings_log = Document()
        self._changed: set[bytes] = set(self._known)  # digests whose entries are out of date
        self._logged: set[bytes] = set()  # digests that have entries

    def _read(self, value: bytes) -> _State:
        rows = np.frombuffer(value, np.float64, offset=HEAD.size)
        used, slot, has_records = HEAD.unpack_from(value)
        return _State(used, slot, has_records, rows.reshape(self._state_rows, self.n_features))


class _State(NamedTuple):
    """A series; never changed in place."""

    used: int  # the higher, the later
    slot: int  # its number
    has_records: bool  # belong to it; at first a key's record may belong to the series of the partition
    # (state rows, d): the last records, oldest first, NaN = none yet; the last values and their ages; then the sums of
    # the movement
    rows: Float


WHOLE = bytes(DIGEST_BYTES)  # the series of all that has no key


def _filled(last: Float, rows: Float) -> tuple[Float, Float]:
    """The last values and their ages (LAST, d) after the next rows (n, d) of a series, and the rows with these values
    where one is missing and they are recent."""
    missing = np.isnan(rows)
    if not missing.any() and len(rows):
        return np.stack([rows[-1], np.zeros(rows.shape[1])]), rows
    n, columns = len(rows), np.arange(rows.shape[1])
    known = np.vstack([last[0], rows])
    at = np.maximum.accumulate(np.vstack([np.zeros_like(columns), np.where(missing, 0, 1 + np.arange(n)[:, None])]))
    age = np.arange(n + 1)[:, None] - at + np.where(at == 0, last[1], 0.0)
    value = known[at, columns]
    return np.stack([value[-1], age[-1]]), np.where(age[1:] <= RECENT, value[1:], np.nan)


def _moved(sums: Float, rows: Float) -> tuple[Float, Float]:
    """The sums (SUMS, d) after the next rows (n, d) of a series, and the vectors (n, MOVEMENT, d) of these."""
    present = ~np.isnan(rows)
    values = np.where(present, rows, 0.0)
    keep = np.where(present, 0.5 ** (1 / HALF_LIFE), 1.0)  # a missing value leaves everything as it is
    sums, change, new = sums.copy(), np.empty(rows.shape[1]), np.empty_like(sums)
    after = np.empty((len(rows), *sums.shape))
    with np.errstate(invalid="ignore"):
        level = sums[0] / sums[1]
        for i in range(len(rows)):  # one by one, so that no bit depends on how records are split over calls
            np.subtract(rows[i], level, out=change)
            np.equal(change, change, out=new[3])  # not where the value is missing or the first one
            np.multiply(change, change, out=change)
            np.fmax(change, 0.0, out=new[2])
            new[0], new[1] = values[i], present[i]
            sums *= keep[i]
            sums += new
            after[i] = sums
            np.divide(sums[0], sums[1], out=level)
        levels = after[:, 0] / after[:, 1]
        squares = after[:, 2] / after[:, 3]
    spread = 0.5 * np.log(squares + (TINY * levels) ** 2 + 1e-300)
    vectors = np.clip(np.stack([levels, spread], axis=1), -LARGEST, LARGEST)
    return sums, vectors.astype(np.float32).astype(np.float64)


def _digest(key: bytes | str) -> bytes:
    """16 bytes for a key of any length, so that memory is bounded."""
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def with_missing_features(rows: NDArray[np.float64], more: int) -> NDArray[np.float64]:
    """Rows (..., d) with `more` further features at the end, all missing: (..., d + more)."""
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, more)], constant_values=np.nan)


def flat(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Vectors (n, vectors, d) side by side: (n, vectors * d), contiguous, as safetensors can only store such arrays."""
    n, n_vectors, d = vectors.shape
    return np.ascontiguousarray(vectors.reshape(n, n_vectors * d))


SERIES_BLOCK = 4  # series to an entry of the log


class Memory:
    """Remembered logits: (1 - weight) times the record's own, plus weight times the mean of those before it.

    The mean is over the earlier records of the same series; each older one counts half every HALF_LIFE records. The
    first record of a series has its own logit. Means are rounded to 32 bits: where nothing ever changes, rounding
    errors would else order the records, and p-values would tell equal records apart.

    >>> memory = Memory(weight=0.5)
    >>> memory.remember(np.array([4.0, 4.0, 0.0, 8.0]), np.array([0, 0, 0, 7]), np.array([True, False, False, True]))
    array([4., 4., 2., 8.])
    """

    def __init__(self, weight: float, max_keys: int = MAX_KEYS) -> None:
        self.weight = weight
        self._sums = Table(SERIES_BLOCK, sums=np.zeros((max_keys + 1, 2)))  # by series: of logits, and of weights

    def remember(self, logits: Float, slots: Int, begins: Bool) -> Float:
        """Remembered logits (n,) of the next records from their own (n,), which count from now on.

        slots, begins: (n,) of `Series.follow`. NaN for a NaN, which does not count.
        """
        sums: dict[int, tuple[float, float]] = {}
        if not len(logits):
            return logits
        before = self._sums["sums"]
        keep, weight, out, alone = 0.5 ** (1 / HALF_LIFE), self.weight, [], []
        for logit, slot, is_first in zip(logits.tolist(), slots.tolist(), begins.tolist(), strict=True):
            if is_first:
                total, count = 0.0, 0.0
            else:
                total, count = sums[slot] if slot in sums else before[slot].tolist()
            is_alone = not (count and weight and logit == logit)
            alone.append(is_alone)
            out.append(logit if is_alone else (1.0 - weight) * logit + weight * (total / count))
            if logit == logit:
                total, count = keep * total + logit, keep * count + 1.0
            sums[slot] = total, count
        self._sums.put(np.fromiter(sums, np.int64), sums=np.array(list(sums.values())))
        return np.where(alone, out, np.array(out, dtype=np.float32))

    def peek(self, logits: Float, slots: Int, begins: Bool) -> Float:
        """The same as from `remember`, but nothing changes."""
        return self.copy().remember(logits, slots, begins)

    def copy(self) -> Memory:
        """An independent memory in the same state."""
        twin = copy(self)
        twin._sums = Table(SERIES_BLOCK, sums=np.zeros_like(self._sums["sums"]))
        at = np.flatnonzero(self._sums["sums"][:, 1])
        twin._sums.put(at, sums=self._sums["sums"][at])
        return twin

    def changes(self) -> Entries:
        """Entries of all changes since the last call, at first of everything."""
        return self._sums.changes("memory")

    def recover(self, entries: StoredEntries) -> None:
        """Take the state from the entries. Raises StateError when they do not fit."""
        self._sums.recover(entries, "memory")
