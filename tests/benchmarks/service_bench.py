"""The service against a local broker: records a second, latency, memory.

    python tests/benchmarks/service_bench.py [--seconds 20]

Runs `fomo-stream` as a process of its own and prints one JSON line for each measurement, last:

- throughput: records/s from a backlog, 10 features, context 1,000, from the first scored record to the last output;
- latency: at --rate records/s and context 1,000, after 40,000 records, generation builds included. `p99_ms` is from
  handing the record to the source's producer until its output is read by another consumer, which contains the wait for
  the commit; `poll_to_commit_p99_ms` is the service's own figure, in 10 s windows, the worst of them;
- memory: resident set of the service with a context of 5,000 rows, at its largest.

Which broker is used: see tests/brokers.py (set KAFKA_HOME to measure against Apache Kafka).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "integration")]

from brokers import Broker, open_broker, wait_for  # noqa: E402
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition  # noqa: E402
from services import Command, command, unique  # noqa: E402

from fomo_stream.settings.service import ServiceSettings  # noqa: E402

FEATURES = 10
WARM = 40_000


def records(count: int, seed: int = 0) -> Iterator[bytes]:
    """Sensor-like records of 10 correlated features, about 250 bytes."""
    rng = random.Random(seed)
    for _ in range(count):
        load = rng.gauss(0, 1)
        yield json.dumps(
            {"site": "north", "at": 0.0} | {f"sensor{i}": round(i + load + rng.gauss(0, 1), 4) for i in range(FEATURES)}
        ).encode()


def settings_for(broker: Broker, topic: str, context_size: int) -> ServiceSettings:
    names = tuple(f"sensor{i}" for i in range(FEATURES))
    return ServiceSettings(
        bootstrap=broker.bootstrap, topic=topic, group=topic, features=names, context_size=context_size
    )


def output_reader(broker: Broker, topic: str) -> Any:
    consumer = Consumer({**broker.config, "group.id": "bench", "fetch.wait.max.ms": 10})
    count = wait_for(lambda: broker.partitions(topic), f"topic {topic}")
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(count)])
    return consumer


def measure_throughput(broker: Broker, folder: Path, count: int) -> dict[str, Any]:
    topic = unique("throughput")
    broker.create_topic(topic)
    broker.produce(topic, records(count))
    outputs = 0
    with command(folder / "throughput.log", settings_for(broker, topic, 1000)) as running:
        running.wait_for_log("started")
        reader = output_reader(broker, f"{topic}-scores")
        began = 0.0
        while outputs < count:
            batch = reader.consume(10_000, timeout=0.2)
            began = began or (time.perf_counter() if batch else 0.0)
            outputs += sum(message.error() is None for message in batch)
        elapsed = time.perf_counter() - began
        reader.close()
        running.terminate()
    return {"benchmark": "throughput", "records_per_s": round(count / elapsed), "records": count, "context": 1000}


def measure_latency(broker: Broker, folder: Path, seconds: float, rate: float) -> dict[str, Any]:
    topic = unique("latency")
    broker.create_topic(topic)
    broker.produce(topic, records(WARM))  # in a young stream every few hundred records of a partition make a generation
    with command(folder / "latency.log", settings_for(broker, topic, 1000)) as running:
        running.wait_for_log("started")
        reader = output_reader(broker, f"{topic}-scores")
        seen = 0
        while seen < WARM:
            seen += len(reader.consume(1000, timeout=0.2))
        producer = Producer({**broker.config, "linger.ms": 0})
        sent: list[float] = []
        latencies: list[float] = []
        generations: set[tuple[int, int]] = set()
        windows = running.text().count("p99_ms=") + 1  # of the time before
        began = time.perf_counter()
        values = list(records(int(seconds * rate), seed=1))
        while len(latencies) < len(values):
            now = time.perf_counter()
            while len(sent) < len(values) and began + len(sent) / rate <= now:
                number = str(len(sent)).encode()
                producer.produce(topic, values[len(sent)], key=number, headers=[("number", number)])
                sent.append(time.perf_counter())
            producer.poll(0)
            for message in reader.consume(1000, timeout=0.002):  # the service needs the cores more than this does
                if message.error() is None:
                    latencies.append(time.perf_counter() - sent[int(dict(message.headers())["number"])])
                    result = json.loads(message.value())["fomo"]
                    generations.add((result["partition"], result["generation"]))
        reader.close()
        running.terminate()
    own = [float(value) for value in re.findall(r"p99_ms=([\d.]+)", running.text())[windows:]]
    latencies.sort()
    return {
        "benchmark": "latency",
        "p50_ms": round(1000 * latencies[len(latencies) // 2], 1),
        "p99_ms": round(1000 * latencies[int(0.99 * len(latencies))], 1),
        "max_ms": round(1000 * latencies[-1], 1),
        "poll_to_commit_p99_ms": max(own, default=None),
        "records_per_s": rate,
        "generations": len(generations),
        "context": 1000,
    }


def measure_memory(broker: Broker, folder: Path, count: int) -> dict[str, Any]:
    topic = unique("memory")
    broker.create_topic(topic)
    broker.produce(topic, records(count), keys=itertools.repeat("one"))  # one partition fills its context
    with command(folder / "memory.log", settings_for(broker, topic, 5000)) as running:
        running.wait_for_log("started")
        reader = output_reader(broker, f"{topic}-scores")
        seen = 0
        while seen < count:
            seen += len(reader.consume(1000, timeout=0.2))
        reader.close()
        peak = peak_mib(running)
        running.terminate()
    return {"benchmark": "memory", "peak_rss_mib": round(peak), "context": 5000, "records": count}


def peak_mib(running: Command) -> float:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the latency measurement")
    parser.add_argument("--rate", type=float, default=500.0, help="records/s of the latency measurement")
    parser.add_argument("--records", type=int, default=40_000, help="backlog of the throughput measurement")
    arguments = parser.parse_args()
    with open_broker() as broker, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        about = {"broker": type(broker).__name__.lower(), "features": FEATURES, "cpus": os.cpu_count()}
        lines = [
            measure_throughput(broker, folder, arguments.records),
            measure_latency(broker, folder, arguments.seconds, arguments.rate),
            measure_memory(broker, folder, 12_000),
        ]
        for line in lines:
            print(json.dumps({**line, **about}))


if __name__ == "__main__":
    main()
