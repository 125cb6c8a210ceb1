"""Records as they were read from a topic, and micro-batches of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from fomo_stream.detector.keys import Key
from fomo_stream.errors import RecordError
from fomo_stream.records.codec import Codec
from fomo_stream.records.inference import key_of

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One consumed record, as bytes."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None  # milliseconds since 1970
    key: bytes | None
    value: bytes | None
    headers: Headers

    def where(self) -> str:
        """Return `topic[partition]@offset`, as every error and log line names a record."""
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def size(self) -> int:
        size = len(self.value or b"") + len(self.key or b"")
        for name, value in self.headers:
            size += len(name) + len(value or b"")
        return size

    @property
    def timestamp_or_now(self) -> int:
        """Return its timestamp, or 0, which a producer replaces by the current time."""
        return self.timestamp if self.timestamp is not None and self.timestamp > 0 else 0


class FileItem(NamedTuple):
    """A record of a file, as an `Item` for a partition."""

    offset: int
    fields: Mapping[str, Any]
    key: Key
    error: RecordError | None = None
    timestamp: None = None


class Item(Protocol):
    """A decoded record, as input of a partition."""

    @property
    def offset(self) -> int:
        """The offset, which rises from record to record. In a file: the number of its line or row."""

    @property
    def timestamp(self) -> int | None:
        """The timestamp, milliseconds since 1970."""

    @property
    def key(self) -> Key:
        """The name of its series."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The content; empty if it could not be decoded."""

    @property
    def error(self) -> RecordError | None:
        """The reason why it could not be decoded."""


class Pending(NamedTuple):
    """A record of a topic that waits to be scored: an `Item`."""

    record: Record
    fields: dict[str, Any]
    polled_at: float  # seconds, monotonic
    error: RecordError | None
    key: Key  # of its series

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def timestamp(self) -> int | None:
        return self.record.timestamp

    def size(self) -> int:
        """Approximate memory in bytes."""
        return len(self.record.value or b"") + self.record.size()  # the fields are about as large as the value


def series_key(record: Record, fields: Mapping[str, Any], field: str | None, codec: Codec) -> Key:
    """Return the key of a record's series: its own, or the value of a field of its content, or else of its key.

    None if that has no value. codec: reads keys. Raises SchemaPendingError.
    """
    key = None if field is None else key_of(fields, field)
    if key is not None:
        return key
    key_text, key_fields = codec.key(record.key, record.headers)
    return key_text if field is None else key_of(key_fields, field)


Element = TypeVar("Element")


class MicroBatch(Generic[Element]):
    """Collect items until there are `size` of them, or the oldest has waited `age` seconds.

    >>> batch = MicroBatch(size=2, age=0.02)
    >>> batch.add("a", now=0.0), batch.is_due(now=0.01), batch.is_due(now=0.02)
    (False, False, True)
    >>> batch.add("b", now=0.02), batch.take()
    (True, ['a', 'b'])
    """

    def __init__(self, size: int, age: float, measure: Callable[[Element], int] = lambda item: 0) -> None:
        """measure: the bytes of an item."""
        self._size, self._age, self._measure = size, age, measure
        self.items: list[Element] = []
        self.bytes = 0  # of all items
        self._deadline = float("inf")

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: Element, now: float) -> bool:
        """Add one item. Return True when another batch is full and can be taken."""
        if not self.items:
            self._deadline = now + self._age
        self.items.append(item)
        self.bytes += self._measure(item)
        return len(self.items) % self._size == 0

    def is_due(self, now: float) -> bool:
        """Return whether the batch is full or its oldest item has waited long enough."""
        return len(self.items) >= self._size or now >= self._deadline

    def take(self, max_items: int | None = None) -> list[Element]:
        """Take the first items, all or at most `max_items`, in order of arrival; the rest remains due."""
        max_items = len(self.items) if max_items is None else max_items
        items, self.items = self.items[:max_items], self.items[max_items:]
        if self.items:
            self.bytes -= sum(map(self._measure, items))
        else:
            self.bytes, self._deadline = 0, float("inf")
        return items
