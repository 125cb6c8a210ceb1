"""Send simulated sensor readings to a Kafka topic: `python -m fomo_stream.demo.producer --topic sensors`."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import orjson
from confluent_kafka import Producer

from fomo_stream.demo.sensors import sensor_stream
from fomo_stream.logs import ClientLog

PACE_S = 0.01  # shortest time between two bursts of readings
BY_KEY = -1  # for librdkafka: the key chooses the partition

Readings = Iterator[dict[str, Any]]


def send(
    producer: Producer, topic: str, readings: Readings, rate: float, stopped: threading.Event, partition: int = BY_KEY
) -> None:
    """Send `rate` readings a second, each with its pump's name as key, until they end or `stopped` is set.

    The key chooses the partition if none is given.
    """
    due = time.monotonic()  # time of the next reading
    while not stopped.wait(max(PACE_S, due - time.monotonic())):
        now = time.monotonic()
        if now - due > 1.0:  # the machine is too slow or was suspended: continue from now, without catching up
            due = now
        while due <= now:
            record = next(readings, None)
            if record is None:
                stopped.set()
                break
            producer.produce(topic, orjson.dumps(record), key=record["pump"], partition=partition)
            due += 1 / rate
        producer.poll(0)
    producer.flush(2)


def several_pumps(count: int) -> Readings:
    """Yield readings of `count` pumps in turn, endlessly; each pump has its own faults."""
    pumps = [sensor_stream(seed) for seed in range(count)]
    while True:
        for number, readings in enumerate(pumps):
            record, _ = next(readings)
            yield {**record, "pump": f"P-{101 + number}"}


def run_producer(argv: Sequence[str] | None = None) -> None:
    """Send until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser("python -m fomo_stream.demo.producer", description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092", help="address of a broker (default: %(default)s)")
    parser.add_argument("--topic", required=True, help="topic to write to; it must exist")
    parser.add_argument("--pumps", type=int, default=4, help="number of pumps (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=100.0, help="readings a second (default: %(default)g)")
    parser.add_argument("--count", type=int, help="end after so many readings (default: never)")
    options = parser.parse_args(argv)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    producer = Producer({"bootstrap.servers": options.bootstrap, "linger.ms": 2}, logger=ClientLog("producer"))
    send(producer, options.topic, islice(several_pumps(options.pumps), options.count), options.rate, stopped)


if __name__ == "__main__":
    run_producer()
