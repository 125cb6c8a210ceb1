"""Keys of series through Kafka: odd ones, those of a field, and muted ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from brokers import Broker, wait_for
from services import Running, changed, readings, results, sensors, unique

from fomo_stream.kafka import member
from fomo_stream.kafka.member import GroupMember


def test_a_field_names_the_series_also_where_some_records_lack_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "SAMPLE_WAIT_S", 0.5)
    devices: list[Any] = ["p7", 12, 2.5, True, None, {"a": 1}, ["b"], "\ud800", "x" * 100_000]
    settings = sensors(broker, features=None, key="device.id")
    records = readings(30 * len(devices))
    for i, record in enumerate(records):
        if i % 7:
            record["device"] = {"id": devices[i % len(devices)]}
    broker.produce(settings.topic, [json.dumps(record).encode() for record in records], partition=0)
    with Running(settings) as running:
        outputs = broker.read(settings.out, at_least=len(records))
        features = running.member.pipeline.schema
        summary = detector_of(running.member).summary
    assert len(outputs) == len(records)
    assert features is not None
    assert set(features.features) == {"temperature", "motor.rpm"}
    assert summary.keys == len(devices) - 2  # nothing is no key, and neither is an object


def detector_of(member: GroupMember) -> Any:
    task: Any = member.pipeline.partitions[0]
    return task.detector


def test_a_muted_key_gives_no_alerts_until_a_label_ends_that_also_over_a_restart(
    broker: Broker, real_kafka: None
) -> None:
    settings = sensors(broker, feedback=(feedback := unique("labels")), alerts=unique("alerts"), mute_key=("p0",))
    broker.produce(settings.topic, readings(200), keys=[f"p{i % 4}" for i in range(200)])
    n, size = 200, 100.0

    def found(keys: Sequence[str]) -> list[tuple[bool, bool]]:
        """Whether an extreme record of each key is an outlier and muted; each is farther off than those before."""
        nonlocal n, size
        pairs = []
        for key in keys:
            n, size = n + 1, size * 100.0
            broker.produce(settings.topic, [{**readings(1)[0], "temperature": size}], keys=[key])
            result = results(broker.read(settings.out, at_least=n))[-1]["fomo"]
            pairs.append((result["outlier"], result.get("muted", False)))
        return pairs

    def mute(keys: dict[str, bool]) -> None:
        wanted = broker.committed(settings.group, feedback) + len(keys)
        broker.produce(feedback, [{"key": key, "mute": muted} for key, muted in keys.items()], keys=keys)
        wait_for(lambda: broker.committed(settings.group, feedback) == wanted, "the labels to be committed")

    heard, silent = (True, False), (False, True)
    with Running(settings):
        broker.read(settings.out, at_least=200)
        assert found(["p0", "p1"]) == [silent, heard]
        mute({"p1": True, "p0": False})
        assert found(["p0", "p1"]) == [heard, silent]
    with Running(changed(settings, mute_key=("p2",))):
        assert found(["p1", "p0", "p2"]) == [silent, heard, silent]
        mute({"p1": False})
        assert found(["p1"]) == [heard]
    alerts = [content["fomo"] for content in results(broker.read(settings.alerts or ""))]
    assert all(alert["outlier"] for alert in alerts if "score" in alert)
