"""Decode records from bytes to fields, those of each partition in order.

A record whose schema is not known yet waits, with all records behind it in its partition; other partitions go on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from fomo_stream.errors import RecordError, RegistryError, SchemaPendingError
from fomo_stream.kafka.guard import unexpected_error
from fomo_stream.partition.record import Pending, Record, series_key
from fomo_stream.records.codec import Codec

MAX_WAITING_RECORDS = 1000  # records of a partition; a client that pauses it may need a second to continue


class Decoder:
    """Decode the records of all partitions. key: field that names the series of a record; None: its own key."""

    def __init__(self, codec: Codec, key: str | None) -> None:
        self._codec, self._key = codec, key
        self._waiting: defaultdict[int, deque[tuple[Record, float]]] = defaultdict(deque)  # by partition

    def receive(self, record: Record, now: float) -> Pending | None:
        """Return the next record of its partition, decoded; None if it has to wait. now: seconds, monotonic.

        A record behind waiting ones is decoded twice: now to request its schema early, and later for its fields.
        """
        try:
            item = self._decoded(record, now)
            if record.partition not in self._waiting:
                return item
        except SchemaPendingError:
            pass
        self._waiting[record.partition].append((record, now))
        return None

    def ready(self, partition: int) -> Iterator[Pending]:
        """Yield the records that have waited and can be decoded now."""
        waiting = self._waiting.get(partition)
        while waiting:
            try:
                item = self._decoded(*waiting[0])
            except SchemaPendingError:
                return
            waiting.popleft()
            yield item
        self._waiting.pop(partition, None)

    def forget(self, partition: int) -> None:
        """Forget the waiting records of a partition: its next owner reads them again."""
        self._waiting.pop(partition, None)

    def waits(self, partition: int) -> bool:
        """Return whether records of a partition wait for schemas. Safe from any thread."""
        return bool(self._waiting.get(partition))

    @property
    def to_pause(self) -> set[int]:
        """Return the partitions that must not be read further, as too many of their records wait for schemas."""
        return {number for number, records in self._waiting.items() if len(records) >= MAX_WAITING_RECORDS}

    @property
    def bytes(self) -> int:
        """Return the size of all waiting records."""
        return sum(record.size() for records in self._waiting.values() for record, _ in records)

    def _decoded(self, record: Record, now: float) -> Pending:
        """Decode a record. Raises SchemaPendingError, and RegistryError where schemas are not fetched by a thread."""
        try:
            fields = self._codec.decode(record.value, record.headers)
            return Pending(record, fields, now, None, series_key(record, fields, self._key, self._codec))
        except (SchemaPendingError, RegistryError):
            raise
        except RecordError as error:
            return Pending(record, {}, now, error, None)
        except Exception as error:
            return Pending(record, {}, now, unexpected_error(record.where(), error), None)
