"""Simulates a fleet: rebalance and restore times, size of the state topic, load of the brokers.

    KAFKA_HOME=... python tests/benchmarks/fleet.py [--cycles 3] [--records 1000] [--members 100]

The model is in `fleet_model.py`. Its constants are measured on one broker with 16 partitions: first one instance, then
two, of which one leaves and comes back several times. What it predicts is then compared with three instances and 48
partitions, and, for rebalances alone, with 100 members that do not score. Last comes the simulation of 100 instances
with 1,000 partitions. Default settings, 10 features. The state of an established stream is taken from a detector
without Kafka.

A rebalance waits for heartbeats, so instances leave and join at times that are spread evenly between two of them. All
processes share the cores of this machine. Prints tables, and one JSON line last. Exits with 1 if a prediction about
rebalances, restores or the size of the state is off by more than 30 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "integration", "benchmarks")]

from brokers import Broker, free_ports, kafka_home, open_broker, wait_for  # noqa: E402
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition  # noqa: E402
from fleet_model import (  # noqa: E402
    HEARTBEAT_S,
    Constants,
    Fleet,
    fit_line,
    join_s,
    leave_s,
    load,
    restore_s,
    simulate,
    touched,
)
from services import Command, command, unique  # noqa: E402
from suite.contenders import sensor_rows  # noqa: E402
from suite.load import FEATURES, feed, fill, names  # noqa: E402

from fomo_stream.detector.detector import Detector  # noqa: E402
from fomo_stream.model.checkpoint import shared_model  # noqa: E402
from fomo_stream.settings.service import ServiceSettings  # noqa: E402

MARGIN_S = 0.5  # for what comes before
WARM_UP = 300  # records of a partition before the first restore is measured
TOLERANCE = 0.3
RATES = (20.0, 1000.0)  # simulated: records a second of a partition
AGE = 100_000  # records of each partition before the simulation
ENTRY_BYTES = 25  # of an entry in the state topic, besides its name and value
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


class Members:
    """Members of a group that do nothing but join: for rebalances of many."""

    def __init__(self, broker: Broker, members: int, partitions: int) -> None:
        self.group = unique("members")
        self._broker, self._partitions = broker, partitions
        broker.create_topic(self.group, partitions)
        self._owned: dict[int, set[int]] = {}
        self._members: dict[int, Any] = {}
        self._settled = 0.0
        for number in range(members):
            self._add(number)
        self._spin(self._is_balanced)

    def close(self) -> None:
        for member in self._members.values():
            member.close()

    def leave(self, phase: float) -> float:
        """Seconds until others have the partitions of one that leaves, so long after a heartbeat of the others."""
        self._wait_for_phase(phase)
        number, member = self._members.popitem()
        del self._owned[number]
        member.close()
        began = time.time()
        self._spin(lambda: sum(map(len, self._owned.values())) == self._partitions)
        return self._settled - began

    def join(self, phase: float) -> float:
        """Seconds until one that joins has its share."""
        self._wait_for_phase(phase)
        began = time.time()
        self._add(len(self._members))
        self._spin(self._is_balanced)
        return self._settled - began

    def _add(self, number: int) -> None:
        mine = self._owned[number] = set()
        group = {"group.id": self.group, "partition.assignment.strategy": "cooperative-sticky"}
        member = Consumer({**self._broker.config, **group, "enable.auto.commit": False})

        def assigned(_consumer: Any, places: list[Any]) -> None:
            mine.update(place.partition for place in places)
            self._settled = time.time()

        def revoked(_consumer: Any, places: list[Any]) -> None:
            mine.difference_update(place.partition for place in places)

        member.subscribe([self.group], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        self._members[number] = member

    def _is_balanced(self) -> bool:
        shares = [len(owned) for owned in self._owned.values()]
        return sum(shares) == self._partitions and max(shares) - min(shares) <= 1

    def _wait_for_phase(self, phase: float) -> None:
        due = time.time() + (self._settled + phase - time.time() - MARGIN_S) % HEARTBEAT_S + MARGIN_S
        self._spin(lambda: time.time() >= due)

    def _spin(self, done: Callable[[], bool]) -> None:
        """Let all members work until it is done."""
        deadline = time.monotonic() + 120
        while not done():
            assert time.monotonic() < deadline, "the members do not come to an end"
            for member in list(self._members.values()):
                member.poll(0)
            time.sleep(0.005)


@dataclass
class Measured:
    """All of a run of one size."""

    fleet: Fleet
    leaves: list[Takeover]
    joins: list[Takeover]
    live_bytes: float
    steady: dict[str, float]


def cycles(run: Run, count: int) -> tuple[list[Takeover], list[Takeover]]:
    """The last instance leaves and comes back, at times spread evenly between two heartbeats."""
    leaves, joins = [], []
    for n in range(count):
        phase = HEARTBEAT_S * (n + 0.5) / count
        leaves.append(run.leave(phase))
        joins.append(run.join(run.instances[-1], phase))
    return leaves, joins


def measure_small(run: Run, folder: Path, records: int, count: int) -> tuple[list[Takeover], list[Measured]]:
    """Restarts of one instance with two sizes of the state; then one instance, and two, with 16 partitions."""
    (first,) = run.instances
    first.start()
    restarts = []
    for more in (WARM_UP, records - WARM_UP):
        run.score(more)
        restarts.append(run.restart())
    alone = Measured(Fleet(1, run.partitions, STEADY_RATE), [], [], run.live_bytes(first), run.steady())
    second = Instance(run.settings, folder, f"{run.topic}-1")
    run.instances.append(second)
    run.join(second)
    steady = run.steady()
    both = Measured(Fleet(2, run.partitions, STEADY_RATE), *cycles(run, count), run.live_bytes(second), steady)
    return restarts, [alone, both]


def measure_large(run: Run, records: int, count: int) -> Measured:
    """Three instances, 48 partitions."""
    for instance in run.instances:
        instance.start()
    share = run.partitions // len(run.instances)
    wait_for(lambda: all(len(one.partitions()) == share for one in run.instances), "all to have partitions", 120)
    run.score(records)
    steady = run.steady()
    found = cycles(run, count)
    return Measured(Fleet(3, run.partitions, STEADY_RATE), *found, run.live_bytes(run.instances[-1]), steady)


@dataclass
class Established:
    """State of a partition of an established stream, in bytes."""

    in_use: float
    generations: float  # written for each record, times the age: a view is renewed when a tenth of its rows has changed
    other: dict[int, float]  # written for each record apart from generations, by records of a partition in a commit

    def written(self, per_commit: int, age: int) -> float:
        """Bytes written for each record after `age` records."""
        return self.other[per_commit] + self.generations / age


def established(per_commits: Iterable[int]) -> Established:
    """Measures a detector: generations from 10,000 to 20,000 records, then 1,000 records for each size of a commit."""
    detector = Detector(shared_model(), FEATURES, ServiceSettings(topic="t").detector_config())
    rows = sensor_rows(40_000, FEATURES, seed=0)
    entries: dict[str, bytes] = {}
    done = 0

    def written(records: int, per_commit: int, generations: bool) -> int:
        """Bytes of the state that these records write."""
        nonlocal done
        size, last = 0, done + records
        while done < last:
            count = min(per_commit, last - done)
            detector.process(rows[done : done + count])
            done += count
            for name, value in detector.changes().items():
                entries[name] = value or b""
                if name.startswith("generation/") == generations:
                    size += len(name) + len(value or b"") + ENTRY_BYTES
        return size

    written(10_000, 64, True)
    generations = written(10_000, 64, True) / math.log(2)  # the integral of 1 / age
    other = {count: written(1000, count, False) / 1000 for count in sorted(set(per_commits))}
    return Established(float(sum(map(len, entries.values()))), generations, other)


def fit(restarts: list[Takeover], small: list[Measured]) -> Constants:
    """The constants of the model, from the small runs."""
    _, both = small
    rounds = [one.rebalance_s - HEARTBEAT_S / 2 for one in both.leaves]
    rounds += [(one.rebalance_s - 1.5 * HEARTBEAT_S) / 2 for one in both.joins]
    takeovers = [*restarts, *both.leaves, *both.joins]
    restore = fit_line([(one.bytes_on_disk, one.restore_s / one.partitions) for one in takeovers])
    encodes = [one.encode_s / one.partitions for one in (*restarts[1:], *both.leaves) if one.encode_s is not None]
    commit_s = statistics.fmean(run.fleet.instances / run.steady["transactions"] for run in small)
    requests = fit_line(
        [
            (run.fleet.share * touched(STEADY_RATE, commit_s), run.steady["requests"] / run.steady["transactions"])
            for run in small
        ]
    )
    records = STEADY_RATE * both.fleet.partitions
    return Constants(
        max(0.0, statistics.fmean(rounds)),
        *restore,
        statistics.median(encodes),
        statistics.fmean(run.live_bytes for run in small),
        statistics.fmean(run.steady["state"] / records for run in small),
        statistics.fmean(run.steady["output"] / records for run in small),
        commit_s,
        *requests,
    )


def compare(model: Constants, large: Measured, many: dict[str, float]) -> list[tuple[str, float, float, bool]]:
    """What was predicted and measured: name, both values, whether they have to agree."""
    leaves, joins = large.leaves, large.joins
    expected = load(model, large.fleet)

    def restore(found: list[Takeover]) -> tuple[float, float]:
        predicted = [restore_s(model, one.partitions, one.bytes_on_disk) for one in found]
        return statistics.median(predicted), statistics.median(one.restore_s for one in found)

    written = large.steady["state"] + large.steady["output"]
    encodes = [(one.partitions * model.encode_s, one.encode_s or 0.0) for one in leaves]
    rows = [
        ("rebalance after a leave, s", leave_s(model), statistics.fmean(one.rebalance_s for one in leaves), True),
        ("rebalance of a join, s", join_s(model), statistics.fmean(one.rebalance_s for one in joins), True),
        (f"restore of {leaves[0].partitions} after a leave, s", *restore(leaves), True),
        (f"restore of {joins[0].partitions} after a join, s", *restore(joins), True),
        ("first scores after a leave, s", *(statistics.median(of) for of in zip(*encodes, strict=True)), False),
        ("state in use, MB", model.live_bytes * 48 / 1e6, large.live_bytes * 48 / 1e6, True),
        ("transactions/s", expected["transactions"], large.steady["transactions"], False),
        ("requests/s", expected["requests"], large.steady["requests"], False),
        ("state and outputs, MB/s", expected["bytes"] / 1e6, written / 1e6, False),
    ]
    if many:
        rows += [
            (f"rebalance after a leave, {int(many['members'])} members, s", leave_s(model), many["leave_s"], False),
            (f"rebalance of a join, {int(many['members'])} members, s", join_s(model), many["join_s"], False),
        ]
    return rows


def measure_members(broker: Broker, members: int, count: int) -> dict[str, float]:
    """Rebalances of a group of many members with 10 partitions each."""
    if members < 2:
        return {}
    group = Members(broker, members, 10 * members)
    try:
        phases = [HEARTBEAT_S * (n + 0.5) / count for n in range(count)]
        pairs = [(group.leave(phase), group.join(phase)) for phase in phases]
    finally:
        group.close()
    leave, join = (statistics.fmean(found) for found in zip(*pairs, strict=True))
    return {"members": members, "leave_s": leave, "join_s": join}


def show(title: str, rows: Iterable[tuple[Any, ...]]) -> None:
    print(f"\n{title}")
    for name, *values in rows:
        cells = (f"{value:14,.3f}" if isinstance(value, float) else f"{value:>14}" for value in values)
        print(f"  {name:<46}", *cells)


def measure_all(options: argparse.Namespace) -> tuple[Constants, list[tuple[str, float, float, bool]], dict[str, Any]]:
    """The constants, what was predicted and measured, and all raw measurements."""
    monitor = Monitor()
    with tempfile.TemporaryDirectory() as name, monitor.broker() as broker:
        folder = Path(name)
        with closing(Run(broker, monitor, folder, 1, 16)) as run:
            restarts, small = measure_small(run, folder, options.records, options.cycles)
        model = fit(restarts, small)
        show("constants", asdict(model).items())
        with closing(Run(broker, monitor, folder, 3, 48)) as run:
            large = measure_large(run, options.records, options.cycles)
        many = measure_members(broker, options.members, options.cycles)
    raw = {"restarts": restarts, "small": small, "large": large, "many": many}
    return model, compare(model, large, many), raw


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=3, help="times that an instance leaves and comes back")
    parser.add_argument("--records", type=int, default=1000, help="of each partition, before instances move")
    parser.add_argument("--members", type=int, default=100, help="of the group that does not score; 0: leave it out")
    options = parser.parse_args()
    if kafka_home() is None:
        parser.error("this needs a Kafka of its own: set KAFKA_HOME, and not TEST_BOOTSTRAP")
    model, compared, raw = measure_all(options)
    rows = [(name, wanted, found, wanted / found - 1) for name, wanted, found, _ in compared]
    show("predicted, measured, difference", rows)
    many = raw["many"]
    if many:  # a round of so many members takes longer
        rounds = many["leave_s"] - HEARTBEAT_S / 2, (many["join_s"] - 1.5 * HEARTBEAT_S) / 2
        model = replace(model, round_s=max(0.0, statistics.fmean(rounds)))
    simulated = {}
    per_commit = {rate: max(1, round(rate * model.commit_s)) for rate in RATES}
    grown = established(per_commit.values())
    for rate, count in per_commit.items():
        written = grown.written(count, AGE)
        grown_up = replace(model, live_bytes=grown.in_use, written_bytes=written)
        found = {**simulate(grown_up, Fleet(100, 1000, rate)), "state bytes a record": written}
        show(f"100 instances, 1,000 partitions, {rate:g} records/s in each, {AGE:,} records before", found.items())
        simulated[f"{rate:g} records/s"] = found
    raw["established"] = grown
    result = {"benchmark": "fleet", "constants": asdict(model), "compared": compared, "simulated": simulated}
    print(json.dumps({**result, "raw": raw}, default=lambda value: asdict(value)))
    return int(any(must and abs(wanted / found - 1) > TOLERANCE for _, wanted, found, must in compared))


if __name__ == "__main__":
    sys.exit(main())
