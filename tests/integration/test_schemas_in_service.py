"""The service with a schema registry: outages, schemas that change, and the page that explains it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from brokers import Broker, wait_for
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from documents import ROOT, Document
from registries import Proxy
from services import Running, make_settings, readings, results, sensors, unique

from fomo_stream.admin.redrive import send_dead_letters
from fomo_stream.settings.commands import RedriveSettings

READING: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "temperature", "type": "double"},
        {"name": "motor", "type": {"type": "record", "name": "Motor", "fields": [{"name": "rpm", "type": "double"}]}},
        {"name": "site", "type": "string"},
    ],
}


def avro(client: SchemaRegistryClient, topic: str, records: list[dict[str, Any]], schema: Any = READING) -> list[bytes]:
    write = AvroSerializer(client, json.dumps(schema))
    return [write(record, SerializationContext(topic, MessageField.VALUE)) for record in records]


def numbers(messages: list[Any], partition: int | None = None) -> list[int]:
    return [one["n"] for one in results([m for m in messages if partition in (None, m.partition())])]


def test_only_the_partition_with_an_unknown_schema_waits_and_a_restart_loses_nothing(
    broker: Broker, proxy: Proxy, client: SchemaRegistryClient
) -> None:
    settings = sensors(broker, 2, registry=proxy.url)
    newer = {**READING, "doc": unique("another schema")}
    known = avro(client, settings.topic, readings(400))
    new = avro(client, settings.topic, readings(50, start=400), newer)
    place = f"{settings.topic}[1] waits for the schema of a record: no registry answers"
    with Running(settings) as running:
        broker.produce(settings.topic, known[:100], partition=0)
        broker.produce(settings.topic, known[100:200], partition=1)
        broker.read(settings.out, 200)
        proxy.down()
        broker.produce(settings.topic, new[:25], partition=1)
        broker.produce(settings.topic, known[300:400], partition=1)
        broker.produce(settings.topic, known[200:300], partition=0)
        wait_for(lambda: any(place in reason for reason in running.service.not_ready()), "the partition to wait")
        assert numbers(broker.read(settings.out, 300), 0) == [*range(100), *range(200, 300)]
        assert numbers(broker.read(settings.out), 1) == [*range(100, 200)]

        def lag() -> int | None:
            return next(one.lag for one in running.service.snapshot().partitions if one.number == 1)

        # the end of a partition is known only as of the last time that the broker told it
        wait_for(lambda: lag() == 125, "all records that wait to be counted")
    proxy.heal()
    with Running(settings) as running:
        expected = [*range(100, 200), *range(400, 425), *range(300, 400)]
        assert numbers(broker.read(settings.out, 425), 1) == expected
        wait_for(lambda: running.service.ready, "the service to be ready")
        assert not broker.partitions(settings.dead_letters) or not broker.read(settings.dead_letters)


def test_after_the_limit_records_are_dead_letters_that_can_be_sent_back(
    broker: Broker, proxy: Proxy, client: SchemaRegistryClient
) -> None:
    settings = sensors(broker, 1, registry=proxy.url, schema_wait=1.0)
    known = avro(client, settings.topic, readings(100))
    new = avro(client, settings.topic, readings(10, start=100), {**READING, "doc": unique("another schema")})
    with Running(settings) as running:
        broker.produce(settings.topic, known[:90], partition=0)
        broker.read(settings.out, 90)
        schemas = running.member.pipeline.schemas
        assert schemas is not None
        proxy.fail(503)
        broker.produce(settings.topic, [*new, *known[90:]], partition=0, headers=[("trace", b"1")])
        letters = broker.read(settings.dead_letters, 10)
        assert [letter.value() for letter in letters] == new
        assert {dict(letter.headers())["fomo-reason"] for letter in letters} == {b"registry_unavailable"}
        assert b"HTTP 503" in dict(letters[0].headers())["fomo-error"]
        assert numbers(broker.read(settings.out, 100)) == [*range(100 - 10), *range(90, 100)]
        proxy.heal()
        wait_for(lambda: not schemas.trouble, "an answer of the registry")
        back = RedriveSettings(
            bootstrap=broker.bootstrap, dead_letters=settings.dead_letters, delivery=settings.delivery
        )
        assert send_dead_letters(back).sent.total() == 10
        outputs = broker.read(settings.out, 110)
        assert sorted(numbers(outputs)) == [*range(110)]
        assert {dict(one.headers())["trace"] for one in outputs[100:]} == {b"1"}


def test_a_schema_that_changes_needs_no_restart(
    broker: Broker, registry_url: str, client: SchemaRegistryClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fomo_stream")
    settings = sensors(broker, 1, registry=registry_url, output_format="registry")
    n, temperature, motor, site = READING["fields"]
    heat = {"name": "heat", "type": ["null", "double"], "default": None}
    schemas: list[list[Any]] = [
        [n, temperature, motor, site],
        [n, {**temperature, "name": "celsius", "aliases": ["temperature"]}, heat],
        [n, {**temperature, "type": "bytes"}, motor],
    ]
    records = [{**one, "celsius": one["temperature"], "heat": 1.5} for one in readings(300)]
    with Running(settings):
        for number, fields in enumerate(schemas):
            part = records[100 * number :][:100]
            part = [{**one, "temperature": b"ab"} for one in part] if number == 2 else part
            values = avro(client, settings.topic, part, {**READING, "fields": fields})
            broker.produce(settings.topic, values, partition=0)
            outputs = broker.read(settings.out, 100 * (number + 1))
    read = AvroDeserializer(client)
    scored = [read(one.value(), SerializationContext(settings.out, MessageField.VALUE)) for one in outputs]
    assert [one["n"] for one in scored] == [*range(300)]
    assert [{one["fomo"]["missing"] for one in scored[100 * i :][:100]} for i in range(3)] == [{0}, {1}, {1}]
    assert scored[150]["celsius"] == records[150]["temperature"]
    lines = [record.getMessage() for record in caplog.records]
    told = [line for line in lines if line.startswith("schema_of_writer")]
    assert len(told) == 3
    assert f"subject={settings.topic}-value version=2 new_fields=heat" in told[1]
    assert "temperature=celsius" in told[1]
    [wrong] = [line for line in lines if line.startswith("schema_incompatible")]
    assert f"subject={settings.topic}-value version=3 versions=1,3 field=temperature was=double now=bytes" in wrong


def test_the_page_works_as_it_is_written(broker: Broker, registry_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its producer, its service and its consumer, one after the other; only addresses and names are of the test."""
    page = Document.read(ROOT / "docs" / "schemas.md")
    topic = unique("readings")
    broker.create_topic(topic, 1)

    def here(code: str) -> str:
        known = {"localhost:9092": broker.bootstrap, "http://localhost:8081": registry_url, "readings": topic}
        for name, own in {**known, '"reader"': f'"{unique("reader")}"'}.items():
            code = code.replace(name, own)
        return code

    produce, consume = (here(block.code) for block in page.blocks if block.language == "python")
    (line,) = [here(b.code) for b in page.blocks if b.language == "sh" and b.code.startswith("fomo-stream --topic")]
    exec(compile(produce, "produce", "exec"), {"__name__": "snippet"})
    values = dict(zip(line.split()[1::2], line.split()[2::2], strict=True))
    given = {name[2:].replace("-", "_"): value for name, value in values.items() if name != "--topic"}
    defaults = {"features": None, "min_context": None, "context_size": None, "alert_rate": None}
    settings = make_settings(broker, topic, **given, **defaults)
    with Running(settings):
        broker.read(settings.out, 1000)
        exec(compile(consume, "consume", "exec"), {"__name__": "snippet"})
    assert "pressure is 9" in capsys.readouterr().out
