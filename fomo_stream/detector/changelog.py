"""State as entries of a compacted log: for each key the last value counts, and None deletes.

In every class with state, `changes` returns the entries changed since the last call; `recover` restores the state from
the entries that the log still has. So the cost of a commit depends on the changes, not on the size
of the state. A `copy` has an empty log: its first `changes` are its whole state. A class says what its state is, and
has the three from `State`; `BlockTable`, `Document` and `SingleEntry` are what states are made of.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import DamagedStateError, StateError

Entries = dict[str, bytes | None]  # to append
StoredEntries = Mapping[str, bytes]  # the entries that the log still has after compaction
Arrays = dict[str, NDArray[Any]]

PART_BYTES = 256 * 1024
MIN_NUMPY_ROWS = (
    8  # fewer are collected one by one, as numpy takes long to begin: in a commit, mostly one or two are new
)
MAX_KEPT_BYTES = 4096  # of a document that is kept: to compare it takes less time than its digest
DIGEST_BYTES, COUNT_BYTES = 16, 4  # at the start of a document
HEAD_BYTES = DIGEST_BYTES + COUNT_BYTES


def required_entry(entries: StoredEntries, key: str) -> bytes:
    """The value of `key`. Raises StateError when it is missing."""
    try:
        return entries[key]
    except KeyError:
        raise DamagedStateError(f"the state is incomplete: it lacks {key}") from None


def check_same(stored: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise StateError with the named values that differ now.

    >>> check_same({"seed": 1, "lag": 8, "model": "a"}, {"seed": 2, "lag": 8, "model": "b"}, ["seed", "lag", "model"])
    Traceback (most recent call last):
    fomo_stream.errors.StateError: seed is 1 in the state, 2 now; model is a in the state, b now
    """
    wrong = [name for name in dict.fromkeys(names) if stored.get(name) != now[name]]
    if wrong:
        texts = [f"{name} is {stored.get(name, 'unknown')} in the state, {now[name]} now" for name in wrong]
        raise StateError("; ".join(texts))


class Copied:
    """A class whose copies are independent: arrays, lists, dicts, sets and `Copied` are copied, the rest is shared."""

    def copy(self) -> Self:
        """The same, independent, and with an empty log."""
        twin = copy(self)
        vars(twin).update((name, _copied(value)) for name, value in vars(self).items())
        twin._recovered()
        return twin

    def _recovered(self) -> None:
        """Compute what follows from the state, after `recover` and for a copy."""


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.copy() if isinstance(value, (Copied, np.ndarray, set)) else value


class BlockTable(Copied):
    """Arrays that share their first axis, the slots, and know which of their blocks of `block` slots were written.

    An entry is a block: the bytes of its slots of every column, in the order of the columns. One more entry is a mask
    of the blocks that were ever written, compressed, as they are mostly the first ones. In the other blocks every slot
    still has the first value, which is the same for all slots. Read columns by name; write with `put`.

    >>> table = BlockTable(2, number=np.zeros(5), weight=np.ones(5))
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
        self._initial = {name: column[:1].copy() for name, column in columns.items()}
        whole = {name: np.repeat(column, n_blocks * block, axis=0) for name, column in self._initial.items()}
        self._begin(whole, np.zeros(n_blocks, dtype=bool))

    def _begin(self, whole: Arrays, written: NDArray[np.bool_]) -> None:
        """Start with an empty log."""
        self._whole = whole  # columns (n_blocks * block, ...), so that all blocks have the same length
        columns, n = [rows_as_bytes(column) for column in whole.values()], len(written)
        self._blocks = [column.reshape(n, self.block * column.shape[1]) for column in columns]  # a block a row
        self._columns = {name: column[: self.size] for name, column in whole.items()}  # read-only views of them
        for column in self._columns.values():
            column.flags.writeable = False
        self._written = written  # since the last call of `changes`
        self._logged = np.zeros_like(written)  # in the log
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

    def copy(self) -> BlockTable:
        """An independent table with the same values."""
        twin = copy(self)
        twin._begin({name: whole.copy() for name, whole in self._whole.items()}, self._written | self._logged)
        return twin

    def changes(self, name: str) -> Entries:
        """The blocks that were written since the last call."""
        at = self._written.nonzero()[0]
        if not self._is_new and not len(at):
            return {}
        entries = rows_as_entries(name, at, self._blocks)
        if self._is_new or np.count_nonzero(self._logged[at]) < len(at):
            self._logged[at] = True
            entries[f"{name}/blocks"] = zlib.compress(np.packbits(self._logged).tobytes(), 1)
        self._written[:] = self._is_new = False
        return entries

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Take the state from the entries. Raises StateError when a block is missing or has another length."""
        self._logged = _mask(entries, f"{name}/blocks", len(self._written))
        for column, whole in self._whole.items():
            whole[...] = self._initial[column]
        width, there = sum(blocks.shape[1] for blocks in self._blocks), np.flatnonzero(self._logged)
        values = [required_entry(entries, f"{name}/{i}") for i in there.tolist()]
        for i, value in zip(there, values, strict=True):
            if len(value) != width:
                raise StateError(f"the state does not fit: {name}/{i} has {len(value)} bytes, not {width}")
        put_rows(self._blocks, there, values)
        self._written[:] = self._is_new = False


def rows_as_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Contiguous rows (n, ...) as bytes (n, width); a view."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:])).view(np.uint8)


def rows_as_entries(name: str, at: NDArray[np.int64], columns: Sequence[NDArray[Any]]) -> Entries:
    """Return an entry for each of the rows at some places (k,): its bytes in all columns, side by side."""
    if len(at) < MIN_NUMPY_ROWS:
        return {f"{name}/{i}": b"".join([column[i] for column in columns]) for i in at.tolist()}
    rows = np.concatenate([rows_as_bytes(column[at]) for column in columns], axis=1)
    data, width = rows.tobytes(), rows.shape[1]
    return {f"{name}/{i}": data[k * width : (k + 1) * width] for k, i in enumerate(at.tolist())}


def put_rows(columns: list[NDArray[np.uint8]], at: NDArray[np.int64], values: list[bytes]) -> None:
    """The reverse: write values (k,), each as long as the columns are wide, into the rows at these places."""
    ends = np.cumsum([column.shape[1] for column in columns])
    rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(at), ends[-1])
    for column, part in zip(columns, np.split(rows, ends[:-1], axis=1), strict=True):
        column[at] = part


def _mask(entries: StoredEntries, key: str, n: int) -> NDArray[np.bool_]:
    """Which of n blocks were ever written, by the entry."""
    compressed, decompress = required_entry(entries, key), zlib.decompressobj()
    try:
        packed = decompress.decompress(compressed)
    except zlib.error as error:
        raise DamagedStateError(f"the state is damaged: {key} is not readable ({error})") from None
    if not decompress.eof or decompress.unused_data:
        raise DamagedStateError(f"the state is damaged: {key} is not whole")
    if len(packed) != -(-n // 8):
        raise StateError(f"the state does not fit: {key} is of {8 * len(packed)} blocks, not {n}")
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=n).astype(bool)


class Document(Copied):
    """Bytes that are written as a whole, in parts of at most PART_BYTES, unless the log has the same bytes.

    They begin with a digest of the rest and the number of parts, so that parts of different documents are noticed.
    """

    def __init__(self) -> None:
        self._parts = 0  # in the log
        self._digest = b""  # of the document in the log
        self._kept: bytes | None = None  # this document, if it has at most MAX_KEPT_BYTES

    def copy(self) -> Document:
        """Return a new one, as nothing of it is in the log."""
        return Document()

    def changes(self, name: str, data: bytes) -> Entries:
        """The parts to write, and old ones to delete; nothing if the log has the same document."""
        if data == self._kept:
            return {}
        self._kept = data if len(data) <= MAX_KEPT_BYTES else None
        n = -(-(HEAD_BYTES + len(data)) // PART_BYTES)
        count = n.to_bytes(COUNT_BYTES, "little")
        digest = _document_digest(count, data)
        if digest == self._digest:
            return {}
        data = digest + count + data
        entries: Entries = {f"{name}/{i}": data[i * PART_BYTES : (i + 1) * PART_BYTES] for i in range(n)}
        entries |= {f"{name}/{i}": None for i in range(n, self._parts)}
        self._parts, self._digest = n, digest
        return entries

    def recover(self, entries: StoredEntries, name: str) -> bytes:
        """The document. Raises StateError when a part is missing or altered."""
        first = required_entry(entries, f"{name}/0")
        digest, count, start = first[:DIGEST_BYTES], first[DIGEST_BYTES:HEAD_BYTES], first[HEAD_BYTES:]
        n = int.from_bytes(count, "little")
        data = b"".join([start, *(required_entry(entries, f"{name}/{i}") for i in range(1, n))])
        if digest != _document_digest(count, data):
            raise DamagedStateError(f"the state is damaged: {name} does not match its digest")
        self._parts, self._digest, self._kept = n, digest, None
        return data


class SingleEntry(Copied):
    """Bytes that are one entry, written if the log has other bytes. Empty bytes delete the entry."""

    def __init__(self) -> None:
        self.value = b""  # in the log

    def copy(self) -> SingleEntry:
        """Return a new one, as nothing of it is in the log."""
        return SingleEntry()

    def changes(self, name: str, value: bytes) -> Entries:
        """The entry; nothing if the log has the same."""
        before, self.value = self.value, value
        return {} if value == before else {name: value or None}

    def recover(self, entries: StoredEntries, name: str) -> bytes:
        """Return the bytes of the log."""
        self.value = entries.get(name, b"")
        return self.value


def _document_digest(count: bytes, data: bytes) -> bytes:
    hashed = blake2b(count, digest_size=DIGEST_BYTES)
    hashed.update(data)
    return hashed.digest()


class State(Copied):
    """State that is declared: `changes` and `recover` follow from what a class says of itself.

    parts: attributes that have these two, and the name of each in the log, below that of the whole. documents: those
    that are bytes or arrays, each written as a whole; the length of an array (n,) may change. What is None has no
    entries. scalars: attributes, also of parts, that the detector writes in one entry with those of other classes. All
    else never changes, or follows from these: see `_recovered`.
    """

    parts: ClassVar[Mapping[str, str]] = {}
    documents: ClassVar[Mapping[str, str]] = {}
    scalars: ClassVar[tuple[str, ...]] = ()

    def plain(self) -> dict[str, Any]:
        """The scalars by name, for JSON."""
        values = {name: attrgetter(name)(self) for name in self.scalars}
        return {name: sorted(value.items()) if isinstance(value, dict) else value for name, value in values.items()}

    def changes(self, name: str = "") -> Entries:
        """The entries changed since the last call, at first all; without the scalars."""
        entries: Entries = {}
        for attribute, entry_name in self.documents.items():
            if (value := getattr(self, attribute)) is not None:
                data = value if isinstance(value, bytes) else value.tobytes()
                entries |= self._log_of(attribute).changes(joined_name(name, entry_name), data)
        for attribute, entry_name in self.parts.items():
            if (part := getattr(self, attribute)) is not None:
                entries |= part.changes(joined_name(name, entry_name))
        return entries

    def recover(self, entries: StoredEntries, name: str = "", *scalars: Any) -> None:
        """Take the state from the entries, and the values of `plain`. Raises StateError when they do not fit.

        What is None here has to be so in the log.
        """
        for path, value in zip(self.scalars, scalars, strict=bool(scalars)):
            owner, _, attribute = f".{path}".rpartition(".")
            part_or_self = attrgetter(owner[1:])(self) if owner else self
            setattr(part_or_self, attribute, type(getattr(part_or_self, attribute))(value))
        vars(self)["_logs"] = {}
        for attribute, entry_name in self.documents.items():
            if (value := getattr(self, attribute)) is not None:
                restored: Any = self._log_of(attribute).recover(entries, joined_name(name, entry_name))
                if not isinstance(value, bytes):
                    shape = value.shape if value.ndim > 1 else -1
                    restored = np.frombuffer(restored, value.dtype).reshape(shape).copy()
                setattr(self, attribute, restored)
        for attribute, entry_name in self.parts.items():
            if (part := getattr(self, attribute)) is not None:
                part.recover(entries, joined_name(name, entry_name))
        self._recovered()

    def _log_of(self, attribute: str) -> Document:
        logs: dict[str, Document] = vars(self).setdefault("_logs", {})
        return logs.setdefault(attribute, Document())


def joined_name(name: str, part: str) -> str:
    """Return the name of a part of what has this name, which may be empty.

    >>> joined_name("pool", "rows"), joined_name("", "rows")
    ('pool/rows', 'rows')
    """
    return f"{name}/{part}" if name and part else name or part
