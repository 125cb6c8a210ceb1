"""Feedback: the content of a label, the record that it is about, and the time at which it takes effect; muted keys.

A label is about one record of the input partition with the same number as its own partition. A label is due when its
record was scored or skipped. `take_due` removes due labels; they take effect before the record at `position` is scored.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import orjson

from fomo_stream.detector.changelog import BlockTable, Entries, SingleEntry, StoredEntries
from fomo_stream.detector.keys import Key
from fomo_stream.errors import DamagedStateError, RecordError
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.records.json_codec import decode
from fomo_stream.settings.rules import Window, table_of

BAD_FEEDBACK = "bad_feedback"  # reason of dead letters
BLOCK = 4  # records of the index that are written together
DIGEST_BYTES = 8  # two of thousands of keys have the same digest with a probability below 1e-10
NO_KEY = bytes(DIGEST_BYTES)
EMPTY = -1  # the offset in a slot without a record
MOST_OPEN = 50_000  # labels of a partition not committed yet; bounds the entry that lists the finished ones
MOST_MUTED = 10_000  # keys of a partition that labels have muted
MOST_WINDOW_BYTES = 16 << 10
LONGEST_KEY = 4096  # bytes, of a label
MOST_WAITING = 10_000  # labels of a partition held in memory; their verdicts fit into a record below 1 MB


class Verdict(NamedTuple):
    """One verdict on one record, given by its offset, or on the last record with a key."""

    offset: int | None
    key: bytes | None
    outlier: bool


class Mute(NamedTuple):
    """Whether a key gives no alerts."""

    key: bytes
    muted: bool


class Told(NamedTuple):
    """A window of maintenance; a name: that of one which does not take place."""

    window: Window | str


Label = Verdict | Mute | Told


def parse_label(
    value: bytes | None, key: bytes | None, partition: int, topic: str, field: str, max_bytes: int = MAX_RECORD_BYTES
) -> Label:
    """Read the label in a record of the feedback topic.

    value, key: of that record; partition: its number; topic: the input topic; field: the result field of the outputs,
    for an output that was sent back with a verdict. Raises only RecordError, with reason bad_feedback.

    >>> parse_label(b'{"partition": 3, "offset": 812, "outlier": true}', None, 3, "sensors", "fomo")
    Verdict(offset=812, key=None, outlier=True)
    >>> parse_label(b'{"outlier": false}', b"p7", 3, "sensors", "fomo")
    Verdict(offset=None, key=b'p7', outlier=False)
    >>> parse_label(b'{"key": "p7", "mute": true}', None, 3, "sensors", "fomo")
    Mute(key=b'p7', muted=True)
    """
    try:
        record = decode(value, max_bytes)
    except RecordError as error:
        raise _bad(str(error)) from None
    if "maintenance" in record and "outlier" not in record:
        return Told(_window(record, len(value or b"")))
    outlier, is_about_key = record.get("outlier"), "mute" in record and "outlier" not in record
    if is_about_key and not isinstance(record["mute"], bool):
        raise _bad('"mute" must be true or false')
    if not is_about_key and not isinstance(outlier, bool):
        raise _bad('a label needs "outlier": true or "outlier": false, and the record that it is about')
    result = record.get(field)
    source: Mapping[str, Any] = result if isinstance(result, dict) and "offset" in result else record
    if source.get("topic", topic) != topic:
        raise _bad(f"the label is about a record of another topic than {topic}")
    number = source.get("partition", partition)
    if type(number) is not int or not 0 <= number < 2**63:
        raise _bad('"partition" must be the number of a partition')
    if number != partition:
        raise _bad(
            f"the label is about partition {number}, but is in partition {partition}: produce it to partition {number}"
        )
    if is_about_key:
        return Mute(_key(record.get("key"), key), record["mute"])
    offset = source.get("offset")
    if offset is None:
        return Verdict(None, _key(source.get("key"), key), bool(outlier))
    if type(offset) is not int or not 0 <= offset < 2**63:
        raise _bad('"offset" must be the offset of a record: a whole number, 0 or more')
    return Verdict(offset, None, bool(outlier))


def _window(record: Mapping[str, Any], n_bytes: int) -> Window | str:
    if n_bytes > MOST_WINDOW_BYTES:
        raise _bad(f"maintenance: a message about a window has at most {MOST_WINDOW_BYTES:,} bytes, not {n_bytes:,}")
    content = {"name" if name == "maintenance" else name: value for name, value in record.items()}
    if content.pop("cancel", False) is True and isinstance(content["name"], str):
        return content["name"]
    try:
        return table_of(Window, content)
    except ValueError as error:
        raise _bad(f"maintenance: {error}") from None


def _key(key: object, message_key: bytes | None) -> bytes:
    """The key that a label names, or else its own."""
    if key is not None and not isinstance(key, str):
        raise _bad('"key" must be the key of a record, as text')
    found = message_key if key is None else key.encode(errors="surrogatepass")
    if found is None:
        raise _bad('the label names no record: it needs "offset" or "key", or the record\'s key as its own')
    if len(found) > LONGEST_KEY:
        raise _bad(f'the key has {len(found):,} bytes, more than {LONGEST_KEY:,}: name a record by its "offset"')
    return found


def _bad(message: str) -> RecordError:
    return RecordError(BAD_FEEDBACK, message)


class RecordIndex:
    """The last records of a partition: their numbers in the detector, by offset and by key.

    >>> index = RecordIndex(capacity=2)
    >>> for number, offset in enumerate((10, 12, 13)): index.add(number, offset, b"p7")
    >>> index.find(Verdict(12, None, True)), index.find(Verdict(None, b"p7", True)), index.find(Verdict(10, None, True))
    ((1, 12), (2, 13), None)
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._records: dict[int, tuple[int, bytes]] = {}  # by offset: number, digest of the key; oldest first
        self._offsets: dict[bytes, int] = {}  # of the last record with each key
        self._fresh = 0  # number of records at the end that `changes` has not returned yet
        self._table = BlockTable(  # by number % capacity
            BLOCK, offset=np.full(capacity, EMPTY), key=np.zeros((capacity, DIGEST_BYTES), dtype=np.uint8)
        )

    def __len__(self) -> int:
        return len(self._records)

    def add(self, number: int, offset: int, key: Key) -> None:
        """Add the record at `offset`, which must come after all earlier ones.

        number: its number in the detector, one more than the last.
        """
        if not self._capacity:
            return
        digest = NO_KEY if key is None else _digest(key)
        self._records[offset] = number, digest
        if key is not None:
            self._offsets[digest] = offset
        self._fresh += 1
        if len(self._records) > self._capacity:
            oldest = next(iter(self._records))
            _, digest = self._records.pop(oldest)
            if self._offsets.get(digest) == oldest:
                del self._offsets[digest]

    def find(self, label: Verdict) -> tuple[int, int] | None:
        """(number, offset) of the record that a label is about; None when it is not remembered."""
        offset = self._offsets.get(_digest(label.key)) if label.key is not None else label.offset
        return None if offset is None or offset not in self._records else (self._records[offset][0], offset)

    def changes(self, name: str) -> Entries:
        """The changes since the last call, as entries of a compacted log."""
        if fresh := list(islice(reversed(self._records.items()), self._fresh)):
            key = np.frombuffer(b"".join(digest for _, (_, digest) in fresh), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
            numbers = np.array([number for _, (number, _) in fresh])
            self._table.put(numbers % self._capacity, offset=np.array([offset for offset, _ in fresh]), key=key)
        self._fresh = 0
        return self._table.changes(name) if self._capacity else {}

    def recover(self, entries: StoredEntries, name: str, stop: int) -> None:
        """Load the entries; `stop` is the number of the next record. Raises StateError when some are missing."""
        if not self._capacity:
            return
        self._table.recover(entries, name)
        offsets, keys = self._table["offset"], self._table["key"]
        for number in range(max(0, stop - self._capacity), stop):
            slot = number % self._capacity
            if offsets[slot] != EMPTY:
                self._records[int(offsets[slot])] = number, keys[slot].tobytes()
        self._offsets = {digest: offset for offset, (_, digest) in self._records.items() if digest != NO_KEY}


class Muted:
    """The keys that give no alerts: those of the settings, changed by labels.

    >>> muted = Muted(["p7"])
    >>> muted.set(b"p7", False), muted.set(b"p8", True), muted.has("p7"), muted.has(b"p8"), muted.has(None)
    (None, None, False, True, False)
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._given = frozenset(map(_digest, keys))
        self._changed: dict[bytes, bool] = {}  # by labels
        self._is_logged = True  # whether the log has these

    @property
    def is_full(self) -> bool:
        """Whether no more keys should be muted by labels."""
        return len(self._changed) >= MOST_MUTED

    def has(self, key: Key) -> bool:
        """Whether a key is muted; records without one cannot be."""
        if key is None or not (self._given or self._changed):
            return False
        digest = _digest(key)
        return self._changed.get(digest, digest in self._given)

    def set(self, key: bytes, muted: bool) -> None:
        """Mute a key, or end that."""
        digest = _digest(key)
        self._changed.pop(digest, None)
        self._is_logged = False
        if muted != (digest in self._given):
            self._changed[digest] = muted

    def changes(self, name: str) -> Entries:
        """The entry of the keys that labels have changed; empty if it has not changed."""
        if self._is_logged:
            return {}
        self._is_logged = True
        value = orjson.dumps([[digest.hex(), muted] for digest, muted in sorted(self._changed.items())])
        return {name: value if self._changed else None}

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Load the entry. Raises DamagedStateError when it is not readable."""
        try:
            found = orjson.loads(entries.get(name, b"[]"))
            self._changed = {bytes.fromhex(digest): bool(muted) for digest, muted in found}
        except (ValueError, TypeError) as error:
            raise DamagedStateError(f"{name} is no list of keys ({error})") from None


def _digest(key: bytes | str) -> bytes:
    """A key of any length as a few bytes, so that memory is bounded."""
    key = key.encode(errors="surrogatepass") if isinstance(key, str) else key
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True)
class DueLabels:
    """Labels that take effect together: before the record at input offset `takes_effect` is scored."""

    takes_effect: int
    numbers: list[int]  # (n,) the detector's numbers of the records
    labels: list[tuple[int, int, bool]]  # (n,) offset in the feedback topic, offset of the record, outlier; ascending
    too_late: int  # other labels that are due, but whose record is not remembered
    new_verdicts: int = 0  # that changed something
    mutes: Sequence[tuple[bytes, bool]] = ()  # keys, and whether each is muted from now on
    windows: Sequence[Window] = ()  # of maintenance
    cancelled: Sequence[str] = ()  # names of windows that do not take place


class LabelQueue:
    """The labels of one partition, from the time they are read until they have taken effect.

    A label's own offset is committed only after it took effect, in the same commit as the detector's changes. Labels
    are finished out of order, and offsets may have gaps, as in compacted topics.
    topic_id: of the feedback topic; empty if the broker has no ids.
    """

    def __init__(self, topic_id: str = "") -> None:
        self._topic_id = topic_id
        self._waiting: list[tuple[int, int, Label]] = []  # heap: offset of the record (-1: by key), own offset, label
        self._open: deque[int] = deque()  # offsets that were read, from the first one that is not finished
        self._closed: set[int] = set()  # those of them that are finished
        self._last = -1  # offset that was read last
        self.committable: int | None = None  # below it everything is finished; None: nothing is yet
        self._finished: frozenset[int] = frozenset()  # offsets to be read again that were finished before a restart
        self._log = SingleEntry()
        self.committed: int | None = None  # last offset that the group has committed

    def __len__(self) -> int:
        """Labels that wait for their record."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no more labels should be read for now."""
        return len(self._waiting) >= MOST_WAITING or len(self._open) >= MOST_OPEN

    def begin(self, start: int) -> None:
        """The labels before offset `start` of the feedback topic are finished."""
        self._last = max(start, 0) - 1

    def open(self, at: int) -> bool:
        """The record at offset `at` of the feedback topic was read.

        False: this label was already handled or is waiting. A client may read records twice when a broker comes back.
        """
        if at <= self._last:
            return False
        self._open.append(at)
        self._last = at
        if at in self._finished:
            self.close(at)
            return False
        return True

    def close(self, at: int) -> None:
        """The label at offset `at` is finished."""
        self._closed.add(at)
        while self._open and self._open[0] in self._closed:
            first = self._open.popleft()
            self._closed.remove(first)
            self.committable = first + 1

    def add(self, at: int, label: Label) -> None:
        """The record at offset `at` holds this label, which waits for its record."""
        offset = label.offset if isinstance(label, Verdict) and label.offset is not None else -1
        heapq.heappush(self._waiting, (offset, at, label))

    def due(self, position: int | None) -> list[int]:
        """The own offsets of the labels on records before offset `position`, in the order of `take_due`."""
        if position is None or not self._waiting or self._waiting[0][0] >= position:
            return []
        return [at for _, at in sorted((about, at) for about, at, _ in self._waiting if about < position)]

    def take_due(self, index: RecordIndex, position: int | None, most: int | None = None) -> DueLabels:
        """Remove the labels on records before offset `position`, all or at most `most`, and close their offsets."""
        due = [heapq.heappop(self._waiting)[1:] for _ in self.due(position)[:most]]
        due.sort(key=lambda item: item[0])  # of two verdicts on one record, the later counts
        numbers, labels, mutes, too_late = [], [], list[tuple[bytes, bool]](), 0
        windows: dict[str, Window | str] = {}  # by name: the last word on each counts
        for at, label in due:
            self.close(at)
            if isinstance(label, Mute):
                mutes.append(label)
            elif isinstance(label, Told):
                windows[label.window if isinstance(label.window, str) else label.window.name] = label.window
            elif (found := index.find(label)) is not None:
                numbers.append(found[0])
                labels.append((at, found[1], label.outlier))
            else:
                too_late += 1
        told = [one for one in windows.values() if isinstance(one, Window)]
        cancelled = [one for one in windows.values() if isinstance(one, str)]
        return DueLabels(position or 0, numbers, labels, too_late, mutes=mutes, windows=told, cancelled=cancelled)

    def changes(self, name: str) -> Entries:
        """The entry of finished labels that come after an unfinished one; empty if it has not changed."""
        unread = (at for at in self._finished if at > self._last)  # finished before a restart, to be read again
        ahead = sorted({*self._closed, *unread})
        value = orjson.dumps({"topic_id": self._topic_id, "finished": ahead}) if ahead else b""
        return self._log.changes(name, value)

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Load the entry, if it is about this feedback topic. Raises StateError when it is not readable."""
        if not (value := self._log.recover(entries, name)):
            return
        try:
            found = orjson.loads(value)
            if found["topic_id"] == self._topic_id:
                self._finished = frozenset(map(int, found["finished"]))
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedStateError(f"{name} is no list of offsets ({error})") from None
