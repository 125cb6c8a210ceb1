"""Everything that can fail does, for minutes: is every record scored exactly once, and as if nothing had happened?

    KAFKA_HOME=... python tests/benchmarks/fault_bench.py [--seconds 420] [--nodes 3] [--seed 0]

A producer writes numbered records to 6 partitions of a cluster; three instances of `fomo-stream` score them, one of
them with --instance-id, each started again by a supervisor whenever it ends. Meanwhile faults are injected, one after
the other and in pairs: kill -9, SIGTERM, SIGSTOP beyond the session timeout, kill -9 and SIGTERM of a broker, kill -9
of the broker that coordinates the group or its transactions, a broker that hangs, produce errors (the output or the
state topic asks for more replicas than there are). Then, of what is committed:

- lost, duplicates, out of order: records without an output, with more than one, after a later one of their partition;
- different: outputs whose logit or p-value is not, bit for bit, what a detector gives that was never interrupted;
- dead letters; whether the committed offsets are complete; exit codes of instances;
- stall: the longest time from a record's acknowledgement until its output can be read, over all records; beside it how
  long the producer itself had to wait for the brokers at most.

Prints one JSON line last. Exits with 1 unless the first of these are all 0.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "integration")]

from brokers import Broker, free_ports, kafka_home, wait_for  # noqa: E402
from confluent_kafka import (  # noqa: E402
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # noqa: E402
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from services import Command, command, results, unique  # noqa: E402

from fomo_stream.checkpoint import load_model  # noqa: E402
from fomo_stream.detector import Detector  # noqa: E402
from fomo_stream.settings import ServiceSettings  # noqa: E402

AWAY_S = 5.0  # a broker that others stand in for
FEATURES = ("load", "pressure", "speed", "temperature")


def reading(number: int) -> dict[str, float]:
    """Record `number`: four features that hang together, now and then an outlier."""
    rng = random.Random(number)
    load = rng.gauss(0, 1) if rng.random() > 0.01 else rng.choice((-8.0, 8.0))
    return {name: load * (i + 1) + rng.gauss(0, 1) for i, name in enumerate(FEATURES)} | {"n": number}


# --- what faults are done to


class Node:
    """One broker of a cluster of our own."""

    def __init__(self, home: Path, folder: Path, number: int, ports: list[int]) -> None:
        self.number = number
        self._log = folder / f"node{number}.log"
        self._port = ports[number - 1]
        voters = ",".join(f"{i}@{port}" for i, port in enumerate(ports, 1))
        command = [home / "bin" / "kafka-start", folder / f"node{number}", str(self._port)]
        self._command: list[Any] = [*command, "--node", str(number), "--voters", voters]
        self.start()

    def start(self) -> None:
        with open(self._log, "ab") as log:
            environment = {**os.environ, "KAFKA_HEAP": "320m"}
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def stop(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait()

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return True
        except OSError:
            return False


class Cluster(Broker):
    """Brokers of our own. Raises RuntimeError when one ends by itself."""

    def __init__(self, home: Path, n_nodes: int, folder: Path) -> None:
        ports: list[int] = []
        while len(ports) < n_nodes:
            port = free_ports()
            if all(abs(port - other) > 2 for other in ports):
                ports.append(port)
        super().__init__(",".join(f"127.0.0.1:{port}" for port in ports))
        self.nodes = [Node(home, folder, number, ports) for number in range(1, n_nodes + 1)]
        wait_for(self.is_complete, "the cluster to start", 120)

    def is_complete(self) -> bool:
        """Whether every node answers, and every partition has all its replicas."""
        try:
            metadata = self.admin.list_topics(timeout=2)
        except KafkaException:
            return False
        partitions = (p for topic in metadata.topics.values() for p in topic.partitions.values())
        return len(metadata.brokers) == len(self.nodes) and all(len(p.isrs) == len(p.replicas) for p in partitions)

    def leader(self, topic: str, key: str) -> Node:
        """The node that leads the partition of an internal topic where `key` belongs: its coordinator."""
        found = self.admin.list_topics(topic, timeout=5).topics[topic].partitions
        number = _java_hash(key) % len(found)
        return next(node for node in self.nodes if node.number == found[number].leader)

    def alter(self, topic: str, **changes: str | None) -> None:
        """Change a topic's configuration; None: back to the default."""
        entries = [
            ConfigEntry(
                name.replace("_", "."),
                value or "",
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)

        def altered() -> bool:
            try:
                self.admin.incremental_alter_configs([resource])[resource].result(20)
            except KafkaException:  # the broker that was asked is just going
                return False
            return True

        wait_for(altered, f"the configuration of {topic}", 60)

    def stop(self) -> None:
        for node in self.nodes:
            node.process.kill()
            node.process.wait()


def _java_hash(text: str) -> int:
    """As Kafka assigns groups and transactional ids to the partitions of its internal topics."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


class Supervised:
    """One instance of the service, started again whenever it ends."""

    def __init__(self, folder: Path, name: str, settings: ServiceSettings) -> None:
        self.name = name
        self.exits: list[int] = []
        self.exits_by_itself: list[str] = []
        self.settings = settings
        self._folder = folder
        self._stack = ExitStack()
        self._stopped = False
        self._running = self._start()
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def _start(self) -> Command:
        self._stack.close()
        path = self._folder / f"{self.name}-{len(self.exits)}.log"
        return self._stack.enter_context(command(path, self.settings))

    def _supervise(self) -> None:
        while True:
            code = self._running.process.wait()
            self.exits.append(code)
            if code > 0:
                self.exits_by_itself.append(self._running.text().strip().splitlines()[-1])
            if self._stopped:
                return
            self._running = self._start()

    def signal(self, number: int) -> None:
        self._running.process.send_signal(number)

    @property
    def has_partitions(self) -> bool:
        return " restored " in self._running.text()

    def stop(self) -> None:
        self._stopped = True
        self.signal(signal.SIGTERM)
        self._thread.join(60)
        self._stack.close()


# --- the streams


class Feed:
    """Writes records at an even rate; knows when each was acknowledged."""

    def __init__(self, broker: Broker, topic: str, count: int, partitions: int, seconds: float) -> None:
        self.acknowledged: dict[int, float] = {}
        self.longest_s = 0.0  # from sending a record until the brokers had it
        self._producer = Producer(
            {**broker.config, "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 1}
        )
        self._topic, self._count, self._partitions, self._rate = topic, count, partitions, count / seconds
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        sent = 0
        while sent < self._count:
            while sent < min(self._count, (time.monotonic() - began) * self._rate):
                value = json.dumps(reading(sent))
                done = self._done_with(sent)
                self._producer.produce(self._topic, value, partition=sent % self._partitions, on_delivery=done)
                sent += 1
            self._producer.poll(0.005)
        while self._producer.flush(1.0):
            pass

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
    """Reads what is committed of the outputs, as it comes."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.seen: list[tuple[float, Any]] = []
        self.numbers: set[int] = set()
        # A broker that was killed may for a moment not know of what was read already: what comes twice counts once.
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
                    record = json.loads(message.value())
                    if record["n"] not in self.numbers:
                        self.seen.append((time.monotonic(), record))
                        self.numbers.add(record["n"])
        self._consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


# --- the faults


@dataclass
class Injector:
    """Faults by name; each returns when what it did is over. A fault takes `span` seconds where it has a length."""

    cluster: Cluster
    instances: list[Supervised]
    settings: ServiceSettings
    session_s: float
    rng: random.Random
    rounds: list[tuple[float, list[str]]] = field(default_factory=list)  # when, and what was injected together

    @property
    def injected(self) -> list[str]:
        return [name for _, names in self.rounds for name in names]

    def names(self) -> list[str]:
        several = len(self.cluster.nodes) > 1
        return [
            "kill",
            "terminate",
            "freeze",
            "broker_kill",
            "produce_errors",
            "broker_terminate",
            "kill_static",
            *(["group_coordinator_kill", "transaction_coordinator_kill", "broker_freeze"] if several else []),
        ]

    def inject(self, name: str, instance: Supervised, node: Node) -> None:
        print(f"{time.strftime('%H:%M:%S')} {name} {instance.name} node {node.number}", flush=True)
        if is_of_broker(name):
            self._break_broker(name, node)
        elif name == "produce_errors":
            topic = self.rng.choice((self.settings.out, self.settings.state_topic))
            self.cluster.alter(topic, min_insync_replicas="9")
            time.sleep(3)
            self.cluster.alter(topic, min_insync_replicas=None)
        elif name == "freeze":
            instance.signal(signal.SIGSTOP)
            time.sleep(self.session_s + 2)
            instance.signal(signal.SIGCONT)
        else:
            instance = self.instances[0] if name == "kill_static" else instance
            instance.signal(signal.SIGTERM if name == "terminate" else signal.SIGKILL)

    def _break_broker(self, name: str, node: Node) -> None:
        if name == "group_coordinator_kill":
            node = self.cluster.leader("__consumer_offsets", self.settings.group)
        elif name == "transaction_coordinator_kill":
            static = f"{self.settings.group}-{self.settings.topic}-static"
            node = self.cluster.leader("__transaction_state", static)
        if name == "broker_freeze":
            node.process.send_signal(signal.SIGSTOP)
            time.sleep(3)
            node.process.send_signal(signal.SIGCONT)
        else:
            node.stop(signal.SIGTERM if name == "broker_terminate" else signal.SIGKILL)
            if len(self.cluster.nodes) > 1:
                time.sleep(AWAY_S)
            node.start()
            wait_for(node.answers, "the broker to start", 60)
        wait_for(self.cluster.is_complete, "the cluster to be complete", 120)


def is_of_broker(name: str) -> bool:
    return name.startswith(("broker", "group", "transaction"))


def inject_for(injector: Injector, until: float, feed: Feed, outputs: Outputs) -> None:
    """Inject every kind of fault in turn, every other time two at once, one of a broker at most.

    What was there after a fault is scored before the next one.
    """
    rng, names = injector.rng, injector.names()
    order: list[str] = []
    while time.monotonic() < until:
        count = 1 + len(injector.rounds) % 2
        chosen: list[str] = []
        while len(chosen) < count:
            fitting = [name for name in order if not (chosen and is_of_broker(chosen[0]) and is_of_broker(name))]
            if fitting:
                chosen.append(fitting[0])
                order.remove(fitting[0])
            else:
                order += rng.sample(names, len(names))
        victims = rng.sample(injector.instances[1:], min(count, 2)) * 2
        nodes = rng.choices(injector.cluster.nodes, k=count)
        threads = [
            threading.Thread(target=injector.inject, args=(name, victims[i], nodes[i])) for i, name in enumerate(chosen)
        ]
        injector.rounds.append((time.monotonic(), chosen))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(partial(outputs.numbers.issuperset, list(feed.acknowledged)), f"all to be well after {chosen}", 120)


# --- the verdict


def verdict(
    source: list[Any], records: list[Any], feed: Feed, outputs: Outputs, injector: Injector, settings: ServiceSettings
) -> dict[str, Any]:
    """What the outputs `records` say of the records of the input `source`, both in order within a partition."""
    places = [(record["fomo"]["partition"], record["fomo"]["offset"]) for record in records]
    wanted = {(message.partition(), message.offset()) for message in source}
    last: dict[int, int] = {}
    disorder = 0
    for number, offset in places:
        disorder += offset <= last.get(number, -1)
        last[number] = offset
    stalls = [at - feed.acknowledged[record["n"]] for at, record in outputs.seen]
    longest = [0.0] * len(injector.rounds)  # by round
    for (at, _), stall in zip(outputs.seen, stalls, strict=True):
        i = sum(began < at for began, _ in injector.rounds) - 1
        longest[max(i, 0)] = max(longest[max(i, 0)], stall)
    by_fault = [("+".join(names), round(stall, 1)) for (_, names), stall in zip(injector.rounds, longest, strict=True)]
    return {
        "records": len(wanted),
        "lost": len(wanted - set(places)),
        "duplicates": len(places) - len(set(places)),
        "repeated": [place for place, times in collections.Counter(places).items() if times > 1][:20],
        "out_of_order": disorder,
        "different": count_differences(source, records, settings),
        "longest_stall_s": round(max(stalls), 1),
        "longest_stall_of_single_faults_s": max(stall for name, stall in by_fault if "+" not in name),
        "longest_wait_of_the_producer_s": round(feed.longest_s, 1),
        "median_latency_s": round(float(np.median(stalls)), 2),
        "stalls_s": by_fault,
    }


def count_differences(source: list[Any], records: list[Any], settings: ServiceSettings) -> int:
    """Outputs that differ from those of a detector for each partition that saw its records without interruption."""
    found = {
        (record["fomo"]["partition"], record["fomo"]["offset"]): (record["fomo"]["logit"], record["fomo"]["p_value"])
        for record in records
    }
    model, different = load_model(settings.model, settings.device), 0
    for partition in sorted({message.partition() for message in source}):
        messages = [message for message in source if message.partition() == partition]
        detector = Detector(model, len(FEATURES), settings.detector_config())
        values = [json.loads(message.value()) for message in messages]
        scored = detector.process(np.array([[value[name] for name in sorted(FEATURES)] for value in values]))
        for message, logit, p in zip(messages, scored.logit.tolist(), scored.p_value.tolist(), strict=True):
            place = (partition, message.offset())
            different += place in found and found[place] != tuple(None if x != x else x for x in (logit, p))
    return different


@contextmanager
def service_group(broker: Broker, folder: Path, topic: str, session_s: float) -> Iterator[list[Supervised]]:
    """Three instances, the first one with a name of its own."""
    kafka = {"session.timeout.ms": str(int(1000 * session_s)), "heartbeat.interval.ms": "1000"}
    kafka["topic.metadata.refresh.interval.ms"] = "2000"
    common: dict[str, Any] = {"bootstrap": broker.bootstrap, "topic": topic, "group": f"group-{topic}"}
    common |= {"features": FEATURES, "kafka": kafka}
    all_settings = [ServiceSettings(**common, instance_id="static"), *[ServiceSettings(**common)] * 2]
    instances = [Supervised(folder, name, s) for name, s in zip(("static", "b", "c"), all_settings, strict=True)]
    try:
        yield instances
    finally:
        for instance in instances:
            instance.stop()


def run(
    home: Path, folder: Path, count: int, seconds: float, n_nodes: int, session_s: float, seed: int, partitions: int = 6
) -> dict[str, Any]:
    """Run the whole experiment; see the module's docstring. folder: for logs, and what the brokers store."""
    cluster = Cluster(home, n_nodes, folder)
    try:
        topic = unique("faults")
        cluster.create_topic(topic, partitions)
        with service_group(cluster, folder, topic, session_s) as instances:
            settings = instances[1].settings
            outputs = Outputs(
                cluster, wait_for(lambda: cluster.partitions(settings.out) and settings.out, "the outputs", 60)
            )
            wait_for(lambda: all(instance.has_partitions for instance in instances), "the group to be complete", 60)
            feed = Feed(cluster, topic, count, partitions, seconds)
            wait_for(lambda: len(outputs.numbers) > 100, "the first outputs", 120)
            began = time.monotonic()
            injector = Injector(cluster, instances, settings, session_s, random.Random(seed))
            inject_for(injector, began + seconds - 2 * session_s, feed, outputs)
            elapsed = time.monotonic() - began
            feed.join()
            wait_for(lambda: len(outputs.numbers) >= count, "the last outputs", 120)
            source = cluster.read(topic, at_least=count)  # an idempotent producer, too, may repeat when brokers die
            wait_for(lambda: cluster.committed(settings.group, topic) == len(source), "all to be committed", 60)
        time.sleep(2)  # for outputs that should not come
        outputs.stop()
        return {
            "benchmark": "faults",
            "faults": len(injector.injected),
            "kinds": dict(collections.Counter(injector.injected)),
            "seconds": round(elapsed),
            **verdict(source, results(cluster.read(settings.out)), feed, outputs, injector, settings),
            "dead_letters": len(cluster.read(settings.dead_letters)),
            "offsets_complete": cluster.committed(settings.group, topic) == len(source),
            "session_timeout_s": session_s,
            "exits": {instance.name: dict(collections.Counter(instance.exits)) for instance in instances},
            "exits_by_itself": [line for instance in instances for line in instance.exits_by_itself],
        }
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- the end of {log}", *log.read_text().splitlines()[-12:], sep="\n")
        raise
    finally:
        cluster.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--session", type=float, default=10, help="session timeout, seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    home = kafka_home()
    if home is None:
        parser.error("set KAFKA_HOME to an Apache Kafka")
    folder = Path(tempfile.mkdtemp(prefix="fomo-faults-"))
    print(f"logs and what the brokers store: {folder}", flush=True)
    result = run(home, folder, options.records, options.seconds, options.nodes, options.session, options.seed)
    print(json.dumps(result))
    failed = (
        result["lost"] + result["duplicates"] + result["out_of_order"] + result["different"] + result["dead_letters"]
    )
    if failed or not result["offsets_complete"]:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
