"""A member's reaction to what the broker reports about topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from memory_broker import MemoryBroker, MemoryReader
from memory_service import DEAD, IDS, OUT, STATE, Instance


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    broker.partitions = dict.fromkeys(("t", "f", OUT, DEAD, STATE), 1)
    broker.topic_ids = dict(IDS)
    with (
        patch("fomo_stream.kafka.topic_reader.make_reader", lambda *_: MemoryReader(broker)),
        patch("fomo_stream.kafka.state.reader.BEHIND_S", -1.0),
    ):
        yield broker


@pytest.fixture
def member(broker: MemoryBroker) -> Iterator[Instance]:
    """It has scored and committed 30 records, and read 5 more."""
    member = Instance("a", broker)
    member.take(0)
    member.restore()
    for count in (30, 5):
        for i in range(count):
            broker.append(("t", 0), b"p", json.dumps({"x": i, "y": 0}).encode())
        member.read(0, count, 0)
        if count == 30:
            member.score(is_due=True, is_built=True)
            member.step()
    yield member
    member.restorer.stop()


@pytest.mark.parametrize("topic", ["t", "f"])
def test_when_a_topic_was_recreated_partitions_are_restored_before_more_is_read(
    member: Instance, broker: MemoryBroker, topic: str
) -> None:
    before = member.pipeline.tasks[0]
    member.step()
    assert member.pipeline.tasks[0] is before
    broker.topic_ids[topic] = "another"
    member.step()  # notices it
    member.turn(0.0)  # goes back
    after = member.pipeline.tasks[0]
    assert after is not before
    assert after.is_active
    if topic == "t":  # the state was about the topic that is gone
        assert after.position == 0
        assert after.learned_until == 0
    else:
        assert after.position == after.learned_until == 30
