"""Reads the alert topic for one target, as a consumer group of its own.

A record is read, its message is sent, the target answers, and only then its offset is committed. So a crash may repeat
messages and loses none, and no target waits for another.

`--start` holds for the partitions that the topic has when the group begins. Partitions that are added later, and those
of a topic that was created again, are read from their beginning. So a new group commits a start for each partition, and
the metadata of each offset holds the id of the topic.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import FomoError, RecordError, RegistryError
from fomo_stream.kafka.broker.clients import NOT_PERMITTED, broker_error, depart, headers_of, make_follower, range_now
from fomo_stream.kafka.registry import codec_for
from fomo_stream.logs import Throttle, kv, raised_at
from fomo_stream.notify.events import UNEXPECTED, key_of_field, printable_key, read_event
from fomo_stream.notify.messages import Message, message_of
from fomo_stream.notify.notify_metrics import FAILED_FOR_GOOD, RETRIED, SENT, SKIPPED, metric_value
from fomo_stream.notify.policy import NotificationPolicy, RateLimit, retry_wait_s
from fomo_stream.notify.targets import Answer, Target
from fomo_stream.settings.notify import NotifySettings

log = logging.getLogger(__name__)

POLL_S = 0.2
COMMIT_S = 1.0  # between two commits
TIMEOUT_S = 10.0  # to wait for an answer of the broker
MAX_SEND_S = 60.0  # longest time that a target may take for a message
RETRY_S = 1.0  # between two requests to a registry or a broker that does not answer


class AlertTopic(NamedTuple):
    """The alert topic. id: empty where it is not known. clients: how often new clients had to be made to read it."""

    id: str
    partitions: int
    clients: int = 0

    def is_another(self, topic_id: str) -> bool:
        """Return whether this id is that of an earlier topic with the same name."""
        return bool(self.id and topic_id and self.id != topic_id)

    def has_ended(self, now: AlertTopic) -> bool:
        """Return whether a new client has to read it, as it is now."""
        return self.is_another(now.id) or self.clients != now.clients


class AlertReader:
    """Makes messages from records. Raises ConfigError and RegistryError if its registry cannot be used."""

    def __init__(self, settings: NotifySettings, name: str = "") -> None:
        self._settings, self._name = settings, name
        self.connect()
        self.policy = NotificationPolicy()
        self._throttle = Throttle()

    def connect(self) -> None:
        """Make the client of the registry; it reads its certificates only then."""
        self._codec, schemas = codec_for(self._settings.codec_settings(), of_service=False)
        if schemas is not None:
            schemas.check()

    def read(self, record: Any) -> Message | None:
        """Return the message about a record of Kafka; None if it needs none. Raises RegistryError."""
        settings, headers = self._settings, headers_of(record)
        try:
            fields = self._codec.decode(record.value(), headers)
            record_key, _ = self._codec.key(record.key(), headers)
            key = printable_key(record_key) if settings.key is None else key_of_field(fields, settings.key)
            event = read_event(fields, settings.result_field, key)
            kind = self.policy.take(event)
            return None if kind is None else message_of(kind, event, settings.status_url)
        except RegistryError:
            raise
        except Exception as error:  # the record is not about an incident, or is malformed
            reason = error.reason if isinstance(error, RecordError) else UNEXPECTED
            metric_value(SKIPPED, self._name, reason).inc()
            if (suppressed := self._throttle.allow(reason)) is not None:
                where = f"{record.topic()}[{record.partition()}]@{record.offset()}"
                raised = {"error": type(error).__name__, "at": raised_at(error)} if reason == UNEXPECTED else {}
                log.warning(kv("alert_skipped", record=where, reason=reason, **raised, suppressed=suppressed))
                log.debug(kv("alert_skipped", record=where), exc_info=error)
            return None


class Follower:
    """Sends messages to one target, in a thread, until `stop` is set.

    settings: with the group of this target. topic: returns the topic as it is now. Raises ConfigError and RegistryError
    if the registry cannot be used.
    """

    def __init__(
        self, settings: NotifySettings, target: Target, topic: Callable[[], AlertTopic], stop: threading.Event
    ) -> None:
        self._settings, self._target, self._topic_now, self._stop = settings, target, topic, stop
        self.name = target.name
        self.limit = RateLimit(settings.per_hour if target.is_for_people else 0, settings.status_url)
        self.trouble = "the group has given it no partition yet"
        self.last_turn_s = time.monotonic()
        self.since: float | None = None  # time of the first attempt to send the present message
        self._reader = AlertReader(settings, target.name)
        self._throttle = Throttle()
        self._tries, self._not_before, self._commit_at = 0, 0.0, 0.0
        self._topic, self._has_begun = AlertTopic("", 0), False  # the topic that is read; whether the group has a start
        # By partition: offset of the next record; that before which all messages are delivered; the committed offset.
        self._next: dict[int, int] = {}
        self._delivered: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        for metric in (SENT, FAILED_FOR_GOOD, RETRIED):
            metric_value(metric, self.name)  # exposes 0 until something happens

    def run(self) -> None:
        """Follow the topic until `stop` is set. Raises NotPermittedError."""
        while not self._stop.is_set():
            self.last_turn_s = time.monotonic()
            consumer = make_follower(self._settings)
            try:
                self._follow(consumer)
            except KafkaException as error:
                self._failed(error.args[0])
                self.limit.forget()  # the held back messages are read again
                self._stop.wait(RETRY_S)
            finally:
                with suppress(KafkaException, RuntimeError):
                    depart(consumer)

    def _follow(self, consumer: Consumer) -> None:
        """Read as a member of the group until `stop` is set, or a new client has to read the topic."""
        if self._topic_now().clients != self._topic.clients:
            try:
                self._reader.connect()
            except FomoError as error:  # it is away; the new client asks it again
                log.warning(kv("registry_trouble", target=self.name, reason=error))
        self._topic, self._next, self._delivered, self._committed = self._topic_now(), {}, {}, {}
        self._begin(consumer)
        consumer.subscribe([self._settings.alerts], on_assign=self._assigned, on_revoke=self._revoked)
        while not (self._stop.is_set() or self._topic.has_ended(self._topic_now())):
            self._turn(consumer, time.monotonic())
        if (summary := self.limit.summary()) is not None:
            self._is_delivered(summary)
        self._commit(consumer)
        if self._tries or self.limit.held:
            log.warning(kv("not_sent", target=self.name, effect="it is told after the next start, or by others"))

    def _turn(self, consumer: Consumer, now: float) -> None:
        self.last_turn_s = now
        if now >= self._commit_at:
            self._commit(consumer)
        if now < self._not_before:
            self._stop.wait(POLL_S)
        elif (summary := self.limit.summary(now)) is not None:
            if not self._is_delivered(summary):
                self._stay(consumer)
        elif (record := consumer.poll(POLL_S)) is None:
            return
        elif (error := record.error()) is not None:
            self._failed(error)
        elif not self._is_done(record, now):  # read the record again
            consumer.seek(TopicPartition(record.topic(), record.partition(), record.offset()))
        else:
            self._next[record.partition()] = record.offset() + 1
            self._delivered = self._delivered if self.limit.held else dict(self._next)

    def _stay(self, consumer: Consumer) -> None:
        """Poll without reading, because a consumer that does not poll has to leave the group."""
        consumer.pause(consumer.assignment())
        record = consumer.poll(0)
        if record is not None and record.error() is None:  # from a partition that was just assigned
            consumer.seek(TopicPartition(record.topic(), record.partition(), record.offset()))
        consumer.resume(consumer.assignment())

    def _is_done(self, record: Any, now: float) -> bool:
        """Handle a record; return whether it is done: delivered, held back, or without a message."""
        try:
            message = self._reader.read(record)
        except RegistryError as error:
            self._later(kv("registry_trouble", target=self.name, reason=error), str(error), RETRY_S)
            return False
        if not self._tries:
            self.trouble = ""
        return message is None or self.limit.holds(message, now) or self._is_delivered(message)

    def _is_delivered(self, message: Message) -> bool:
        """Send a message; return whether the target has taken or refused it. If not, it has to be sent again."""
        self.since = self.since or time.monotonic()
        self.last_turn_s = time.monotonic() + MAX_SEND_S
        try:
            answer = self._target.send(message)
        except Exception as error:  # a defect of this program; other messages must go on
            log.error(kv("message_failed", message=message.id, error=type(error).__name__, at=raised_at(error)))
            answer = Answer("refused", type(error).__name__)
        self.last_turn_s = now = time.monotonic()
        if answer.kind == "again":
            self._tries += 1
            metric_value(RETRIED, self.name).inc()
            line = kv("target_trouble", target=self.name, reason=answer.why)
            self._later(line, answer.why, retry_wait_s(self._tries, random.random()))
            return False
        if answer.kind == "refused":
            log.error(kv("message_refused", target=self.name, message=message.id, reason=answer.why))
        metric_value(SENT if answer.kind == "sent" else FAILED_FOR_GOOD, self.name).inc()
        if self._tries:
            log.info(kv("target_reachable", target=self.name))
        self._tries, self.since, self.trouble = 0, None, ""
        self.limit.sent(message, now)
        return True

    def _later(self, line: str, reason: str, seconds: float = 0.0) -> None:
        """Report in the log and in /readyz why this target gets no messages, and pause for so many seconds."""
        self.trouble, self._not_before = reason, time.monotonic() + seconds
        if (suppressed := self._throttle.allow(line.partition(" ")[0])) is not None:
            log.warning(f"{line} suppressed={suppressed}")

    def _failed(self, error: KafkaError) -> None:
        """Report an error of the consumer, which retries by itself. Raises NotPermittedError."""
        if error.code() in NOT_PERMITTED:
            topic, group = self._settings.alerts, self._settings.group
            what = f"topic {topic} cannot be read by group {group}"
            raise broker_error(error, what, f"permit to read topic {topic} and the group {group}")
        self._later(kv("consumer_error", target=self.name, reason=error.str()), error.str())

    # -- the group -------------------------------------------------------------------------------------------

    def _begin(self, consumer: Consumer) -> None:
        """Commit a start for each partition of a new group: after a crash, `latest` would be a later offset."""
        partitions = [TopicPartition(self._settings.alerts, number) for number in range(self._topic.partitions)]
        committed = consumer.committed(partitions, timeout=TIMEOUT_S)
        is_new = all(offset.offset < 0 for offset in committed)
        if is_new and not self._has_begun and self._settings.start == "latest":
            ends = [range_now(consumer, partition, TIMEOUT_S)[1] for partition in partitions]
            committed = [TopicPartition(p.topic, p.partition, end) for p, end in zip(partitions, ends, strict=True)]
        is_another = [self._topic.is_another(offset.metadata or "") for offset in committed]
        starts = [
            TopicPartition(offset.topic, offset.partition, 0 if is_old else offset.offset, self._topic.id)
            for offset, is_old in zip(committed, is_another, strict=True)
            if offset.offset >= 0
        ]
        if starts and (is_new or any(is_another)):
            consumer.commit(offsets=starts, asynchronous=False)
        self._has_begun = True

    def _assigned(self, _consumer: Consumer, assigned: list[TopicPartition]) -> None:
        """Note new partitions. They are read from their committed offset, or from the beginning if they have none."""
        self.trouble = ""
        log.info(kv("assigned", target=self.name, partitions=",".join(str(p.partition) for p in assigned)))

    def _revoked(self, consumer: Consumer, revoked: list[TopicPartition]) -> None:
        """Forget partitions: their next owner sends the messages that were not delivered."""
        self._commit(consumer)
        for partition in revoked:
            for offsets in (self._next, self._delivered, self._committed):
                offsets.pop(partition.partition, None)
        if not self._next:
            self.limit.forget()
        self._tries, self.since = 0, None
        log.info(kv("released", target=self.name, partitions=",".join(str(p.partition) for p in revoked)))

    def _commit(self, consumer: Consumer) -> None:
        """Commit the offsets of delivered messages, and not of those that are held back."""
        self._commit_at = time.monotonic() + COMMIT_S
        if not self.limit.held:
            self._delivered = dict(self._next)
        if not (changed := dict(self._delivered.items() - self._committed.items())):
            return
        positions = [TopicPartition(self._settings.alerts, *item, self._topic.id) for item in changed.items()]
        try:
            consumer.commit(offsets=positions, asynchronous=False)
            self._committed |= changed
        except KafkaException as error:  # the next commit retries; at worst messages are repeated
            if self._throttle.allow("commit") is not None:
                log.warning(kv("consumer_error", target=self.name, reason=error.args[0].str()))
