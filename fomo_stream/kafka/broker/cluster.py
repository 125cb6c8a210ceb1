"""Requests to the brokers about topics and the group, and changes of topics."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from fomo_stream.kafka.broker.clients import START_TIMEOUT_S, broker_error, connect, make_admin, make_reader
from fomo_stream.logs import kv
from fomo_stream.settings.flags import BrokerFlags
from fomo_stream.settings.topic_flags import TopicFlags

log = logging.getLogger(__name__)

ANSWER_S = 5.0
ATTEMPTS, ATTEMPT_S = 4, 1.5  # to describe topics, and the wait for each attempt
NO_ID = str(Uuid(0, 0))  # of topics on brokers before 2.8
GROUP_ANSWER_S, GROUP_RETRY_S = 3.0, 0.2  # the wait for an answer about the group; between two requests
NOT_READY = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)

FOREVER_MS = 2**63 - 1

PartitionId = tuple[str, int]  # topic and partition


class Ends(NamedTuple):
    readable: int  # offset of the first record that readers of committed records do not get yet
    end: int  # offset of the record that will be written next


class TopicLimits(NamedTuple):
    """The limits of a topic: bytes of a record, and how far its time may differ from the broker's clock."""

    max_bytes: int
    needs_key: bool = False
    before_ms: int = FOREVER_MS
    after_ms: int = FOREVER_MS

    @classmethod
    def of(cls, config: Mapping[str, str]) -> TopicLimits:
        """Read the limits from the configuration of a topic."""
        times = [FOREVER_MS, FOREVER_MS]
        if config.get("message.timestamp.type") != "LogAppendTime":  # then the broker sets the time
            either = config.get("message.timestamp.difference.max.ms", FOREVER_MS)  # until Kafka 3.6
            times = [int(config.get(f"message.timestamp.{side}.max.ms", either)) for side in ("before", "after")]
        return cls(int(config["max.message.bytes"]), "compact" in config.get("cleanup.policy", ""), *times)


class Cluster:
    """The brokers that the settings name. Calls raise KafkaException when they do not answer."""

    admin: AdminClient  # exists after `connect`

    def __init__(self, settings: BrokerFlags) -> None:
        self._settings = settings
        self._reader: Consumer | None = None  # only for the embedded broker
        self.has_controller = False  # the embedded broker has none, and supports only `partitions` and `create`

    def connect(self) -> None:
        """Open the admin client. Raises BrokerError, within START_TIMEOUT_S, when no broker answers."""
        self.admin, metadata = connect(self._settings)
        self.has_controller = metadata.controller_id in metadata.brokers

    def close(self) -> None:
        """Close the client that has to be closed."""
        if self._reader is not None:
            self._reader.close()

    def partitions(self, topics: Collection[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the number of partitions of the topics that exist, and their ids where the broker has ids."""
        if not self.has_controller:
            # Some brokers create a topic when a client asks about it; this consumer does not trigger that.
            if self._reader is None:
                self._reader = make_reader(self._settings)
            answers = {topic: self._reader.list_topics(topic, timeout=ANSWER_S).topics[topic] for topic in topics}
            return {topic: len(about.partitions) for topic, about in answers.items() if about.error is None}, {}
        existing, hidden = describe_topics(self.admin, topics)
        if hidden:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        partitions = {topic: len(about.partitions) for topic, about in existing.items()}
        ids = {topic: str(about.topic_id) for topic, about in existing.items()}
        return partitions, {topic: topic_id for topic, topic_id in ids.items() if topic_id != NO_ID}

    def create(self, topics: Mapping[str, Mapping[str, str]], count: int) -> dict[str, str]:
        """Create `topics`, by name with their configuration, with `count` partitions; return why some were refused."""
        if not topics:
            return {}
        if not self.has_controller:  # the embedded broker creates a topic when a producer asks for it
            for topic in topics:
                self.admin.list_topics(topic, timeout=ANSWER_S)
            return {}
        new = [NewTopic(topic, count, config=dict(config)) for topic, config in topics.items()]
        failed = _failures(self.admin.create_topics(new, request_timeout=START_TIMEOUT_S / 2))
        for topic in [topic for topic in topics if topic not in failed]:
            log.info(kv("topic_created", topic=topic, partitions=count))
        # With hundreds of partitions the answer takes longer than a start may wait for a broker that does not answer.
        created = (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
        return {topic: why.str() for topic, why in failed.items() if why.code() not in created}

    def grow(self, topics: Collection[str], count: int) -> dict[str, str]:
        """Give topics `count` partitions; return why some failed: another instance was faster, or not permitted."""
        if not topics:
            return {}
        new = [NewPartitions(topic, count) for topic in topics]
        failed = _failures(self.admin.create_partitions(new, request_timeout=ANSWER_S))
        return {topic: why.str() for topic, why in failed.items()}

    def configs(self, names: Collection[str], kind: ResourceType = ResourceType.TOPIC) -> dict[str, dict[str, str]]:
        """Return the configuration of topics (or of a broker), without those that this user may not read."""
        if not names:  # the client refuses an empty request
            return {}
        configs = {}
        resources = [ConfigResource(kind, name) for name in names]
        for resource, answer in self.admin.describe_configs(resources, request_timeout=3.0).items():
            try:
                configs[resource.name] = {name: entry.value for name, entry in answer.result().items()}
            except KafkaException as error:
                log.debug(kv("config_unavailable", of=resource.name, reason=error.args[0].str()))
        return configs

    def limits(self, topics: Collection[str]) -> dict[str, TopicLimits]:
        configs = self.configs(topics) if self.has_controller else {}
        return {topic: TopicLimits.of(config) for topic, config in configs.items()}

    def has_open_transaction(self, partition: TopicPartition) -> bool:
        """Return whether a partition has records of a transaction that is neither committed nor aborted."""
        place = partition.topic, partition.partition
        if (answer := self.ends([place]).get(place)) is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"the end of {place[0]}[{place[1]}] is not known"))
        return answer.readable < answer.end

    def ends(self, places: Collection[PartitionId]) -> dict[PartitionId, Ends]:
        """The ends of partitions, where the broker reports them."""
        levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        readable, end = (self.offsets(places, OffsetSpec.latest(), level) for level in levels)
        return {place: Ends(readable[place], end[place]) for place in readable.keys() & end.keys()}

    def offsets(self, *question: Any) -> dict[PartitionId, int]:
        """Return the offsets of `listed`."""
        return {place: answer.offset for place, answer in self.listed(*question).items()}

    def listed(
        self,
        places: Iterable[PartitionId],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[PartitionId, Any]:
        """Return offsets of partitions, where the broker answers, with the times of these records if spec is a time."""
        offsets = {}
        requests = {TopicPartition(*place): spec for place in places}
        answers = self.admin.list_offsets(requests, isolation_level=isolation, request_timeout=ANSWER_S)
        for partition, answer in answers.items():
            try:
                offsets[partition.topic, partition.partition] = answer.result()
            except KafkaException as error:
                log.debug(kv("offset_unknown", topic=partition.topic, reason=error.args[0].str()))
        return offsets


def _failures(answers: Mapping[str, Any]) -> dict[str, KafkaError]:
    """Return the errors of the requests that failed."""
    failed = {}
    for name, answer in answers.items():
        try:
            answer.result()
        except KafkaException as error:
            failed[name] = error.args[0]
    return failed


def describe_topics(admin: Any, topics: Collection[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return descriptions of the topics that exist, and the names of those that this user may not describe.

    Raises KafkaException.
    """
    # The client asks the broker that its metadata name as controller. This may be any broker, also one that hangs. New
    # metadata may name another broker, so fetch them before each new attempt.
    for _ in range(ATTEMPTS - 1):
        try:
            return _described(admin, topics)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TIMED_OUT:
                raise
            admin.list_topics(timeout=ANSWER_S)
    return _described(admin, topics)


def _described(admin: Any, topics: Collection[str]) -> tuple[dict[str, Any], frozenset[str]]:
    existing, hidden = {}, set()
    answers = admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=ATTEMPT_S
    )
    for topic, answer in answers.items():
        try:
            existing[topic] = answer.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                hidden.add(topic)
            elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return existing, frozenset(hidden)


# --- the group


def describe_group(settings: BrokerFlags, **options: Any) -> Any:
    """Return the broker's description of the group: members and, if requested, permissions. Raises KafkaException.

    The request is repeated if the coordinator is not ready, as for the first group of a new cluster.
    """
    deadline = time.monotonic() + GROUP_ANSWER_S
    while True:
        try:
            return _describe_group_once(settings, **options)
        except KafkaException as error:
            if error.args[0].code() not in NOT_READY or time.monotonic() >= deadline:
                raise
        time.sleep(GROUP_RETRY_S)


def _describe_group_once(settings: BrokerFlags, **options: Any) -> Any:
    """Ask once, with a client of its own: a client whose coordinator did not answer crashes the process when it is used
    again (https://github.com/confluentinc/librdkafka/issues/4605).
    """
    admin = make_admin(settings)
    answers = admin.describe_consumer_groups([settings.group], request_timeout=GROUP_ANSWER_S, **options)
    try:
        return answers[settings.group].result()
    finally:
        del admin, answers  # or the traceback of an error would keep the client alive


def count_members(settings: TopicFlags) -> int:
    """Return the number of members that read the input, or do not read yet: others may read another topic.

    Raises BrokerError when the broker does not answer.
    """
    try:
        members = describe_group(settings).members
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return 0
        what = f"the broker does not list the members of group {settings.group}"
        remedy = "check that the group coordinator answers and that this user may describe the group"
        raise broker_error(error, what, remedy) from None
    read = [{assigned.topic for assigned in member.assignment.topic_partitions} for member in members]
    return sum(not topics or settings.topic in topics for topics in read)
