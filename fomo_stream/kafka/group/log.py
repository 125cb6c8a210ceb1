"""The group log: records that the instances of a group write for each other, in one partition of the state topic.

All instances read the log in the same order, so they come to the same result without talking to each other. Compaction
removes nothing, because no two records have the same key.

An instance writes its records without a transaction, so that they are valid at once, and readers do not wait for open
transactions. A group that is prepared by a replay gets them in the transaction that writes its state. The keys of these
say so, and they count only when they are committed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException

from fomo_stream.errors import BrokerError, TopicError
from fomo_stream.kafka.broker.clients import make_producer
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader
from fomo_stream.settings.service import ServiceSettings

PARTITION = 0
KINDS = (b"schema/", b"settings/")  # beginnings of the keys
IN_TRANSACTION = b"transaction/"  # follows the kind in keys of records that are written in a transaction
TRANSACTIONAL = tuple(kind + IN_TRANSACTION for kind in KINDS)
TIMEOUT_S = 5.0  # to wait for the next record, for the acknowledgement of one, or for the end of a transaction
POLL_S = 0.2


class Entry(NamedTuple):
    """One record of the log."""

    key: bytes
    value: bytes


class GroupLog:
    """Reads and appends to the log; calls raise BrokerError if the broker does not answer in time."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._topic = settings.state_topic
        self._entries: dict[bytes, Entry] = {}  # read so far, in order
        self._next = OFFSET_BEGINNING
        self._unsure: dict[bytes, int] = {}  # records of transactions that may not be committed, with their offsets

    def entries(self, kind: bytes) -> list[Entry]:
        """All present records of one of the KINDS, in the order of the log."""
        self._read_on()
        if self._unsure:
            self._look_for_committed()
        present = (entry for entry in self._entries.values() if entry.key not in self._unsure)
        return [entry for entry in present if entry.key.startswith(kind)]

    def of_instances(self) -> frozenset[bytes]:
        """Keys of all present records that were written without a transaction; does not wait for any transaction."""
        self._read_on()
        return frozenset(key for key in self._entries if not key.startswith(TRANSACTIONAL))

    def append(self, kind: bytes, value: bytes) -> bytes:
        """Write a record; returns its key. It is valid for the whole group as soon as it is written."""
        key = kind + uuid.uuid4().hex.encode()
        failures: list[str] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error.str())

        producer = make_producer(self._settings, None, **{"message.timeout.ms": int(TIMEOUT_S * 1000)})
        try:
            producer.produce(self._topic, key=key, value=value, partition=PARTITION, on_delivery=delivered)
        except KafkaException as error:
            failures.append(error.args[0].str())
        if producer.flush(TIMEOUT_S + 1) or failures:
            reason = failures[0] if failures else "no answer"
            raise BrokerError(f"the group's agreement could not be written to topic {self._topic} ({reason})")
        return key

    @staticmethod
    def key_in_transaction(kind: bytes) -> bytes:
        """A new key for a record that is written in a transaction."""
        return kind + IN_TRANSACTION + uuid.uuid4().hex.encode()

    def not_kept(self) -> BrokerError:
        """The error for a record that was written, but cannot be read back."""
        return BrokerError(
            f"topic {self._topic} does not keep its records; it must be compacted (cleanup.policy=compact)"
        )

    def _read_on(self) -> None:
        """Read from where the last call stopped to the end.

        Nearly all records are written outside transactions, so reading them must not wait for open ones of others.
        """
        try:
            with TopicReader(self._settings, isolation="read_uncommitted") as reader:
                for message in reader.read(self._topic, {PARTITION: (self._next, None)}, TIMEOUT_S, retry_errors=True):
                    self._apply(message)
        except NoProgressError as error:
            raise self._unreadable(error) from None

    def _look_for_committed(self) -> None:
        """Find out which records of transactions are committed; waits a little for those that are open."""
        start, end = min(self._unsure.values()), max(self._unsure.values()) + 1
        with TopicReader(self._settings) as reader:
            try:
                self._wait_for_transactions(reader, end)
                for message in reader.read(self._topic, {PARTITION: (start, end)}, TIMEOUT_S, retry_errors=True):
                    if self._unsure.get(message.key() or b"") == message.offset():
                        del self._unsure[message.key()]
            except NoProgressError as error:
                raise self._unreadable(error) from None
            except KafkaException as error:
                raise self._unreadable(error.args[0].str()) from None

    def _wait_for_transactions(self, reader: TopicReader, end: int) -> None:
        """Wait until no transaction before offset `end` is open. Raises BrokerError after TIMEOUT_S."""
        deadline = time.monotonic() + TIMEOUT_S
        while reader.range_now(self._topic, PARTITION, TIMEOUT_S)[1] < end:
            if time.monotonic() > deadline:
                raise self._unreadable(
                    f"it has an open transaction: a replay prepares group {self._settings.group} now, or it was killed "
                    "while it did so; try again, or start that replay once more, which ends the transaction"
                )
            time.sleep(POLL_S)

    def _unreadable(self, reason: object) -> BrokerError:
        return BrokerError(f"the group's agreement could not be read from topic {self._topic} ({reason})")

    def _apply(self, message: Any) -> None:
        key, value = message.key() or b"", message.value()
        self._next = message.offset() + 1
        if key.startswith(KINDS):
            self._entries.pop(key, None)
            if value is not None:
                self._entries[key] = Entry(key, value)
                if key.startswith(TRANSACTIONAL):
                    self._unsure[key] = message.offset()


def check_has_run(settings: ServiceSettings, partitions: Mapping[str, int], otherwise: str) -> None:
    """Raise TopicError, with what to do otherwise, if the input or the state topic is not among these topics."""
    if settings.topic not in partitions:
        raise TopicError(f"there is no topic {settings.topic} on {settings.bootstrap}; check --topic and --bootstrap")
    if settings.state_topic not in partitions:
        raise TopicError(
            f"group {settings.group} has never run on topic {settings.topic}: there is no topic "
            f"{settings.state_topic}; check --group and --topic, or {otherwise}"
        )
