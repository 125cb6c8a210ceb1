"""A member: how soon it commits what it polls, and what it does when topics or its group change."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import memory_service
import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_broker import MemoryBroker, abortable, message
from memory_service import OUT, SETTINGS, Instance, service_broker
from pipelines import QuickSettings

from fomo_stream.errors import FencedError
from fomo_stream.kafka.broker import clients
from fomo_stream.kafka.commits import BEHIND_S
from fomo_stream.kafka.member import Poller
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.topic_flags import NO_TOPIC


class Clock:
    """Time that passes only while the consumer waits for a record. Records arrive at these times, in ms."""

    def __init__(self, member: Instance, broker: MemoryBroker, arrivals: list[float]) -> None:
        self._member, self._broker = member, broker
        self._arrivals = arrivals
        self._sent = 0
        self._began = self.now = member.turned_at
        self.committed: list[float] = []  # when each record was, in ms

    def monotonic(self) -> float:
        return self.now

    @property
    def elapsed_ms(self) -> float:
        return (self.now - self._began) * 1000

    def poll(self, seconds: float) -> Message | None:
        assert seconds >= 0.001  # the client counts whole milliseconds; without a wait the loop would use a whole core
        self._member.executor.work()
        done = self._broker.offsets.get(("t", 0), 0)
        self.committed += [self.elapsed_ms] * (done - len(self.committed))
        arrives = self._arrivals[self._sent] if self._sent < len(self._arrivals) else float("inf")
        wait_ms = min(seconds * 1000, max(0.0, arrives - self.elapsed_ms))
        self.now += wait_ms / 1000
        return None if wait_ms == seconds * 1000 else self._next()

    def consume(self, most: int, seconds: float) -> list[Message]:
        self.now += seconds  # it may end sooner, with as many as it was asked for
        there = [at for at in self._arrivals[self._sent :] if at <= self.elapsed_ms]
        return [self._next() for _ in there[:most]]

    def _next(self) -> Message:
        self._broker.append(("t", 0), b"p", json.dumps({"x": self._sent % 7, "y": 0}).encode())
        self._sent += 1
        return self._member.consumer.read("t", 0, 1)[0]


@settings(max_examples=12)
@given(gaps=st.lists(st.sampled_from([0.0, 0.3, 1.0, 4.0, 60.0, 300.0]), min_size=1, max_size=30))
@pytest.mark.parametrize(("target_ms", "out"), [(2.0, NO_TOPIC), (20.0, OUT)])
def test_a_record_is_committed_within_the_target(target_ms: float, out: str, gaps: list[float]) -> None:
    broker = service_broker(1)
    same = {name: getattr(SETTINGS, name) for name in ("topic", "alerts", "feedback", "min_context", "context_size")}
    arrivals = [1.0 + sum(gaps[: i + 1]) for i in range(len(gaps))]
    with (
        broker.stands_in(),
        patch.object(memory_service, "SETTINGS", QuickSettings(**same, out=out, max_latency_ms=target_ms)),
    ):
        member = Instance("a", broker)
        clock = Clock(member, broker, arrivals)
        consumer: Any = member.consumer
        consumer.poll, consumer.consume = clock.poll, clock.consume
        member.take(0)
        member.restore()
        try:
            time_of_clock = SimpleNamespace(monotonic=clock.monotonic, time=clock.monotonic)
            with (
                patch("fomo_stream.kafka.member.time", time_of_clock),
                patch("fomo_stream.kafka.commits.time", time_of_clock),
            ):
                member.run(lambda: clock.elapsed_ms > arrivals[-1] + 1000)
        finally:
            member.restorer.stop()
    assert len(clock.committed) == len(arrivals)
    tolerance = 1.0 if target_ms < 10 else 1e-6  # ms: the shortest wait of the client, where a turn would be shorter
    assert max(done - came for came, done in zip(arrivals, clock.committed, strict=True)) <= target_ms + tolerance


N = 2000

LONG_S = 10.0


@pytest.mark.parametrize(
    ("target_ms", "kafka", "expected"),
    [
        (100, {}, ("100", "100", "300")),
        (1, {"session.timeout.ms": "600"}, ("10", "10", "200")),
        (30_000, {"heartbeat.interval.ms": "3000"}, ("500", "500", "3000")),
        (100, {"fetch.wait.max.ms": "300", "group.protocol": "consumer"}, ("300", "100", "None")),  # the broker decides
    ],
)
def test_waits_of_the_consumer_follow_from_the_target_and_the_session_unless_they_are_given(
    target_ms: float, kafka: dict[str, str], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServiceSettings(topic="t", max_latency_ms=target_ms, kafka=kafka)
    clients.make_consumer(settings).close()  # the client takes it
    made: list[dict[str, Any]] = []  # a real client does not tell its configuration
    monkeypatch.setattr(clients, "Consumer", lambda config, logger: made.append(config))
    clients.make_consumer(settings)
    names = ("fetch.wait.max.ms", "fetch.queue.backoff.ms", "heartbeat.interval.ms")
    assert tuple(str(made[0].get(name)) for name in names) == expected


class Full:
    """A consumer with many records, or with one."""

    left = N

    def poll(self, _seconds: float) -> int | None:
        return next(iter(self.consume(1, 0)), None)

    def consume(self, most: int, seconds: float) -> list[int]:
        assert seconds == 0  # a single record does not wait for others
        taken, self.left = min(most, self.left), self.left - min(most, self.left)
        return [0] * taken


def test_more_are_taken_while_they_are_handled_quickly_and_fewer_when_not() -> None:
    poller = Poller(Full(), seconds=1.0)

    def take(seconds: float) -> int:
        """How many are taken, whose handling takes so long."""
        count = len(poller.poll(LONG_S))
        poller.handled(count, seconds)
        return count

    quick = [take(0.5) for _ in range(9)]
    assert quick[0] == 1
    assert max(quick) > 1
    assert all(later <= 2 * max(quick[:i], default=1) for i, later in enumerate(quick) if i)
    assert [take(2.0) for _ in range(12)][-1] == 1
    while take(0.0):
        pass


def test_a_poller_is_behind_until_a_poll_gives_fewer_than_were_asked_for() -> None:
    consumer, found = Full(), []
    poller = Poller(consumer, seconds=1.0)
    for left in (N, N, 0, N):
        consumer.left = left
        poller.handled(len(poller.poll(LONG_S)), 0.5)
        found.append(poller.is_behind)
    assert found == [True, True, False, False]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    broker = service_broker(1)
    with broker.stands_in():
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
def test_a_member_without_partitions_ends_too_when_its_consumer_was_fenced_and_by_no_other_error(
    broker: MemoryBroker, error: KafkaError
) -> None:
    member = Instance("a", broker)
    consumer: Any = member.consumer
    other, deadline = KafkaError(KafkaError._TRANSPORT, "connection refused"), time.monotonic() + 60
    turns = set[float]()

    def poll(_seconds: float) -> Message:  # the error that ends it comes after whole turns with the other one
        turns.add(member.turned_at)
        return message(("t", 0), 0, None, None, error=error if len(turns) > 2 else other)

    consumer.poll = poll
    consumer.consume = lambda *_: []
    with pytest.raises(FencedError, match="nothing is lost"):
        member.run(lambda: time.monotonic() > deadline)
    assert len(turns) > 2
    member.restorer.stop()


@pytest.mark.parametrize("topic", ["t", "f"])
def test_when_a_topic_was_recreated_partitions_are_restored_before_more_is_read(
    member: Instance, broker: MemoryBroker, topic: str
) -> None:
    before = member.pipeline.partitions[0]
    member.step()
    assert member.pipeline.partitions[0] is before
    broker.topic_ids[topic] = "another"
    member.step()  # notices it
    member.turn(0.0)  # goes back
    after = member.pipeline.partitions[0]
    assert after is not before
    assert after.is_active
    if topic == "t":  # the state was about the topic that is gone
        assert after.position == 0
        assert after.learned_until == 0
    else:
        assert after.position == after.learned_until == broker.offsets["t", 0]


def test_while_the_service_is_behind_commits_are_rare(member: Instance) -> None:
    now = time.monotonic()
    assert member.commits.turn(now)
    assert not member.commits.turn(now + BEHIND_S / 2, is_behind=True)
    assert member.commits.turn(now + BEHIND_S / 2)
    assert member.commits.turn(now + BEHIND_S + LONG_S, is_behind=True)


def test_while_a_rebalance_completes_a_commit_waits_and_nothing_is_read_again(
    member: Instance, broker: MemoryBroker
) -> None:
    task = member.pipeline.partitions[0]
    member.pipeline.score_due(1e9)
    assert member.rebalance(broker.generations)
    member.step()
    assert broker.offsets["t", 0] == 30
    member.on_assign(None, [])
    member.step()
    assert broker.offsets["t", 0] == len(broker.values(OUT)) == 35
    assert member.pipeline.partitions[0] is task


@pytest.mark.parametrize("refusal", [KafkaError.FENCED_INSTANCE_ID, KafkaError.ILLEGAL_GENERATION])
def test_after_a_refused_commit_nothing_is_restored_or_read_until_the_group_has_assigned(
    member: Instance, broker: MemoryBroker, refusal: int
) -> None:
    member.pipeline.score_due(1e9)
    broker.answers["send_offsets_to_transaction"] = [abortable(refusal)]
    for _ in range(3):
        member.step()
    assert not member.pipeline.partitions[0].is_active
    assert member.consumer.read("t", 0, 5) == []
    broker.offsets["t", 0] = 33  # by another owner
    member.on_assign(None, [])
    for _ in range(2):
        member.step()
    assert member.pipeline.partitions[0].position == 33


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_records_of_a_partition_that_is_given_up_while_they_are_taken_are_dropped(
    member: Instance, broker: MemoryBroker, is_lost: bool, comes_back: bool
) -> None:
    """The callbacks of a rebalance run inside the call that returns the records."""
    for i in range(5):
        broker.append(("t", 0), b"p", json.dumps({"x": i, "y": 0}).encode())
    waiting = member.consumer.read("t", 0, 5)
    before = member.pipeline.partitions[0]

    def consume(n: int, _seconds: float) -> list[Message]:
        taken = [waiting.pop(0) for _ in range(min(n, len(waiting)))]
        if not waiting and taken:
            partitions = [TopicPartition("t", 0)]
            member.on_lost(None, partitions) if is_lost else member.on_revoke(None, partitions)
            if comes_back:
                member.on_assign(None, partitions)
        return taken

    consumer: Any = member.consumer
    consumer.poll = lambda seconds: next(iter(consume(1, seconds)), None)
    consumer.consume = consume
    member.run(lambda: not waiting)
    assert member.pipeline.partitions.get(0) is not before
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
