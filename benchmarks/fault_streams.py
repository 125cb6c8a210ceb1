"""Input and output while faults are injected: records, labels on some of them, and committed outputs."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from brokers import Broker, wait_for
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

FEATURES = ("load", "pressure", "speed", "temperature")


def reading(number: int) -> dict[str, float]:
    """Record `number`: four correlated features, sometimes an outlier."""
    rng = random.Random(number)
    load = rng.gauss(0, 1) if rng.random() > 0.01 else rng.choice((-8.0, 8.0))
    return {name: load * (i + 1) + rng.gauss(0, 1) for i, name in enumerate(FEATURES)} | {"n": number}


@dataclass(frozen=True)
class Form:
    """How values are written and read, and the settings of a service that does the same."""

    write: Callable[[dict[str, float]], bytes]
    read: Callable[[bytes], dict[str, Any]]
    settings: Mapping[str, Any]


JSON = Form(lambda record: json.dumps(record).encode(), json.loads, {})


def avro_form(url: str, topic: str) -> Form:
    """Avro, in and out. url: of the schema registry."""
    fields = [{"name": name, "type": "double"} for name in FEATURES] + [{"name": "n", "type": "long"}]
    client = SchemaRegistryClient({"url": url})
    write = AvroSerializer(client, json.dumps({"type": "record", "name": "Reading", "fields": fields}))
    read, place = AvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
    settings = {"registry": url, "output_format": "registry"}
    return Form(lambda record: write(record, place), lambda value: read(value, place), settings)


BUSY, KEYS = 12, 10_000


def key(number: int) -> str:
    """The key of record `number`: one of a few that are busy, or of many."""
    rng = random.Random(-1 - number)
    return f"busy-{rng.randrange(BUSY)}" if rng.random() < 0.7 else f"device-{rng.randrange(KEYS)}"


class Feed:
    """Writes records at an even rate; knows when each was acknowledged."""

    def __init__(
        self, broker: Broker, topic: str, count: int, partitions: int, seconds: float, form: Form = JSON
    ) -> None:
        self.form = form
        self.acknowledged: dict[int, float] = {}
        self.longest_s = 0.0  # from sending a record until the brokers had it
        self._producer = Producer(
            {**broker.config, "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 1}
        )
        self._topic, self._count, self._rate = topic, count, count / seconds
        self.partitions = partitions  # to write to
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        sent = 0
        while sent < self._count:
            while sent < min(self._count, (time.monotonic() - began) * self._rate):
                value = self.form.write(reading(sent))
                done = self._done_with(sent)
                place = sent % self.partitions
                self._producer.produce(self._topic, value, key(sent), partition=place, on_delivery=done)
                sent += 1
            self._producer.poll(0.005)
        while self._producer.flush(1.0):
            pass

    def use(self, partitions: int) -> None:
        """Write to `partitions` partitions from now on."""
        known = 0
        while known < partitions:  # a broker that was away may not know the new ones yet
            known = len(self._producer.list_topics(self._topic, timeout=20).topics[self._topic].partitions)
        self.partitions = partitions

    def _done_with(self, number: int) -> Callable[[Any, Any], None]:
        sent_at = time.monotonic()

        def done(error: Any, _message: Any) -> None:
            assert error is None, error
            self.acknowledged[number] = time.monotonic()
            self.longest_s = max(self.longest_s, self.acknowledged[number] - sent_at)

        return done

    def join(self) -> None:
        self._thread.join()


class Outputs:
    """Reads committed outputs as they arrive."""

    def __init__(self, broker: Broker, topic: str, form: Form = JSON) -> None:
        self._read = form.read
        self.seen: list[tuple[float, Any]] = []
        self.numbers: set[int] = set()
        # After a crash a broker may return records again that were read already: they count once.
        again = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**broker.config, "group.id": "verifier", **again})
        count = wait_for(lambda: broker.partitions(topic), f"topic {topic}")
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(count)])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(500, timeout=0.05):
                if message.error() is None:
                    record = self._read(message.value())
                    if record["n"] not in self.numbers:
                        self.seen.append((time.monotonic(), record))
                        self.numbers.add(record["n"])
        self._consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class Labels:
    """Gives verdicts on records that were scored a while ago."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self.given = 0

    def give(self, outputs: Outputs, rng: random.Random, count: int = 40) -> None:
        """Some right, some wrong, and some of them twice."""
        recent = outputs.seen[-1000:]
        for _, record in rng.choices(recent, k=count):
            number, offset = record["fomo"]["partition"], record["fomo"]["offset"]
            wait_for(partial(self._has_partition, number), "the feedback topic", 60)
            verdict = {"offset": offset, "outlier": rng.random() < 0.3}
            self._broker.produce(self._topic, [verdict], partition=number)
            self.given += 1

    def _has_partition(self, number: int) -> bool:
        return self._broker.partitions(self._topic) > number
