"""A member's reaction to what the broker reports about topics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError, TopicPartition
from memory_broker import MemoryBroker, MemoryReader, Message
from memory_producer import abortable
from memory_service import DEAD, IDS, OUT, STATE, Instance

from fomo_stream.errors import FencedError
from fomo_stream.kafka.member import ConsumerErrors


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    broker.partitions = dict.fromkeys(("t", "f", OUT, DEAD, STATE), 1)
    broker.topic_ids = dict(IDS)
    with (
        patch("fomo_stream.kafka.broker.topic_reader.make_reader", lambda *_: MemoryReader(broker)),
        patch("fomo_stream.kafka.restore.BEHIND_S", -1.0),
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


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError._FATAL, "Fatal error: static consumer fenced"),  # as a message of the consumer
        KafkaError(KafkaError.FENCED_INSTANCE_ID, "static consumer fenced", fatal=True),  # as its error callback
    ],
)
def test_a_member_without_partitions_ends_too_when_its_consumer_was_fenced(
    broker: MemoryBroker, error: KafkaError
) -> None:
    member = Instance("a", broker)
    member.consumer.poll = lambda _: Message(("t", 0), 0, None, None, failure=error)  # type: ignore[attr-defined]
    member.consumer.consume = lambda *_: []  # type: ignore[attr-defined]
    deadline = time.monotonic() + 5
    with pytest.raises(FencedError, match="nothing is lost"):
        member.run(lambda: time.monotonic() > deadline)
    member.restorer.stop()


def test_other_errors_of_the_consumer_do_not_end_a_member(broker: MemoryBroker) -> None:
    errors = ConsumerErrors()
    errors(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    errors.check()


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


def test_a_member_that_was_removed_and_joined_again_unnoticed_commits_nothing_more(
    member: Instance, broker: MemoryBroker
) -> None:
    """The client renews its membership before it says that partitions were lost: the broker accepts that one."""
    member.pipeline.score_due(1e9)
    broker.generations["a"] += 1
    member.consumer.join_again(as_new=True)
    for _ in range(3):
        member.step()
    assert broker.offsets["t", 0] == len(broker.values(OUT)) == 30
    assert not member.pipeline.tasks
    member.take(0)
    member.restore()
    assert member.pipeline.tasks[0].position == 30


def test_while_a_rebalance_completes_a_commit_waits_and_nothing_is_read_again(
    member: Instance, broker: MemoryBroker
) -> None:
    task = member.pipeline.tasks[0]
    member.pipeline.score_due(1e9)
    assert member.rebalance(broker.generations)
    member.step()
    assert broker.offsets["t", 0] == 30
    member.on_assign(None, [])
    member.step()
    assert broker.offsets["t", 0] == len(broker.values(OUT)) == 35
    assert member.pipeline.tasks[0] is task


@pytest.mark.parametrize("refusal", [KafkaError.FENCED_INSTANCE_ID, KafkaError.ILLEGAL_GENERATION])
def test_after_a_refused_commit_nothing_is_restored_or_read_until_the_group_has_assigned(
    member: Instance, broker: MemoryBroker, refusal: int
) -> None:
    member.pipeline.score_due(1e9)
    broker.answers["send_offsets_to_transaction"] = [abortable(refusal)]
    for _ in range(3):
        member.step()
    assert not member.pipeline.tasks[0].is_active
    assert member.consumer.read("t", 0, 5) == []
    broker.offsets["t", 0] = 33  # by another owner
    member.on_assign(None, [])
    for _ in range(2):
        member.step()
    assert member.pipeline.tasks[0].position == 33


def test_partitions_that_somebody_else_has_committed_are_restored_before_more_is_committed(
    member: Instance, broker: MemoryBroker
) -> None:
    member.pipeline.score_due(1e9)
    broker.offsets["t", 0] = 33
    member.rebalance(broker.generations)
    member.on_assign(None, [])
    for _ in range(3):
        member.step()
    assert len(broker.values(OUT)) == 30
    assert member.pipeline.tasks[0].position == 33


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_records_of_a_partition_that_is_given_up_while_they_are_taken_are_dropped(
    member: Instance, broker: MemoryBroker, is_lost: bool, comes_back: bool
) -> None:
    """The callbacks of a rebalance run inside the call that returns the records."""
    for i in range(5):
        broker.append(("t", 0), b"p", json.dumps({"x": i, "y": 0}).encode())
    waiting = member.consumer.read("t", 0, 5)
    before = member.pipeline.tasks[0]

    def consume(n: int, _seconds: float) -> list[Message]:
        taken = [waiting.pop(0) for _ in range(min(n, len(waiting)))]
        if not waiting and taken:
            partitions = [TopicPartition("t", 0)]
            member.on_lost(None, partitions) if is_lost else member.on_revoke(None, partitions)
            if comes_back:
                member.on_assign(None, partitions)
        return taken

    member.consumer.poll = lambda _: waiting.pop(0) if waiting else None  # type: ignore[attr-defined]
    member.consumer.consume = consume  # type: ignore[attr-defined]
    member.run(lambda: not waiting)
    assert member.pipeline.tasks.get(0) is not before
    assert (before.position or 0) + len(before.waiting) < 40  # the last records were dropped
    if not comes_back:
        member.take(0)
    for _ in range(3):
        member.step()
    member.read(0, 100, 0)
    member.score(is_due=True, is_built=True)
    member.step()
    found = [json.loads(value or b"")["fomo"]["offset"] for value in broker.values(OUT)]
    assert found == list(range(40))
