"""`fomo-stream notify`: reads a topic of alerts as a consumer group, and tells people.

Effects happen in this order: a record is read; its messages are sent; all targets answer; its offset is committed. So a
crash repeats messages, and loses none.

`--start` is for the partitions that the topic has when the group begins. Those that are added later, and those of a
topic that was created again, are read from their beginning. So the group commits a start for each partition when it
begins at `latest`, and beside each offset the id of the topic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from typing import Any, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import BrokerError, RecordError, RegistryError, TopicError
from fomo_stream.kafka.broker.clients import (
    NOT_PERMITTED,
    explained,
    explaining,
    headers_of,
    make_follower,
    range_now,
)
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.registry import codec_for
from fomo_stream.logs import Throttle, kv, place_of
from fomo_stream.notify.events import UNEXPECTED, Event, key_of_field, key_text, read_event
from fomo_stream.notify.messages import message_of
from fomo_stream.notify.messenger import Messenger
from fomo_stream.notify.metrics import exposition
from fomo_stream.notify.policy import Policy
from fomo_stream.notify.targets import targets_of
from fomo_stream.ops.http import HttpServer, Sources
from fomo_stream.settings.notify import NotifySettings

log = logging.getLogger(__name__)

POLL_S = 0.2
BATCH = 200  # records of one poll
COMMIT_S = 1.0  # between two commits
LOOK_S = 3.0  # between two looks whether the topic was created again
TIMEOUT_S = 10.0  # to wait for an answer of the broker
STUCK_S = 120.0  # the loop has to turn once within this time
FINISH_S = 10.0  # after SIGTERM, for messages that are under way
AGAIN_S = 1.0  # between two questions to a registry or a broker that does not answer
PATIENCE_S = 30.0  # of a dry run, for the next record


class Events:
    """Reads what records say. Raises ConfigError and RegistryError where its registry cannot be used."""

    def __init__(self, settings: NotifySettings) -> None:
        self._field, self._key = settings.result_field, settings.key
        self._codec, schemas = codec_for(settings.of_codec(), of_service=False)
        if schemas is not None:
            schemas.check()
        self.skipped: Counter[str] = Counter()  # by reason
        self._throttle = Throttle()

    def read(self, message: Any) -> Event | None:
        """What a message of Kafka says; None if it is skipped. Raises RegistryError."""
        headers = headers_of(message)
        try:
            fields = self._codec.decode(message.value(), headers)
            own, _ = self._codec.key(message.key(), headers)
            key = key_text(own) if self._key is None else key_of_field(fields, self._key)
            return read_event(fields, self._field, key)
        except RegistryError:
            raise
        except Exception as error:
            self.skip(message, error)
            return None

    def skip(self, message: Any, error: Exception) -> None:
        """Note that a message is skipped: it says nothing of an incident, or nobody expected what it says."""
        reason = error.reason if isinstance(error, RecordError) else UNEXPECTED
        self.skipped[reason] += 1
        if (suppressed := self._throttle.allow(reason)) is not None:
            where = f"{message.topic()}[{message.partition()}]@{message.offset()}"
            at = {"error": type(error).__name__, "at": place_of(error)} if reason == UNEXPECTED else {}
            log.warning(kv("alert_skipped", record=where, reason=reason, **at, suppressed=suppressed))
            log.debug(kv("alert_skipped", record=where), exc_info=error)


class Service:
    """One instance of `fomo-stream notify`. Raises FomoError for what keeps it from starting."""

    is_loading = False

    def __init__(self, settings: NotifySettings) -> None:
        self._settings = settings
        self._events = Events(settings)
        self._messenger = Messenger(settings, targets_of(settings, time.time))
        self._stop = threading.Event()
        self._cluster = Cluster(settings)
        self._topic_id, self._count = "", 0  # of the topic that is read: see `look`
        self._has_begun = self._settings.start == "earliest"  # whether the group has a start for each partition
        self._look_at = 0.0
        self._committed: dict[int, int | None] = {}  # by assigned partition; None: nothing yet
        self._paused = False
        self._trouble = "the group has given it no partition yet"
        self._turned = time.monotonic()
        self._throttle = Throttle()

    def stop(self) -> None:
        """End the loop soon; called by a handler of signals."""
        self._stop.set()

    def run(self) -> None:
        """Tell of incidents until `stop`. Raises BrokerError."""
        reading = explaining(f"topic {self._settings.alerts} cannot be read")
        with self._serve(), closing(self._cluster), self._messenger, reading:
            while not self._stop.is_set():
                self._follow()

    def _follow(self) -> None:
        """Be a member of the group until `stop`, or until the topic was created again."""
        self._wait_for_topic()
        consumer = make_follower(self._settings)
        try:
            consumer.subscribe([self._settings.alerts], on_assign=self._assigned, on_revoke=self._revoked)
            log.info(kv("started", topic=self._settings.alerts, group=self._settings.group))
            self._loop(consumer)
            if not self._messenger.finish(FINISH_S):
                log.warning(kv("not_sent", effect="what was not answered is told again after the next start"))
            self._commit(consumer)
        finally:
            with suppress(KafkaException, RuntimeError):
                consumer.close()

    def _loop(self, consumer: Consumer) -> None:
        commit_at = 0.0
        while not (self._stop.is_set() or self._is_created_again()):
            self._turned = time.monotonic()
            self._pause_or_resume(consumer)
            for message in consumer.consume(BATCH, POLL_S):
                if message.error() is not None:
                    self._failed(message.error())
                elif not self._receive(message):
                    break  # it ends; the rest is read again
            if time.monotonic() >= commit_at:
                self._commit(consumer)
                commit_at = time.monotonic() + COMMIT_S

    def _receive(self, message: Any) -> bool:
        """Tell what a message says; False: the process ends, and it was not read."""
        if message.partition() not in self._committed:  # it was taken away since
            return True
        while True:
            try:
                event = self._events.read(message)
                break
            except RegistryError as error:
                self._trouble = str(error)
                if self._throttle.allow("registry") is not None:
                    log.warning(kv("registry_trouble", reason=error, retry_in_s=AGAIN_S))
                if self._stop.wait(AGAIN_S):
                    return False
                self._turned = time.monotonic()
        self._trouble = ""
        try:
            self._messenger.take(event, message.partition(), message.offset())
        except Exception as error:
            self._events.skip(message, error)
        return True

    def _pause_or_resume(self, consumer: Consumer) -> None:
        """Nothing is read while too many messages wait."""
        if self._messenger.is_full != self._paused:
            self._paused = not self._paused
            every = consumer.assignment()
            (consumer.pause if self._paused else consumer.resume)(every)
            log.debug(kv("reading_paused" if self._paused else "reading_resumed", partitions=len(every)))

    def _failed(self, error: KafkaError) -> None:
        """Note an error of the consumer, which tries again. Raises NotPermittedError."""
        if error.code() in NOT_PERMITTED:
            permit = f"permit to read topic {self._settings.alerts} and group {self._settings.group}"
            raise explained(error, f"topic {self._settings.alerts} cannot be read", permit)
        self._trouble = error.str()
        if self._throttle.allow(error.name()) is not None:
            log.warning(kv("consumer_error", reason=error.str()))

    def _is_created_again(self) -> bool:
        """Whether the topic is another one than this member reads."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_S
        is_another = False
        with suppress(BrokerError):  # the consumer tells of it, too
            is_another = _differ(self._topic_id, look(self._cluster, self._settings)[0])
        if is_another:
            log.warning(kv("topic_recreated", topic=self._settings.alerts, effect="reading from its beginning"))
        return is_another

    # -- the group -------------------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        while True:
            try:
                self._begin(consumer)
                places = [self._place(consumer, one) for one in consumer.committed(given, timeout=TIMEOUT_S)]
                break
            except KafkaException as error:
                self._failed(error.args[0])
                self._turned = time.monotonic()
                if self._stop.wait(AGAIN_S) or self._is_created_again():
                    return  # nothing is read any more by this member
        consumer.incremental_assign(places)
        if self._paused:
            consumer.pause(given)
        self._commit(consumer)
        self._trouble = ""
        log.info(kv("assigned", partitions=",".join(str(one.partition) for one in given)))

    def _begin(self, consumer: Consumer) -> None:
        """Commit `latest` for all partitions if the group has no offsets: after a crash it would be later."""
        if self._has_begun:
            return
        every = [TopicPartition(self._settings.alerts, number) for number in range(self._count)]
        if all(one.offset < 0 for one in consumer.committed(every, timeout=TIMEOUT_S)):
            for one in every:
                one.offset = range_now(consumer, one, TIMEOUT_S)[1]
            consumer.commit(offsets=every, asynchronous=False)
        self._has_begun = True

    def _place(self, consumer: Consumer, committed: TopicPartition) -> TopicPartition:
        """Where a partition is read from."""
        first, end = range_now(consumer, committed, TIMEOUT_S)
        number, start = committed.partition, committed.offset
        if start < 0 or _differ(committed.metadata or "", self._topic_id):
            start = first
        elif not first <= start <= end:
            log.warning(kv("offset_lost", partition=number, offset=start, first=first, end=end))
            start = first
        self._messenger.start(number, start)
        self._committed[number] = None
        return TopicPartition(committed.topic, number, start)

    def _revoked(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        self._commit(consumer)
        for one in taken:
            self._committed.pop(one.partition, None)
            self._messenger.forget(one.partition)
        log.info(kv("released", partitions=",".join(str(one.partition) for one in taken)))

    def _commit(self, consumer: Consumer) -> None:
        found = self._messenger.committable().items()
        changed = {number: offset for number, offset in found if self._committed.get(number) != offset}
        if not changed:
            return
        topic, topic_id = self._settings.alerts, self._topic_id
        try:
            consumer.commit(
                offsets=[TopicPartition(topic, number, offset, topic_id) for number, offset in changed.items()],
                asynchronous=False,
            )
            self._committed |= changed
        except KafkaException as error:  # it is tried again; at worst messages are repeated
            if self._throttle.allow("commit") is not None:
                log.warning(kv("consumer_error", reason=error.args[0].str()))

    def _wait_for_topic(self) -> None:
        """Raises BrokerError; with --wait it is tried again."""
        while not self._stop.is_set():
            try:
                self._cluster.connect()
                self._topic_id, self._count = look(self._cluster, self._settings)
                return
            except BrokerError as error:
                if not self._settings.wait:
                    raise
                self._trouble = str(error)
                log.warning(kv("waiting", reason=error))
                self._turned = time.monotonic()
                self._stop.wait(AGAIN_S)

    # -- health ----------------------------------------------------------------------------------------------

    def not_live(self) -> list[str]:
        """Reasons to restart this process."""
        still = time.monotonic() - self._turned
        return [f"the loop has not turned for {still:.0f} s"] if still > STUCK_S else []

    def not_ready(self) -> list[str]:
        """Reasons why people are not told."""
        reasons = [self._trouble] if self._trouble else []
        if self._paused:
            reasons.append("too many messages wait, so nothing is read")
        found = self._messenger.health()
        return reasons + [f"{one.name} does not take messages: {one.trouble}" for one in found if one.trouble]

    def metrics(self) -> bytes:
        """In the text format of Prometheus."""
        return exposition(self._messenger.health(), self._events.skipped, not self.not_ready())

    def _serve(self) -> AbstractContextManager[object]:
        if self._settings.health_port is None:
            return nullcontext()
        sources = Sources(live=self.not_live, ready=self.not_ready, metrics=self.metrics)
        return HttpServer(self._settings.http_host, self._settings.health_port, sources)


def look(cluster: Cluster, settings: NotifySettings) -> tuple[str, int]:
    """The id of the topic of alerts, empty where brokers have none, and its partitions. Raises BrokerError."""
    with explaining(f"topic {settings.alerts} cannot be described"):
        partitions, ids = cluster.partitions([settings.alerts])
    if settings.alerts not in partitions:
        what = f"there is no topic {settings.alerts} on {settings.bootstrap}, or it may not be described"
        raise TopicError(what, "check --alerts")
    return ids.get(settings.alerts, ""), partitions[settings.alerts]


def rehearse(settings: NotifySettings, out: TextIO) -> None:
    """Print the messages about all that the topic holds now, without limit. Sends and commits nothing."""
    from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader  # numpy

    if settings.has_target:
        targets_of(settings, time.time)  # only to refuse wrong ones
    policy, events = Policy(), Events(settings)
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        _, count = look(cluster, settings)
    what = f"topic {settings.alerts} cannot be read"
    with explaining(what), TopicReader(settings) as reader:
        ends = {number: (0, reader.range_now(settings.alerts, number, TIMEOUT_S)[1]) for number in range(count)}
        try:
            for read in reader.read(settings.alerts, ends, PATIENCE_S):
                event = events.read(read)
                if event is not None and (kind := policy.take(event)) is not None:
                    message = message_of(kind, event, settings.status_url)
                    print(message.title, *(f"  {line}" for line in message.text.splitlines()), "", sep="\n", file=out)
        except NoProgressError as error:
            raise BrokerError(f"{what}: nothing came for {PATIENCE_S:g} s ({error})") from None


def _differ(one: str, other: str) -> bool:
    """Whether these are ids of two topics; empty: not known."""
    return bool(one and other and one != other)
