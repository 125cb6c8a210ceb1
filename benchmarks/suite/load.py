"""Input of a service under measurement, and how far the service has come.

    python -m suite.load BOOTSTRAP TOPIC PARTITIONS COUNT RATE

run in benchmarks, produces records at a steady rate; each has the time at which it was due (`at`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from .contenders import Float, sensor_rows

Encode = Callable[[dict[str, Any]], bytes]  # the fields of a record to its value

FEATURES = 10
KEYS = 16
CHUNK = 20_000
LEAD_S = 1.0  # between connecting and the first record
QUIET = {"log_level": 0}


def names(features: int = FEATURES) -> tuple[str, ...]:
    return tuple(f"sensor{i}" for i in range(features))


def bodies(rows: Float, at: Iterable[float] | None = None, encode: Encode = orjson.dumps) -> Iterator[bytes]:
    """Records of rows, with a text field and a time that are no features; as JSON about 220 bytes with 10 features.

    encode: makes the values.
    """
    fields = names(rows.shape[1])
    times = iter(at) if at is not None else iter([0.0] * len(rows))
    for row in rows.round(4).tolist():
        yield encode({"site": "north", "at": next(times), **dict(zip(fields, row, strict=True))})


def fill(
    bootstrap: str, topic: str, partitions: int, count: int, encode: Encode = orjson.dumps, keys: int = KEYS
) -> None:
    """Produce so many records, the same number to each partition, as fast as possible."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **QUIET})
    for start in range(0, count, CHUNK):
        rows = sensor_rows(min(CHUNK, count - start), FEATURES, seed=start)
        for number, body in enumerate(bodies(rows, encode=encode), start):
            _produce(producer, topic, number, body, partitions, keys)
        producer.poll(0)
    assert producer.flush(120) == 0, "records were not delivered"


def feed(bootstrap: str, topic: str, partitions: int, count: int, rate: float) -> None:
    """Produce so many records at a steady rate."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **QUIET})
    producer.list_topics(topic, timeout=20)
    rows, began = sensor_rows(count, FEATURES, seed=count), time.time() + LEAD_S
    due = [began + number / rate for number in range(count)]
    for number, body in enumerate(bodies(rows, due)):
        while (early := due[number] - time.time()) > 0:
            time.sleep(early)
        _produce(producer, topic, number, body, partitions)
        producer.poll(0)
    assert producer.flush(60) == 0, "records were not delivered"


def _produce(producer: Any, topic: str, number: int, body: bytes, partitions: int, keys: int = KEYS) -> None:
    key = str(number % keys).encode()
    while True:
        try:
            producer.produce(topic, body, key=key, partition=number % partitions)
        except BufferError:
            producer.poll(0.1)
        else:
            return


@dataclass(frozen=True)
class Sample:
    """One moment of a service at work."""

    at: float  # seconds, monotonic
    records: int  # committed
    service_s: float  # CPU seconds of its process
    broker_s: float | None  # and of the broker's; None: it is not ours


class Progress:
    """Follows a service by the offsets that its group has committed, which costs the broker next to nothing."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, partitions: int, processes: tuple[int, int | None]
    ) -> None:
        """processes: of the service, and of the broker if it is ours."""
        # this reader does not wait for open transactions; it is answered with the last offsets of committed ones
        config = {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_uncommitted", **QUIET}
        self._consumer = Consumer(config)
        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self._processes = processes
        self.samples: list[Sample] = []

    def look(self) -> int:
        """Take a sample: the records committed so far."""
        try:
            found = self._consumer.committed(self._places, timeout=10)
        except KafkaException:  # the coordinator is just moving, or the group is new
            return self.samples[-1].records if self.samples else 0
        records = sum(max(0, int(place.offset)) for place in found)
        service, broker = self._processes
        spent = cpu_seconds(service), None if broker is None else cpu_seconds(broker)
        self.samples.append(Sample(time.monotonic(), records, *spent))
        return records

    def close(self) -> None:
        self._consumer.close()


def stretch(samples: list[Sample], first: int, last: int) -> tuple[Sample, Sample]:
    """The samples between which the records from number `first` to number `last` were committed."""
    begin = max((sample for sample in samples if sample.records <= first), key=lambda sample: sample.at)
    return begin, next(sample for sample in samples if sample.records >= last)


def cpu_seconds(process: int) -> float:
    """CPU time of a process with all its threads, from Linux' /proc."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    to, name, *numbers = sys.argv[1:]
    feed(to, name, int(numbers[0]), int(numbers[1]), float(numbers[2]))
