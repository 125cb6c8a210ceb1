"""Reads the topic of alerts for one target, as a consumer group of its own.

A record is read, its message is sent, the target answers, and only then its offset is committed. So a crash repeats
messages and loses none, and a target that is down keeps no other waiting.

`--start` is for the partitions that the topic has when the group begins. Those that are added later, and those of a
topic that was created again, are read from their beginning. So a group that begins commits a start for each partition,
and beside each offset stands the id of the topic.
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

from fomo_stream.errors import RecordError, RegistryError
from fomo_stream.kafka.broker.clients import NOT_PERMITTED, broker_error, headers_of, make_follower, range_now
from fomo_stream.kafka.registry import codec_for
from fomo_stream.logs import Throttle, kv, place_of
from fomo_stream.notify import metrics
from fomo_stream.notify.events import UNEXPECTED, key_of_field, key_text, read_event
from fomo_stream.notify.messages import Message, message_of
from fomo_stream.notify.policy import Limit, Policy, wait_s
from fomo_stream.notify.targets import Answer, Target
from fomo_stream.settings.notify import NotifySettings

log = logging.getLogger(__name__)

POLL_S = 0.2
COMMIT_S = 1.0  # between two commits
TIMEOUT_S = 10.0  # to wait for an answer of the broker
LONGEST_S = 60.0  # that a target may take for a message, before the process counts as stuck
AGAIN_S = 1.0  # between two questions to a registry or a broker that does not answer


class Topic(NamedTuple):
    """The topic of alerts. id: empty where it is not known."""

    id: str
    partitions: int

    def is_another(self, topic_id: str) -> bool:
        """Whether this id is that of a topic that had the same name."""
        return bool(self.id and topic_id and self.id != topic_id)


class Reader:
    """Reads what records tell. Raises ConfigError and RegistryError where its registry cannot be used."""

    def __init__(self, settings: NotifySettings, name: str = "") -> None:
        self._settings, self._name = settings, name
        self._codec, schemas = codec_for(settings.of_codec(), of_service=False)
        if schemas is not None:
            schemas.check()
        self.policy = Policy()
        self._throttle = Throttle()

    def read(self, record: Any) -> Message | None:
        """The message that follows from a record of Kafka; None if there is none. Raises RegistryError."""
        settings, headers = self._settings, headers_of(record)
        try:
            fields = self._codec.decode(record.value(), headers)
            own, _ = self._codec.key(record.key(), headers)
            key = key_text(own) if settings.key is None else key_of_field(fields, settings.key)
            event = read_event(fields, settings.result_field, key)
            kind = self.policy.take(event)
            return None if kind is None else message_of(kind, event, settings.status_url)
        except RegistryError:
            raise
        except Exception as error:  # it tells of no incident, or nobody expected what it says
            reason = error.reason if isinstance(error, RecordError) else UNEXPECTED
            metrics.value_of(metrics.SKIPPED, self._name, reason).inc()
            if (suppressed := self._throttle.allow(reason)) is not None:
                where = f"{record.topic()}[{record.partition()}]@{record.offset()}"
                at = {"error": type(error).__name__, "at": place_of(error)} if reason == UNEXPECTED else {}
                log.warning(kv("alert_skipped", record=where, reason=reason, **at, suppressed=suppressed))
                log.debug(kv("alert_skipped", record=where), exc_info=error)
            return None


class Follower:
    """Tells one target, in a thread, until `stop` is set.

    settings: with the group of this target. topic: that which is there now. Raises ConfigError and RegistryError where
    the registry cannot be used.
    """

    def __init__(
        self, settings: NotifySettings, target: Target, topic: Callable[[], Topic], stop: threading.Event
    ) -> None:
        self._settings, self._target, self._topic_now, self._stop = settings, target, topic, stop
        self.name = target.name
        self.limit = Limit(settings.per_hour if target.is_for_people else 0, settings.status_url)
        self.trouble = "the group has given it no partition yet"
        self.turned = time.monotonic()
        self.since: float | None = None  # when the message that is not sent yet was first tried
        self._reader = Reader(settings, target.name)
        self._throttle = Throttle()
        self._tries, self._not_before, self._commit_at = 0, 0.0, 0.0
        self._topic, self._has_begun = Topic("", 0), False  # that is read; whether the group has a start
        # By partition, the offset of the next record; the one before which everything is told; and the committed one.
        self._next: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        for metric in (metrics.SENT, metrics.FAILED_FOR_GOOD, metrics.RETRIED):
            metrics.value_of(metric, self.name)  # is 0 until something happens

    def run(self) -> None:
        """Raises NotPermittedError."""
        while not self._stop.is_set():
            self.turned = time.monotonic()
            consumer = make_follower(self._settings)
            try:
                self._follow(consumer)
            except KafkaException as error:
                self._failed(error.args[0])
                self.limit.forget()  # it is read again
                self._stop.wait(AGAIN_S)
            finally:
                with suppress(KafkaException, RuntimeError):
                    consumer.close()

    def _follow(self, consumer: Consumer) -> None:
        """Be a member of the group until the end, or until the topic was created again."""
        self._topic, self._next, self._told, self._committed = self._topic_now(), {}, {}, {}
        self._begin(consumer)
        consumer.subscribe([self._settings.alerts], on_assign=self._assigned, on_revoke=self._revoked)
        while not (self._stop.is_set() or self._topic.is_another(self._topic_now().id)):
            self._turn(consumer, time.monotonic())
        if (summary := self.limit.summary()) is not None:
            self._is_told(summary)
        self._commit(consumer)
        if self._tries or self.limit.held:
            log.warning(kv("not_sent", target=self.name, effect="it is told after the next start, or by others"))

    def _turn(self, consumer: Consumer, now: float) -> None:
        self.turned = now
        if now >= self._commit_at:
            self._commit(consumer)
        if now < self._not_before:
            self._stop.wait(POLL_S)
        elif (summary := self.limit.summary(now)) is not None:
            if not self._is_told(summary):
                self._stay(consumer)
        elif (record := consumer.poll(POLL_S)) is None:
            return
        elif (error := record.error()) is not None:
            self._failed(error)
        elif not self._is_done(record, now):  # it is read again
            consumer.seek(TopicPartition(record.topic(), record.partition(), record.offset()))
        else:
            self._next[record.partition()] = record.offset() + 1
            self._told = self._told if self.limit.held else dict(self._next)

    def _stay(self, consumer: Consumer) -> None:
        """Stay in the group, which a consumer that does not poll has to leave, and read nothing."""
        consumer.pause(consumer.assignment())
        record = consumer.poll(0)
        if record is not None and record.error() is None:  # of a partition that was assigned just now
            consumer.seek(TopicPartition(record.topic(), record.partition(), record.offset()))
        consumer.resume(consumer.assignment())

    def _is_done(self, record: Any, now: float) -> bool:
        """Whether there is nothing more to do for a record: it is told, or held back, or tells nothing."""
        try:
            message = self._reader.read(record)
        except RegistryError as error:
            self._later(kv("registry_trouble", target=self.name, reason=error), str(error), AGAIN_S)
            return False
        if not self._tries:
            self.trouble = ""
        return message is None or self.limit.holds(message, now) or self._is_told(message)

    def _is_told(self, message: Message) -> bool:
        """Send a message. Whether the target has taken or refused it; else it is to be tried again."""
        self.since = self.since or time.monotonic()
        self.turned = time.monotonic() + LONGEST_S
        try:
            answer = self._target.send(message)
        except Exception as error:  # a defect of this program; other messages must go on
            log.error(kv("message_failed", message=message.id, error=type(error).__name__, at=place_of(error)))
            answer = Answer("refused", type(error).__name__)
        self.turned = now = time.monotonic()
        if answer.kind == "again":
            self._tries += 1
            metrics.value_of(metrics.RETRIED, self.name).inc()
            line = kv("target_trouble", target=self.name, reason=answer.why)
            self._later(line, answer.why, wait_s(self._tries, random.random()))
            return False
        if answer.kind == "refused":
            log.error(kv("message_refused", target=self.name, message=message.id, reason=answer.why))
        metrics.value_of(metrics.SENT if answer.kind == "sent" else metrics.FAILED_FOR_GOOD, self.name).inc()
        if self._tries:
            log.info(kv("target_reachable", target=self.name))
        self._tries, self.since, self.trouble = 0, None, ""
        self.limit.sent(message, now)
        return True

    def _later(self, line: str, reason: str, seconds: float = 0.0) -> None:
        """Say in the log and in /readyz why this target is not told, and go on after so many seconds."""
        self.trouble, self._not_before = reason, time.monotonic() + seconds
        if (suppressed := self._throttle.allow(line.partition(" ")[0])) is not None:
            log.warning(f"{line} suppressed={suppressed}")

    def _failed(self, error: KafkaError) -> None:
        """Note an error of the consumer, which tries again. Raises NotPermittedError."""
        if error.code() in NOT_PERMITTED:
            topic, group = self._settings.alerts, self._settings.group
            what = f"topic {topic} cannot be read by group {group}"
            raise broker_error(error, what, f"permit to read topic {topic} and the group {group}")
        self._later(kv("consumer_error", target=self.name, reason=error.str()), error.str())

    # -- the group -------------------------------------------------------------------------------------------

    def _begin(self, consumer: Consumer) -> None:
        """Commit a start for each partition, unless the group goes on: after a crash `latest` would be later."""
        every = [TopicPartition(self._settings.alerts, number) for number in range(self._topic.partitions)]
        found = consumer.committed(every, timeout=TIMEOUT_S)
        is_new = all(one.offset < 0 for one in found)
        if is_new and not self._has_begun and self._settings.start == "latest":
            ends = [range_now(consumer, one, TIMEOUT_S)[1] for one in every]
            found = [TopicPartition(one.topic, one.partition, end) for one, end in zip(every, ends, strict=True)]
        is_another = [self._topic.is_another(one.metadata or "") for one in found]
        starts = [
            TopicPartition(one.topic, one.partition, 0 if is_old else one.offset, self._topic.id)
            for one, is_old in zip(found, is_another, strict=True)
            if one.offset >= 0
        ]
        if starts and (is_new or any(is_another)):
            consumer.commit(offsets=starts, asynchronous=False)
        self._has_begun = True

    def _assigned(self, _consumer: Consumer, given: list[TopicPartition]) -> None:
        """They are read from the committed offsets, and from the beginning what has none."""
        self.trouble = ""
        log.info(kv("assigned", target=self.name, partitions=",".join(str(one.partition) for one in given)))

    def _revoked(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        """Others tell of what is not told yet."""
        self._commit(consumer)
        for one in taken:
            for offsets in (self._next, self._told, self._committed):
                offsets.pop(one.partition, None)
        if not self._next:
            self.limit.forget()
        self._tries, self.since = 0, None
        log.info(kv("released", target=self.name, partitions=",".join(str(one.partition) for one in taken)))

    def _commit(self, consumer: Consumer) -> None:
        """Commit what is told; so not what is held back."""
        self._commit_at = time.monotonic() + COMMIT_S
        if not self.limit.held:
            self._told = dict(self._next)
        if not (changed := dict(self._told.items() - self._committed.items())):
            return
        places = [TopicPartition(self._settings.alerts, *place, self._topic.id) for place in changed.items()]
        try:
            consumer.commit(offsets=places, asynchronous=False)
            self._committed |= changed
        except KafkaException as error:  # it is tried again; at worst messages are repeated
            if self._throttle.allow("commit") is not None:
                log.warning(kv("consumer_error", target=self.name, reason=error.args[0].str()))
