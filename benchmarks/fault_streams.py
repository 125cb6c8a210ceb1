"""Input and output while faults are injected: records, labels on some of them, committed outputs, and settings."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from brokers import Broker, wait_for
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from fomo_stream.partition.rules import Rules
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import load

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
    """Writes records at an even rate, from number `first` on; knows when each was acknowledged."""

    def __init__(
        self, broker: Broker, topic: str, count: int, partitions: int, seconds: float, form: Form = JSON, first: int = 0
    ) -> None:
        self.form, self._first = form, first
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
                number = self._first + sent
                value = self.form.write(reading(number))
                done = self._done_with(number)
                place = number % self.partitions
                self._producer.produce(self._topic, value, key(number), partition=place, on_delivery=done)
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

    def __init__(self, broker: Broker, topic: str | None) -> None:
        self._broker = broker
        self._topic = topic or ""
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


@dataclass
class Stream:
    """A topic that is scored while faults are injected."""

    settings: ServiceSettings
    feed: Feed
    outputs: Outputs
    labels: Labels

    def stalls(self) -> list[tuple[float, float]]:
        """For each output, when it was read (monotonic), and the seconds since its record was acknowledged."""
        return [(at, at - self.feed.acknowledged[record["n"]]) for at, record in self.outputs.seen]


WRONG = ("rules: [{name: a, onyl: rises}]", "rules: [", "alert-rate: many", "topic: [", "alert_rte: 0.1")
RATES = (0.02, 0.05)


class HotSettings:
    """The configuration file of all instances, which changes every few seconds; now and then it is wrong for a while.

    rules: rules and windows for all topics; a topic may have others in its section.
    """

    def __init__(self, path: Path, topics: Sequence[str], rng: random.Random) -> None:
        self.path, self.changes, self.mistakes = path, 0, 0
        self._topics, self._rng, self._rate = topics, rng, RATES[0]
        self._stopped = threading.Event()
        self._write(self._content())
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> HotSettings:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """End the changes; the file is right."""
        self._stopped.set()
        self._thread.join()

    def rules(self, topic: str) -> Rules:
        """The rules of a topic."""
        return Rules.of(load(ServiceSettings, {"config": str(self.path), "topic": topic}))

    def _run(self) -> None:
        rng = self._rng
        while not self._stopped.wait(rng.uniform(1, 6)):
            if rng.random() < 0.25:
                self._write(rng.choice(WRONG))
                self.mistakes += 1
                self._stopped.wait(rng.uniform(0.5, 3))
            self._write(self._content())
            self.changes += 1

    def _write(self, text: str) -> None:
        """Replace the file as an editor or a volume of Kubernetes does, or overwrite it."""
        print(f"{time.strftime('%H:%M:%S')} settings: {text}", flush=True)
        place = self.path if self._rng.random() < 0.3 else self.path.with_suffix(".new")
        place.write_text(text)
        place.replace(self.path)

    def _content(self) -> str:
        if self._rng.random() < 0.15:
            self._rate = self._rng.choice(RATES)
        sections = {topic: self._tables() for topic in self._topics if self._rng.random() < 0.5}
        content = {"alert-rate": self._rate, **self._tables()}
        return json.dumps(content | ({"topics": sections} if sections else {}))  # JSON is YAML

    def _tables(self) -> dict[str, Any]:
        rng, now = self._rng, datetime.now(UTC)
        begin = now + timedelta(seconds=rng.uniform(-20, 10))
        place = {"features": rng.choice(FEATURES)}
        keys = rng.choice(({}, {"keys": "busy-*"}, {"keys": [f"busy-{rng.randrange(BUSY)}", "device-1*"]}))
        rules: list[dict[str, Any]] = [
            {"name": "direction", "only": rng.choice(("rises", "falls")), **place, **keys},
            {"name": "amount", "ignore": rng.choice(("40%", 3)), **place, **keys},
            {"name": "range", "valid": [-2.5, rng.choice((None, 2.5))], **place, **keys},
            {"name": "grade", "min-severity": "critical", **keys},
        ]
        span = {"from": begin.isoformat(), "to": (begin + timedelta(seconds=rng.uniform(1, 15))).isoformat()}
        window = {"name": "visit", "skip": rng.choice(("both", "alerts", "learning")), **span, **keys}
        chosen = rng.sample(rules, rng.randrange(len(rules) + 1))
        return {"rules": chosen, "maintenance": [window] if rng.random() < 0.6 else []}
