"""A named instance keeps its place in the group when it stops, unless it was asked to leave."""

from __future__ import annotations

import time

import pytest
from brokers import Broker, wait_for
from services import Running, make_settings, readings, unique

SESSION_S = 20  # a member that does not leave keeps its partitions for so long


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "stays"])
def test_partitions_of_a_named_instance_move_at_once_only_if_it_leaves(broker: Broker, leaves: bool) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker does not know static members")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=4)
    client = {"session.timeout.ms": str(SESSION_S * 1000), "topic.metadata.refresh.interval.ms": "1000"}
    one, other = (Running(make_settings(broker, topic, instance_id=name, kafka=client)) for name in "ab")
    with other:
        with one:
            wait_for(lambda: one.service.ready and other.service.ready, "both to be ready")
            wait_for(lambda: len(one.member.pipeline.tasks) == len(other.member.pipeline.tasks) == 2, "two each")
            if leaves:
                one.service.leave()
        stopped = time.monotonic()
        if leaves:
            wait_for(lambda: len(other.member.pipeline.tasks) == 4, "all partitions", SESSION_S / 2)
            broker.produce(topic, readings(100))
            assert len(broker.read(f"{topic}-scores", at_least=100)) == 100
        else:
            wait_for(lambda: time.monotonic() > stopped + 4 or len(other.member.pipeline.tasks) > 2, "a while")
            assert len(other.member.pipeline.tasks) == 2
