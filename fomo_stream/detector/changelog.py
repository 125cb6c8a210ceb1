"""State as entries of a compacted log: for each key the last value counts, and None deletes.

In every class with state, `changes` returns the entries changed since the last call; `recover` restores the state from
the entries that the log still has. So the cost of a commit depends on the changes, not on the size
of the state. A `copy` has an empty log: its first `changes` are its whole state.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import DamagedStateError, StateError

Entries = dict[str, bytes | None]  # to append
StoredEntries = Mapping[str, bytes]  # the entries that the log still has after compaction
Arrays = dict[str, NDArray[Any]]

PART_BYTES = 256 * 1024
DIGEST_BYTES, COUNT_BYTES = 16, 4  # at the start of a document
HEAD_BYTES = DIGEST_BYTES + COUNT_BYTES


def value_of(entries: StoredEntries, key: str) -> bytes:
    """The value of `key`. Raises StateError when it is missing."""
    try:
        return entries[key]
    except KeyError:
        raise DamagedStateError(f"the state is incomplete: it lacks {key}") from None


def check_same(found: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise StateError with the named values that differ now.

    >>> check_same({"seed": 1, "lag": 8, "model": "a"}, {"seed": 2, "lag": 8, "model": "b"}, ["seed", "lag", "model"])
    Traceback (most recent call last):
    fomo_stream.errors.StateError: seed is 1 in the state, 2 now; model is a in the state, b now
    """
    wrong = [name for name in dict.fromkeys(names) if found.get(name) != now[name]]
    if wrong:
        raise StateError(
            "; ".join(f"{name} is {found.get(name, 'unknown')} in the state, {now[name]} now" for name in wrong)
        )


class Table:
    """Arrays that share their first axis, the slots, and know which of their blocks of `block` slots were written.

    An entry is a block: the bytes of its slots of every column, in the order of the columns. One more entry is a mask
    of the blocks that were ever written, compressed, as they are mostly the first ones. In the other blocks every slot
    still has the first value, which is the same for all slots. Read columns by name; write with `put`.

    >>> table = Table(2, number=np.zeros(5), weight=np.ones(5))
    >>> list(table.changes("t")), table.changes("t")
    (['t/blocks'], {})
    >>> table.put(np.array([3]), weight=7.0)
    >>> sorted(table.changes("t")), table["weight"].tolist()
    (['t/1', 't/blocks'], [1.0, 1.0, 1.0, 7.0, 1.0])
    >>> table.put(np.array([2]), weight=8.0)
    >>> sorted(table.changes("t")), table.changes("t")
    (['t/1'], {})
    """

    def __init__(self, block: int, **columns: NDArray[Any]) -> None:
        self.size = len(next(iter(columns.values())))
        self.block = block
        n_blocks = -(-self.size // block)
        self._whole: Arrays = {}  # columns (n_blocks * block, ...), so that all blocks have the same length
        self._columns: Arrays = {}  # (size, ...), read-only views of them
        for name, column in columns.items():
            self._whole[name] = np.repeat(column[:1], n_blocks * block, axis=0)
            self._columns[name] = self._whole[name][: self.size]
            self._columns[name].flags.writeable = False
        self._initial = {name: column[:1].copy() for name, column in columns.items()}
        self._written = np.zeros(n_blocks, dtype=bool)  # since the last call of `changes`
        self._logged = np.zeros(n_blocks, dtype=bool)  # in the log
        self._is_new = True  # to the log: then the mask is written even if it is empty

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def whole(self, *names: str) -> tuple[list[NDArray[Any]], NDArray[np.bool_]]:
        """Columns (size or more, ...) for a kernel to write, and which blocks it has written, which it marks."""
        return [self._whole[name] for name in names], self._written

    def put(self, slots: NDArray[np.int64], **values: Any) -> None:
        """Write values (len(slots), ...) into these slots, column by column."""
        for name, value in values.items():
            self._whole[name][slots] = value
        self._written[slots // self.block] = True

    def changes(self, name: str) -> Entries:
        """The blocks that were written since the last call."""
        if not self._is_new and not self._written.any():
            return {}
        at = np.flatnonzero(self._written)
        entries: Entries = {}
        if len(at):
            n = len(self._written)
            blocks = np.concatenate([_bytes(whole).reshape(n, -1)[at] for whole in self._whole.values()], axis=1)
            data, width = blocks.tobytes(), blocks.shape[1]
            entries = {f"{name}/{i}": data[k * width : (k + 1) * width] for k, i in enumerate(at.tolist())}
        if self._is_new or (self._written & ~self._logged).any():
            self._logged |= self._written
            entries[f"{name}/blocks"] = zlib.compress(np.packbits(self._logged).tobytes(), 1)
        self._written[:] = self._is_new = False
        return entries

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Take the state from the entries. Raises StateError when a block is missing or has another length."""
        n = len(self._written)
        self._logged = _mask(entries, f"{name}/blocks", n)
        for column, whole in self._whole.items():
            whole[...] = self._initial[column]
        columns = [_bytes(whole).reshape(n, -1) for whole in self._whole.values()]  # a block a row
        widths = [column.shape[1] for column in columns]
        there = np.flatnonzero(self._logged)
        values = [value_of(entries, f"{name}/{i}") for i in there.tolist()]
        for i, value in zip(there, values, strict=True):
            if len(value) != sum(widths):
                raise StateError(f"the state does not fit: {name}/{i} has {len(value)} bytes, not {sum(widths)}")
        rows = np.frombuffer(b"".join(values), dtype=np.uint8).reshape(len(values), sum(widths))
        for column_bytes, part in zip(columns, np.split(rows, np.cumsum(widths)[:-1], axis=1), strict=True):
            column_bytes[there] = part
        self._written[:] = self._is_new = False


def _bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Contiguous rows (n, ...) as bytes (n, width); a view."""
    return rows.reshape(len(rows), -1).view(np.uint8)


def _mask(entries: StoredEntries, key: str, n: int) -> NDArray[np.bool_]:
    """Which of n blocks were ever written, by the entry."""
    compressed, decompress = value_of(entries, key), zlib.decompressobj()
    try:
        packed = decompress.decompress(compressed)
    except zlib.error as error:
        raise DamagedStateError(f"the state is damaged: {key} is not readable ({error})") from None
    if not decompress.eof or decompress.unused_data:
        raise DamagedStateError(f"the state is damaged: {key} is not whole")
    if len(packed) != -(-n // 8):
        raise StateError(f"the state does not fit: {key} is of {8 * len(packed)} blocks, not {n}")
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=n).astype(bool)


class Document:
    """Bytes that are written as a whole, in parts of at most PART_BYTES, unless the log has the same bytes.

    They begin with a digest of the rest and the number of parts, so that parts of different documents are noticed.
    """

    def __init__(self) -> None:
        self._parts = 0  # in the log
        self._digest = b""  # of the document in the log

    def changes(self, name: str, data: bytes) -> Entries:
        """The parts to write, and old ones to delete; nothing if the log has the same document."""
        n = -(-(HEAD_BYTES + len(data)) // PART_BYTES)
        count = n.to_bytes(COUNT_BYTES, "little")
        digest = _digest(count, data)
        if digest == self._digest:
            return {}
        data = digest + count + data
        entries: Entries = {f"{name}/{i}": data[i * PART_BYTES : (i + 1) * PART_BYTES] for i in range(n)}
        entries |= {f"{name}/{i}": None for i in range(n, self._parts)}
        self._parts, self._digest = n, digest
        return entries

    def recover(self, entries: StoredEntries, name: str) -> bytes:
        """The document. Raises StateError when a part is missing or altered."""
        first = value_of(entries, f"{name}/0")
        digest, count, start = first[:DIGEST_BYTES], first[DIGEST_BYTES:HEAD_BYTES], first[HEAD_BYTES:]
        n = int.from_bytes(count, "little")
        data = b"".join([start, *(value_of(entries, f"{name}/{i}") for i in range(1, n))])
        if digest != _digest(count, data):
            raise DamagedStateError(f"the state is damaged: {name} does not match its digest")
        self._parts, self._digest = n, digest
        return data


def _digest(count: bytes, data: bytes) -> bytes:
    hashed = blake2b(count, digest_size=DIGEST_BYTES)
    hashed.update(data)
    return hashed.digest()
