"""A member that the group has removed while it was suspended scores and commits nothing that is no longer its own."""

from __future__ import annotations

import collections
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import Broker, kafka_home, wait_for
from clusters import Cluster
from confluent_kafka import ConsumerGroupState
from group_leader import Leader
from services import Command, command, make_settings, readings, results, unique

from fomo_stream.kafka.broker.members import ask_about_group
from fomo_stream.settings.service import ServiceSettings

pytestmark = pytest.mark.slow

FROZEN = str(Path(__file__).with_name("frozen_in_revoke.py"))
SESSION_S = 6.0
# Under KIP-848 sessions are the broker's.
SESSION = (
    "session.timeout.ms=6000",
    "min.session.timeout.ms=6000",
    "heartbeat.interval.ms=500",
    "min.heartbeat.interval.ms=500",
)


def is_stopped(process_id: int) -> bool:
    """Whether a process is suspended (Linux)."""
    return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def wait_until_frozen(frozen: Command) -> None:
    wait_for(lambda: is_stopped(frozen.process.pid), "the instance to be suspended", 60)


def is_settled(settings: ServiceSettings, members: int) -> bool:
    """Whether the group has no rebalance under way, and so many members."""
    group = ask_about_group(settings)
    return len(group.members) == members and group.state == ConsumerGroupState.STABLE


def places(broker: Broker, topic: str) -> list[tuple[int, int]]:
    return [(found["fomo"]["partition"], found["fomo"]["offset"]) for found in results(broker.read(topic))]


def check_each_is_scored_once(broker: Broker, settings: ServiceSettings, count: int) -> None:
    wait_for(lambda: broker.committed(settings.group, settings.topic) == count, "all to be committed", 120)
    found = collections.Counter(places(broker, settings.out))
    assert [place for place, times in found.items() if times > 1] == []
    assert len(found) == count


@pytest.mark.usefixtures("real_kafka")
def test_a_member_that_was_removed_while_it_gave_up_a_partition_leaves_its_others_alone(
    broker: Broker, tmp_path: Path
) -> None:
    """It joins again, gets a membership that brokers accept, and is not told which partitions it still has."""
    topic = unique("zombie")
    broker.create_topic(topic, partitions=2)
    settings = {name: make_settings(broker, topic, instance_id=name) for name in ("frozen", "heir")}
    group = settings["heir"].group
    assert broker.committed(group, topic) == 0  # so that the group has a coordinator
    with Leader(broker.bootstrap, group, topic, SESSION_S) as leader, ExitStack() as stack:
        leader.give({"frozen": [0, 1]})
        frozen = stack.enter_context(command(tmp_path / "frozen.log", settings["frozen"], program=[FROZEN]))
        broker.produce(topic, readings(200), partition=0)
        broker.produce(topic, readings(200), partition=1)
        wait_for(lambda: broker.committed(group, topic) == 400, "the first records")
        heir = stack.enter_context(command(tmp_path / "heir.log", settings["heir"]))
        wait_for(lambda: "heir" in leader.members, "the other member")
        leader.give({"frozen": [1], "heir": [0]})
        wait_until_frozen(frozen)
        leader.give({"heir": [0, 1]})
        wait_for(lambda: leader.members == {"heir"}, "the group to remove the suspended member")
        heir.wait_for_log("restored topic=" + topic + " partition=1")
        leader.is_silent.set()  # it joins once more, and assigns nothing: the next rebalance hangs for a session
        frozen.process.send_signal(signal.SIGCONT)
        assert leader.has_joined_silently.wait(60)
        total = 400
        while not is_settled(settings["heir"], 2):
            broker.produce(topic, readings(20), partition=1)
            total += 20
        check_each_is_scored_once(broker, settings["heir"], total)


@pytest.fixture(scope="module")
def assigning_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that assigns partitions by itself, with short sessions."""
    home = kafka_home()
    if home is None:
        pytest.skip("needs an Apache Kafka of its own (KAFKA_HOME)")
    cluster = Cluster(home, 1, tmp_path_factory.mktemp("cluster"), [f"group.consumer.{option}" for option in SESSION])
    yield cluster
    cluster.stop()


PROTOCOL = {"group.protocol": "consumer", "transaction.timeout.ms": "6000"}


def test_where_the_broker_assigns_a_removed_member_leaves_its_partitions_alone_too(
    assigning_broker: Cluster, tmp_path: Path
) -> None:
    broker, topic = assigning_broker, unique("zombie")
    broker.create_topic(topic, partitions=2)
    settings = {name: make_settings(broker, topic, instance_id=name, kafka=PROTOCOL) for name in ("frozen", "heir")}
    group, total = settings["heir"].group, 400
    with command(tmp_path / "frozen.log", settings["frozen"], program=[FROZEN]) as frozen:
        for number in (0, 1):
            broker.produce(topic, readings(200), partition=number)
        wait_for(lambda: broker.committed(group, topic) == total, "the first records")
        with command(tmp_path / "heir.log", settings["heir"]) as heir:
            wait_until_frozen(frozen)
            for number in (0, 1):
                heir.wait_for_log(f"restored topic={topic} partition={number}")
            frozen.process.send_signal(signal.SIGCONT)
            while not is_settled(settings["heir"], 2):
                for number in (0, 1):
                    broker.produce(topic, readings(20), partition=number)
                total += 40
            check_each_is_scored_once(broker, settings["heir"], total)


def test_where_the_broker_assigns_a_second_instance_of_a_name_is_refused_and_the_first_goes_on(
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
