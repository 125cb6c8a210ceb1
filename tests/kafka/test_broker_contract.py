"""The broker in memory and a real one keep the same promises, as far as delivery and restoring rely on them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from brokers import Broker, wait_for
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from memory_broker import MemoryBroker, MemoryConsumer, MemoryReader, Produced

from fomo_stream.kafka.broker.clients import make_consumer, make_producer, make_reader
from fomo_stream.settings.service_settings import ServiceSettings

LIMIT = 2000  # bytes that a record of the topic may have
WAIT_S = 20.0


class InMemory:
    """Clients of the broker in memory."""

    topic = "t"

    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self._broker.refuses = self._refuses

    @staticmethod
    def _refuses(produced: Produced) -> int | None:
        return int(KafkaError.MSG_SIZE_TOO_LARGE) if len(produced.value or b"") > LIMIT else None

    def producer(self, name: str) -> Any:
        return self._broker.producer(name)

    def reader(self) -> Any:
        return MemoryReader(self._broker)

    def member(self) -> Any:
        """The membership of a consumer."""
        return MemoryConsumer(self._broker).consumer_group_metadata()

    def former_member(self) -> Any:
        """The membership of a consumer that has left the group."""
        member = MemoryConsumer(self._broker, "former").consumer_group_metadata()
        self._broker.generations["former"] = member.generation + 1
        return member


class Real:
    """Clients of a real broker, configured as the service has them."""

    def __init__(self, broker: Broker) -> None:
        self.topic = f"contract-{uuid.uuid4().hex[:8]}"
        broker.create_topic(self.topic, 2, config={"max.message.bytes": str(LIMIT)})
        self._settings = ServiceSettings(topic=self.topic, bootstrap=broker.bootstrap, group=self.topic)
        # So that the group has a coordinator: without one a call may hang (librdkafka issue 5456).
        assert broker.committed(self.topic, self.topic) == 0

    def producer(self, name: str) -> Any:
        return make_producer(self._settings, f"{self.topic}-{name}", **{"linger.ms": 200})  # one batch for each call

    def reader(self) -> Any:
        return make_reader(self._settings)

    def member(self) -> Any:
        return make_reader(self._settings).consumer_group_metadata()

    def former_member(self) -> Any:
        consumer = make_consumer(self._settings)
        consumer.subscribe([self.topic])
        wait_for(lambda: (consumer.poll(0.1), consumer.assignment())[1], "the consumer to be a member")
        member = consumer.consumer_group_metadata()
        consumer.close()
        return member


class Stage:
    """One topic with two partitions, and what tests do with it."""

    def __init__(self, clients: InMemory | Real) -> None:
        self.clients = clients
        self.errors: list[tuple[bytes, KafkaError | None]] = []  # delivery reports

    def start(self, name: str = "a") -> Any:
        producer = self.clients.producer(name)
        producer.init_transactions(WAIT_S)
        return producer

    def produce(self, producer: Any, *values: bytes, number: int = 0) -> None:
        for value in values:
            producer.produce(
                self.clients.topic,
                value=value,
                key=None,
                headers=[],
                partition=number,
                timestamp=0,
                on_delivery=lambda error, _, value=value: self.errors.append((value, error)),
            )

    def commit(self, producer: Any, *values: bytes, offset: int | None = None, number: int = 0) -> None:
        producer.begin_transaction()
        self.produce(producer, *values, number=number)
        if offset is not None:
            producer.send_offsets_to_transaction(self.offsets(offset), self.clients.member(), WAIT_S)
        producer.commit_transaction(WAIT_S)

    def offsets(self, offset: int) -> list[TopicPartition]:
        return [TopicPartition(self.clients.topic, 0, offset)]

    def read(self, number: int = 0) -> tuple[list[bytes], list[int], int]:
        """Values and offsets of the committed records of a partition, and the offset of the end that was reported."""
        reader = self.clients.reader()
        reader.assign([TopicPartition(self.clients.topic, number, 0)])
        found: list[Any] = []
        with closing(reader):
            while not found or found[-1].error() is None:
                found += wait_for(lambda: reader.consume(1, 0.2), "the next record, or the end")
        *records, end = found
        assert end.error().code() == KafkaError._PARTITION_EOF
        return [one.value() for one in records], [one.offset() for one in records], end.offset()

    def awaits(self, *values: bytes, number: int = 0) -> None:
        """These are committed, and no others; a real broker marks them as committed a moment after the commit."""
        wait_for(lambda: len(self.read(number)[0]) >= len(values), f"{len(values)} records")
        assert self.read(number)[0] == list(values)

    def committed(self) -> int:
        with closing(self.clients.reader()) as reader:
            return int(reader.committed(self.offsets(-1), timeout=WAIT_S)[0].offset)


@pytest.fixture(params=["memory", "real"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    if request.param == "memory":
        yield Stage(InMemory())
        return
    broker: Broker = request.getfixturevalue("broker")
    if not broker.is_kafka:
        pytest.skip("the embedded broker has no transactions")
    yield Stage(Real(broker))


def error_of(call: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaException) as caught:
        call()
    error: KafkaError = caught.value.args[0]
    return error


def test_records_and_offsets_of_a_transaction_appear_together(stage: Stage) -> None:
    producer = stage.start()
    producer.begin_transaction()
    stage.produce(producer, b"1", b"2")
    assert producer.flush(WAIT_S) == 0
    producer.send_offsets_to_transaction(stage.offsets(5), stage.clients.member(), WAIT_S)
    assert stage.read()[0] == []
    reader = stage.clients.reader()
    # The answer about the group's offset waits for the transaction that may change it.
    error_of(lambda: reader.committed(stage.offsets(-1), timeout=0.5))
    reader.close()
    producer.commit_transaction(WAIT_S)
    stage.awaits(b"1", b"2")
    assert stage.committed() == 5
    assert stage.errors == [(b"1", None), (b"2", None)]


def test_an_aborted_transaction_leaves_nothing_and_records_that_wait_to_be_sent_are_reported(stage: Stage) -> None:
    producer = stage.start()
    producer.begin_transaction()
    stage.produce(producer, b"aborted")
    assert producer.flush(WAIT_S) == 0
    producer.send_offsets_to_transaction(stage.offsets(5), stage.clients.member(), WAIT_S)
    stage.produce(producer, b"waits")
    producer.abort_transaction(WAIT_S)
    producer.poll(0)
    assert [(value, error is not None) for value, error in stage.errors] == [(b"aborted", False), (b"waits", True)]
    stage.commit(producer, b"kept")
    stage.awaits(b"kept")
    assert stage.committed() < 0


def test_a_second_producer_of_a_name_fences_the_first_one_and_aborts_its_transaction(stage: Stage) -> None:
    first = stage.start()
    first.begin_transaction()
    stage.produce(first, b"1")
    assert first.flush(WAIT_S) == 0
    second = stage.start()
    assert error_of(lambda: first.commit_transaction(WAIT_S)).fatal()
    assert error_of(lambda: first.begin_transaction()).fatal()
    stage.commit(second, b"2", offset=7)
    stage.awaits(b"2")
    assert stage.committed() == 7


def test_offsets_of_a_consumer_that_left_the_group_are_refused_and_the_transaction_must_be_aborted(
    stage: Stage,
) -> None:
    producer, former = stage.start(), stage.clients.former_member()
    producer.begin_transaction()
    stage.produce(producer, b"1")
    error = error_of(lambda: producer.send_offsets_to_transaction(stage.offsets(5), former, WAIT_S))
    assert error.code() in (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID)
    assert error.txn_requires_abort()
    assert error_of(lambda: producer.commit_transaction(WAIT_S)).txn_requires_abort()
    producer.abort_transaction(WAIT_S)
    stage.commit(producer, b"2", offset=6)
    stage.awaits(b"2")
    assert stage.committed() == 6


def test_a_batch_with_a_record_that_is_too_large_is_refused_as_a_whole(stage: Stage) -> None:
    producer = stage.start()
    producer.begin_transaction()
    stage.produce(producer, b"small", b"x" * (LIMIT + 1000))
    producer.flush(WAIT_S)
    assert {error and error.code() for _, error in stage.errors} == {KafkaError.MSG_SIZE_TOO_LARGE}
    assert len(stage.errors) == 2
    assert error_of(lambda: producer.commit_transaction(WAIT_S)).txn_requires_abort()
    producer.abort_transaction(WAIT_S)
    stage.commit(stage.start(), b"small")  # a real broker misses the numbers of the batch in the old one's sequence
    stage.awaits(b"small")


def test_a_partition_ends_where_the_broker_says(stage: Stage) -> None:
    reader = stage.clients.reader()
    place = TopicPartition(stage.clients.topic, 0)
    assert reader.get_watermark_offsets(place, timeout=WAIT_S) == (0, 0)
    assert stage.read() == ([], [], 0)
    stage.commit(stage.start(), b"1", b"2", b"3")
    stage.awaits(b"1", b"2", b"3")
    _, offsets, end = stage.read()
    assert offsets == [0, 1, 2]
    assert end >= 3  # the mark of the commit may have an offset of its own
    assert reader.get_watermark_offsets(place, timeout=WAIT_S) == (0, end)
    reader.close()
