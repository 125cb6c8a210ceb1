"""The pre-stop script of the chart with real instances: a scale-in moves partitions at once, a restart moves none."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from api_server import api_server, pre_stop, stateful_set
from brokers import Broker, wait_for
from services import CLIENT, Command, command, make_settings, readings, unique

from fomo_stream.settings.service import ServiceSettings

PARTITIONS = 4
SESSION_S = 30  # a member that only stops keeps its partitions for so long
AT_ONCE_S = 15  # far less than the session, far more than a rebalance takes


class Pods:
    """Two instances named as the pods of a StatefulSet, which have two partitions each."""

    def __init__(self, broker: Broker, folder: Path, stack: ExitStack) -> None:
        if not broker.is_kafka:
            pytest.skip("the embedded broker has no static membership")
        self._broker = broker
        self._folder = folder
        self._stack = stack
        self._topic = unique("sensors")
        broker.create_topic(self._topic, PARTITIONS)
        self.instances: dict[int, Command] = {}
        for number in range(2):
            self.start(number)
        for instance in self.instances.values():
            instance.wait_for_log(" assigned ")
        wait_for(lambda: self.shares() == {"pod-0": 2, "pod-1": 2}, "both instances to have partitions", 60)

    def settings(self, number: int) -> ServiceSettings:
        client = {**CLIENT, "session.timeout.ms": str(SESSION_S * 1000)}
        return make_settings(self._broker, self._topic, instance_id=f"pod-{number}", kafka=client)

    def start(self, number: int) -> None:
        log = self._folder / unique(f"pod-{number}")
        self.instances[number] = self._stack.enter_context(command(log, self.settings(number)))

    def assigned(self) -> dict[str, set[int]]:
        """The partitions of every member of the group, by its name."""
        group = self.settings(0).group
        described = self._broker.admin.describe_consumer_groups([group])[group].result(20)
        return {
            member.group_instance_id: {one.partition for one in member.assignment.topic_partitions}
            for member in described.members
        }

    def shares(self) -> dict[str, int]:
        return {name: len(partitions) for name, partitions in self.assigned().items()}

    def stop(self, number: int, replicas: int) -> None:
        """Stop an instance as Kubernetes does, when its StatefulSet has `replicas` pods."""
        process = self.instances[number].process
        with api_server(stateful_set(replicas), "pod") as server:
            url = f"http://127.0.0.1:{server.http.server_port}"
            done = pre_stop(self._folder / "account", process.pid, f"pod-{number}", url)
        assert done.returncode == 0, done.stderr
        assert self.instances[number].terminate() == 0, self.instances[number].text()

    def score(self, records: int) -> None:
        """Write records to all partitions, and wait until all are scored: every partition then has an owner."""
        settings = self.settings(0)
        before = len(self._broker.read(settings.out)) if self._broker.partitions(settings.out) else 0
        for partition in range(PARTITIONS):
            self._broker.produce(self._topic, readings(records), partition=partition)
        self._broker.read(settings.out, at_least=before + PARTITIONS * records, seconds=2 * SESSION_S)


def test_a_restart_moves_no_partition_and_a_scale_in_moves_them_at_once(broker: Broker, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pods = Pods(broker, tmp_path, stack)
        pods.score(20)
        before = pods.assigned()
        log = pods.instances[0].text()

        pods.stop(1, replicas=2)
        assert pods.assigned() == before
        pods.start(1)
        pods.score(20)
        assert pods.assigned() == before
        assert pods.instances[0].text().count(" assigned ") == log.count(" assigned ")

        pods.stop(1, replicas=1)
        wait_for(lambda: pods.shares() == {"pod-0": PARTITIONS}, "the other instance to have them all", AT_ONCE_S)
        pods.score(20)
