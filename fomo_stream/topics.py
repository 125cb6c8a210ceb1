"""The topics of the service: which must exist, which are created, and what the broker says of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from fomo_stream.broker import make_admin, make_reader
from fomo_stream.errors import BrokerError
from fomo_stream.logs import kv
from fomo_stream.permissions import READ, WRITE, check_permissions
from fomo_stream.settings import ServiceSettings

log = logging.getLogger(__name__)

START_TIMEOUT_S = 6.0  # a start-up that cannot succeed has to end within 15 s, imports included
WATCH_INTERVAL_S = 3.0
# Small segments, compacted soon: what a restart has to read stays near what there is to know.
STATE_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
}


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
        self._may_pass = False  # the trouble seen last
        self._has_controller = False  # the embedded broker has none, and cannot do what is asked of it
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fomo-topic-watch", daemon=True)
        named = (settings.topic, settings.out, settings.dead_letters, settings.feedback)
        self.topics: tuple[str, ...] = tuple(topic for topic in named if topic is not None)
        self.seen = TopicsSeen({}, {})
        self.limits: dict[str, int] = {}  # bytes that a record may have, of the topics where the broker tells

    def start(self) -> None:
        """Check the input topic, create the others where they are missing, and watch from then on.

        Raises BrokerError, within about 10 s, when the broker does not answer, a topic is missing, the feedback topic
        has another number of partitions than the input, or the state topic is not compacted.
        """
        self._connect()
        self._check_permissions()
        deadline = time.monotonic() + START_TIMEOUT_S
        self.seen = self._ask()
        while self.seen.trouble and self._may_pass and time.monotonic() < deadline:  # a cluster that elects, say
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
        if self._settings.reset_state:
            self._reset_state()
        self._create_missing()
        self._check_feedback()
        self._check_configs()
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

    def _check_permissions(self) -> None:
        if not self._has_controller:
            return
        settings = self._settings
        needs = {settings.topic: [READ], settings.out: [WRITE], settings.dead_letters: [WRITE]}
        needs[settings.state_topic] = [READ, WRITE]
        if settings.feedback is not None:
            needs[settings.feedback] = [READ]
        check_permissions(self._admin, settings.bootstrap, needs, settings.group)

    def _watch(self) -> None:
        while not self._stopped.wait(WATCH_INTERVAL_S):
            self.seen = self._ask()

    def _ask(self) -> TopicsSeen:
        try:
            return self._describe() if self._has_controller else self._list()
        except KafkaException as error:
            self._may_pass = error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
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
        config = self._configs([self._settings.topic]).get(self._settings.topic)
        if config is None:  # not permitted: the broker's defaults apply
            return {}
        limit = int(config["max.message.bytes"]) + (64 << 10)
        return {"max.message.bytes": str(limit), "retention.ms": config["retention.ms"]}

    def _configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The configuration of those topics of which the broker tells it."""
        found = {}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        for resource, answer in self._admin.describe_configs(resources, request_timeout=3.0).items():
            try:
                found[resource.name] = {name: entry.value for name, entry in answer.result().items()}
            except KafkaException as error:
                log.debug(kv("configuration_not_told", topic=resource.name, reason=error.args[0].str()))
        return found

    def _check_configs(self) -> None:
        """Learn how large records may be; refuse a state topic that forgets what was not written lately."""
        if not self._has_controller:
            return
        settings = self._settings
        configs = self._configs((settings.out, settings.dead_letters, settings.state_topic))
        self.limits = {topic: int(config["max.message.bytes"]) for topic, config in configs.items()}
        policy = configs.get(settings.state_topic, {}).get("cleanup.policy", "compact")
        if policy != "compact":
            raise BrokerError(
                f"topic {settings.state_topic} has cleanup.policy={policy}, which would delete what partitions know; "
                f"set it to compact: kafka-configs.sh --bootstrap-server {settings.bootstrap} --alter --topic "
                f"{settings.state_topic} --add-config cleanup.policy=compact"
            )

    # --- the state topic ------------------------------------------------------------------------------------

    def grow_state_topic(self) -> None:
        """Give the state topic as many partitions as the input has; a failure leaves it to the next time."""
        topic = self._settings.state_topic
        count = self.seen.partitions.get(self._settings.topic, 0)
        try:
            if count > self.seen.partitions.get(topic, count):
                self._admin.create_partitions([NewPartitions(topic, count)], request_timeout=5.0)[topic].result()
                log.info(kv("topic_grown", topic=topic, partitions=count))
        except KafkaException as error:  # another instance was faster, or it is not permitted
            log.warning(kv("topic_not_grown", topic=topic, partitions=count, reason=error.args[0].str()))
        self._stopped.wait(0.5)
        self.seen = self._ask()

    def has_open_transaction(self, partition: TopicPartition) -> bool:
        """Whether something was written to a partition of which it is not known yet whether it is committed."""
        ends = []
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            wanted = {partition: OffsetSpec.latest()}
            asked = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=5.0)
            ends.append(asked[partition].result().offset)
        return bool(ends[0] < ends[1])

    def _reset_state(self) -> None:
        """Delete the state topic, which is then created anew. Raises BrokerError while the group has members."""
        settings = self._settings
        try:
            answer = self._admin.describe_consumer_groups([settings.group], request_timeout=START_TIMEOUT_S)
            members = len(answer[settings.group].result().members)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise BrokerError(
                    f"--reset-state: the members of group {settings.group} are not told ({error.args[0].str()}); "
                    "check that the group may be described"
                ) from None
            members = 0
        if members:
            raise BrokerError(
                f"--reset-state: group {settings.group} has {members} members, which would write down again what they "
                "know; stop them first (one that was killed or has an --instance-id leaves when its session times out)"
            )
        topic = settings.state_topic
        try:
            self._admin.delete_topics([topic], request_timeout=START_TIMEOUT_S)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise BrokerError(f"--reset-state: topic {topic} cannot be deleted ({error.args[0].str()})") from None
        deadline = time.monotonic() + START_TIMEOUT_S
        while topic in self._admin.list_topics(timeout=START_TIMEOUT_S).topics and time.monotonic() < deadline:
            self._stopped.wait(0.1)
        log.warning(kv("state_reset", topic=topic, effect="every partition warms up again"))


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
