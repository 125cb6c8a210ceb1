"""Faults by name, and instances of the service that are restarted whenever they end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import label_effects
from brokers import wait_for
from clusters import Cluster, Node
from confluent_kafka import ConsumerGroupState, KafkaException
from fault_streams import Stream
from services import Command

from fomo_stream.kafka.broker.cluster import describe_group

AWAY_S = 5.0  # downtime of a broker that others replace
# A coordinator is frozen for longer than a call to it may last, but shorter than a session: else all members are lost.
SILENT_S = 7.0
MOST_PARTITIONS = 10
# Faults that are two at once; the others are single.
DOUBLE = ("start_without_coordinator",)


class Supervised:
    """One instance of the service, restarted whenever it ends."""

    def __init__(self, folder: Path, name: str, flags: Sequence[str], topics: Sequence[str]) -> None:
        self.name = name
        self.exits: list[int] = []
        self.exits_by_itself: list[str] = []
        self._folder, self._flags, self._topics = folder, flags, topics
        self._stopped = False
        self._running = self._start()
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def _start(self) -> Command:
        path = self._folder / f"{self.name}-{len(self.exits)}.log"
        program = (str(Path(label_effects.__file__)),)  # `fomo-stream`; it also records when labels take effect
        return Command(path, *self._flags, program=program)

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

    def freeze(self, seconds: float) -> None:
        """Suspend it, and let it go on."""
        process = self._running.process
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    @property
    def has_partitions(self) -> bool:
        """Whether it has some of each topic."""
        text = self._running.text()
        return all(f" restored topic={topic} " in text for topic in self._topics)

    def stop(self) -> None:
        self._stopped = True
        self.signal(signal.SIGTERM)
        self._thread.join(60)
        if self._running.process.poll() is None:
            self._running.kill()


@dataclass
class Injector:
    """Faults by name; each call returns when the fault is over."""

    cluster: Cluster
    instances: list[Supervised]
    streams: list[Stream]
    session_s: float
    rng: random.Random
    only: tuple[str, ...] = ()  # kinds of faults; none: all
    rounds: list[tuple[float, list[str]]] = field(default_factory=list)  # when, and what was injected together
    freezes: int = 0  # at random moments

    @property
    def injected(self) -> list[str]:
        return [name for _, names in self.rounds for name in names]

    def is_complete(self) -> bool:
        """Whether all instances have partitions, and no group has other members or a rebalance under way."""
        if not all(instance.has_partitions for instance in self.instances):
            return False
        try:
            groups = [describe_group(stream.settings) for stream in self.streams]
        except KafkaException:
            return False
        n = len(self.instances)
        return all(len(group.members) == n and group.state == ConsumerGroupState.STABLE for group in groups)

    def names(self) -> list[str]:
        several_only = [
            "group_coordinator_kill",
            "group_coordinator_freeze",
            "transaction_coordinator_kill",
            "broker_freeze",
            "start_without_coordinator",
        ]
        return list(self.only) or [
            "kill",
            "terminate",
            "freeze",
            "broker_kill",
            "produce_errors",
            "broker_terminate",
            "kill_static",
            "labels",
            "add_partition",
            *(several_only if len(self.cluster.nodes) > 1 else []),
        ]

    def inject(self, name: str, instance: Supervised, node: Node) -> None:
        stream = self.rng.choice(self.streams)
        about = f"{instance.name}, node {node.number}, {stream.settings.topic}"
        print(f"{time.strftime('%H:%M:%S')} {name}: {about}", flush=True)
        if name == "start_without_coordinator":
            instance.signal(signal.SIGKILL)
            time.sleep(2)  # the supervisor has restarted it, and it is about to ask
            self._break_broker("group_coordinator_freeze", node, stream)
        elif is_of_broker(name):
            self._break_broker(name, node, stream)
        elif name == "labels":
            for every in self.streams:
                every.labels.give(every.outputs, self.rng)
        elif name == "add_partition":
            self._add_partition(stream)
        elif name == "produce_errors":
            topic = self.rng.choice((stream.settings.out, stream.settings.state_topic))
            self.cluster.alter(topic, min_insync_replicas="9")
            time.sleep(3)
            self.cluster.alter(topic, min_insync_replicas=None)
        elif name == "freeze":
            instance.freeze(self.session_s + 2)
        else:
            instance = self.instances[0] if name == "kill_static" else instance
            instance.signal(signal.SIGTERM if name == "terminate" else signal.SIGKILL)

    def _add_partition(self, stream: Stream) -> None:
        count, topic = stream.feed.partitions + 1, stream.settings.topic

        def added() -> bool:
            try:
                if self.cluster.partitions(topic) < count:
                    self.cluster.grow_topic(topic, count)
            except KafkaException:  # the broker that was asked is going down
                return False
            return True

        if count <= MOST_PARTITIONS:
            wait_for(added, "another partition", 60)
            stream.feed.use(count)

    def _break_broker(self, name: str, node: Node, stream: Stream) -> None:
        if name.startswith("group_coordinator"):
            node = self.cluster.leader("__consumer_offsets", stream.settings.group)
        elif name == "transaction_coordinator_kill":
            static = f"{stream.settings.group}-{stream.settings.topic}-static"
            node = self.cluster.leader("__transaction_state", static)
        if name.endswith("freeze"):
            node.freeze()
            time.sleep(3 if name == "broker_freeze" else SILENT_S)
            node.go_on()
        else:
            node.stop(signal.SIGTERM if name == "broker_terminate" else signal.SIGKILL)
            if len(self.cluster.nodes) > 1:
                time.sleep(AWAY_S)
            node.start()
            wait_for(node.answers, "the broker to start", 60)
        wait_for(self.cluster.is_complete, "the cluster to be complete", 120)


@contextmanager
def burners(wanted: bool) -> Iterator[None]:
    """On each core a process that does nothing but take time."""
    count = (os.cpu_count() or 1) if wanted else 0
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def freezes(injector: Injector) -> Iterator[None]:
    """Meanwhile an instance is suspended now and then, for less or more than a session."""
    rng = random.Random(injector.rng.random())
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(rng.uniform(0, 30)):
            instance = rng.choice(injector.instances)
            print(f"{time.strftime('%H:%M:%S')} at random: freeze {instance.name}", flush=True)
            instance.freeze(rng.uniform(8, 20))
            injector.freezes += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_of_broker(name: str) -> bool:
    return name.startswith(("broker", "group", "transaction", "start_without"))


def inject_for(injector: Injector, until: float, at_least: int = 0) -> None:
    """Inject every kind of fault in turn, every other time two at once, one of a broker at most.

    until: by `time.monotonic`. at_least: as many faults, also if they take longer.

    Before the next fault the group is complete, and all records so far are scored: a fault during a join or a
    rebalance would be two faults at once.
    """
    rng, names = injector.rng, injector.names()
    order: list[str] = []
    while time.monotonic() < until or len(injector.injected) < at_least:
        count = 1 + len(injector.rounds) % 2 if len(names) > 1 else 1
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
        wait_for(injector.is_complete, "the group to be complete", 300)
        for stream in injector.streams:
            scored = partial(stream.outputs.numbers.issuperset, list(stream.feed.acknowledged))
            wait_for(scored, f"all to be well after {chosen}", 300)
