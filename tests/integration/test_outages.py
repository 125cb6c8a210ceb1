"""Brokers that are up but do not answer: an instance starts, waits or ends, and says why."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from brokers import kafka_home, wait_for
from clusters import Cluster
from services import command, make_settings, readings, unique

from fomo_stream.kafka.broker.clients import make_producer
from fomo_stream.kafka.delivery.transactions import START_S, Transactions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(kafka_home() is None, reason="needs an Apache Kafka to freeze (KAFKA_HOME)"),
]

SHUTDOWN_S = 25.0
FROZEN_S = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = kafka_home()
    assert home is not None
    # A frozen broker stays the coordinator for longer than a starting instance waits for an answer.
    patience = ["broker.session.timeout.ms=9000"]  # the default
    # For each transactional id there is a broker that has nothing of its log.
    copies = ["transaction.state.log.replication.factor=2", "transaction.state.log.min.isr=1"]
    cluster = Cluster(home, 3, tmp_path_factory.mktemp("cluster"), [*patience, *copies])
    try:
        yield cluster
    finally:
        cluster.stop()


def test_an_instance_starts_while_the_coordinator_of_its_group_does_not_answer(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic = unique("sensors")
    cluster.create_topic(topic, partitions=2)
    cluster.produce(topic, readings(100))
    assert not cluster.committed(unique("group"), topic)  # so that the groups have coordinators
    # Without a controller no partition gets another leader for longer than a start waits.
    controller = cluster.controller()
    # A start also reads the group's agreement, at once, so the frozen broker must not lead partition 0 of the state.
    for group in (f"group-{topic}-{i}" for i in range(100)):
        coordinator = cluster.leader("__consumer_offsets", group)
        if coordinator is controller:
            continue
        settings = make_settings(cluster, topic, group=group)
        with command(tmp_path / f"{group}.log", settings):  # so that the group and all topics exist
            scored = partial(lambda group: cluster.committed(group, topic) == 100, group)
            wait_for(scored, "the first records to be scored")
        coordinator = cluster.leader("__consumer_offsets", group)
        if coordinator is not controller and not cluster.leads(coordinator, settings.state_topic, 0):
            break
    # With a part of the log of transactions, the frozen broker would hold up the start for too long.
    named = (settings.model_copy(update={"instance_id": f"one{i}"}) for i in range(100))
    log = "__transaction_state"
    settings = next(one for one in named if coordinator not in cluster.holders(log, one.transactional_id))
    cluster.produce(topic, readings(100, start=100))
    coordinator.freeze()
    try:
        with command(tmp_path / "after.log", settings) as running:
            with pytest.raises(subprocess.TimeoutExpired):
                running.process.wait(FROZEN_S)
            coordinator.go_on()
            wait_for(lambda: cluster.committed(settings.group, topic) == 200, "the rest to be scored", 60)
    finally:
        coordinator.go_on()
        wait_for(cluster.is_complete, "the cluster to be complete", 60)


def test_a_start_outlasts_a_broker_that_hangs_and_has_a_copy_of_the_log_of_transactions(cluster: Cluster) -> None:
    settings = make_settings(cluster, "sensors")

    def start(name: str) -> None:
        Transactions(make_producer(settings, name)).start_or_explain(START_S, name, name)

    start("first")  # so that the log exists
    controller = cluster.controller()
    frozen = next(node for node in cluster.nodes if node is not controller)
    name = next(name for i in range(100) if frozen in cluster.holders("__transaction_state", name := f"one{i}"))
    frozen.freeze()
    try:
        start(name)
    finally:
        frozen.go_on()
        wait_for(cluster.is_complete, "the cluster to be complete", 60)


@pytest.mark.parametrize(
    ("delivery", "frozen", "when"),  # when: at work, or before its partitions are restored
    [("exactly-once", 1, "started"), ("exactly-once", 3, "restored"), ("at-least-once", 2, "restored")],
)
def test_shutting_down_takes_no_longer_than_25_seconds_whatever_the_brokers_do(
    cluster: Cluster, tmp_path: Path, delivery: str, frozen: int, when: str
) -> None:
    topic = unique("sensors")
    cluster.create_topic(topic, 6)
    settings = make_settings(cluster, topic, delivery=delivery, feedback=f"{topic}-labels")
    with command(tmp_path / "log", settings) as running:
        running.wait_for_log(when)
        cluster.produce(topic, readings(500))
        for node in cluster.nodes[:frozen]:
            node.freeze()
        try:
            time.sleep(2)
            began = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            code = running.process.wait(90)
            elapsed = time.monotonic() - began
        finally:
            for node in cluster.nodes:
                node.go_on()
            wait_for(cluster.is_complete, "the cluster to be complete", 60)
        assert elapsed < SHUTDOWN_S, running.text()
        assert code == 0, running.text()
