"""Feedback: the content of a label, its record, and the offset at which it takes effect; muted keys.

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
from fomo_stream.settings.rule_spec import Window, parse_table

BAD_FEEDBACK = "bad_feedback"  # reason of dead letters
BLOCK_RECORDS = 4  # records of the index that are written together
DIGEST_BYTES = 8  # two of thousands of keys have the same digest with a probability below 1e-10
NO_KEY = bytes(DIGEST_BYTES)
EMPTY_SLOT = -1  # the offset in a slot without a record
MAX_OPEN_LABELS = 50_000  # labels of a partition not committed yet; bounds the entry that lists the finished ones
MAX_MUTED_KEYS = 10_000  # keys of a partition that labels have muted
MAX_WINDOW_BYTES = 16 << 10
MAX_KEY_BYTES = 4096  # bytes, of a label
MAX_WAITING_LABELS = 10_000  # labels of a partition held in memory; their verdicts fit into a record below 1 MB


class Verdict(NamedTuple):
    """A verdict on one record: that at an offset, or the last one with a key."""

    offset: int | None
    key: bytes | None
    outlier: bool


class Mute(NamedTuple):
    """A key, and whether it is muted: a muted key does not give alerts."""

    key: bytes
    muted: bool


class WindowLabel(NamedTuple):
    """A window of maintenance, or the name of a cancelled one."""

    window: Window | str


Label = Verdict | Mute | WindowLabel


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
        raise _bad_feedback(str(error)) from None
    if "maintenance" in record and "outlier" not in record:
        return WindowLabel(_parse_window(record, len(value or b"")))
    outlier, is_about_key = record.get("outlier"), "mute" in record and "outlier" not in record
    if is_about_key and not isinstance(record["mute"], bool):
        raise _bad_feedback('"mute" must be true or false')
    if not is_about_key and not isinstance(outlier, bool):
        raise _bad_feedback('a label needs "outlier": true or "outlier": false, and the record that it is about')
    result = record.get(field)
    source: Mapping[str, Any] = result if isinstance(result, dict) and "offset" in result else record
    if source.get("topic", topic) != topic:
        raise _bad_feedback(f"the label is about a record of another topic than {topic}")
    number = source.get("partition", partition)
    if type(number) is not int or not 0 <= number < 2**63:
        raise _bad_feedback('"partition" must be the number of a partition')
    if number != partition:
        raise _bad_feedback(
            f"the label is about partition {number}, but is in partition {partition}: produce it to partition {number}"
        )
    if is_about_key:
        return Mute(_label_key(record.get("key"), key), record["mute"])
    offset = source.get("offset")
    if offset is None:
        return Verdict(None, _label_key(source.get("key"), key), bool(outlier))
    if type(offset) is not int or not 0 <= offset < 2**63:
        raise _bad_feedback('"offset" must be the offset of a record: a whole number, 0 or more')
    return Verdict(offset, None, bool(outlier))


def _parse_window(record: Mapping[str, Any], n_bytes: int) -> Window | str:
    if n_bytes > MAX_WINDOW_BYTES:
        limit = f"a message about a window has at most {MAX_WINDOW_BYTES:,} bytes"
        raise _bad_feedback(f"maintenance: {limit}, not {n_bytes:,}")
    content = {"name" if name == "maintenance" else name: value for name, value in record.items()}
    if content.pop("cancel", False) is True and isinstance(content["name"], str):
        return content["name"]
    try:
        return parse_table(Window, content)
    except ValueError as error:
        raise _bad_feedback(f"maintenance: {error}") from None


def _label_key(key: object, message_key: bytes | None) -> bytes:
    """Return the key that a label names, or else its own."""
    if key is not None and not isinstance(key, str):
        raise _bad_feedback('"key" must be the key of a record, as text')
    key_bytes = message_key if key is None else key.encode(errors="surrogatepass")
    if key_bytes is None:
        raise _bad_feedback('the label names no record: it needs "offset" or "key", or the record\'s key as its own')
    if len(key_bytes) > MAX_KEY_BYTES:
        has = f"the key has {len(key_bytes):,} bytes, more than {MAX_KEY_BYTES:,}"
        raise _bad_feedback(f'{has}: name a record by its "offset"')
    return key_bytes


def _bad_feedback(message: str) -> RecordError:
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
            BLOCK_RECORDS, offset=np.full(capacity, EMPTY_SLOT), key=np.zeros((capacity, DIGEST_BYTES), dtype=np.uint8)
        )

    def __len__(self) -> int:
        return len(self._records)

    def add(self, number: int, offset: int, key: Key) -> None:
        """Add the record at `offset`, which must come after all earlier ones.

        number: its number in the detector, one more than the last.
        """
        if not self._capacity:
            return
        digest = NO_KEY if key is None else _key_digest(key)
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
        """Return (number, offset) of the record of a label; None if the index does not have it any more."""
        offset = self._offsets.get(_key_digest(label.key)) if label.key is not None else label.offset
        return None if offset is None or offset not in self._records else (self._records[offset][0], offset)

    def changes(self, name: str) -> Entries:
        """Return the changes since the last call, as entries of a compacted log."""
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
            if offsets[slot] != EMPTY_SLOT:
                self._records[int(offsets[slot])] = number, keys[slot].tobytes()
        self._offsets = {digest: offset for offset, (_, digest) in self._records.items() if digest != NO_KEY}


class MutedKeys:
    """The keys that do not give alerts: those of the settings, changed by labels.

    >>> muted = MutedKeys(["p7"])
    >>> muted.set(b"p7", False), muted.set(b"p8", True), muted.has("p7"), muted.has(b"p8"), muted.has(None)
    (None, None, False, True, False)
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._from_settings = frozenset(map(_key_digest, keys))
        self._changed: dict[bytes, bool] = {}  # by labels
        self._is_logged = True  # whether the log has these

    @property
    def is_full(self) -> bool:
        """Return whether labels must not mute further keys."""
        return len(self._changed) >= MAX_MUTED_KEYS

    def has(self, key: Key) -> bool:
        """Return whether a key is muted; records without a key cannot be."""
        if key is None or not (self._from_settings or self._changed):
            return False
        digest = _key_digest(key)
        return self._changed.get(digest, digest in self._from_settings)

    def set(self, key: bytes, muted: bool) -> None:
        """Mute a key, or unmute it."""
        digest = _key_digest(key)
        self._changed.pop(digest, None)
        self._is_logged = False
        if muted != (digest in self._from_settings):
            self._changed[digest] = muted

    def changes(self, name: str) -> Entries:
        """Return the entry of the keys that labels have changed; empty if it has not changed."""
        if self._is_logged:
            return {}
        self._is_logged = True
        value = orjson.dumps([[digest.hex(), muted] for digest, muted in sorted(self._changed.items())])
        return {name: value if self._changed else None}

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Load the entry. Raises DamagedStateError when it is not readable."""
        try:
            changes = orjson.loads(entries.get(name, b"[]"))
            self._changed = {bytes.fromhex(digest): bool(muted) for digest, muted in changes}
        except (ValueError, TypeError) as error:
            raise DamagedStateError(f"{name} is not a list of keys ({error})") from None


def _key_digest(key: bytes | str) -> bytes:
    """Return a digest of a key, so that memory is bounded for keys of any length."""
    key = key.encode(errors="surrogatepass") if isinstance(key, str) else key
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True)
class DueLabels:
    """Labels that take effect together: before the record at input offset `takes_effect` is scored."""

    takes_effect: int
    numbers: list[int]  # (n,) the detector's numbers of the records
    labels: list[tuple[int, int, bool]]  # (n,) offset in the feedback topic, offset of the record, outlier; ascending
    too_late: int  # other due labels, whose record is not in the index any more
    new_verdicts: int = 0  # that changed something
    mutes: Sequence[tuple[bytes, bool]] = ()  # keys, and whether each is muted from now on
    windows: Sequence[Window] = ()  # of maintenance
    cancelled: Sequence[str] = ()  # names of cancelled windows


class LabelQueue:
    """The labels of one partition, from the time they are read until they have taken effect.

    A label's own offset is committed only after it took effect, in the same commit as the detector's changes. As labels
    wait for their records, they finish out of order. Offsets may have gaps, as in compacted topics.
    topic_id: of the feedback topic; empty if the broker has no ids.
    """

    def __init__(self, topic_id: str = "") -> None:
        self._topic_id = topic_id
        self._waiting: list[tuple[int, int, Label]] = []  # heap: offset of the record (-1: by key), own offset, label
        self._open: deque[int] = deque()  # offsets that were read, from the first one that is not finished
        self._closed: set[int] = set()  # the finished ones of these
        self._last = -1  # last offset that was read
        self.committable: int | None = None  # below it every label is finished; None: not any yet
        self._finished: frozenset[int] = frozenset()  # offsets to be read again that were finished before a restart
        self._log = SingleEntry()
        self.committed: int | None = None  # last offset that the group has committed

    def __len__(self) -> int:
        """Return the number of labels that wait for their record."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Return whether reading of labels must pause."""
        return len(self._waiting) >= MAX_WAITING_LABELS or len(self._open) >= MAX_OPEN_LABELS

    def begin(self, start: int) -> None:
        """Begin at offset `start` of the feedback topic: the labels before it are finished."""
        self._last = max(start, 0) - 1

    def open(self, label_offset: int) -> bool:
        """Note that the record at this offset of the feedback topic was read.

        False: this label waits or is finished already. A client may read records twice when a broker comes back.
        """
        if label_offset <= self._last:
            return False
        self._open.append(label_offset)
        self._last = label_offset
        if label_offset in self._finished:
            self.close(label_offset)
            return False
        return True

    def close(self, label_offset: int) -> None:
        """Finish the label at this offset."""
        self._closed.add(label_offset)
        while self._open and self._open[0] in self._closed:
            first = self._open.popleft()
            self._closed.remove(first)
            self.committable = first + 1

    def add(self, label_offset: int, label: Label) -> None:
        """Add the label at this offset, which waits for its record."""
        offset = label.offset if isinstance(label, Verdict) and label.offset is not None else -1
        heapq.heappush(self._waiting, (offset, label_offset, label))

    def due(self, position: int | None) -> list[int]:
        """Return the own offsets of the labels on records before offset `position`, in the order of `take_due`."""
        if position is None or not self._waiting or self._waiting[0][0] >= position:
            return []
        due = sorted((offset, own) for offset, own, _ in self._waiting if offset < position)
        return [own for _, own in due]

    def take_due(self, index: RecordIndex, position: int | None, max_labels: int | None = None) -> DueLabels:
        """Remove the labels on records before offset `position`, at most `max_labels`, and close their offsets."""
        due = [heapq.heappop(self._waiting)[1:] for _ in self.due(position)[:max_labels]]
        due.sort(key=lambda item: item[0])  # of two verdicts on one record, the later one wins
        numbers, labels, mutes, too_late = [], [], list[tuple[bytes, bool]](), 0
        windows: dict[str, Window | str] = {}  # by name: the last label about a window wins
        for label_offset, label in due:
            self.close(label_offset)
            if isinstance(label, Mute):
                mutes.append(label)
            elif isinstance(label, WindowLabel):
                windows[label.window if isinstance(label.window, str) else label.window.name] = label.window
            elif (record := index.find(label)) is not None:
                numbers.append(record[0])
                labels.append((label_offset, record[1], label.outlier))
            else:
                too_late += 1
        announced = [window for window in windows.values() if isinstance(window, Window)]
        cancelled = [name for name in windows.values() if isinstance(name, str)]
        return DueLabels(position or 0, numbers, labels, too_late, mutes=mutes, windows=announced, cancelled=cancelled)

    def changes(self, name: str) -> Entries:
        """Return the entry of finished labels after an unfinished one; empty if it has not changed."""
        # finished before a restart, to be read again
        unread = (offset for offset in self._finished if offset > self._last)
        ahead = sorted({*self._closed, *unread})
        value = orjson.dumps({"topic_id": self._topic_id, "finished": ahead}) if ahead else b""
        return self._log.changes(name, value)

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Load the entry, if it is about this feedback topic. Raises StateError when it is not readable."""
        if not (value := self._log.recover(entries, name)):
            return
        try:
            content = orjson.loads(value)
            if content["topic_id"] == self._topic_id:
                self._finished = frozenset(map(int, content["finished"]))
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedStateError(f"{name} is not a list of offsets ({error})") from None
