"""Outputs that their topic refuses: a matter of these records alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from brokers import Broker
from confluent_kafka.admin import ConfigResource, ResourceType
from services import Running, make_settings, readings, results, unique

HOUR_MS = 3_600_000
FOREVER = str(2**63 - 1)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_records_of_a_clock_that_is_ahead_are_scored(broker: Broker, real_kafka: None, delivery: str) -> None:
    """The topic that the service makes takes their times, as the input does; one that was there gets other times."""
    ahead = round(time.time() * 1000) + 5 * HOUR_MS
    topic, alerts = unique("ahead"), unique("alerts")
    broker.create_topic(topic, 1, config={"message.timestamp.after.max.ms": FOREVER})
    broker.create_topic(alerts, 1, config={"message.timestamp.after.max.ms": str(HOUR_MS)})
    odd = {"n": 70, "temperature": 95.0, "motor": {"rpm": 0.0}}
    broker.produce(topic, [*readings(60), odd, *readings(10)], timestamp=ahead)
    with Running(make_settings(broker, topic, alerts=alerts, delivery=delivery)):
        outputs = broker.read(f"{topic}-scores", at_least=71)
        (alert, *_) = broker.read(alerts, at_least=1)
    assert len(outputs) == 71
    assert {output.timestamp()[1] for output in outputs} == {ahead}
    assert alert.timestamp()[1] < ahead - HOUR_MS
    assert results([alert])[0]["fomo"]["timestamp"] == ahead


@pytest.mark.slow
def test_refusals_that_nobody_could_know_of_cost_a_few_aborts(
    broker: Broker, real_kafka: None, caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique("changed")
    broker.create_topic(topic, 1)
    broker.create_topic(f"{topic}-scores", 1)
    broker.produce(topic, readings(60), key="k")
    with Running(make_settings(broker, topic)) as running:
        broker.read(f"{topic}-scores", at_least=60)
        change = ConfigResource(ResourceType.TOPIC, f"{topic}-scores", set_config={"cleanup.policy": "compact"})
        broker.admin.alter_configs([change])[change].result()
        keys: list[Any] = [None if n % 3 else "k" for n in range(300)]
        broker.produce(topic, readings(300, start=60), keys=keys)
        dead = broker.read(f"{topic}-dead-letters", at_least=200, seconds=180)
        outputs = broker.read(f"{topic}-scores", at_least=160)
        assert running.service.ready
    assert (len(dead), len(outputs)) == (200, 160)
    assert [int(dict(one.headers())["fomo-source-offset"]) for one in dead] == [60 + n for n in range(300) if n % 3]
    assert [one["n"] for one in results(outputs)[60:]] == [60 + n for n in range(300) if n % 3 == 0]
    assert caplog.text.count("aborted ") <= 20
