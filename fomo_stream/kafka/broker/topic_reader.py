"""Read partitions of a topic to their end, and the offsets that a group has committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from fomo_stream.kafka.broker.clients import headers_of, make_reader, range_now
from fomo_stream.partition.record import Record
from fomo_stream.settings.flags import BrokerFlags

POLL_S = 0.2

# The first offset to read, and the one to stop before; None: the end that the broker reports.
Range = tuple[int, int | None]


class NoProgressError(Exception):
    """No message came for too long, or the caller stopped the read, before the end."""


class TopicReader:
    """Read topics with a client of `make_reader`, which has the same isolation and on_lost.

    is_stopped: called between two messages; True ends the read. on_lost: with `error`, KafkaException with the code
    _AUTO_OFFSET_RESET is raised even where errors are retried.
    """

    def __init__(
        self,
        settings: BrokerFlags,
        isolation: str = "read_committed",
        is_stopped: Callable[[], bool] = lambda: False,
        on_lost: str = "earliest",
    ) -> None:
        self._client_options = settings, isolation, on_lost
        self._is_stopped = is_stopped
        self._client: Consumer | None = None

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def client(self) -> Consumer:
        """The consumer; a read that makes no progress replaces it."""
        if self._client is None:
            self._client = make_reader(*self._client_options)
        return self._client

    def close(self) -> None:
        """Close the consumer. A later call opens another one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def read(
        self, topic: str, ranges: Mapping[int, Range], patience_s: float, retry_errors: bool = False
    ) -> Iterator[Any]:
        """Yield the messages of each partition in `ranges`, in order within a partition.

        Ends when all ranges are read: compaction may have removed their last records, so the broker's end-of-partition
        event counts as well as the last offset. Raises NoProgressError, which names the last error, after `patience_s`
        without a message, and KafkaException for an error, unless `retry_errors`.
        """
        unread = {number: span for number, span in ranges.items() if span[1] is None or span[0] < span[1]}
        if not unread:
            return
        self.client.assign([TopicPartition(topic, number, start) for number, (start, _) in unread.items()])
        try:
            yield from self._read(unread, patience_s, retry_errors)
        finally:
            if self._client is not None:
                self._client.unassign()

    def _read(self, unread: dict[int, Range], patience_s: float, retry_errors: bool) -> Iterator[Any]:
        reason = "no answer"
        deadline = time.monotonic() + patience_s
        while unread:
            if time.monotonic() >= deadline or self._is_stopped():
                # After an outage, an old client may wait for answers that never come; a new client asks at once.
                self.close()
                raise NoProgressError(reason)
            message = self.client.poll(POLL_S)
            # An error about the whole client has no topic, and the number of its partition is without meaning.
            if message is None or (message.topic() is not None and message.partition() not in unread):
                continue
            error = message.error()
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # the client looks for the coordinator of its group; whoever asks for offsets gets this error
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if not retry_errors or error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise KafkaException(error)
                reason = error.str()
                continue
            end = unread[message.partition()][1]
            if error is None and (end is None or message.offset() < end):
                yield message
            if _is_end(message, end):
                del unread[message.partition()]
            deadline = time.monotonic() + patience_s  # the caller's own time does not count

    def range_now(self, topic: str, number: int, timeout_s: float) -> tuple[int, int]:
        """Return the first retained offset and the end (`clients.range_now`)."""
        return range_now(self.client, TopicPartition(topic, number), timeout_s)

    def committed(self, partitions: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """Return the group's committed offsets. The broker answers only when no open transaction can change them."""
        offsets: list[TopicPartition] = self.client.committed(list(partitions), timeout=timeout_s)
        raise_partition_error(offsets)
        return offsets


def raise_partition_error(partitions: Sequence[TopicPartition]) -> None:
    """Raise KafkaException if the answer about one of these partitions is an error."""
    for partition in partitions:
        if partition.error is not None:
            raise KafkaException(partition.error)


def _is_end(message: Any, end: int | None) -> bool:
    if message.error() is None:
        return end is not None and message.offset() >= end - 1
    return end is None or message.offset() >= end


def to_record(message: Message) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp if kind and timestamp >= 0 else None,  # -1: the record has no timestamp
        message.key(),
        message.value(),
        headers_of(message),
    )
