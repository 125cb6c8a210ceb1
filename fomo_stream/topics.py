"""The topics of the service: which must exist, which are created, and what the broker says of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from fomo_stream.broker import make_admin, make_reader
from fomo_stream.errors import BrokerError
from fomo_stream.logs import kv
from fomo_stream.settings import ServiceSettings

log = logging.getLogger(__name__)

START_TIMEOUT_S = 6.0  # a start-up that cannot succeed has to end within 15 s, imports included
WATCH_INTERVAL_S = 3.0
STATE_TOPIC_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "segment.ms": "60000"}


@dataclass(frozen=True)
class TopicsSeen:
    """What the broker said last about the topics of the service."""

    partitions: Mapping[str, int]  # number of partitions of each topic that exists
    topic_ids: Mapping[str, str]  # changes when a topic is deleted and created anew; empty where unsupported
    trouble: str = ""  # why the broker could not be asked; empty when it answered

    def remembering(self, before: TopicsSeen) -> TopicsSeen:
        """The same with the ids known last of topics that are missing now."""
        return replace(self, topic_ids={**before.topic_ids, **self.topic_ids})

    def has_new(self, topic: str, before: TopicsSeen) -> bool:
        """Whether `topic` exists and was created anew since `before`.

        Its id tells, as a broker may lose sight of a topic for a moment; without ids, that it was missing.
        """
        old, new = before.topic_ids.get(topic), self.topic_ids.get(topic)
        anew = old != new if old and new else topic not in before.partitions
        return topic in self.partitions and anew


class TopicWatch:
    """Asks the broker for its topics: once to start with, then every few seconds in a thread.

    The answers tell that the broker is gone, that a topic was deleted or created anew, and how many
    partitions it has.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._last_error = ""
        self._admin = make_admin(settings, error_cb=self._on_error)
        # A consumer asks for a topic without creating it, on brokers that create what they are asked for.
        self._asker = make_reader(settings)
        self._has_controller = False  # the embedded broker has none, and cannot do what is asked of it
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fomo-topic-watch", daemon=True)
        named = (settings.topic, settings.out, settings.dead_letters, settings.feedback)
        self.topics: tuple[str, ...] = tuple(topic for topic in named if topic is not None)
        self.seen = TopicsSeen({}, {})

    def start(self) -> None:
        """Check the input topic, create the others where they are missing, and watch from then on.

        Raises BrokerError, within about 10 s, when the broker does not answer, a topic is missing, or the feedback
        topic has another number of partitions than the input.
        """
        self._connect()
        self.seen = self._ask()
        if self.seen.trouble:
            raise BrokerError(
                f"the broker at {self._settings.bootstrap} does not say which topics there are ({self.seen.trouble}); "
                f"check that topic {self._settings.topic} may be described and read"
            )
        if self._settings.topic not in self.seen.partitions:
            raise BrokerError(
                f"there is no topic {self._settings.topic} on {self._settings.bootstrap}; "
                f"check --topic, or create it: "
                f"kafka-topics.sh --bootstrap-server {self._settings.bootstrap} --create "
                f"--topic {self._settings.topic} --partitions 4"
            )
        self._create_missing()
        self._check_feedback()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the clients."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(2 * WATCH_INTERVAL_S)
        self._asker.close()

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error.str()

    def _connect(self) -> None:
        try:
            metadata = self._admin.list_topics(timeout=START_TIMEOUT_S)
        except KafkaException as error:
            self._admin.poll(0)  # delivers the reason, when the client knows one
            reason = self._last_error or error.args[0].str()
            raise BrokerError(
                f"no broker answers at {self._settings.bootstrap} ({reason}); "
                "check --bootstrap, that the broker runs, and --kafka.security.protocol and the like"
            ) from None
        self._has_controller = metadata.controller_id in metadata.brokers

    def _watch(self) -> None:
        while not self._stopped.wait(WATCH_INTERVAL_S):
            self.seen = self._ask()

    def _ask(self) -> TopicsSeen:
        try:
            return self._describe() if self._has_controller else self._list()
        except KafkaException as error:
            return TopicsSeen(self.seen.partitions, self.seen.topic_ids, error.args[0].str())

    def _describe(self) -> TopicsSeen:
        partitions, topic_ids = {}, {}
        answers = self._admin.describe_topics(TopicCollection(list(self.topics)), request_timeout=5.0)
        for topic, answer in answers.items():
            try:
                description = answer.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                partitions[topic] = len(description.partitions)
                topic_ids[topic] = str(description.topic_id)
        return TopicsSeen(partitions, topic_ids)

    def _list(self) -> TopicsSeen:
        partitions = {}
        for topic in self.topics:
            found = self._asker.list_topics(topic, timeout=5.0).topics[topic]
            if found.error is None:
                partitions[topic] = len(found.partitions)
        return TopicsSeen(partitions, {})

    def _create_missing(self) -> None:
        """Create what is missing of the other topics, with as many partitions as the input."""
        count = self.seen.partitions[self._settings.topic]
        inherited = self._inherited_config()
        wanted = {
            self._settings.out: inherited,
            self._settings.dead_letters: inherited,
            self._settings.state_topic: STATE_TOPIC_CONFIG,
        }
        if self._settings.feedback is not None:
            wanted[self._settings.feedback] = inherited
        self.topics = (*self.topics, self._settings.state_topic)
        self.seen = self._ask()
        missing = [topic for topic in wanted if topic not in self.seen.partitions]
        reasons = self._create({topic: wanted[topic] for topic in missing}, count)
        deadline = time.monotonic() + START_TIMEOUT_S / 2
        while missing and time.monotonic() < deadline:
            self.seen = self._ask()
            missing = [topic for topic in missing if topic not in self.seen.partitions]
            self._stopped.wait(0.1 if missing else 0)
        if missing:
            topic = missing[0]
            reason = reasons.get(topic, "it did not appear in time")
            compact = " --config cleanup.policy=compact" if topic == self._settings.state_topic else ""
            raise BrokerError(
                f"topic {topic} is missing and could not be created ({reason}); create it: "
                f"kafka-topics.sh --bootstrap-server {self._settings.bootstrap} --create --topic {topic} "
                f"--partitions {count}{compact}"
            )

    def _create(self, topics: Mapping[str, Mapping[str, str]], count: int) -> dict[str, str]:
        """Ask for `topics`; returns why some were refused."""
        if not topics:
            return {}
        if not self._has_controller:  # the embedded broker creates a topic when a producer asks about it
            for topic in topics:
                self._admin.list_topics(topic, timeout=5.0)
            return {}
        reasons = {}
        new = [NewTopic(topic, count, config=dict(config)) for topic, config in topics.items()]
        for topic, answer in self._admin.create_topics(new, request_timeout=START_TIMEOUT_S / 2).items():
            try:
                answer.result()
                log.info(kv("topic_created", topic=topic, partitions=count))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    reasons[topic] = error.args[0].str()
        return reasons

    def _check_feedback(self) -> None:
        """A label has to be in the partition of the number that its record's has."""
        topic, feedback = self._settings.topic, self._settings.feedback
        if feedback is None:
            return
        count, found = self.seen.partitions[topic], self.seen.partitions[feedback]
        if found != count:
            grow = f"kafka-topics.sh --bootstrap-server {self._settings.bootstrap} --alter --topic {feedback}"
            remedy = f"add some: {grow} --partitions {count}" if found < count else "name another one with --feedback"
            raise BrokerError(
                f"feedback topic {feedback} has {found} partitions, topic {topic} has {count}; they need equally many, "
                f"as a label stands in the partition of its record: {remedy}"
            )

    def _inherited_config(self) -> dict[str, str]:
        """The input's retention and limit on record size, with room for what we add; else nothing.

        Outputs carry the input's timestamps: a shorter retention would delete them as soon as they are
        written.
        """
        if not self._has_controller:
            return {}
        resource = ConfigResource(ResourceType.TOPIC, self._settings.topic)
        try:
            config = self._admin.describe_configs([resource], request_timeout=3.0)[resource].result()
        except KafkaException:  # not permitted: the broker's defaults apply
            return {}
        limit = int(config["max.message.bytes"].value) + (64 << 10)
        return {"max.message.bytes": str(limit), "retention.ms": config["retention.ms"].value}


def pin_latest(consumer: Consumer, topic: str, partitions: int) -> None:
    """Commit the present end of every partition for a group that has no offsets at all yet.

    It is done before joining. The broker refuses it (which is right) once another instance has joined: that
    one has pinned the group's start already.
    """
    every = [TopicPartition(topic, number) for number in range(partitions)]
    try:
        if any(found.offset != OFFSET_INVALID for found in consumer.committed(every, timeout=START_TIMEOUT_S)):
            return
        for partition in every:
            partition.offset = consumer.get_watermark_offsets(partition, timeout=START_TIMEOUT_S)[1]
        consumer.commit(offsets=every, asynchronous=False)
        log.info(kv("start_at_latest", topic=topic, partitions=partitions))
    except KafkaException as error:
        refused = (
            KafkaError.UNKNOWN_MEMBER_ID,
            KafkaError.ILLEGAL_GENERATION,
            KafkaError.REBALANCE_IN_PROGRESS,
        )
        if error.args[0].code() not in refused:
            raise BrokerError(
                f"the start of group offsets on {topic} could not be committed ({error.args[0].str()}); "
                "check that the group may be written, or use --start earliest"
            ) from None
