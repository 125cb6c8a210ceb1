"""A record as it was read from a topic."""

from __future__ import annotations

from confluent_kafka import Message

from fomo_stream.partition.record import Record


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
