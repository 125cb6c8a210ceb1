"""What is kept of each series of a partition: rows of one array, found by key, of bounded number."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries
from fomo_stream.errors import DamagedStateError

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
Rows = NDArray[Any]  # structured
Key = bytes | str | None  # None: the series of the whole partition

MAX_KEYS = 100_000  # series by key
DIGEST_BYTES = 16
WHOLE = 0  # number of the series of all that has no key
FIRST_ROWS = 64  # that are allocated
AT_ONCE = 64  # a share of 1 / AT_ONCE of the keys is forgotten together


def digest_of(key: bytes | str) -> bytes:
    """16 bytes for a key of any length, so that memory is bounded."""
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


class Keys:
    """A row of `columns` for each series, zeros at first: number 0 is the whole partition's, the others are of keys.

    `forget` leaves at most `max_keys` keys, those that were used last. Rows are written with `put`; an entry of the log
    is a row.

    >>> keys = Keys(2, [("seen", "u4")])
    >>> a, b, c = (keys.take(digest_of(key), used) for used, key in enumerate("abc", 1))
    >>> keys.forget()
    >>> keys.find(digest_of("a")), keys.find(digest_of("b")) == b, keys.take(digest_of("d"), 4) == a
    (None, True, True)
    """

    def __init__(self, max_keys: int, columns: Sequence[tuple[Any, ...]], added: Sequence[str] = ()) -> None:
        """added: names of columns that entries of an older log may lack: then they are zeros."""
        self._added = tuple(added)
        self.max_keys, self.forgotten = max_keys, 0
        dtype = np.dtype([("digest", f"V{DIGEST_BYTES}"), ("used", "u8"), *columns])
        self._rows: Rows = np.zeros(FIRST_ROWS, dtype)  # the last one is never used
        self._slots = _Slots()
        self._free: list[int] = []  # numbers below `_high` that have no series, descending
        self._high = 1  # no number from here on was ever used
        self._logged: Bool  # rows that have an entry
        self._written: Bool  # rows whose entry is out of date
        self._begin_log()

    def __len__(self) -> int:
        """Keys in use."""
        return len(self._slots)

    def __getitem__(self, slots: Int) -> Rows:
        """A copy of the rows (n,) of series; zeros for the numbers of `unused`."""
        return np.take(self._rows, slots, mode="clip")

    def column(self, name: str, slots: Int) -> NDArray[Any]:
        """A column (n, ...) of these rows."""
        return self._rows[name][np.minimum(slots, len(self._rows) - 1)]  # `take` would copy the whole column

    def of_all_keys(self) -> Rows:
        """A copy of the rows of all keys, less the series of the partition."""
        return self._rows[self.in_use]

    def find(self, digest: bytes) -> int | None:
        """The number of the series of a key; None: it has none."""
        return self._slots.find(digest, self._rows["digest"])

    def unused(self, nth: int) -> int:
        """A number that no series has, for one that is only looked at."""
        return len(self._rows) + nth

    def take(self, digest: bytes, used: int) -> int:
        """The number of the series of a key that is used now, perhaps of a new one. used: rises with every use."""
        slot = self.find(digest)
        if slot is None:
            slot = self._new(digest)
        self._rows["used"][slot] = used
        return slot

    def put(self, slots: Int, rows: Rows) -> None:
        """Write rows (n,), as `keys[slots]` gave them, all but their digests and when they were used."""
        kept = self._rows[slots]
        rows["digest"], rows["used"] = kept["digest"], kept["used"]
        self._rows[slots] = rows
        self._written[slots] = True

    def write(self, slots: Int, **values: Any) -> None:
        """Write values (n, ...) of some columns."""
        for name, value in values.items():
            self._rows[name][slots] = value
        self._written[slots] = True

    def _new(self, digest: bytes) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._high
            self._high += 1
            if self._high >= len(self._rows):
                self._grow()
        self._slots.add(digest, slot)
        self._rows[slot] = np.zeros((), self._rows.dtype)
        self._rows["digest"][slot] = np.void(digest)
        return slot

    def forget(self) -> None:
        """Forget the keys that were used least recently, if there are more than `max_keys`; some more at once, if these
        are many.
        """
        if len(self._slots) <= self.max_keys:
            return
        n = len(self._slots) - self.max_keys + self.max_keys // AT_ONCE
        slots = self.in_use
        oldest = slots[np.argsort(self._rows["used"][slots], kind="stable")[:n]]
        self._slots.remove(oldest)
        self._rows[oldest] = np.zeros((), self._rows.dtype)
        self._written[oldest] = self._logged[oldest]  # only what the log has needs to be deleted there
        self._free = sorted([*self._free, *oldest.tolist()], reverse=True)
        self.forgotten += len(oldest)

    @property
    def in_use(self) -> Int:
        """The numbers of the series of keys, ascending."""
        return 1 + np.flatnonzero(self._rows["used"][1:] > 0)

    def _grow(self) -> None:
        n = len(self._rows)
        more = n if not n < self.max_keys < 2 * n else self.max_keys - n + FIRST_ROWS
        self._rows = np.concatenate([self._rows, np.zeros(more, self._rows.dtype)])
        self._written, self._logged = (np.pad(mask, (0, more)) for mask in (self._written, self._logged))

    def copy(self) -> Keys:
        """Independent keys in the same state."""
        twin = copy(self)
        twin._slots, twin._free = copy(self._slots), self._free.copy()
        twin._slots.begin(self._rows["digest"], self.in_use)
        twin._rows = self._rows.copy()
        twin._begin_log()
        return twin

    # -- log -----------------------------------------------------------------------------------------------------

    def _begin_log(self) -> None:
        """Start with an empty log."""
        self._logged = np.zeros(len(self._rows), dtype=bool)
        self._written = np.zeros(len(self._rows), dtype=bool)
        self._written[WHOLE] = True
        self._written[self.in_use] = True

    def changes(self, name: str) -> Entries:
        """Entries of the rows that were written or forgotten since the last call; at first of all."""
        at = np.flatnonzero(self._written)
        data, width = self._rows[at].tobytes(), self._rows.itemsize
        in_use = (self._rows["used"][at] > 0) | (at == WHOLE)
        entries: Entries = {}
        for k, (slot, is_used) in enumerate(zip(at.tolist(), in_use.tolist(), strict=True)):
            entries[f"{name}/{slot}"] = data[k * width : (k + 1) * width] if is_used else None
        self._logged[at] = in_use
        self._written[at] = False
        return entries

    def recover(self, entries: StoredEntries, name: str, count: int) -> None:
        """Take the state from the entries, which are of `count` keys. Raises DamagedStateError when they are not."""
        prefix, width = f"{name}/", self._rows.itemsize
        found = {int(key[len(prefix) :]): value for key, value in entries.items() if key.startswith(prefix)}
        slots = np.array(sorted(found), dtype=np.int64)
        if len(slots) != count + 1 or slots[0] != WHOLE:
            raise DamagedStateError(f"the state is damaged: {name} has {max(0, len(slots) - 1)} keys, not {count}")
        values = [found[slot] for slot in slots.tolist()]
        dtype, sizes = self._rows.dtype, np.array(list(map(len, values)))
        before = np.dtype([(column, dtype[column]) for column in dtype.names or () if column not in self._added])
        self._rows = np.zeros(int(slots[-1]) + FIRST_ROWS, dtype)
        for of in {dtype, before}:
            at = np.flatnonzero(sizes == of.itemsize)
            rows = np.frombuffer(b"".join(values[i] for i in at.tolist()), of)
            for column in of.names or ():
                self._rows[column][slots[at]] = rows[column]
        if not np.isin(sizes, (width, before.itemsize)).all():
            raise DamagedStateError(f"the state is damaged: a row of {name} has not {width} bytes")
        self._slots.begin(self._rows["digest"], slots[1:])
        self._high = int(slots[-1]) + 1
        self._free = np.setdiff1d(np.arange(1, self._high), slots)[::-1].tolist()
        self._begin_log()
        self._logged[slots], self._written[slots] = True, False


MERGED = 1024  # new keys that are merged together


class _Slots:
    """The numbers of series by the digests of their keys, in arrays: a dict would take as much as a third of a row.

    Those of new keys are in a dict until there are enough to merge.
    """

    def __init__(self) -> None:
        self._hashes, self._numbers = array("Q"), array("I")  # of the first 8 bytes, ascending
        self._new: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._hashes) + len(self._new)

    def find(self, digest: bytes, digests: Rows) -> int | None:
        """The number of the series with this digest; None: there is none. digests: by number."""
        if (number := self._new.get(digest)) is not None:
            return number
        wanted = _hash(digest)
        for at in range(bisect_left(self._hashes, wanted), len(self._hashes)):
            if self._hashes[at] != wanted:
                break
            if digests[self._numbers[at]].tobytes() == digest:
                return self._numbers[at]
        return None

    def add(self, digest: bytes, number: int) -> None:
        """A new key."""
        self._new[digest] = number
        if len(self._new) >= MERGED:
            new = np.fromiter(map(_hash, self._new), np.uint64), np.fromiter(self._new.values(), np.uint32)
            hashes, numbers = self._arrays()
            self._set(np.concatenate([hashes, new[0]]), np.concatenate([numbers, new[1]]))

    def remove(self, numbers: Int) -> None:
        """These series are no more."""
        gone = set(numbers.tolist())
        self._new = {digest: number for digest, number in self._new.items() if number not in gone}
        hashes, kept = self._arrays()
        is_kept, new = ~np.isin(kept, numbers), self._new
        self._set(hashes[is_kept], kept[is_kept])
        self._new = new

    def begin(self, digests: Rows, numbers: Int) -> None:
        """With the series of these numbers alone. digests: by number."""
        hashes = np.ascontiguousarray(digests[numbers]).view(np.uint64).reshape(-1, 2)[:, 0]
        self._set(hashes, numbers.astype(np.uint32))

    def _arrays(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        return np.frombuffer(self._hashes, np.uint64), np.frombuffer(self._numbers, np.uint32)

    def _set(self, hashes: NDArray[np.uint64], numbers: NDArray[np.uint32]) -> None:
        order, self._new = np.argsort(hashes, kind="stable"), {}
        self._hashes, self._numbers = array("Q", hashes[order].tobytes()), array("I", numbers[order].tobytes())


def _hash(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")
