"""Writes the scored records of a replay to a topic of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from fomo_stream.errors import BrokerError, NotPermittedError, TopicError
from fomo_stream.kafka.broker.clients import connect, make_producer
from fomo_stream.kafka.broker.failures import NOT_PERMITTED
from fomo_stream.kafka.dead_letters import without_attempts
from fomo_stream.settings.broker import BrokerFlags

STALLED_S = 60  # to wait for an acknowledgement
ROOM_S = 0.1  # to wait for room in the producer's queue


def partitions_of(settings: BrokerFlags, topic: str) -> int:
    """How many partitions the topic has. Raises TopicError if it does not exist, and BrokerError."""
    client, found = connect(settings)
    about = found.topics.get(topic)
    if about is None or about.error is not None:
        raise TopicError(
            f"there is no topic {topic} on {settings.bootstrap}, or it may not be described; check --scores-topic, or "
            f"create it: kafka-topics.sh --bootstrap-server {settings.bootstrap} --create --topic {topic} "
            "--partitions N"
        )
    if "compact" in _cleanup_policy(client, topic):
        raise TopicError(
            f"topic {topic} is compacted, so it would lose records with the same key, and it may be the state of a "
            "group; name another one with --scores-topic"
        )
    return len(about.partitions)


def _cleanup_policy(admin: Any, topic: str) -> str:
    """The topic's cleanup.policy; empty if the broker does not say."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        found = admin.describe_configs([resource], request_timeout=3.0)[resource].result()
    except KafkaException:
        return ""
    return str(found["cleanup.policy"].value) if "cleanup.policy" in found else ""


class ScoredTopic:
    """Sends the scored records of one partition, in order, each once; the broker acknowledges every one.

    partition: of the records; count: partitions of the topic; same: whether the input has as many, so that records keep
    their partition. Else they go by key, and those without a key to one partition.
    """

    def __init__(self, settings: BrokerFlags, topic: str, partition: int, count: int, same: bool) -> None:
        self._topic = topic
        self._with_key = partition if same else -1
        self._without_key = partition if same else partition % count
        self._refused: BrokerError | None = None
        options: dict[str, Any] = {"acks": "all", "message.timeout.ms": STALLED_S * 1000}
        self._producer = make_producer(settings, None, **options)

    def send(
        self,
        key: bytes | None,
        value: bytes,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp: int | None,
    ) -> None:
        """Send one record. Raises BrokerError if the broker has refused this or an earlier one."""
        record: dict[str, Any] = {
            "key": key,
            "value": value,
            "headers": without_attempts(list(headers)),
            "partition": self._with_key if key is not None else self._without_key,
            "timestamp": timestamp if timestamp is not None and timestamp > 0 else 0,
        }
        while True:
            self._check()
            try:
                self._producer.produce(self._topic, on_delivery=self._delivered, **record)
                self._producer.poll(0)
                return
            except BufferError:  # the queue is full
                self._producer.poll(ROOM_S)
            except KafkaException as error:
                raise self._error(error.args[0]) from None

    def flush(self) -> None:
        """Wait until the broker has acknowledged all records. Raises BrokerError if it does not."""
        left = self._producer.flush(STALLED_S)
        self._check()
        if left:
            raise BrokerError(f"the broker does not acknowledge records of topic {self._topic}; check that it runs")

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None and self._refused is None:
            self._refused = self._error(error)

    def _check(self) -> None:
        if self._refused is not None:
            raise self._refused

    def _error(self, error: KafkaError) -> BrokerError:
        kind = NotPermittedError if error.code() in NOT_PERMITTED else BrokerError
        return kind(f"topic {self._topic} does not take a scored record ({error.str()}); check that topic, or its ACLs")
