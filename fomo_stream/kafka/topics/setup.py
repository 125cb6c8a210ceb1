"""Prepare the topics before an instance joins its group: check them, create missing ones, reset the state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import BrokerError, TopicError
from fomo_stream.kafka.broker.clients import START_TIMEOUT_S, broker_error, broker_errors, range_now
from fomo_stream.kafka.broker.cluster import Cluster, count_members
from fomo_stream.kafka.broker.permissions import check_permissions, service_needs
from fomo_stream.kafka.topics.checks import (
    RESULT_BYTES,
    STATE_TOPIC_CONFIG,
    create_command,
    feedback_topic,
    input_topic,
    state_topic,
)
from fomo_stream.kafka.topics.watch import TopicWatch
from fomo_stream.logs import kv
from fomo_stream.settings.service_settings import ServiceSettings

log = logging.getLogger(__name__)

CREATED_S = 30.0  # the wait for topics that the broker has agreed to create


class TopicSetup:
    """Check and create the topics of a service.

    `begin` handles the topics needed for the agreement, `finish` those named by the agreed settings.
    """

    def __init__(self, settings: ServiceSettings, watch: TopicWatch) -> None:
        self._settings = settings
        self._watch = watch
        self._cluster: Cluster = watch.cluster

    def begin(self, check_owner: Callable[[], object] = lambda: None) -> None:
        """Check the input topic, and create the state topic if it is missing; with --reset-state, delete it first.

        check_owner: raises an error if another group or input owns the state topic. Raises BrokerError, within about
        10 s, when the broker does not answer, a topic is missing, or the state topic is not compacted.
        """
        settings, watch, cluster = self._settings, self._watch, self._cluster
        cluster.connect()
        if cluster.has_controller:
            check_permissions(settings, cluster.admin, service_needs(settings))
        deadline = time.monotonic() + START_TIMEOUT_S
        answer = watch.poll()
        while answer.trouble and watch.is_temporary and time.monotonic() < deadline:  # for example during an election
            answer = watch.poll()
        if answer.trouble:
            remedy = f"check that topic {settings.topic} may be described and read"
            if watch.is_temporary:
                remedy = "nothing is lost; check that all brokers run, and restart the instance"
            raise BrokerError(f"the broker at {settings.bootstrap} does not list the topics ({answer.trouble})", remedy)
        input_topic(settings, answer.partitions).require()
        if settings.reset_state:
            if settings.state_topic in cluster.partitions([settings.state_topic])[0]:
                check_owner()
            self._reset_state()
        watch.topics = (*watch.topics, settings.state_topic)
        self._create_missing({settings.state_topic: STATE_TOPIC_CONFIG})
        with broker_errors(f"the configuration of topic {settings.state_topic} is not known"):
            config = cluster.configs([settings.state_topic]) if cluster.has_controller else {}
        state_topic(settings, config.get(settings.state_topic, {})).require()

    def finish(self, is_known: bool) -> None:
        """Create the output topics and the feedback topic if they are missing.

        is_known: the group has used these topics before, so the feedback topic may grow to the input's size.
        Raises TopicError when one is missing, or the feedback topic has another number of partitions than the input.
        """
        settings = self._settings
        inherited = self._inherited_config()
        topics = [*settings.outputs, settings.feedback]
        self._create_missing({topic: inherited for topic in topics if topic is not None})
        if is_known:
            self._watch.grow()
        feedback_topic(settings, self._watch.answer.partitions).require()
        self._watch.poll_limits()

    def _create_missing(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        """Create these topics if they are missing, with their configuration and as many partitions as the input has."""
        watch = self._watch
        watch.poll()
        count = watch.answer.partitions.get(self._settings.topic, 1)
        missing = [topic for topic in topics if topic not in watch.answer.partitions]
        reasons = self._cluster.create({topic: topics[topic] for topic in missing}, count)
        deadline = time.monotonic() + (START_TIMEOUT_S / 2 if reasons else CREATED_S)
        while missing and time.monotonic() < deadline:
            watch.poll()
            missing = [topic for topic in missing if topic not in watch.answer.partitions]
            if watch.wait(0.1 if missing else 0):
                break
        if missing:
            topic = missing[0]
            what = (
                f"topic {topic} is missing and could not be created ({reasons.get(topic, 'it did not appear in time')})"
            )
            raise TopicError(what, f"create it: {create_command(self._settings, topic, count)}")

    def _inherited_config(self) -> dict[str, str]:
        """Return the input's retention and its limits on times and record sizes, with room for the result.

        It is empty if they cannot be read.
        Outputs carry the input's timestamps: a shorter retention would delete them as soon as they are written.
        """
        topic, cluster = self._settings.topic, self._cluster
        config = cluster.configs([topic]).get(topic) if cluster.has_controller else None
        if config is None:  # not permitted: the broker's defaults apply
            return {}
        limit = int(config["max.message.bytes"]) + RESULT_BYTES
        same = ("retention.ms", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
        return {"max.message.bytes": str(limit), **{name: config[name] for name in same if name in config}}

    def _reset_state(self) -> None:
        """Delete the state topic, which is then created again. Raises BrokerError while the group has members."""
        settings, admin = self._settings, self._cluster.admin
        members = count_members(settings) if self._cluster.has_controller else 0
        if members:
            raise BrokerError(
                f"--reset-state: group {settings.group} has {members} members, which would write their state again",
                "stop them first (one that was killed leaves when its session times out)",
            )
        topic = settings.state_topic
        try:
            admin.delete_topics([topic], request_timeout=START_TIMEOUT_S)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise broker_error(error, f"--reset-state: topic {topic} cannot be deleted") from None
        deadline = time.monotonic() + START_TIMEOUT_S
        while topic in admin.list_topics(timeout=START_TIMEOUT_S).topics and time.monotonic() < deadline:
            self._watch.wait(0.1)
        log.warning(kv("state_reset", topic=topic, effect="every partition warms up again"))


def start_at_latest(consumer: Consumer, topic: str, partitions: int) -> None:
    """Commit the current end of every partition for a group that has no offsets at all yet.

    Called before joining. If another instance has joined, the broker rejects the commit. That is fine: it has already
    set the start.
    """
    every = [TopicPartition(topic, number) for number in range(partitions)]
    try:
        if any(committed.offset != OFFSET_INVALID for committed in consumer.committed(every, timeout=START_TIMEOUT_S)):
            return
        for partition in every:
            partition.offset = range_now(consumer, partition, START_TIMEOUT_S)[1]
        consumer.commit(offsets=every, asynchronous=False)
        log.info(kv("start_at_latest", topic=topic, partitions=partitions))
    except KafkaException as error:
        refused = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
        if error.args[0].code() not in refused:
            what = f"the start of group offsets on {topic} could not be committed"
            raise broker_error(error, what, "check that the group may be written, or use --start earliest") from None
