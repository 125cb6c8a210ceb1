"""Instances of a fleet at work on a broker, and what they and the broker say about it: part of `fleet.py`."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from brokers import Broker, free_ports, kafka_home, open_broker, wait_for
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from fleet_model import (
    HEARTBEAT_S,
)
from services import Command, command, unique
from suite.load import feed, fill, names

from fomo_stream.settings.service import ServiceSettings

MARGIN_S = 0.5  # for what comes before
PATIENCE_S = 900.0
LEAD_S, STEADY_S = 2.0, 8.0
STEADY_RATE = 6.0  # records a second of a partition
TOPICS = "kafka.server:type=BrokerTopicMetrics,"
# Requests between broker and controller, those of this program, and a second name of Fetch.
OWN = ("BrokerHeartbeat", "BrokerRegistration", "ControllerRegistration", "Metadata", "ApiVersions", "FetchConsumer")


@dataclass
class Event:
    """A line of an instance's log."""

    at: float  # seconds since 1970
    name: str
    fields: dict[str, str]


def parse(text: str) -> Iterator[Event]:
    for line in text.splitlines():
        found = re.match(r"(\S+)Z \w+ (\w+)(.*)", line)
        if found:
            at = datetime.fromisoformat(f"{found[1]}+00:00").timestamp()
            yield Event(at, found[2], dict(re.findall(r'(\w+)=("[^"]*"|\S+)', found[3])))


class Monitor:
    """Counts of a broker by JMX."""

    def __init__(self) -> None:
        self.port = free_ports()

    @contextmanager
    def broker(self) -> Iterator[Broker]:
        """A broker of our own that has JMX."""
        flag = "-Dcom.sun.management.jmxremote"
        options = [f"{flag}.port={self.port}", f"{flag}.rmi.port={self.port}", f"{flag}.authenticate=false"]
        options += [f"{flag}.ssl=false", "-Djava.rmi.server.hostname=127.0.0.1"]
        os.environ["JAVA_TOOL_OPTIONS"] = " ".join(options)
        with open_broker() as broker:
            del os.environ["JAVA_TOOL_OPTIONS"]  # of this process alone
            yield broker

    def read(self, names: str, attribute: str) -> dict[str, float]:
        """An attribute of all objects whose name has this pattern, by name."""
        home = kafka_home()
        assert home is not None
        url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{self.port}/jmxrmi"
        arguments = ["JmxTool", "--jmx-url", url, "--one-time", "--object-name", names, "--attributes", attribute]
        answer = subprocess.run([home / "bin" / "kafka-tool", *arguments], capture_output=True, text=True, check=True)
        lines = [line for line in answer.stdout.splitlines() if line.startswith('"time"') or line[:1].isdigit()]
        keys = [key.removesuffix(f":{attribute}") for key in re.findall(r'"([^"]*)"', lines[0])[1:]]
        return dict(zip(keys, map(float, lines[1].split(",")[1:]), strict=True))

    def state_bytes(self, topic: str) -> float:
        """Bytes on disk of a partition, on average."""
        sizes = self.read(f"kafka.log:type=Log,name=Size,topic={topic},*", "Value")
        return statistics.fmean(sizes.values())

    def counts(self, settings: ServiceSettings) -> dict[str, float]:
        """Transactions and requests of clients so far, and bytes written to the outputs and to the state."""
        found = self.read("kafka.network:type=RequestMetrics,name=RequestsPerSec,*", "Count")
        by_kind: Counter[str] = Counter()
        for name, count in found.items():
            by_kind[name.partition("request=")[2].partition(",")[0]] += int(count)
        received = {
            role: sum(self.read(f"{TOPICS}name=BytesInPerSec,topic={topic}", "Count").values())
            for role, topic in (("output", settings.out), ("state", settings.state_topic))
        }
        requests = sum(count for kind, count in by_kind.items() if kind not in OWN)
        return {"transactions": by_kind["EndTxn"], "requests": requests, **received, **by_kind}


class Instance:
    """A process of the service; it can be stopped and started again, and has a log for each time."""

    def __init__(self, settings: ServiceSettings, folder: Path, name: str) -> None:
        self._settings, self._folder, self._name = settings, folder, name
        self._context: Any = None
        self.starts = 0
        self.running: Command | None = None

    def start(self) -> None:
        self.starts += 1
        self._context = command(self._folder / f"{self._name}-{self.starts}.log", self._settings)
        self.running = self._context.__enter__()

    def events(self, name: str, since: float = 0.0) -> list[Event]:
        assert self.running is not None
        return [one for one in parse(self.running.text()) if one.name == name and one.at >= since]

    def partitions(self) -> list[int]:
        """Those that it has."""
        assert self.running is not None
        owned: dict[str, bool] = {}
        for one in parse(self.running.text()):
            if one.name in ("assigned", "released"):
                owned[one.fields["partition"]] = one.name == "assigned"
        return [int(number) for number, is_owned in owned.items() if is_owned]

    def restored_since(self, since: float) -> tuple[int, int]:
        """Number of partitions that were assigned, and restored, since then."""
        return len(self.events("assigned", since)), len(self.events("restored", since))

    def stop(self) -> float:
        """SIGTERM; returns when it left the group."""
        assert self.running is not None
        assert self.running.terminate() == 0, self.running.text()[-2000:]
        left = self.events("released")[-1].at
        self._context.__exit__(None, None, None)
        return left

    def kill(self) -> None:
        if self._context is not None:
            self._context.__exit__(None, None, None)


@dataclass
class Takeover:
    """Partitions that came to instances: seconds, and how many partitions each has restored."""

    rebalance_s: float  # until the last one was assigned
    restore_s: float  # of the instance that took longest
    partitions: int  # that this one restored
    bytes_on_disk: float  # of a partition's state
    encode_s: float | None = None  # from the last restore until one record of each partition was scored


class Run:
    """A topic, and the instances that score it."""

    def __init__(self, broker: Broker, monitor: Monitor, folder: Path, instances: int, partitions: int) -> None:
        self.topic = unique("fleet")
        self.broker, self.monitor, self.partitions = broker, monitor, partitions
        broker.create_topic(self.topic, partitions)
        self.settings = ServiceSettings(
            bootstrap=broker.bootstrap, topic=self.topic, group=self.topic, features=names()
        )
        self.instances = [Instance(self.settings, folder, f"{self.topic}-{n}") for n in range(instances)]
        reader = {**broker.config, "group.id": self.topic, "isolation.level": "read_uncommitted"}
        self._reader = Consumer(reader)
        self._producer = Producer(broker.config)
        self._start_s = 3.0  # from the start of a process until it joins
        self._produced = 0

    def close(self) -> None:
        for instance in self.instances:
            instance.kill()
        self._reader.close()

    def score(self, records: int) -> float:
        """Produce so many records of each partition; returns records a second until they are scored."""
        began = time.monotonic()
        fill(self.broker.bootstrap, self.topic, self.partitions, records * self.partitions)
        self._produced += records * self.partitions
        self._until_scored()
        return records * self.partitions / (time.monotonic() - began)

    def one_each(self, numbers: Iterable[int]) -> None:
        """Produce one record to each of these partitions."""
        body = json.dumps(dict.fromkeys(names(), 0.5)).encode()
        for number in numbers:
            self._producer.produce(self.topic, body, partition=number)
            self._produced += 1
        assert self._producer.flush(20) == 0

    def steady(self) -> dict[str, float]:
        """What the broker counts in a second, at a steady rate of records."""
        rate = STEADY_RATE * self.partitions
        self._feed(LEAD_S, rate)  # brings all partitions to work
        before = self.monitor.counts(self.settings)
        self._feed(STEADY_S, rate)
        after = self.monitor.counts(self.settings)
        self._until_scored()
        return {name: (after[name] - before[name]) / STEADY_S for name in after if after[name] > before[name]}

    def _feed(self, seconds: float, rate: float) -> None:
        feed(self.broker.bootstrap, self.topic, self.partitions, int(seconds * rate), rate)
        self._produced += int(seconds * rate)

    def _until_scored(self) -> None:
        places = [TopicPartition(self.topic, number) for number in range(self.partitions)]

        def done() -> bool:
            try:
                found = self._reader.committed(places, timeout=10)
            except KafkaException:
                return False
            return bool(sum(max(0, place.offset) for place in found) >= self._produced)

        wait_for(done, "all records to be scored", PATIENCE_S)

    def live_bytes(self, instance: Instance) -> float:
        """State in use of a partition, by the last restores of an instance."""
        return statistics.fmean(float(event.fields["bytes"]) for event in instance.events("restored"))

    def restart(self) -> Takeover:
        """Stop the only instance, and start it again, with one record of each partition waiting."""
        (only,) = self.instances
        only.stop()
        self.one_each(range(self.partitions))
        return self._come(only, score=True)

    def join(self, instance: Instance, phase: float | None = None) -> Takeover:
        """An instance joins, so many seconds after a heartbeat of the others; None: at any time."""
        if phase is not None:
            self._sleep_until(phase - self._start_s)
        return self._come(instance, score=False)

    def leave(self, phase: float) -> Takeover:
        """The last instance leaves, so long after a heartbeat; one record waits in each of its partitions."""
        *others, last = self.instances
        on_disk = self.monitor.state_bytes(self.settings.state_topic)
        numbers = last.partitions()
        self._sleep_until(phase)
        left = last.stop()
        self.one_each(numbers)
        return self._wait(left, others, len(numbers), on_disk, score=True)

    def _sleep_until(self, phase: float) -> None:
        """Wait for this time after a heartbeat: all members send them since the last rebalance."""
        settled = max(event.at for one in self.instances for event in one.events("assigned"))
        wait = (settled + phase - time.time() - MARGIN_S) % HEARTBEAT_S + MARGIN_S
        time.sleep(wait)

    def _come(self, instance: Instance, score: bool) -> Takeover:
        on_disk = self.monitor.state_bytes(self.settings.state_topic)
        started_at = time.time()
        instance.start()
        wait_for(lambda: instance.events("started"), "the start", 60)
        (began,) = instance.events("started")
        self._start_s = began.at - started_at
        due = self.partitions // len(self.instances)
        return self._wait(began.at, [instance], due, on_disk, score)

    def _wait(self, began: float, instances: list[Instance], due: int, on_disk: float, score: bool) -> Takeover:
        def done() -> bool:
            found = [one.restored_since(began) for one in instances]
            return sum(assigned for assigned, _ in found) == sum(restored for _, restored in found) == due

        wait_for(done, f"{due} partitions to be restored", 120)
        restores = []
        for instance in instances:
            assigned, restored = (instance.events(name, began) for name in ("assigned", "restored"))
            if assigned:
                restores.append((restored[-1].at - assigned[0].at, len(restored)))
        last = max(one.events("restored", began)[-1].at for one in instances if one.events("restored", began))
        encode = None
        if score:
            self._until_scored()
            encode = time.time() - last
        took, count = max(restores)
        rebalance = max(event.at for one in instances for event in one.events("assigned", began)) - began
        return Takeover(rebalance, took, count, on_disk, encode)
