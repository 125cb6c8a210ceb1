"""The group log: records that the instances of a group write for each other, in one partition of the state topic.

All instances read the log in the same order, so they come to the same result without talking to each other. Compaction
removes nothing, because no two records have the same key. Records are written without a transaction, so that they are
valid at once, and readers do not wait for open transactions.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.errors import BrokerError, TopicError
from fomo_stream.kafka.broker.clients import broker_error, make_producer, wait_until_connected
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader
from fomo_stream.settings.topic_flags import TopicFlags

PARTITION = 0
OWNER_FIELD = "of"  # field of each record: the group and its input
KINDS = (b"schema/", b"settings/", b"warm/")  # beginnings of the keys
TIMEOUT_S = 5.0  # wait for the next record, or for an acknowledgement


class LogEntry(NamedTuple):
    """One record of the log."""

    key: bytes
    content: dict[str, Any]


class GroupLog:
    """The log, to read and to append. Calls raise BrokerError if the broker does not answer in time.

    kinds: beginnings of the keys that are kept in memory.
    """

    def __init__(self, settings: TopicFlags, kinds: tuple[bytes, ...] = KINDS) -> None:
        self._settings, self._kinds = settings, kinds
        self._topic = settings.state_topic
        self._owner = [settings.group, settings.topic]
        self._entries: dict[bytes, bytes] = {}  # read so far, in order
        self._next = 0  # not OFFSET_BEGINNING: a client that asks for an offset of a new topic may wait half a second

    def entries(self, kind: bytes) -> list[LogEntry]:
        """Return all present records of one of the kinds, in their order. Raises BrokerError if one is not JSON.

        Raises TopicError if another group or input owns the log: `a` on `b-c` and `a-b` on `c` have one state topic.
        The first record with an owner decides; records of earlier versions have none.
        """
        try:
            with TopicReader(self._settings, isolation="read_uncommitted") as reader:
                span = {PARTITION: (self._next, None)}
                for message in reader.read(self._topic, span, TIMEOUT_S, retry_errors=True):
                    key, value = message.key() or b"", message.value()
                    self._next = message.offset() + 1
                    self._entries.pop(key, None)
                    if key.startswith(self._kinds) and value is not None:
                        self._entries[key] = value
        except NoProgressError as error:
            raise BrokerError(f"the group's agreement could not be read from topic {self._topic} ({error})") from None
        with self.understanding():
            stored = [LogEntry(key, dict(json.loads(value))) for key, value in self._entries.items()]
            owners = (list(map(str, entry.content[OWNER_FIELD])) for entry in stored if OWNER_FIELD in entry.content)
            owner = next(owners, self._owner)
        if owner != self._owner:
            what = f"topic {self._topic} has the state of group {owner[0]} on topic {owner[-1]}"
            raise TopicError(what, f"choose another --group for {self._settings.topic}")
        return [entry for entry in stored if entry.key.startswith(kind)]

    @contextmanager
    def understanding(self) -> Iterator[None]:
        """Turn the errors of an entry with an unexpected content into BrokerError."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"the agreement of group {self._settings.group} in topic {self._topic} is not readable ({error})"
            raise BrokerError(what, "choose another --group, or start over with --reset-state") from None

    def append(self, kind: bytes, *contents: Mapping[str, Any]) -> None:
        """Write records. Each is valid for the whole group as soon as it is written."""
        values = [json.dumps({**content, OWNER_FIELD: self._owner}).encode() for content in contents]
        self._write([(kind + uuid.uuid4().hex.encode(), value) for value in values])

    def delete(self, keys: Sequence[bytes]) -> None:
        """Delete the records with these keys."""
        if keys:
            self._write([(key, None) for key in keys])

    def _write(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error)

        producer = make_producer(self._settings, None, **{"message.timeout.ms": int(TIMEOUT_S * 1000)})
        try:
            wait_until_connected(producer, TIMEOUT_S)
            for key, value in records:
                producer.produce(self._topic, key=key, value=value, partition=PARTITION, on_delivery=delivered)
        except KafkaException as error:
            failures.append(error.args[0])
        left = producer.flush(TIMEOUT_S + 1)
        what = f"the group's agreement could not be written to topic {self._topic}"
        if failures:
            raise broker_error(failures[0], what)
        if left:
            raise BrokerError(f"{what} (no answer)")

    def not_kept(self) -> BrokerError:
        """Return the error for a record that was written, but cannot be read back."""
        what = f"topic {self._topic} does not keep its records"
        return BrokerError(what, "it must be compacted (cleanup.policy=compact)")


def check_has_run(settings: TopicFlags, partitions: Mapping[str, int], otherwise: str) -> None:
    """Raise TopicError if the input or the state topic is not among these topics. otherwise: another remedy."""
    if settings.topic not in partitions:
        what = f"there is no topic {settings.topic} on {settings.bootstrap}"
        raise TopicError(what, "check --topic and --bootstrap")
    if settings.state_topic not in partitions:
        raise TopicError(
            f"group {settings.group} has never run on topic {settings.topic}: there is no topic "
            f"{settings.state_topic}; check --group and --topic, or {otherwise}"
        )
