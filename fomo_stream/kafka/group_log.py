"""What the instances of a group tell one another: records in one partition of its state topic, under keys of their own.

The log has one order for everybody, so all who read it come to the same conclusion without talking to one another, and
compaction removes nothing, because no two records have the same key.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.clients import make_producer, make_reader
from fomo_stream.logs import kv
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)

PARTITION = 0
KINDS = (b"schema/", b"settings/")  # beginnings of the keys
FINGERPRINT, SCHEMA = "detector/fingerprint/0", "schema"  # entries of a partition's state, which is in the same topic
TIMEOUT_S = 5.0  # without a record, or without the acknowledgement of one


class Note(NamedTuple):
    """One record of the log."""

    key: bytes
    value: bytes


class GroupLog:
    """Reads and appends to the log; calls raise BrokerError when the broker is slow or gone."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._topic = settings.state_topic
        self._notes: dict[bytes, Note] = {}  # read so far, in order
        self.state: dict[str, bytes] = {}  # what was read of the entries FINGERPRINT and SCHEMA
        self._next = OFFSET_BEGINNING

    def notes(self, kind: bytes) -> list[Note]:
        """All records of one of the KINDS, in the order of the log, as of now."""
        self._read_on()
        return [note for note in self._notes.values() if note.key.startswith(kind)]

    def append(self, kind: bytes, value: bytes) -> bytes:
        """Write a record; returns its key. It counts as soon as it is written, and for everybody."""
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
            raise BrokerError(f"what the group agrees on could not be written to topic {self._topic} ({reason})")
        return key

    def not_kept(self) -> BrokerError:
        """The error for a record that was written and is not there."""
        return BrokerError(
            f"topic {self._topic} does not keep what is written to it; it must be compacted (cleanup.policy=compact)"
        )

    def _read_on(self) -> None:
        """Read from where the last call stopped to the end.

        These records are written without transactions, so they need not wait for those of others to end.
        """
        reader = make_reader(self._settings, isolation="read_uncommitted")
        try:
            reader.assign([TopicPartition(self._topic, PARTITION, self._next)])
            reason = self._read_with(reader.poll)
        finally:
            reader.close()
        if reason:
            raise BrokerError(f"what the group agreed on could not be read from topic {self._topic} ({reason})")

    def _read_with(self, poll: Callable[[float], Any]) -> str:
        """Why the end was not reached; nothing when it was."""
        reason = "no answer"
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                deadline = time.monotonic() + TIMEOUT_S
                self._take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._next = message.offset()
                return ""
            else:
                reason = error.str()
                log.debug(kv("group_log_not_read", topic=self._topic, reason=reason))
        return reason

    def _take(self, message: Any) -> None:
        key, value = message.key() or b"", message.value()
        self._next = message.offset() + 1
        if key.startswith(KINDS):
            self._notes.pop(key, None)
            if value is not None:
                self._notes[key] = Note(key, value)
        for name in (FINGERPRINT, SCHEMA):
            if key == b"state/" + name.encode() and value is not None:
                self.state[name] = value[1:]  # after the version
