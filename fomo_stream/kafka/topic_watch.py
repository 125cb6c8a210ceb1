"""The topics of the service as the broker shows them, again and again: whether they exist, and how large they are."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, OffsetSpec, ResourceType

from fomo_stream.kafka.clients import CONNECT_S, connect, make_reader
from fomo_stream.logs import Throttle, kv
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)

START_TIMEOUT_S = CONNECT_S
WATCH_INTERVAL_S = 3.0
ANSWER_S = 5.0
OFFSETS_EVERY = 10  # looks, at one of which the first offsets are asked for


@dataclass(frozen=True)
class TopicsSeen:
    """What the broker said last about the topics of the service."""

    partitions: Mapping[str, int]  # number of partitions of each topic that exists
    topic_ids: Mapping[str, str]  # changes when a topic is deleted and created again; empty where unsupported
    trouble: str = ""  # why the broker could not be asked; empty when it answered
    first_offsets: Mapping[int, int] = field(default_factory=dict)  # kept by the input, by partition; where needed

    def remembering(self, before: TopicsSeen) -> TopicsSeen:
        """The same with the ids known last of topics that are missing now."""
        return replace(self, topic_ids={**before.topic_ids, **self.topic_ids})

    def has_new(self, topic: str, before: TopicsSeen) -> bool:
        """Whether `topic` exists and was created again since `before`.

        Its id tells, as a broker may lose sight of a topic for a moment; without ids, that it was missing.
        """
        old, new = before.topic_ids.get(topic), self.topic_ids.get(topic)
        is_another = old != new if old and new else topic not in before.partitions
        return topic in self.partitions and is_another

    def lacking(self, topic: str, other: str) -> int:
        """How many partitions `topic` has fewer than `other`, if both exist."""
        return max(0, self.partitions.get(other, 0) - self.partitions.get(topic, 1 << 31))


class TopicWatch:
    """Asks the broker for its topics, once it is connected every few seconds in a thread.

    The answers tell that the broker is gone, that a topic was deleted or created again, and how many partitions it has.
    The state topic and the feedback topic grow with the input.
    """

    admin: AdminClient  # once it is connected

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        # A consumer asks for a topic without creating it, on brokers that create what they are asked for.
        self._asker = make_reader(settings)
        self.may_pass = False  # the trouble seen last
        self.has_controller = False  # the embedded broker has none, and cannot do what is asked of it
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fomo-topic-watch", daemon=True)
        named = (settings.topic, settings.out, settings.dead_letters, settings.feedback)
        self.topics: tuple[str, ...] = tuple(topic for topic in named if topic is not None)
        self.seen = TopicsSeen({}, {})
        self._throttle = Throttle()

    def connect(self) -> None:
        """Open the admin client. Raises BrokerError, within START_TIMEOUT_S, when no broker answers."""
        self.admin, metadata = connect(self._settings)
        self.has_controller = metadata.controller_id in metadata.brokers

    def start(self) -> None:
        """Look at the topics again and again from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the clients; what waits for an answer is left behind."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(1.0)
        if not self._thread.is_alive():
            self._asker.close()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it is stopped."""
        self._stopped.wait(seconds)

    def look(self) -> TopicsSeen:
        """Ask now; `seen` is the answer from then on."""
        try:
            self.seen = self._describe() if self.has_controller else self._list()
        except KafkaException as error:
            self.may_pass = error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
            self.seen = replace(self.seen, trouble=error.args[0].str())
        return self.seen

    def _watch(self) -> None:
        for look in itertools.count():
            if self._stopped.wait(WATCH_INTERVAL_S):
                return
            try:
                self.look()
                self.grow()
                if look % OFFSETS_EVERY == 0:
                    self._ask_first_offsets()
            except Exception as error:  # else nobody would hear of it, and nothing be seen any more
                log.exception(kv("topics_not_seen", reason=error))
                self.seen = replace(self.seen, trouble=str(error))

    def _describe(self) -> TopicsSeen:
        partitions, topic_ids = {}, {}
        answers = self.admin.describe_topics(TopicCollection(list(self.topics)), request_timeout=ANSWER_S)
        for topic, answer in answers.items():
            try:
                description = answer.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                partitions[topic] = len(description.partitions)
                topic_ids[topic] = str(description.topic_id)
        return self._seen_as(partitions, topic_ids)

    def _list(self) -> TopicsSeen:
        partitions = {}
        for topic in self.topics:
            found = self._asker.list_topics(topic, timeout=ANSWER_S).topics[topic]
            if found.error is None:
                partitions[topic] = len(found.partitions)
        return self._seen_as(partitions, {})

    def _seen_as(self, partitions: Mapping[str, int], topic_ids: Mapping[str, str]) -> TopicsSeen:
        """What was learned of the input's offsets is of no use when that is another topic."""
        topic, before = self._settings.topic, self.seen
        is_same = topic in partitions and topic_ids.get(topic) == before.topic_ids.get(topic)
        return TopicsSeen(partitions, topic_ids, first_offsets=before.first_offsets if is_same else {})

    def grow(self) -> None:
        """Give the state topic and the feedback topic as many partitions as the input; else it is left for later."""
        topic, seen = self._settings.topic, self.seen
        own = [self._settings.state_topic, self._settings.feedback]
        small = [name for name in own if name is not None and seen.lacking(name, topic)]
        if not small or not self.has_controller:
            return
        count = seen.partitions[topic]
        new = [NewPartitions(name, count) for name in small]
        reasons = {}
        for name, answer in self.admin.create_partitions(new, request_timeout=ANSWER_S).items():
            try:
                answer.result()
            except KafkaException as error:  # another instance was faster, or it is not permitted
                reasons[name] = error.args[0].str()
        self.wait(0.5)
        self.look()
        for name in small:
            if not self.seen.lacking(name, topic):
                log.info(kv("topic_grown", topic=name, partitions=count))
            elif name in reasons and self._throttle.allow(name) is not None:
                log.warning(kv("topic_not_grown", topic=name, partitions=count, reason=reasons[name]))

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The configuration of those topics of which the broker tells it."""
        found = {}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        for resource, answer in self.admin.describe_configs(resources, request_timeout=3.0).items():
            try:
                found[resource.name] = {name: entry.value for name, entry in answer.result().items()}
            except KafkaException as error:
                log.debug(kv("configuration_not_told", topic=resource.name, reason=error.args[0].str()))
        return found

    def has_open_transaction(self, partition: TopicPartition) -> bool:
        """Whether something was written to a partition of which it is not known yet whether it is committed."""
        ends = []
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            wanted = {partition: OffsetSpec.latest()}
            asked = self.admin.list_offsets(wanted, isolation_level=isolation, request_timeout=ANSWER_S)
            ends.append(asked[partition].result().offset)
        return bool(ends[0] < ends[1])

    def _ask_first_offsets(self) -> None:
        """Learn which records the input still keeps."""
        topic, seen = self._settings.topic, self.seen
        numbers = range(seen.partitions.get(topic, 0))
        if not self.has_controller or not numbers:
            return
        wanted = {TopicPartition(topic, number): OffsetSpec.earliest() for number in numbers}
        offsets = dict(seen.first_offsets)
        for partition, answer in self.admin.list_offsets(wanted, request_timeout=ANSWER_S).items():
            try:
                offsets[partition.partition] = answer.result().offset
            except KafkaException as error:
                log.debug(kv("first_offset_unknown", topic=topic, reason=error.args[0].str()))
        if self.seen.topic_ids == seen.topic_ids:
            self.seen = replace(self.seen, first_offsets=offsets)
