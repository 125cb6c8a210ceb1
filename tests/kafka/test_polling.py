"""Records are taken from a consumer as they come: in order, and never more than can be handled quickly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from fomo_stream.kafka.embedded_broker import EmbeddedBroker
from fomo_stream.kafka.polling import MOST_AT_ONCE, Poller

N = 2000
LONG_S = 10.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker with N records in one partition."""
    with EmbeddedBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(N):
            producer.produce("t", str(number).encode(), partition=0)
        assert producer.flush(LONG_S) == 0
        yield broker.bootstrap


@pytest.fixture
def poller(bootstrap: str) -> Iterator[Poller]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    yield Poller(consumer, seconds=1.0)
    consumer.close()


def take(poller: Poller, seconds: float) -> list[bytes | None]:
    """The values of the next messages, whose handling takes so long."""
    messages = poller.poll(LONG_S)
    poller.handled(len(messages), seconds)
    return [message.value() for message in messages]


def test_all_records_come_once_and_in_order(poller: Poller) -> None:
    found: list[bytes | None] = []
    while len(found) < N:
        values = take(poller, 0.0)
        assert 1 <= len(values) <= MOST_AT_ONCE
        found += values
    assert found == [str(number).encode() for number in range(N)]
    assert poller.poll(0.0) == []


def test_more_are_taken_while_they_are_handled_quickly_and_fewer_when_not(poller: Poller) -> None:
    quick = [len(take(poller, 0.5)) for _ in range(9)]
    assert quick[0] == 1
    assert max(quick) > 1
    assert all(later <= 2 * max(quick[:i], default=1) for i, later in enumerate(quick) if i)
    slow = [len(take(poller, 2.0)) for _ in range(12)]
    assert slow[-1] == 1


def test_a_single_record_does_not_wait_for_others(bootstrap: str, poller: Poller) -> None:
    taken = 0
    while taken < N:
        taken += len(take(poller, 0.0))  # many are wanted now
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("t", b"alone", partition=0)
    assert take(poller, 0.0) == [b"alone"]
    producer.flush(LONG_S)
