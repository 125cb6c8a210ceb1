"""A delivery over the broker in memory, for tests of delivery."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from memory_broker import MemoryBroker, MemoryConsumer
from memory_producer import Produced

from fomo_stream.kafka.delivery.at_least_once import AtLeastOnce
from fomo_stream.kafka.delivery.base import Outcome
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce
from fomo_stream.kafka.delivery.output import Output
from fomo_stream.partition.record import Record

LONG_S = 10.0  # no call takes so long


class Setup:
    """A delivery over a broker in memory, and the member of the group that commits."""

    def __init__(self, kind: type[ExactlyOnce] | type[AtLeastOnce] = ExactlyOnce, **options: Any) -> None:
        self.broker = MemoryBroker()
        self.broker.refuses = refuses_by_name
        name = "instance" if kind is ExactlyOnce else None
        self.delivery = kind(partial(self.broker.producer, name), **{"limits": {}, **options})
        self.member = MemoryConsumer(self.broker)
        if isinstance(self.delivery, ExactlyOnce):
            self.delivery.start(1.0)
        else:
            self.member.on_commit = self.delivery.offsets_committed

    @property
    def as_member(self) -> tuple[MemoryConsumer, Any]:
        """The member and its membership of now, to commit with."""
        return self.member, self.member.consumer_group_metadata()

    def send(self, value: bytes, number: int = 0, topic: str = "out") -> None:
        self.delivery.send(output(value, number, topic))

    def proceed(self) -> Outcome:
        while (outcome := self.delivery.proceed(LONG_S)) is Outcome.PENDING:
            pass
        return outcome

    def commit(self, position: int = 1) -> Outcome:
        outcome = self.delivery.commit([TopicPartition("t", 0, position)], *self.as_member)
        return self.proceed() if outcome is Outcome.PENDING else outcome

    def stay_pending(self, position: int = 1) -> None:
        """Begin a commit that gets no answer because the broker is down."""
        outcomes = [self.delivery.commit([TopicPartition("t", 0, position)], *self.as_member)]
        outcomes += [self.delivery.proceed(LONG_S) for _ in range(2)]
        assert set(outcomes) == {Outcome.PENDING}
        assert self.delivery.trouble.startswith("nothing can be committed")

    def out(self) -> list[bytes | None]:
        return self.broker.values("out")


def refuses_by_name(produced: Produced) -> int | None:
    """The values of records that the broker never accepts say so."""
    value = produced.value or b""
    if value.startswith(b"large"):
        return int(KafkaError.MSG_SIZE_TOO_LARGE)
    if value.startswith(b"denied"):
        return int(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return int(KafkaError.INVALID_TIMESTAMP) if produced.stamp < 0 else None


def record(number: int, topic: str = "t") -> Record:
    return Record(topic, 0, number, None, None, b"", [])


def output(value: bytes, number: int = 0, topic: str = "out") -> Output:
    return Output(topic, None, value, [], 0, source=record(number))


Kind = type[ExactlyOnce] | type[AtLeastOnce]
both = pytest.mark.parametrize("kind", [ExactlyOnce, AtLeastOnce])
