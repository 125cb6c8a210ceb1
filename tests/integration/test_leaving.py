"""Named instances that end: one that is stopped frees its partitions, one that is killed keeps them for a while."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import Broker, wait_for
from services import CLIENT, Command, command, make_settings, readings, unique

from fomo_stream.settings.service import ServiceSettings

pytestmark = pytest.mark.slow

PARTITIONS = 4
LONG_S = 300  # the longest that the client allows; no test waits for it
SHORT_S = 6  # the shortest that Apache Kafka allows


class Pods:
    """Two instances named as the pods of a StatefulSet, which have two partitions each."""

    def __init__(self, broker: Broker, folder: Path, stack: ExitStack, session_s: int) -> None:
        if not broker.is_kafka:
            pytest.skip("the embedded broker has no static membership")
        self._broker = broker
        self._folder = folder
        self._stack = stack
        self._session_ms = 1000 * session_s
        self._topic = unique("sensors")
        broker.create_topic(self._topic, PARTITIONS)
        self.instances: dict[int, Command] = {}
        for number in range(2):
            self.start(number)
        for instance in self.instances.values():
            instance.wait_for_log(" assigned ")
        wait_for(lambda: self.shares() == {"pod-0": 2, "pod-1": 2}, "both instances to have partitions", 120)
        self.score()

    def settings(self, number: int) -> ServiceSettings:
        client = {**CLIENT, "session.timeout.ms": str(self._session_ms)}
        return make_settings(self._broker, self._topic, instance_id=f"pod-{number}", kafka=client)

    def start(self, number: int) -> None:
        log = self._folder / unique(f"pod-{number}")
        self.instances[number] = self._stack.enter_context(command(log, self.settings(number)))

    def assigned(self) -> dict[str, set[int]]:
        """The partitions of every member of the group, by its name."""
        return self._broker.members(self.settings(0).group)

    def shares(self) -> dict[str, int]:
        return {name: len(partitions) for name, partitions in self.assigned().items()}

    def has_all(self) -> bool:
        return self.shares() == {"pod-0": PARTITIONS}

    def score(self) -> None:
        """Write records to all partitions, and wait until all are scored: every partition then has an owner."""
        settings = self.settings(0)
        before = len(self._broker.read(settings.out)) if self._broker.partitions(settings.out) else 0
        for partition in range(PARTITIONS):
            self._broker.produce(self._topic, readings(20), partition=partition)
        assert len(self._broker.read(settings.out, at_least=before + PARTITIONS * 20)) == before + PARTITIONS * 20


def test_an_instance_that_is_stopped_frees_its_partitions_before_its_session_ends(
    broker: Broker, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        pods = Pods(broker, tmp_path, stack, LONG_S)
        assert pods.instances[1].terminate() == 0, pods.instances[1].text()
        assert "group_not_left" not in pods.instances[1].text()
        wait_for(pods.has_all, "the other instance to have all partitions")
        pods.score()
        assert pods.instances[0].terminate() == 0, pods.instances[0].text()
        wait_for(lambda: not pods.assigned(), "the group to have no members")


def test_an_instance_that_is_killed_gets_its_partitions_back(broker: Broker, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pods = Pods(broker, tmp_path, stack, LONG_S)
        before, log = pods.assigned(), pods.instances[0].text()
        pods.instances[1].kill()
        assert pods.assigned() == before
        pods.start(1)
        pods.score()
        assert pods.assigned() == before
        assert pods.instances[0].text().count(" assigned ") == log.count(" assigned ")


def test_an_instance_that_is_killed_and_does_not_come_back_keeps_its_partitions_for_its_session(
    broker: Broker, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        pods = Pods(broker, tmp_path, stack, SHORT_S)
        pods.instances[1].kill()
        wait_for(pods.has_all, "the other instance to have all partitions")
        pods.score()


def test_with_the_protocol_consumer_a_named_instance_keeps_its_place_and_says_so(
    broker: Broker, tmp_path: Path
) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker has no static membership")
    topic = unique("sensors")
    broker.create_topic(topic)
    settings = make_settings(broker, topic, instance_id="pod-0", kafka={"group.protocol": "consumer"})
    with command(tmp_path / "log", settings) as running:
        running.wait_for_log(" assigned ")
        assert running.terminate() == 0, running.text()
    assert 'group_not_left reason="group.protocol is consumer"' in running.text()
    assert set(broker.members(settings.group)) == {"pod-0"}
