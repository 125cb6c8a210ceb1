"""How long a record waits in an instance: the target for the latency is met on every stream that is not too fast."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import memory_service
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_broker import MemoryBroker, MemoryReader, Message
from memory_service import ALERTS, DEAD, IDS, OUT, SETTINGS, STATE, Instance
from pipelines import QuickSettings

from fomo_stream.kafka.broker import clients
from fomo_stream.settings.service import NO_TOPIC, ServiceSettings


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
        assert seconds == 0
        there = [at for at in self._arrivals[self._sent :] if at <= self.elapsed_ms]
        return [self._next() for _ in there[:most]]

    def _next(self) -> Message:
        self._broker.append(("t", 0), b"p", json.dumps({"x": self._sent % 7, "y": 0}).encode())
        self._sent += 1
        return self._member.consumer.read("t", 0, 1)[0]


@settings(max_examples=20)
@given(gaps=st.lists(st.sampled_from([0.0, 0.3, 1.0, 4.0, 60.0, 300.0]), min_size=1, max_size=40))
@pytest.mark.parametrize(("target_ms", "out"), [(2.0, OUT), (2.0, NO_TOPIC), (20.0, OUT), (100.0, OUT)])
def test_a_record_is_committed_within_the_target(target_ms: float, out: str, gaps: list[float]) -> None:
    broker = MemoryBroker()
    broker.partitions = dict.fromkeys(("t", "f", OUT, ALERTS, DEAD, STATE), 1)
    broker.topic_ids = dict(IDS)
    given_settings = {
        name: getattr(SETTINGS, name) for name in ("topic", "alerts", "feedback", "min_context", "context_size")
    }
    arrivals = [1.0 + sum(gaps[: i + 1]) for i in range(len(gaps))]
    with (
        patch("fomo_stream.kafka.broker.topic_reader.make_reader", lambda *_: MemoryReader(broker)),
        patch("fomo_stream.kafka.restore.BEHIND_S", -1.0),
        patch("fomo_stream.kafka.member.to_record", memory_service.to_record),
        patch.object(memory_service, "SETTINGS", QuickSettings(**given_settings, out=out, max_latency_ms=target_ms)),
    ):
        member = Instance("a", broker)
        clock = Clock(member, broker, arrivals)
        member.consumer.poll = clock.poll  # type: ignore[attr-defined]
        member.consumer.consume = clock.consume  # type: ignore[attr-defined]
        member.take(0)
        member.restore()
        try:
            with patch("fomo_stream.kafka.member.time", SimpleNamespace(monotonic=clock.monotonic)):
                member.run(lambda: clock.elapsed_ms > arrivals[-1] + 1000)
        finally:
            member.restorer.stop()
    assert len(clock.committed) == len(arrivals)
    tolerance = 1.0 if target_ms < 10 else 1e-6  # ms: the shortest wait of the client, where a turn would be shorter
    assert max(done - came for came, done in zip(arrivals, clock.committed, strict=True)) <= target_ms + tolerance


@pytest.mark.parametrize(
    ("target_ms", "kafka", "expected"),
    [
        (100, {}, ("100", "100")),
        (1, {}, ("10", "10")),
        (30_000, {}, ("500", "500")),
        (100, {"fetch.wait.max.ms": "300"}, ("300", "100")),
    ],
)
def test_waits_of_the_consumer_follow_from_the_target_unless_they_are_given(
    target_ms: float, kafka: dict[str, str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []  # a real client does not tell its configuration
    monkeypatch.setattr(clients, "Consumer", lambda config, logger: made.append(config))
    clients.make_consumer(ServiceSettings(topic="t", max_latency_ms=target_ms, kafka=kafka))
    assert (str(made[0]["fetch.wait.max.ms"]), str(made[0]["fetch.queue.backoff.ms"])) == expected


@pytest.mark.parametrize(
    ("kafka", "expected"),
    [
        ({}, "1000"),
        ({"session.timeout.ms": "600"}, "200"),
        ({"heartbeat.interval.ms": "3000"}, "3000"),
        ({"group.protocol": "consumer"}, "None"),  # the broker decides
    ],
)
def test_heartbeats_come_every_second_and_well_within_the_session(
    kafka: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServiceSettings(topic="t", kafka=kafka)
    clients.make_consumer(settings).close()  # the client takes it
    made: list[dict[str, Any]] = []  # a real client does not tell its configuration
    monkeypatch.setattr(clients, "Consumer", lambda config, logger: made.append(config))
    clients.make_consumer(settings)
    assert str(made[0].get("heartbeat.interval.ms")) == expected
