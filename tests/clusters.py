"""A Kafka cluster to test against: several brokers of our own, which can be killed, frozen and configured."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brokers import Broker, free_ports, wait_for
from confluent_kafka import KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType


class Node:
    """One broker of a cluster of our own."""

    def __init__(self, home: Path, folder: Path, number: int, ports: list[int], options: Sequence[str] = ()) -> None:
        self.number = number
        self._log = folder / f"node{number}.log"
        self._port = ports[number - 1]
        voters = ",".join(f"{i}@{port}" for i, port in enumerate(ports, 1))
        command = [home / "bin" / "kafka-start", folder / f"node{number}", str(self._port)]
        self._command: list[Any] = [*command, "--node", str(number), "--voters", voters]
        self._command += [word for option in options for word in ("-o", option)]
        self.start()

    def start(self) -> None:
        with open(self._log, "ab") as log:
            environment = {**os.environ, "KAFKA_HEAP": "320m"}
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def stop(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return True
        except OSError:
            return False


class Cluster(Broker):
    """Brokers of our own. options: `key=value` of their configuration."""

    def __init__(self, home: Path, n_nodes: int, folder: Path, options: Sequence[str] = ()) -> None:
        ports: list[int] = []
        while len(ports) < n_nodes:
            port = free_ports()
            if all(abs(port - other) > 2 for other in ports):
                ports.append(port)
        self._home = home
        super().__init__(",".join(f"127.0.0.1:{port}" for port in ports))
        self.nodes = [Node(home, folder, number, ports, options) for number in range(1, n_nodes + 1)]
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
        leader = self._partition(topic, key).leader
        return next(node for node in self.nodes if node.number == leader)

    def leads(self, node: Node, topic: str, partition: int) -> bool:
        """Whether the node leads a partition."""
        return bool(self.admin.list_topics(topic, timeout=5).topics[topic].partitions[partition].leader == node.number)

    def holders(self, topic: str, key: str) -> list[Node]:
        """The nodes that have a replica of it: a write waits for all of them that are in sync."""
        replicas = self._partition(topic, key).replicas
        return [node for node in self.nodes if node.number in replicas]

    def _partition(self, topic: str, key: str) -> Any:
        found = self.admin.list_topics(topic, timeout=5).topics[topic].partitions
        return found[_java_hash(key) % len(found)]

    def controller(self) -> Node:
        """The node that leads the quorum of controllers."""
        tool, server = self._home / "bin" / "kafka-tool", self.bootstrap
        command = [str(tool), "MetadataQuorumCommand", "--bootstrap-server", server, "describe", "--status"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        leader = re.search(r"LeaderId:\s+(\d+)", shown)
        assert leader is not None, shown
        return next(node for node in self.nodes if node.number == int(leader[1]))

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
            except KafkaException:  # the broker that was asked is going down
                return False
            return True

        wait_for(altered, f"the configuration of {topic}", 60)

    def stop(self) -> None:
        for node in self.nodes:
            node.process.kill()
            node.process.wait()


def _java_hash(text: str) -> int:
    """The hash by which Kafka assigns groups and transactional ids to partitions of its internal topics."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
