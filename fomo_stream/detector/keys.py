"""The state of each series of a partition: rows of arrays, found by key, of bounded number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Copied, Entries, StoredEntries, put_rows, rows_as_bytes, rows_as_entries
from fomo_stream.detector.step import slots as table
from fomo_stream.errors import DamagedStateError

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
Key = bytes | str | None  # None: the series of the whole partition

MAX_KEYS = 100_000  # series by key
DIGEST_BYTES = 16
UNKEYED = 0  # number of the series of all that has no key
FIRST_ROWS = 64  # that are allocated
FORGET_DIVISOR = 64  # the part 1 / FORGET_DIVISOR of the keys is forgotten together: to rebuild the table costs much


def digest_of(key: bytes | str) -> bytes:
    """16 bytes for a key of any length, so that memory is bounded."""
    return _digest_of_short(key) if len(key) <= SHORT_KEY else _digest(key)


def _digest(key: bytes | str) -> bytes:
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


SHORT_KEY = 64  # characters, or bytes: digests of such keys are kept, as the same keys come again
_digest_of_short = lru_cache(maxsize=2**14)(_digest)


class Digests(NamedTuple):
    """The keys of n records."""

    digests: NDArray[np.uint64]  # (n, 2), zeros of None
    is_keyed: Bool  # (n,) whether a record has a key

    @classmethod
    def of(cls, keys: Sequence[Key]) -> Digests:
        """Return the digests of keys (n,)."""
        none = bytes(DIGEST_BYTES)
        short = _digest_of_short
        parts = [none if key is None else short(key) if len(key) <= SHORT_KEY else _digest(key) for key in keys]
        data = bytearray().join(parts)
        is_keyed = np.array([key is not None for key in keys], dtype=bool)
        return cls(np.frombuffer(data, np.uint64).reshape(len(keys), 2), is_keyed)

    def part(self, records: slice) -> Digests:
        """Return those of some records."""
        return Digests(self.digests[records], self.is_keyed[records])


class Keys(Copied):
    """A row of `columns` for each series, zeros at first: number 0 is the whole partition's, the others are of keys.

    `forget` leaves at most `max_keys` keys, those that were used last. Rows are written with `write`, or in place by
    those who call `mark`; an entry of the log is a row.

    >>> keys = Keys(2, [("seen", "u4")])
    >>> a, b, c = (keys.take(digest_of(key), used) for used, key in enumerate("abc", 1))
    >>> keys.forget()
    >>> keys.find(digest_of("a")), keys.find(digest_of("b")) == b, keys.take(digest_of("d"), 4) == a
    (None, True, True)
    """

    def __init__(self, max_keys: int, columns: Sequence[tuple[Any, ...]], added: Sequence[str] = ()) -> None:
        """columns: name, type and, where it is not a number, shape of each. added: names of those that entries of an
        older log may lack: then they are zeros."""
        self._added = tuple(added)
        self.max_keys, self.forgotten = max_keys, 0
        layout = [("digest", "u8", (2,)), ("used", "u8"), *columns]
        # of each column (rows, ...); the last row is never used
        self.columns: dict[str, NDArray[Any]] = {
            name: np.zeros((FIRST_ROWS, *(shape[0] if shape else ())), dtype) for name, dtype, *shape in layout
        }
        self._begin()
        self._recovered()

    def _begin(self) -> None:
        """Build the table and the free numbers from the keys in use."""
        in_use = self.in_use
        self._high = int(in_use.max(initial=0)) + 1  # no number from here on is used
        free = np.setdiff1d(np.arange(1, self._high), in_use)[::-1]
        self._free = np.zeros(self.size, np.int64)  # numbers below `_high` that have no series, descending
        self._free[: len(free)] = free
        self._n_free, self._n_used = len(free), len(in_use)
        self._table = table.new_table(self.columns["digest"], in_use)

    def _recovered(self) -> None:
        """Start with an empty log."""
        self._logged = np.zeros(self.size, dtype=bool)  # rows that have an entry
        self._written = self.columns["used"] > 0  # those whose entry is out of date
        self._written[UNKEYED] = True

    @property
    def size(self) -> int:
        """Rows that are allocated."""
        return len(self.columns["used"])

    def __len__(self) -> int:
        """Keys in use."""
        return self._n_used

    def column(self, name: str, slots: Int) -> NDArray[Any]:
        """A column (n, ...) of these rows; zeros for the numbers of keys that are only looked at."""
        column = self.columns[name]
        return column[np.minimum(slots, len(column) - 1)]  # `take` would copy the whole column

    def find(self, digest: bytes) -> int | None:
        """The number of the series of a key; None: it has none."""
        numbers = self.find_all(np.frombuffer(bytearray(digest), np.uint64).reshape(1, 2))
        return int(numbers[0]) if numbers[0] else None

    def find_all(self, digests: NDArray[np.uint64]) -> Int:
        """The numbers (n,) of the series of keys with these digests (n, 2); 0: it has none."""
        return np.asarray(table.find(digests, self._table, self.columns["digest"]), dtype=np.int64)

    def take(self, digest: bytes, used: int) -> int:
        """Return the number of the series of a key, which may be new, and note its use. used: rises with every use."""
        counts = np.array([used - 1, 0, 0])
        digests = np.frombuffer(bytearray(digest), np.uint64).reshape(1, 2)
        return int(self.resolve(digests, np.ones(1, bool), counts, (1, 0, 0.0), learn=True)[1][0])

    def resolve(
        self, digests: NDArray[np.uint64], is_keyed: Bool, counts: Int, limits: tuple[int, int, float], learn: bool
    ) -> tuple[Int, Int, Bool]:
        """Find the series that records (n,) are added to: positions (k,), numbers of series, if they belong to them.

        digests: (n, 2) of their keys, where they have one; counts, limits: see `step.slots.resolve`. learn: whether new
        keys get a number; else they get numbers that no series has.
        """
        n = len(digests)
        if learn:
            self._make_room(n)
        state = np.array([self._high, self._n_free, self._n_used])
        moves, belongs = np.zeros((2, 2 * n), np.int64), np.zeros(2 * n, bool)
        new = self._table if learn else np.zeros(table.table_size(n), np.int64)
        state_arrays = self.columns["digest"], self.columns["used"], self._free, state
        k = table.resolve(
            digests,
            is_keyed,
            counts,
            np.array(limits, dtype=np.float64),
            self._table,
            new,
            *state_arrays,
            learn,
            moves,
            belongs,
        )
        if learn:
            self._high, self._n_free, self._n_used = state.tolist()
        return moves[0, :k].copy(), moves[1, :k].copy(), belongs[:k].copy()

    def _make_room(self, added: int) -> None:
        """Allocate rows for so many new keys, and a table that is at most half full."""
        needed = self._high + max(0, added - self._n_free) + 1
        if needed > self.size:
            size = max(needed, 2 * self.size)
            if self.size < self.max_keys < size:
                size = max(needed, self.max_keys + FIRST_ROWS)
            for name, column in self.columns.items():
                self.columns[name] = np.zeros((size, *column.shape[1:]), column.dtype)
                self.columns[name][: len(column)] = column
            grown = size - len(self._written)
            self._written, self._logged = (np.pad(mask, (0, grown)) for mask in (self._written, self._logged))
            self._free = np.pad(self._free, (0, grown))
        if 2 * (self._n_used + added) > len(self._table):
            self._table = table.new_table(self.columns["digest"], self.in_use, added)

    def write(self, slots: Int, **values: Any) -> None:
        """Write values (n, ...) of some columns."""
        for name, value in values.items():
            self.columns[name][slots] = value
        self.mark(slots)

    def mark(self, slots: Int | int) -> None:
        """Mark these rows (n,) as changed."""
        self._written[slots] = True

    def forget(self) -> None:
        """Forget the keys that were used least recently, if there are more than `max_keys`; some more at once, if these
        are many.
        """
        if self._n_used <= self.max_keys:
            return
        n = self._n_used - self.max_keys + self.max_keys // FORGET_DIVISOR
        slots = self.in_use
        oldest = slots[np.argsort(self.columns["used"][slots], kind="stable")[:n]]
        for column in self.columns.values():
            column[oldest] = 0
        self._written[oldest] = self._logged[oldest]  # only what the log has needs to be deleted there
        self.forgotten += len(oldest)
        self._begin()

    @property
    def in_use(self) -> Int:
        """The numbers of the series of keys, ascending."""
        return 1 + np.flatnonzero(self.columns["used"][1:] > 0)

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self, name: str) -> Entries:
        """Entries of the rows that were written or forgotten since the last call; at first of all."""
        at = self._written.nonzero()[0]
        if not len(at):
            return {}
        entries = rows_as_entries(name, at, [column for column in self.columns.values() if column.size])
        in_use = self.columns["used"][at] > 0
        in_use[0] |= at[0] == UNKEYED
        self._logged[at], self._written[at] = in_use, False
        if not in_use.all():
            entries |= {f"{name}/{slot}": None for slot in at[~in_use].tolist()}
        return entries

    def recover(self, entries: StoredEntries, name: str, count: int) -> None:
        """Take the state from the entries, which are of `count` keys. Raises DamagedStateError when they are not."""
        prefix = f"{name}/"
        stored = {int(key[len(prefix) :]): value for key, value in entries.items() if key.startswith(prefix)}
        slots = np.array(sorted(stored), dtype=np.int64)
        if len(slots) != count + 1 or slots[0] != UNKEYED:
            raise DamagedStateError(f"the state is damaged: {name} has {max(0, len(slots) - 1)} keys, not {count}")
        values, size = [stored[slot] for slot in slots.tolist()], int(slots[-1]) + FIRST_ROWS
        self.columns = {name: np.zeros((size, *array.shape[1:]), array.dtype) for name, array in self.columns.items()}
        left = np.array(list(map(len, values)))
        for added in ((), self._added):
            columns = [rows_as_bytes(array) for column, array in self.columns.items() if column not in added]
            at = np.flatnonzero(left == sum(column.shape[1] for column in columns))
            put_rows(columns, slots[at], [values[i] for i in at.tolist()])
            left[at] = -1
        if left.max() >= 0:
            width = sum(rows_as_bytes(array).shape[1] for array in self.columns.values())
            raise DamagedStateError(f"the state is damaged: a row of {name} has not {width} bytes")
        self._begin()
        self._recovered()
        self._logged[slots], self._written[slots] = True, False
