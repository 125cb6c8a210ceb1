"""Keys of series through Kafka: odd ones, those of a field, and muted ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from brokers import Broker, wait_for
from services import Running, changed, readings, results, sensors, unique

from fomo_stream.kafka.member import GroupMember

ODD_KEYS: dict[str, bytes | None] = {
    "null": None,
    "empty": b"",
    "1 MB": b"k" * 1_000_000,
    "another of 1 MB": b"k" * 999_999 + b"l",
    "binary": bytes(range(256)),
    "not UTF-8": b"\xff\xfe\xfa",
    "NUL": b"a\x00b",
    "text": "müsli ✓".encode(),
}


@pytest.mark.slow
def test_records_of_odd_keys_are_all_scored_and_their_outputs_have_these_keys(broker: Broker, real_kafka: None) -> None:
    large = {"max.message.bytes": str(4 << 20)}
    settings = sensors(broker, config=large, alerts=(alerts := unique("alerts")), own_contexts=4)
    for topic in (settings.out, alerts):
        broker.create_topic(topic, 1, large)
    keys = [key for _ in range(12) for key in ODD_KEYS.values()]
    records = readings(len(keys))
    for record in records[-len(ODD_KEYS) :]:
        record["temperature"] = 1e6
    for record, key in zip(records, keys, strict=True):
        broker.produce(settings.topic, [record], keys=[key])  # type: ignore[list-item]  # any key
    with Running(settings) as running:
        outputs = broker.read(settings.out, at_least=len(keys), seconds=120)
        assert running.service.ready
        summary = detector_of(running.member).summary
    assert [output.key() for output in outputs] == keys
    assert all(content["fomo"]["score"] is not None for content in results(outputs)[60:])
    assert summary.keys == len(ODD_KEYS) - 1
    assert {output.key() for output in broker.read(alerts, at_least=1)} <= set(keys)


def test_a_field_names_the_series_also_where_some_records_lack_it(broker: Broker) -> None:
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
    keys = [f"p{i % 4}" for i in range(200)]
    broker.produce(settings.topic, readings(200), keys=keys)
    size = 100.0

    def alert(key: str) -> dict[str, Any]:
        """The result of an extreme record, each farther off than those before."""
        nonlocal size
        size *= 100.0
        before = len(broker.read(settings.out))
        broker.produce(settings.topic, [{**readings(1)[0], "temperature": size}], keys=[key])
        result: dict[str, Any] = results(broker.read(settings.out, at_least=before + 1))[-1]["fomo"]
        return result

    def mute(key: str, muted: bool) -> None:
        done = broker.committed(settings.group, feedback)
        broker.produce(feedback, [{"key": key, "mute": muted}], keys=[key])
        wait_for(lambda: broker.committed(settings.group, feedback) > done, "the label to be committed")

    def found(given: Sequence[str]) -> list[tuple[bool, bool]]:
        return [(result["outlier"], result.get("muted", False)) for result in map(alert, given)]

    heard, silent = (True, False), (False, True)
    with Running(settings):
        broker.read(settings.out, at_least=200)
        assert found(["p0", "p1"]) == [silent, heard]
        mute("p1", True)
        mute("p0", False)
        assert found(["p0", "p1", "p2"]) == [heard, silent, heard]
    with Running(settings):
        assert found(["p1", "p0"]) == [silent, heard]
        mute("p1", False)
        assert found(["p1"]) == [heard]
    with Running(changed(settings, mute_key=("p2",))):
        assert found(["p2", "p0", "p1"]) == [silent, heard, heard]
    alerts = [content["fomo"] for content in results(broker.read(settings.alerts or ""))]
    assert all(alert["outlier"] for alert in alerts if "score" in alert)
