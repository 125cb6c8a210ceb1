"""A record as it was read from a topic."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Message

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
        """`topic[partition]@offset`, as every error and log line names a record."""
        return f"{self.topic}[{self.partition}]@{self.offset}"

    @property
    def timestamp_or_now(self) -> int:
        """Its timestamp, or 0, which a producer replaces by the current time."""
        return self.timestamp if self.timestamp is not None and self.timestamp > 0 else 0


def to_record(message: Message) -> Record:
    """A client's message as a Record."""
    kind, timestamp = message.timestamp()
    try:
        headers = message.headers() or []
    except UnicodeDecodeError:  # a header name that is not UTF-8 cannot be written to the output either
        headers = []
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp if kind else None,
        message.key(),
        message.value(),
        headers,
    )
