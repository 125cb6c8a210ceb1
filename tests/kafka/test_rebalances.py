"""Rebalances: in the end each partition is served by exactly one member, and each record is scored once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from brokers import Broker, wait_for
from confluent_kafka import TopicPartition
from group_in_memory import Group, GroupClient
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_broker import MemoryBroker
from memory_service import OUT, Instance, service_broker

from fomo_stream.kafka.assignment import STALLED_S
from fomo_stream.kafka.broker.clients import make_consumer
from fomo_stream.kafka.member import MAX_DIFFERENCE_S
from fomo_stream.kafka.snapshot import not_ready_reasons
from fomo_stream.settings.service_settings import ServiceSettings

NUMBERS = range(4)
NAMES = ("a", "b", "c")
TURNS = 60  # of each instance, until all is quiet

events = st.tuples(
    st.sampled_from(
        ["serve", "turn", "freeze", "is removed", "wakes", "wakes unnoticed", "kill", "rebalance", "records"]
    ),
    st.sampled_from(NAMES),
)


class World:
    """Instances in a group, over a broker in memory. The time stands still unless a test says otherwise."""

    def __init__(self, stack: ExitStack) -> None:
        self.broker = service_broker(len(NUMBERS))
        stack.enter_context(self.broker.stands_in())
        self._stack = stack
        self.group = Group(self.broker, "t", len(NUMBERS))
        self.clients: dict[str, GroupClient] = {}
        self.instances: dict[str, Instance] = {}

    def start(self, name: str) -> None:
        """A process of that name; an earlier one was killed."""
        if name in self.clients:
            self.group.remove(self.clients[name].memberid())
        self.clients[name] = GroupClient(self.group, name)
        self.instances[name] = Instance(name, self.broker, consumer=self.clients[name])
        self._stack.callback(self.instances[name].restorer.stop)
        self.instances[name].run(lambda: True)  # it subscribes

    def happens(self, what: str, name: str) -> None:
        client, instance = self.clients[name], self.instances[name]
        if what == "records":
            for number in NUMBERS:
                self.broker.append(("t", number), b"p", json.dumps({"x": number, "y": 0}).encode())
        elif what == "rebalance":
            self.group.complete()
        elif what == "kill":
            self.start(name)
        elif what == "freeze":
            client.is_frozen = True
        elif what == "is removed" and client.is_frozen:
            self.group.remove(client.memberid())
        elif what.startswith("wakes") and client.is_frozen:
            client.wake(is_noticed=what == "wakes")
        elif what == "serve" and not client.is_frozen:
            client.serve()
        elif what == "turn" and not client.is_frozen:
            for number in NUMBERS:
                instance.read(number, 5, 0)
            instance.score(is_due=True, is_built=True)
            instance.step()

    def settle(self) -> None:
        """Nothing new happens any more."""
        for name, client in self.clients.items():
            if client.is_frozen:
                self.happens("wakes unnoticed", name)
        for _ in range(TURNS):
            for name in NAMES:
                for what in ("serve", "turn", "rebalance"):
                    self.happens(what, name)


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


FOUND = [  # a member is removed while it is suspended, and the others come back as it wakes
    *[
        ("freeze", "c"),
        ("is removed", "c"),
        ("rebalance", "a"),
        ("serve", "a"),
        ("serve", "b"),
        ("wakes unnoticed", "c"),
    ],
    *[("kill", "a"), ("kill", "b"), ("rebalance", "a"), ("turn", "c"), ("serve", "c"), ("turn", "c")],
]


@settings(max_examples=12)
@given(what=st.lists(events, max_size=40))
@example(what=FOUND)
def test_in_the_end_each_partition_is_served_by_one_member_and_each_record_scored_once(
    what: list[tuple[str, str]],
) -> None:
    with ExitStack() as stack:
        world = World(stack)
        for name in NAMES:
            world.start(name)
        world.settle()
        for one in what:
            world.happens(*one)
        world.happens("records", "a")
        world.settle()
        served = {name: set(instance.pipeline.partitions) for name, instance in world.instances.items()}
        assert sorted(number for numbers in served.values() for number in numbers) == list(NUMBERS)
        assert served == {name: client.owned for name, client in world.clients.items()}
        for number in NUMBERS:
            found = [json.loads(value or b"")["fomo"]["offset"] for value in world.broker.values(OUT, number)]
            assert found == list(range(world.broker.ends["t", number]))


def test_a_difference_between_client_and_service_that_lasts_is_mended_and_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.start("a")
    for what in ("rebalance", "serve", "turn"):
        world.happens(what, "a")
    instance, client = world.instances["a"], world.clients["a"]
    assert instance.pipeline.partitions.keys() == client.owned == set(NUMBERS)
    instance.pipeline.drop(2)  # a callback was not understood
    instance.turn(1.0)
    instance.turn(1.0 + MAX_DIFFERENCE_S / 2)
    assert client.memberid() != ""
    instance.turn(1.1 + MAX_DIFFERENCE_S)
    assert "assignment_differs" in caplog.text
    assert "not_served=[2]" in caplog.text
    assert client.memberid() == ""
    for what in ("serve", "turn", "rebalance", "serve", "turn"):
        world.happens(what, "a")
    assert instance.pipeline.partitions.keys() == set(NUMBERS)


def test_a_partition_that_does_not_move_though_it_has_unread_records_is_told_of(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.start("a")
    for what in ("records", "rebalance", "serve", "turn", "turn"):
        world.happens(what, "a")
    instance = world.instances["a"]
    watch: Any = instance.watch
    world.broker.append(("t", 3), b"p", b"{}")
    for second in range(2, round(STALLED_S)):
        world.broker.append(("t", 0), b"p", b"{}")  # another partition goes on
        watch.look_at_ends()
        instance.turn(float(second))
        instance.read(0, 5, 0)
        instance.score(is_due=True, is_built=True)
    instance.turn(1000.0)  # this process was suspended
    assert "stalled" not in caplog.text
    for second in range(1002, 1010):
        instance.turn(float(second))
    assert "stalled topic=t partition=3 offset=1" in caplog.text
    stalled = [reason for reason in not_ready_reasons(instance) if "has not moved for" in reason]
    assert len(stalled) == 1
    assert stalled[0].startswith("t[3]")
    instance.read(3, 5, 0)
    instance.score(is_due=True, is_built=True)
    instance.turn(1011.5)
    assert not_ready_reasons(instance) == []


def follow(consumer: Any, topic: str, told: set[int]) -> None:
    """Subscribe, follow the group, and note the partitions that the client tells of."""

    def on_assign(client: Any, partitions: list[TopicPartition]) -> None:
        told.update(one.partition for one in partitions)
        client.incremental_assign(partitions)

    def on_revoke(client: Any, partitions: list[TopicPartition]) -> None:
        client.incremental_unassign(partitions)

    consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke)


@pytest.mark.slow
@pytest.mark.parametrize("has_patience", [False, True])
@pytest.mark.parametrize("is_real", [False, True])
def test_a_client_that_joins_before_it_has_left_keeps_partitions_and_never_tells_of_them(
    request: pytest.FixtureRequest, is_real: bool, has_patience: bool
) -> None:
    """The group in memory behaves as a real one, and this is why a member waits until its client owns nothing."""
    told: set[int] = set()
    topic, group = f"crossing-{uuid.uuid4().hex[:8]}", Group(MemoryBroker(), "t", len(NUMBERS))
    one: Any
    other: Any
    if is_real:
        broker: Broker = request.getfixturevalue("broker")
        broker.create_topic(topic, len(NUMBERS))
        its = ServiceSettings(topic=topic, bootstrap=broker.bootstrap, group=topic)
        one, other = make_consumer(its), make_consumer(its)
    else:
        topic, one, other = "t", GroupClient(group, "one"), GroupClient(group, "other")

    def serve(client: Any) -> int:
        """Returns how many partitions it has then."""
        group.complete()
        client.poll(0.05) if is_real else client.serve()
        return len(client.assignment())

    follow(one, topic, set())
    follow(other, topic, set())
    wait_for(lambda: (serve(one), serve(other)) == (2, 2), "both have partitions")
    before = one.consumer_group_metadata()
    other.close() if is_real else group.remove(other.memberid())
    group.complete()
    wait_for(lambda: one.consumer_group_metadata() != before, "the rebalance")  # a callback will wait
    one.unsubscribe()
    if has_patience:
        wait_for(lambda: serve(one) == 0, "nothing is owned")
    follow(one, topic, told)
    wait_for(lambda: serve(one) == len(NUMBERS), "one has everything")
    assert len(told) == (len(NUMBERS) if has_patience else 2)
    if is_real:
        one.close()
