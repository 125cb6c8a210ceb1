"""The service on Kafka: records a second of a young and of an established stream, latency, memory, CPU time.

The broker runs on the same cores. Exactly once and at least once, 10 features, contexts of 1,000 rows.

- young: the first records of a group that starts; a generation is due after every few hundred records of a partition.
- established: further records, after 100,000 of each partition. All input lies on the broker before the service starts.
- pass-through: a program that decodes the same records and writes them again, with the same client (`pass_through.py`).
  The rate of a service is also given as a share of its rate.
- latency: from the time at which a record was due at the producer until a reader of committed records has its score, at
  steady rates, after 10,000 records of each partition; builds included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from brokers import Broker, open_broker
from confluent_kafka import Consumer, TopicPartition
from services import Command, command, unique

from fomo_stream.settings.service_settings import ServiceSettings

from .load import FEATURES, KEYS, Encode, Progress, cpu_seconds, fill, names, stretch
from .memory import contexts, peak_mib
from .report import Absent, Measurement, Sizes
from .scale import Load, Scale

WARM_UP = 20_000  # records, before all measurements: kernels are compiled, and the broker's code is hot
LOOK_S = 0.1  # between two samples
PATIENCE_S = 1800.0
TAIL = 1.05  # of the input: at its end the partitions no longer share the cores
VIEWS = ("default", "fast")
Delivery = Literal["exactly-once", "at-least-once"]
DELIVERIES: tuple[Delivery, ...] = ("exactly-once", "at-least-once")
PROCESSES = 2  # of a service that uses both cores
PASSED = 200_000  # records of the pass-through; the last three quarters are measured


def measure(scale: Scale) -> Iterator[Measurement | Absent]:
    """Everything, one service after the other."""
    load = scale.load
    if load is None:
        yield Absent("service", "left out of quick runs, because it takes minutes")
        return
    with open_broker() as broker, tempfile.TemporaryDirectory() as name:
        if not broker.is_kafka:
            yield Absent("service", "transactions need Apache Kafka: set KAFKA_HOME or TEST_BOOTSTRAP")
            return
        folder = Path(name)
        with service_with(broker, folder, load.partitions, WARM_UP) as service:
            service.until(WARM_UP)
        rate, plain = _pass_through(broker, load)
        yield from plain
        for views in VIEWS:
            for delivery in DELIVERIES:
                yield from _throughput(broker, folder, load, load.partitions, load.established, views, delivery, rate)
            yield from _throughput(
                broker, folder, load, load.partitions, load.established, views, plain=rate, processes=PROCESSES
            )
            for delivery in DELIVERIES:
                for rate_of_input in load.rates:
                    yield from _latency(broker, folder, load, views, delivery, rate_of_input)
        for partitions in load.other_partitions:
            yield from _throughput(broker, folder, load, partitions, 0, VIEWS[0])
        yield from _memory(broker, folder, scale)


def _settings(broker: Broker, topic: str, **changes: Any) -> ServiceSettings:
    return ServiceSettings(bootstrap=broker.bootstrap, topic=topic, group=topic, features=names(), **changes)


@contextmanager
def service_with(
    broker: Broker,
    folder: Path,
    partitions: int,
    records: int,
    encode: Encode = orjson.dumps,
    keys: int = KEYS,
    **changes: Any,
) -> Iterator[Run]:
    """A service that has so many records of so many keys to read. encode: makes values; changes: of its settings."""
    topic = unique("bench")
    broker.create_topic(topic, partitions)
    fill(broker.bootstrap, topic, partitions, records, encode, keys)
    with command(folder / f"{topic}.log", _settings(broker, topic, **changes)) as running:
        running.wait_for_log("started")
        processes = running.process.pid, broker.process_id
        progress = Progress(broker.bootstrap, topic, topic, partitions, processes)
        try:
            yield Run(running, progress, topic)
        finally:
            progress.close()
        running.terminate()


class Run:
    """A service at work."""

    def __init__(self, running: Command, progress: Progress, topic: str) -> None:
        self.running, self.progress, self.topic = running, progress, topic

    def until(self, records: int) -> None:
        """Wait until so many records are committed."""
        deadline = time.monotonic() + PATIENCE_S
        while self.progress.look() < records:
            assert self.running.process.poll() is None, self.running.text()[-2000:]
            assert time.monotonic() < deadline, f"{records} records took more than {PATIENCE_S:g} s"
            time.sleep(LOOK_S)


def _pass_through(broker: Broker, load: Load) -> tuple[float, list[Measurement]]:
    """Records/s of a pass-through, and its measurements."""
    topic, partitions, last = unique("bench"), load.partitions, PASSED
    broker.create_topic(topic, partitions)
    broker.create_topic(f"{topic}-copies", partitions)
    fill(broker.bootstrap, topic, partitions, int(last * TAIL))
    program = [sys.executable, "-m", "suite.pass_through", broker.bootstrap, topic]
    with subprocess.Popen(program, cwd=Path(__file__).parents[1]) as process:
        progress = Progress(broker.bootstrap, topic, topic, partitions, (process.pid, broker.process_id))
        try:
            deadline = time.monotonic() + PATIENCE_S
            while progress.look() < last:
                assert process.poll() is None, "the pass-through has ended"
                assert time.monotonic() < deadline, "the pass-through took too long"
                time.sleep(LOOK_S)
        finally:
            progress.close()
            process.kill()
    begin, end = stretch(progress.samples, last // 4, last)
    count = end.records - begin.records
    rate = count / (end.at - begin.at)
    sizes: Sizes = {"partitions": partitions, "features": FEATURES}
    spent = 1e6 * (end.service_s - begin.service_s) / count
    return rate, [
        Measurement("pass-through", sizes, rate, "records/s"),
        Measurement("pass-through CPU", sizes, spent, "us/record"),
    ]


def _throughput(
    broker: Broker,
    folder: Path,
    load: Load,
    partitions: int,
    established: int,
    views: str,
    delivery: Delivery = "exactly-once",
    plain: float | None = None,
    processes: int = 1,
) -> Iterator[Measurement]:
    """Rate and CPU time; established: records of each partition before the second stretch, 0: only the first.

    plain: records/s of a pass-through, which the rate is divided by, too. CPU time only of one process.
    """
    parts = {"young": (0, load.young)}
    if established:
        before = established * partitions
        parts["established"] = before, before + load.stretch
    last = max(stop for _, stop in parts.values())
    changes: dict[str, Any] = {"views": (views,), "delivery": delivery, "processes": processes}
    with service_with(broker, folder, partitions, int(last * TAIL), **changes) as service:
        service.until(last)
        samples = service.progress.samples
    for age, (first, stop) in parts.items():
        begin, end = stretch(samples, first, stop)
        sizes: Sizes = {"age": age, "partitions": partitions, "context": 1000, "features": FEATURES, "views": views}
        sizes |= {"delivery": delivery, "processes": processes}
        count = end.records - begin.records
        rate = count / (end.at - begin.at)
        yield Measurement("service", sizes, rate, "records/s")
        if plain is not None:
            yield Measurement("service over pass-through", sizes, rate / plain, "ratio")
        if processes > 1:
            continue
        spent = {"service": end.service_s - begin.service_s}
        if begin.broker_s is not None and end.broker_s is not None:
            spent["broker"] = end.broker_s - begin.broker_s
        for process, seconds in spent.items():
            yield Measurement("service CPU", {"process": process, **sizes}, 1e6 * seconds / count, "us/record")


def _latency(
    broker: Broker, folder: Path, load: Load, views: str, delivery: Delivery, rate: float
) -> Iterator[Measurement]:
    """Median and 99th percentile at a steady rate, and how much of a core the service takes meanwhile."""
    partitions, count = load.partitions, int(rate * load.seconds)
    changes: dict[str, Any] = {"max_latency_ms": 20.0, "views": (views,), "delivery": delivery}
    with service_with(broker, folder, partitions, load.warm, **changes) as service:
        service.until(load.warm)
        reader = _reader_at_end(broker, f"{service.topic}-scores", partitions)
        arguments = [broker.bootstrap, service.topic, str(partitions), str(count), str(rate)]
        process, began = service.running.process.pid, time.monotonic()
        spent = -cpu_seconds(process)
        program = [sys.executable, "-m", "suite.load", *arguments]
        with subprocess.Popen(program, cwd=Path(__file__).parents[1]) as producer:
            try:
                found, builds = _latencies(reader, count)
                spent += cpu_seconds(process)
                elapsed = time.monotonic() - began
            finally:
                reader.close()
                producer.kill()
    sizes: Sizes = {"rate": int(rate), "partitions": partitions, "context": 1000, "features": FEATURES}
    sizes |= {"views": views, "delivery": delivery}
    for of, share in (("median", 0.5), ("99th percentile", 0.99), ("maximum", 1.0)):
        value = 1000 * float(np.quantile(found, share))
        yield Measurement("service latency", {"of": of, **sizes}, value, "ms")
    yield Measurement("service latency", {"of": "builds meanwhile", **sizes}, builds, "builds")
    yield Measurement("service CPU at a steady rate", sizes, 100 * spent / elapsed, "% of a core")


def _reader_at_end(broker: Broker, topic: str, partitions: int) -> Any:
    """A reader of the committed records that come from now on."""
    reader = Consumer({**broker.config, "group.id": "bench", "isolation.level": "read_committed"})
    places = [TopicPartition(topic, number) for number in range(partitions)]
    for place in places:
        place.offset = reader.get_watermark_offsets(place, timeout=20)[1]
    reader.assign(places)
    return reader


def _latencies(reader: Any, count: int) -> tuple[list[float], int]:
    """Seconds of so many records, and how many generations came into use among them."""
    found: list[float] = []
    generations: set[tuple[int, int]] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came back"
        first = reader.poll(0.5)
        messages = [] if first is None else [first, *reader.consume(1000, timeout=0)]
        now = time.time()
        for message in messages:
            if message.error() is None:
                record = orjson.loads(message.value())
                found.append(now - record["at"])
                generations.add((record["fomo"]["partition"], record["fomo"]["generation"]))
    return found, len(generations) - len({partition for partition, _ in generations})


def _memory(broker: Broker, folder: Path, scale: Scale) -> Iterator[Measurement]:
    """The largest resident set of the whole program."""

    def peak(context: int, partitions: int, records: int) -> float:
        count = partitions * records
        with service_with(broker, folder, partitions, count, context_size=context) as service:
            service.until(count)
            return peak_mib(service.running.process.pid)

    yield from contexts("service", peak, scale)
