"""Feedback: what a label says, which record it is about, and when it takes effect.

A label is about one record of the partition whose number its own partition has. It is due as soon as that record is
behind: scored, or passed over. Whoever asks for the due labels decides when, and so at which offset they take effect.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fomo_stream.batching import OffsetTracker
from fomo_stream.errors import RecordError
from fomo_stream.records import MAX_RECORD_BYTES, decode

BAD_FEEDBACK = "bad_feedback"  # reason of dead letters
MOST_WAITING = 10_000  # labels of a partition held in memory; verdicts on so many make a record below 1 MB


class Label(NamedTuple):
    """One verdict on one record, given by its offset, or else as the last one with a key."""

    offset: int | None
    key: bytes | None
    outlier: bool


def parse_label(
    value: bytes | None, key: bytes | None, partition: int, topic: str, field: str, max_bytes: int = MAX_RECORD_BYTES
) -> Label:
    """Read the label in a record of the feedback topic.

    value, key: of that record; partition: its number; topic: the input topic; field: the result field of the outputs,
    for an output that was sent back with a verdict. Raises nothing but RecordError, with reason bad_feedback.

    >>> parse_label(b'{"partition": 3, "offset": 812, "outlier": true}', None, 3, "sensors", "fomo")
    Label(offset=812, key=None, outlier=True)
    >>> parse_label(b'{"outlier": false}', b"p7", 3, "sensors", "fomo")
    Label(offset=None, key=b'p7', outlier=False)
    """
    try:
        record = decode(value, max_bytes)
    except RecordError as error:
        raise _bad(str(error)) from None
    outlier = record.get("outlier")
    if not isinstance(outlier, bool):
        raise _bad('a label says "outlier": true or "outlier": false, beside the record that it is about')
    result = record.get(field)
    source: Mapping[str, Any] = result if isinstance(result, dict) and "offset" in result else record
    if source.get("topic", topic) != topic:
        raise _bad(f"the label is about a record of another topic than {topic}")
    number = source.get("partition", partition)
    if type(number) is not int:
        raise _bad('"partition" must be the number of a partition')
    if number != partition:
        raise _bad(
            f"the label is about partition {number}, but stands in {partition}: produce it to partition {number}"
        )
    return _about(source, key, outlier)


def _about(source: Mapping[str, Any], message_key: bytes | None, outlier: bool) -> Label:
    offset, key = source.get("offset"), source.get("key")
    if offset is not None:
        if type(offset) is not int or offset < 0:
            raise _bad('"offset" must be the offset of a record: a whole number, 0 or more')
        return Label(offset, None, outlier)
    if key is not None:
        if not isinstance(key, str):
            raise _bad('"key" must be the key of a record, as text')
        return Label(None, key.encode(errors="surrogatepass"), outlier)
    if message_key is None:
        raise _bad('the label names no record: it needs "offset" or "key", or the record\'s key as its own')
    return Label(None, message_key, outlier)


def _bad(message: str) -> RecordError:
    return RecordError(BAD_FEEDBACK, message)


class RecordIndex:
    """The last records of a partition: which number the detector knows them by, by offset and by key.

    >>> index = RecordIndex(capacity=2)
    >>> for number, offset in enumerate((10, 12, 13)): index.add(number, offset, b"p7")
    >>> index.find(Label(12, None, True)), index.find(Label(None, b"p7", True)), index.find(Label(10, None, True))
    ((1, 12), (2, 13), None)
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._records: deque[tuple[int, bytes | None]] = deque()
        self._numbers: dict[int, int] = {}  # by offset
        self._offsets: dict[bytes, int] = {}  # of the last record with each key
        self.position: int | None = None  # every record below this offset is behind; None: nothing is yet

    def __len__(self) -> int:
        return len(self._records)

    def add(self, number: int, offset: int, key: bytes | None) -> None:
        """The record at `offset`, later than all before, is scored: the detector's record `number`."""
        self._records.append((offset, key))
        self._numbers[offset] = number
        if key is not None:
            self._offsets[key] = offset
        if len(self._records) > self._capacity:
            oldest, oldest_key = self._records.popleft()
            del self._numbers[oldest]
            if oldest_key is not None and self._offsets[oldest_key] == oldest:
                del self._offsets[oldest_key]

    def find(self, label: Label) -> tuple[int, int] | None:
        """(number, offset) of the record that a label is about; None when it is not among the last ones."""
        offset = self._offsets.get(label.key) if label.key is not None else label.offset
        if offset is None or offset not in self._numbers:
            return None
        return self._numbers[offset], offset


@dataclass(frozen=True)
class Verdicts:
    """Labels that take effect together: before the record at input offset `takes_effect` is scored."""

    takes_effect: int
    numbers: list[int]  # (n,) the detector's numbers of the records
    labels: list[tuple[int, int, bool]]  # (n,) offset in the feedback topic, offset of the record, outlier; ascending
    too_late: int  # labels beside these whose record is not remembered


class LabelQueue:
    """The labels of one partition, from being read until their own offset may be committed.

    That is when each is finished: refused; or too late; or its verdict is recorded, and every output of the records
    before it took effect is acknowledged. After a crash those records are scored again, and so need the label again.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Label]] = []  # heap: offset of the record (-1: by key), own offset, label
        self._tracker = OffsetTracker()
        self._recorded: list[Verdicts] = []
        self.committed: int | None = None  # what the group has committed last

    def __len__(self) -> int:
        """Labels that wait for their record."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no more labels should be read for now."""
        return len(self._waiting) >= MOST_WAITING

    def open(self, at: int) -> None:
        """The record at offset `at` of the feedback topic was read."""
        self._tracker.open(at)

    def close(self, at: int) -> None:
        """It is finished."""
        self._tracker.close(at)

    def add(self, at: int, label: Label) -> None:
        """It holds a label."""
        heapq.heappush(self._waiting, (-1 if label.offset is None else label.offset, at, label))

    def take_due(self, index: RecordIndex) -> Verdicts | None:
        """The labels whose record is behind; None when there are none. Those that come too late are finished."""
        position = index.position
        if position is None or not self._waiting or self._waiting[0][0] >= position:
            return None
        due: list[tuple[int, Label]] = []
        while self._waiting and self._waiting[0][0] < position:
            _, at, label = heapq.heappop(self._waiting)
            due.append((at, label))
        due.sort(key=lambda item: item[0])  # of two verdicts on one record, the later counts
        numbers, labels = [], []
        for at, label in due:
            found = index.find(label)
            if found is None:
                self.close(at)
            else:
                numbers.append(found[0])
                labels.append((at, found[1], label.outlier))
        return Verdicts(position, numbers, labels, len(due) - len(labels))

    def recorded(self, verdicts: Verdicts) -> None:
        """The broker has the record of when they took effect."""
        self._recorded.append(verdicts)

    def settle(self, input_offset: int | None) -> int | None:
        """Offset of the feedback topic to commit together with `input_offset` of the input; None: nothing yet."""
        early = []
        for verdicts in self._recorded:
            if input_offset is None or verdicts.takes_effect > input_offset:
                early.append(verdicts)
                continue
            for at, _, _ in verdicts.labels:
                self.close(at)
        self._recorded = early
        return self._tracker.committable
