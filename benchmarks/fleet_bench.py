"""Runs many instances, or many partitions, on one machine: what grows with partitions, what with records?

    KAFKA_HOME=... python benchmarks/fleet_bench.py fleet [--partitions 64] [--records 1000] [--rate 300]
    KAFKA_HOME=... python benchmarks/fleet_bench.py sizes [--counts 16,128,500] [--records 400] [--rate 200]

Records have 10 features; a partition has few keys. Instances have names, as in a StatefulSet. The broker, the
producer and the reader share the machine, so compare CPU time and bytes: times also depend on what else runs.

- fleet: one instance scores `--records` records of each partition. Then, while records arrive at a steady rate, there
  are 4 instances, 2, and 8. Last, each of the 8 is restarted, one after the other. For each step: the longest time
  in which a partition had no output, and where that time goes; afterwards the CPU time of all instances and of the
  broker. At the end, the records without an output, and those with more than one.
- sizes: one instance for each number of partitions: CPU time without records and at a steady rate, bytes sent and
  received, memory, and how long it takes to restore the partitions after a restart.

Prints one line of JSON for each step.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaException, TopicPartition

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("tests", "tests/integration", "benchmarks")]

from brokers import Broker, open_broker, wait_for
from services import Command, results, unique
from suite.load import KEYS, cpu_seconds, fill, names

from fomo_stream.kafka.topics.checks import STATE_TOPIC_CONFIG
from fomo_stream.settings.service_settings import ServiceSettings

PATIENCE_S = 900.0
STEADY_S = 20.0  # of each measurement at a steady rate
LINE = re.compile(
    r"^(\S+)Z \w+ (released|assigned|restored) .*?partition=(\d+)(?:.* bytes=(\d+) elapsed_s=(\S+))?", re.M
)


class Reader:
    """Notes when each partition of the outputs has a new committed record."""

    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        self.seen: list[list[float]] = [[] for _ in range(partitions)]  # by partition: times, seconds since 1970
        self._consumer = Consumer({**broker.config, "group.id": "reader", "isolation.level": "read_committed"})
        places = [TopicPartition(topic, number) for number in range(partitions)]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, timeout=20)[1]
        self._consumer.assign(places)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(500, timeout=0.02):
                if message.error() is None:
                    self.seen[message.partition()].append(time.time())
        self._consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class Fleet:
    """The instances of a group; a stopped one can be started again under its name."""

    def __init__(self, broker: Broker, folder: Path, partitions: int, records: int) -> None:
        self.broker, self.partitions, self._folder = broker, partitions, folder
        self.topic = unique("fleet")
        self.running: dict[str, Command] = {}
        self.logs: list[Path] = []
        self._n_committed = 0
        topics: dict[str, dict[str, str]] = {self.topic: {}, f"{self.topic}-dead-letters": {}}
        topics |= {f"{self.topic}-scores": {}, f"{self.topic}-{self.topic}-state": STATE_TOPIC_CONFIG}
        for topic, config in topics.items():
            broker.create_topic(topic, partitions, config)  # an instance does not wait long for so many partitions
        fill(broker.bootstrap, self.topic, partitions, records * partitions, keys=KEYS)
        self._places = [TopicPartition(self.topic, number) for number in range(partitions)]
        # It does not wait for open transactions, and is answered with the offsets of the last committed ones.
        config = {**broker.config, "group.id": self.topic, "isolation.level": "read_uncommitted"}
        self._offsets = Consumer(config)

    def start(self, *numbers: int) -> None:
        for number in numbers:
            name = f"pod-{number}"
            own: dict[str, Any] = {"topic": self.topic, "group": self.topic, "features": names(), "instance_id": name}
            settings = ServiceSettings(bootstrap=self.broker.bootstrap, **own)
            self.logs.append(self._folder / f"{len(self.logs)}-{name}.log")
            self.running[name] = Command(self.logs[-1], *flags(settings))

    def stop(self, *numbers: int) -> None:
        stopped = [self.running.pop(f"pod-{number}") for number in numbers]
        for instance in stopped:
            instance.process.terminate()
        for instance in stopped:
            assert instance.process.wait(60) == 0, instance.text()[-2000:]

    def kill(self) -> None:
        for instance in self.running.values():
            instance.kill()

    def runs(self) -> bool:
        """Fails when an instance has ended by itself."""
        for instance in self.running.values():
            assert instance.process.poll() is None, instance.text()[-2000:]
        return True

    def is_settled(self) -> bool:
        """Whether the instances share all partitions."""
        self.runs()
        members = self.broker.members(self.topic)
        return members.keys() == self.running.keys() and sum(map(len, members.values())) == self.partitions

    def cpu(self) -> tuple[float, float]:
        """CPU seconds of all instances that run, and of the broker."""
        assert self.broker.process_id is not None
        return sum(cpu_seconds(one.process.pid) for one in self.running.values()), cpu_seconds(self.broker.process_id)

    def committed(self) -> int:
        """Records that the group has committed."""
        with suppress(KafkaException):  # the coordinator is just moving, or the group is new
            self._n_committed = sum(max(0, place.offset) for place in self._offsets.committed(self._places, timeout=30))
        return self._n_committed

    def until(self, records: int) -> None:
        """Wait until so many records are committed."""
        wait_for(lambda: self.runs() and self.committed() == records, f"{records} records", PATIENCE_S, every=0.2)

    def moves(self) -> list[tuple[float, str, int, int, float]]:
        """Every line about a partition: when, which, the partition; of a restored one also bytes and seconds."""
        found = [match for log in self.logs for match in LINE.findall(log.read_text())]
        return sorted(
            (datetime.fromisoformat(f"{at}+00:00").timestamp(), event, int(number), int(size or 0), float(elapsed or 0))
            for at, event, number, size, elapsed in found
        )


def flags(settings: ServiceSettings) -> list[str]:
    found = []
    for name in sorted(settings.model_fields_set):
        value = getattr(settings, name)
        found += [f"--{name.replace('_', '-')}", ",".join(value) if isinstance(value, tuple) else str(value)]
    return found


@contextmanager
def feed(fleet: Fleet, rate: float, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes records at a steady rate; it has begun."""
    before = sum(fleet.broker.ends(fleet.topic, committed=True))
    words = [fleet.broker.bootstrap, fleet.topic, str(fleet.partitions), str(int(rate * seconds)), str(rate)]
    program = [sys.executable, "-m", "suite.load", *words]
    with subprocess.Popen(program, cwd=Path(__file__).parent) as process:
        try:
            wait_for(lambda: sum(fleet.broker.ends(fleet.topic, committed=True)) > before, "the producer", PATIENCE_S)
            yield process
        finally:
            process.kill()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and maximum."""
    return {"median": round(float(np.median(values)), 3), "max": round(max(values), 3)} if values else {}


def waits(fleet: Fleet, reader: Reader, began: float) -> dict[str, Any]:
    """The longest silence since `began` of each partition, and what a move of a partition consists of, in seconds."""
    silences, parts = [], collections.defaultdict(list)
    latest: dict[tuple[str, int], float] = {}
    sizes, restores = [], []
    for at, event, number, size, elapsed in fleet.moves():
        latest[event, number] = at
        if event != "restored" or at < began or not {("released", number), ("assigned", number)} <= latest.keys():
            continue
        released, assigned = latest.pop(("released", number)), latest.pop(("assigned", number))
        times = reader.seen[number]
        before = max((seen for seen in times if seen < assigned), default=released)
        after = min((seen for seen in times if seen > at), default=at)
        parts["last output to released"].append(released - before)
        parts["released to assigned"].append(assigned - released)
        parts["assigned to restored"].append(at - assigned)
        parts["restored to first output"].append(after - at)
        sizes.append(size)
        restores.append(elapsed)
    for times in reader.seen:
        window = [began, *(seen for seen in list(times) if seen > began)]
        silences.append(max((b - a for a, b in pairwise(window)), default=0.0))
    return {
        "moves": len(restores),
        "silence_s": spread(silences),
        **{name: spread(values) for name, values in parts.items()},
        "restore_s": spread(restores),
        "restored_bytes": spread(sizes),
    }


def steady(fleet: Fleet) -> dict[str, Any]:
    """CPU time at a steady rate, as a share of a core, and for a record."""
    before, began, (service, broker) = fleet.committed(), time.monotonic(), fleet.cpu()
    time.sleep(STEADY_S)
    records, elapsed, (service_after, broker_after) = fleet.committed() - before, time.monotonic() - began, fleet.cpu()
    return {
        "records_per_s": round(records / elapsed, 1),
        "service_cores": round((service_after - service) / elapsed, 3),
        "broker_cores": round((broker_after - broker) / elapsed, 3),
    }


def tell(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def settle(fleet: Fleet, reader: Reader) -> None:
    """Wait until the instances share the partitions, and each partition has an output after that."""
    wait_for(fleet.is_settled, "the group to be complete", PATIENCE_S)
    counts = [len(times) for times in reader.seen]
    wait_for(lambda: all(map(int.__gt__, map(len, reader.seen), counts)), "outputs of each partition", PATIENCE_S)


def run_fleet(broker: Broker, folder: Path, partitions: int, records: int, rate: float) -> None:
    fleet = Fleet(broker, folder, partitions, records)
    try:
        began = time.monotonic()
        fleet.start(0)
        fleet.until(records * partitions)
        tell(step="filled", instances=1, seconds=round(time.monotonic() - began, 1), cpu_s=fleet.cpu())
        reader = Reader(broker, f"{fleet.topic}-scores", partitions)
        with feed(fleet, rate, 2 * PATIENCE_S):
            settle(fleet, reader)
            tell(step="1", **steady(fleet))
            changes: list[tuple[str, Callable[[], None]]] = [
                ("1 to 4", lambda: fleet.start(1, 2, 3)),
                ("4 to 2", lambda: fleet.stop(2, 3)),
                ("2 to 8", lambda: fleet.start(*range(2, 8))),
            ]
            for step, change in changes:
                began = time.time()
                change()
                settle(fleet, reader)
                tell(step=step, seconds=round(time.time() - began, 1), **waits(fleet, reader, began))
                tell(step=step[-1], **steady(fleet))
            began = time.time()
            for number in reversed(range(8)):
                fleet.stop(number)
                fleet.start(number)
                settle(fleet, reader)
            tell(step="restart of 8", seconds=round(time.time() - began, 1), **waits(fleet, reader, began))
        sent = sum(broker.ends(fleet.topic, committed=True))
        fleet.until(sent)
        reader.stop()
        fleet.stop(*range(8))
        outputs = broker.read(f"{fleet.topic}-scores", at_least=sent, seconds=PATIENCE_S)
        places = {(one["fomo"]["partition"], one["fomo"]["offset"]) for one in results(outputs)}
        tell(step="end", records=sent, lost=sent - len(places), duplicates=len(outputs) - len(places))
    finally:
        fleet.kill()


def network_bytes(process: int) -> int:
    """Bytes sent and received by the open connections of a process (Linux: `ss`)."""
    text = subprocess.run(["ss", "-tinp"], capture_output=True, text=True, check=True).stdout
    lines = text.splitlines()
    own = [after for line, after in pairwise(lines) if f"pid={process}," in line]
    return sum(int(count) for line in own for count in re.findall(r"bytes_(?:sent|received):(\d+)", line))


def run_size(broker: Broker, folder: Path, partitions: int, records: int, rate: float) -> None:
    """One instance with so many partitions."""
    fleet = Fleet(broker, folder, partitions, records)
    try:
        fleet.start(0)
        fleet.until(records * partitions)
        time.sleep(5)  # contexts are built
        tell(partitions=partitions, step="filled", cpu_s=fleet.cpu(), **memory(fleet))
        tell(partitions=partitions, step="idle", **with_bytes(fleet))
        with feed(fleet, rate, 2 * STEADY_S + 60):
            time.sleep(5)
            tell(partitions=partitions, step="fed", **with_bytes(fleet))
        fleet.until(sum(broker.ends(fleet.topic, committed=True)))
        fleet.stop(0)
        began = time.time()
        fleet.start(0)
        log = fleet.logs[-1]
        wait_for(lambda: log.read_text().count(" restored ") == partitions, "the restores", PATIENCE_S, every=0.5)
        time.sleep(2)
        found = [move for move in fleet.moves() if move[0] > began and move[1] == "restored"]
        first = min(at for at, event, *_ in fleet.moves() if at > began and event == "assigned")
        tell(
            partitions=partitions,
            step="restarted",
            from_start_s=round(found[-1][0] - began, 2),
            from_assigned_s=round(found[-1][0] - first, 2),
            restore_s=spread([elapsed for *_, elapsed in found]),
            restored_bytes=spread([size for *_, size, _ in found]),
            cpu_s=fleet.cpu()[0],
            **memory(fleet),
        )
        fleet.stop(0)
    finally:
        fleet.kill()


def with_bytes(fleet: Fleet) -> dict[str, Any]:
    (instance,) = fleet.running.values()
    before = network_bytes(instance.process.pid)
    found = steady(fleet)
    return {**found, "network_bytes_per_s": round((network_bytes(instance.process.pid) - before) / STEADY_S)}


def memory(fleet: Fleet) -> dict[str, float]:
    (instance,) = fleet.running.values()
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{instance.process.pid}/status").read_text())
    assert found is not None
    return {"resident_mib": round(int(found[1]) / 1024, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fleet", "sizes"))
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--counts", default="16,128,500", help="of partitions")
    parser.add_argument("--records", type=int, help="of each partition, before; default 1000, with sizes 400")
    parser.add_argument("--rate", type=float, help="records/s; default 300, with sizes 200")
    options = parser.parse_args()
    with open_broker() as broker, tempfile.TemporaryDirectory(prefix="fomo-fleet-") as name:
        if options.what == "fleet":
            run_fleet(broker, Path(name), options.partitions, options.records or 1000, options.rate or 300)
        else:
            for count in options.counts.split(","):
                run_size(broker, Path(name), int(count), options.records or 400, options.rate or 200)


if __name__ == "__main__":
    main()
