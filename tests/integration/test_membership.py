"""Members that leave a group, are killed, or are removed while they are suspended."""

from __future__ import annotations

import collections
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import Broker, kafka_home, wait_for
from clusters import Cluster
from confluent_kafka import Consumer, ConsumerGroupState
from services import CLIENT, Command, Running, command, make_settings, readings, results, sensors, unique

from fomo_stream.kafka.broker.cluster import describe_group
from fomo_stream.settings.service_settings import ServiceSettings

pytestmark = pytest.mark.slow

PARTITIONS = 4
LONG_S = 300  # the longest that the client allows; no test waits for it


def test_an_instance_that_is_killed_gets_its_partitions_back_and_one_that_is_stopped_frees_them(
    broker: Broker, real_kafka: None, tmp_path: Path
) -> None:
    """Two instances named as the pods of a StatefulSet, which have two partitions each."""
    topic, stack = unique("sensors"), ExitStack()
    instances: dict[int, Command] = {}
    broker.create_topic(topic, PARTITIONS)
    client = {**CLIENT, "session.timeout.ms": str(1000 * LONG_S)}
    settings = [make_settings(broker, topic, instance_id=f"pod-{number}", kafka=client) for number in range(2)]
    group, out, scored = settings[0].group, settings[0].out, 0

    def start(number: int) -> None:
        instances[number] = stack.enter_context(command(tmp_path / unique(f"pod-{number}"), settings[number]))

    def shares() -> dict[str, int]:
        return {name: len(partitions) for name, partitions in broker.members(group).items()}

    def score() -> None:
        """Write records to all partitions, and wait until all are scored: every partition then has an owner."""
        nonlocal scored
        scored += PARTITIONS * 20
        for partition in range(PARTITIONS):
            broker.produce(topic, readings(20), partition=partition)
        assert len(broker.read(out, at_least=scored)) == scored

    with stack:
        for number in range(2):
            start(number)
        for instance in instances.values():
            instance.wait_for_log(" assigned ")
        wait_for(lambda: shares() == {"pod-0": 2, "pod-1": 2}, "both instances to have partitions", 120)
        score()
        before, log = broker.members(group), instances[0].text()
        instances[1].kill()
        assert broker.members(group) == before
        start(1)
        score()
        assert broker.members(group) == before
        assert instances[0].text().count(" assigned ") == log.count(" assigned ")
        assert instances[1].terminate() == 0, instances[1].text()
        assert "group_not_left" not in instances[1].text()
        wait_for(lambda: shares() == {"pod-0": PARTITIONS}, "it to have all partitions, before the session ends")
        score()
        assert instances[0].terminate() == 0, instances[0].text()
        wait_for(lambda: not broker.members(group), "the group to have no members")


def test_an_instance_without_partitions_leaves_the_group_when_it_is_stopped(broker: Broker, real_kafka: None) -> None:
    """Else the next rebalance would wait for it until its session times out."""
    settings = sensors(broker, kafka={**CLIENT, "session.timeout.ms": str(1000 * LONG_S)})

    def members() -> int:
        return len(broker.admin.describe_consumer_groups([settings.group])[settings.group].result(20).members)

    with Running(settings) as owner:
        wait_for(lambda: owner.scores(0), "the first to have the partition")
        with Running(settings) as idle:
            wait_for(lambda: members() == 2 and idle.service.ready, "both to be members")
        wait_for(lambda: members() == 1, "the one that was stopped to have left")


def test_a_group_of_another_program_is_named_in_the_log(broker: Broker, real_kafka: None, tmp_path: Path) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    settings = make_settings(broker, topic)
    other = Consumer({**broker.config, "group.id": settings.group, "partition.assignment.strategy": "range"})
    other.subscribe([topic])
    try:
        wait_for(lambda: (other.poll(0.1), other.assignment())[1], "the other program to have the partition")
        with command(tmp_path / "log", settings) as running:
            wait_for(lambda: (other.poll(0.1), "another program" in running.text())[1], "the hint")
            assert running.terminate() == 0, running.text()
    finally:
        other.close()
    (line,) = {line.partition(" WARNING ")[2] for line in running.text().splitlines() if "another program" in line}
    assert line.startswith("consumer_error name=INCONSISTENT_GROUP_PROTOCOL")
    assert "--group" in line


# --- where the broker assigns

# `fomo-stream`, suspended once inside its first revocation callback: before the client hears that it has given up.
FROZEN = """
import os, signal
from fomo_stream.cli.main import program
from fomo_stream.kafka.assignment import Assignment

give_up = Assignment.give_up

def freeze_and_give_up(self, numbers):
    Assignment.give_up = give_up
    os.kill(os.getpid(), signal.SIGSTOP)
    give_up(self, numbers)

Assignment.give_up = freeze_and_give_up
program()
"""
# Under KIP-848 sessions are the broker's.
SESSION = (
    "session.timeout.ms=6000",
    "min.session.timeout.ms=6000",
    "heartbeat.interval.ms=500",
    "min.heartbeat.interval.ms=500",
)
PROTOCOL = {"group.protocol": "consumer", "transaction.timeout.ms": "6000"}


def is_stopped(process_id: int) -> bool:
    """Whether a process is suspended (Linux)."""
    return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def is_settled(settings: ServiceSettings, members: int) -> bool:
    """Whether the group has no rebalance under way, and so many members."""
    group = describe_group(settings)
    return len(group.members) == members and group.state == ConsumerGroupState.STABLE


def check_each_is_scored_once(broker: Broker, settings: ServiceSettings, count: int) -> None:
    wait_for(lambda: broker.committed(settings.group, settings.topic) == count, "all to be committed", 120)
    # the open transaction of a member that was killed hides later results until the broker ends it
    broker.wait_for_transactions(settings.out)
    scored = [one["fomo"] for one in results(broker.read(settings.out))]
    found = collections.Counter((one["partition"], one["offset"]) for one in scored)
    assert [place for place, times in found.items() if times > 1] == []
    assert len(found) == count


@pytest.fixture(scope="module")
def assigning_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that assigns partitions by itself, with short sessions."""
    home = kafka_home()
    if home is None:
        pytest.skip("needs an Apache Kafka of its own (KAFKA_HOME)")
    cluster = Cluster(home, 1, tmp_path_factory.mktemp("cluster"), [f"group.consumer.{option}" for option in SESSION])
    yield cluster
    cluster.stop()


def test_where_the_broker_assigns_a_removed_member_leaves_its_partitions_alone_too(
    assigning_broker: Cluster, tmp_path: Path
) -> None:
    broker, topic = assigning_broker, unique("zombie")
    broker.create_topic(topic, partitions=2)
    settings = {name: make_settings(broker, topic, instance_id=name, kafka=PROTOCOL) for name in ("frozen", "heir")}
    group, total = settings["heir"].group, 400
    with command(tmp_path / "frozen.log", settings["frozen"], program=["-c", FROZEN]) as frozen:
        for number in (0, 1):
            broker.produce(topic, readings(200), partition=number)
        wait_for(lambda: broker.committed(group, topic) == total, "the first records")
        with command(tmp_path / "heir.log", settings["heir"]) as heir:
            wait_for(lambda: is_stopped(frozen.process.pid), "the instance to be suspended")
            for number in (0, 1):
                heir.wait_for_log(f"restored topic={topic} partition={number}")
            frozen.process.send_signal(signal.SIGCONT)
            while not is_settled(settings["heir"], 2):
                for number in (0, 1):
                    broker.produce(topic, readings(20), partition=number)
                total += 40
            check_each_is_scored_once(broker, settings["heir"], total)


def test_where_the_broker_assigns_members_join_leave_and_are_killed_and_each_record_is_scored_once(
    assigning_broker: Cluster, tmp_path: Path
) -> None:
    broker, topic, partitions = assigning_broker, unique("members"), 4
    broker.create_topic(topic, partitions)
    settings = make_settings(broker, topic, kafka=PROTOCOL)
    total = 0

    def produce() -> None:
        nonlocal total
        for number in range(partitions):
            broker.produce(topic, readings(50, start=total), partition=number)
        total += 50 * partitions

    with command(tmp_path / "first", settings) as first:
        first.wait_for_log("restored")
        for name in ("leaves", "is-killed"):
            produce()
            with command(tmp_path / name, settings) as second:
                second.wait_for_log("restored")
                wait_for(lambda: is_settled(settings, 2), "both to be members")
                produce()
                if name == "leaves":
                    assert second.terminate() == 0, second.text()
                    assert "group_not_left" not in second.text()
            produce()
        check_each_is_scored_once(broker, settings, total)
        assert first.terminate() == 0, first.text()
    wait_for(lambda: not broker.members(settings.group), "the group to have no members")


def test_where_the_broker_assigns_a_second_instance_of_a_name_is_refused_and_the_first_keeps_its_place(
    assigning_broker: Cluster, tmp_path: Path
) -> None:
    broker, topic = assigning_broker, unique("names")
    broker.create_topic(topic)
    settings = make_settings(broker, topic, instance_id="name", delivery="at-least-once", kafka=PROTOCOL)
    with command(tmp_path / "first.log", settings) as first:
        first.wait_for_log("restored")
        with command(tmp_path / "second.log", settings) as second:
            assert second.process.wait(60) == 3
            assert "another instance has the same --instance-id" in second.text()
        broker.produce(topic, readings(100))
        wait_for(lambda: broker.committed(settings.group, topic) == 100, "all records to be committed")
        assert first.terminate() == 0, first.text()
    assert 'group_not_left reason="group.protocol is consumer"' in first.text()
    assert set(broker.members(settings.group)) == {"name"}
