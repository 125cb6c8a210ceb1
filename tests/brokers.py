"""A broker to test against, with the client calls that tests need.

Which broker: `TEST_BOOTSTRAP` names a running one; else `KAFKA_HOME` holds an Apache Kafka distribution with
`bin/kafka-start DIR PORT`, which is started on free ports; else librdkafka's embedded cluster is used.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from fomo_stream.demo.embedded_broker import EmbeddedBroker

QUIET = {"log_level": 0}


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0, every: float = 0.05) -> Any:
    """The first true value of `condition`, looked at `every` so many seconds; fails, saying `what`, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {seconds:g} s still waiting for {what}"
        time.sleep(every)
    return value


def free_ports(count: int = 2) -> int:
    """A port that is free, and so are those after it: `count` in all.

    Below the ports that systems give to outgoing connections (from 32768 on): one of those can take a port of that
    range at any moment before the server is there.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768 - count)
        with ExitStack() as stack:
            try:
                for number in range(port, port + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
            return port


class Broker:
    """A broker by its address, with the client calls that tests need."""

    is_kafka = True  # as opposed to embedded: topics can be created, deleted and grown
    process_id: int | None = None  # of a process of our own

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @property
    def config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, **QUIET}

    @cached_property
    def admin(self) -> Any:
        return AdminClient(self.config)

    def create_topic(self, topic: str, partitions: int = 4, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; on the embedded broker all have 4 partitions."""
        if self.is_kafka:
            new = NewTopic(topic, partitions, config=dict(config or {}))
            self.admin.create_topics([new])[topic].result(20)
        else:
            self.admin.list_topics(topic, timeout=10)
        wait_for(lambda: self.partitions(topic), f"topic {topic}")

    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(20)
        wait_for(lambda: not self.partitions(topic), f"topic {topic} to be gone")

    def grow_topic(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)
        wait_for(lambda: self.partitions(topic) == partitions, f"{partitions} partitions")

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> None:
        """Delete the records of each (topic, partition) before an offset."""
        asked = self.admin.delete_records([TopicPartition(*place, offset) for place, offset in before.items()])
        for answer in asked.values():
            answer.result(20)

    def partitions(self, topic: str) -> int:
        """Number of partitions; 0 when there is no such topic."""
        found = self.admin.list_topics(timeout=10).topics.get(topic)
        return 0 if found is None or found.error else len(found.partitions)

    def produce(
        self,
        topic: str,
        records: Iterable[Any],
        keys: Iterable[str] | None = None,
        timestamps: Iterable[int] | None = None,
        **options: Any,
    ) -> None:
        """Write records: dicts as JSON, bytes and None as they are. Record i has key `k{i % 16}` unless given."""
        names = (f"k{i % 16}" for i in itertools.count()) if keys is None else iter(keys)
        times = itertools.repeat(options.pop("timestamp", 0)) if timestamps is None else iter(timestamps)
        failures: list[Any] = []
        producer = Producer({**self.config, "message.max.bytes": 32 << 20, "enable.idempotence": True})
        producer.list_topics(topic, timeout=10)  # an idempotent producer that is not connected yet waits half a second
        for record in records:
            value = json.dumps(record) if isinstance(record, dict) else record
            producer.produce(
                topic,
                **{"key": next(names), "value": value, "timestamp": next(times), **options},
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(60) == 0, "records were not delivered"
        assert not failures, failures[0]

    def read(self, topic: str, at_least: int = 0, seconds: float = 60.0) -> list[Any]:
        """Every message of a topic, in order within a partition; waits until there are `at_least` so many."""
        quick = {"enable.partition.eof": True, "fetch.wait.max.ms": 20, "auto.offset.reset": "earliest"}
        consumer = Consumer({**self.config, "group.id": "test-reader", **quick})
        count = wait_for(lambda: self.partitions(topic), f"topic {topic}", seconds)
        consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
        messages: list[Any] = []
        ended: set[int] = set()
        deadline = time.monotonic() + seconds
        try:
            while len(messages) < at_least or len(ended) < count:
                assert time.monotonic() < deadline, f"{len(messages)} of {at_least} messages in {topic}"
                message = consumer.poll(0.2)
                if message is None:
                    continue
                if message.error() is None:
                    messages.append(message)
                    ended.discard(message.partition())
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        finally:
            consumer.close()
        return messages

    def ends(self, topic: str, committed: bool) -> list[int]:
        """The end of each partition; committed: before the first open transaction."""
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        every = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(self.partitions(topic))}
        asked = self.admin.list_offsets(every, isolation_level=isolation)
        return [asked[place].result(20).offset for place in every]

    def wait_for_transactions(self, topic: str) -> None:
        """Wait until no transaction on a topic is open."""
        wait_for(lambda: self.ends(topic, True) == self.ends(topic, False), f"transactions on {topic} to end")

    def members(self, group: str) -> dict[str, set[int]]:
        """The partitions of every member of a group, by its instance id."""
        described = self.admin.describe_consumer_groups([group])[group].result(20)
        return {
            member.group_instance_id: {one.partition for one in member.assignment.topic_partitions}
            for member in described.members
        }

    def committed(self, group: str, topic: str) -> int:
        """Sum over partitions of the group's committed offsets."""
        consumer = Consumer({**self.config, "group.id": group})
        every = [TopicPartition(topic, number) for number in range(self.partitions(topic))]

        def answer() -> list[Any] | None:
            try:
                return list(consumer.committed(every, timeout=10))
            except KafkaException as error:
                if error.args[0].code() not in (KafkaError.NOT_COORDINATOR, KafkaError._WAIT_COORD):
                    raise
                return None  # the coordinator is just moving, or the group is new

        try:
            return sum(max(0, found.offset) for found in wait_for(answer, f"the offsets of {group}"))
        finally:
            consumer.close()


class Embedded(Broker):
    """librdkafka's in-process cluster."""

    is_kafka = False


class Kafka(Broker):
    """An Apache Kafka process of our own, which can be killed and restarted on the same data."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._folder = Path(tempfile.mkdtemp(prefix="fomo-kafka-"))
        self._port = free_ports()
        super().__init__(f"127.0.0.1:{self._port}")
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = [word for name, value in self.options().items() for word in ("-o", f"{name}={value}")]
        with open(self._folder / "broker.log", "ab") as log:
            self._process = subprocess.Popen(
                [self._home / "bin" / "kafka-start", self._folder / "data", str(self._port), *options],
                stdout=log,
                stderr=log,
                env={**os.environ, "KAFKA_HEAP": "384m", **self.environment()},
            )
        self.process_id = self._process.pid
        wait_for(self._answers, "Kafka to start", 90)

    def options(self) -> dict[str, Any]:
        """What its configuration has besides."""
        return {}

    def environment(self) -> dict[str, str]:
        """The variables that it has besides."""
        return {}

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def freeze(self) -> None:
        """Stop the process: connections stay open, but nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "broker.log").read_text()[-2000:]
        try:
            return bool(self.admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False


def kafka_home() -> Path | None:
    """Folder of the Apache Kafka to use, if any."""
    home = os.environ.get("KAFKA_HOME")
    return Path(home).resolve() if home and not os.environ.get("TEST_BOOTSTRAP") else None


@contextmanager
def open_broker(bootstrap: str | None = None) -> Iterator[Broker]:
    """The broker at `bootstrap`, or else the one to test against; see the module's docstring for which."""
    bootstrap = bootstrap or os.environ.get("TEST_BOOTSTRAP")
    home = kafka_home()
    if bootstrap:
        yield Broker(bootstrap)
    elif home:
        kafka = Kafka(home)
        try:
            yield kafka
        finally:
            kafka.remove()
    else:
        with EmbeddedBroker() as embedded:
            yield Embedded(embedded.bootstrap)
