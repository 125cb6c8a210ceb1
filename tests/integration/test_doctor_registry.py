"""What `fomo-stream doctor` says about a schema registry: one in memory, and a real one that fails."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from registries import Proxy
from services import unique

from fomo_stream.admin.doctor import schema_registry
from fomo_stream.errors import ConfigError, RegistryError
from fomo_stream.kafka.registry.client import RegistryClient
from fomo_stream.kafka.topics.checks import Finding
from fomo_stream.records.avro import AvroWriter
from fomo_stream.records.writer_schema import Kind, SchemaText
from fomo_stream.settings.commands import DoctorSettings

READING: dict[str, Any] = {"type": "record", "name": "Reading", "fields": [{"name": "flow", "type": "double"}]}
AVRO = SchemaText(Kind.AVRO, json.dumps(READING))
PROTOBUF = SchemaText(Kind.PROTOBUF, 'syntax = "proto3"; message Reading { double flow = 1; }')
JSON = SchemaText(Kind.JSON, json.dumps({"title": "Reading", "type": "object", "properties": {}}))


def look(url: str | dict[str, str], topic: str, **changes: Any) -> list[Finding]:
    """The findings about a topic whose outputs have schemas."""
    settings = DoctorSettings(**{"topic": topic, "registry": url, "output_format": "registry", **changes})
    return list(schema_registry(settings))


def levels(found: list[Finding]) -> list[str]:
    return [one.level for one in found]


def code(finding: Finding) -> int:
    """With which the command ends because of this finding."""
    return finding.error.exit_code if finding.error is not None else 0


def test_a_registry_with_the_schema_of_the_input() -> None:
    for schema, kind in ((AVRO, "Avro"), (PROTOBUF, "Protobuf"), (JSON, "JSON")):
        topic = unique("readings")
        RegistryClient({"url": "mock://doctor"}).register(f"{topic}-value", schema)
        for scores_only in (False, True):
            source, outputs, alerts = look("mock://doctor", topic, alerts=f"{topic}-pages", scores_only=scores_only)
            assert source.level == "ok"
            assert source.what.endswith(f"the newest schema of {topic}-value is version 1, in {kind}")
            assert f"{topic}-scores-value gets the schema of outputs" in outputs.what
            assert f"{topic}-pages-value gets the schema of outputs" in alerts.what
    assert levels(look("mock://doctor", topic, output_format="json")) == ["ok"]
    by_record = look("mock://doctor", topic, subject_strategy="record")
    assert levels(by_record) == ["ok", "not checked"]
    assert "--subject-strategy record" in by_record[-1].what
    assert levels(look("mock://doctor", unique("readings"))) == ["not checked", "not checked"]


def test_a_schema_that_cannot_be_used() -> None:
    for field, words in (
        ({"name": "fomo", "type": "int"}, "choose another --result-field"),
        ({"name": "next", "type": ["null", "Reading"]}, "contains itself"),
    ):
        topic = unique("readings")
        schema = SchemaText(Kind.AVRO, json.dumps({**READING, "fields": [field, *READING["fields"]]}))
        RegistryClient({"url": "mock://doctor"}).register(f"{topic}-value", schema)
        source, unusable, outputs = look("mock://doctor", topic)
        assert levels([source, unusable, outputs]) == ["ok", "warning", "not checked"]
        assert words in unusable.what


def test_settings_that_cannot_be_used_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = look({"url": "http://127.0.0.1:1", "no.such": "x"}, "readings")
    assert code(found) == ConfigError.exit_code
    monkeypatch.delitem(sys.modules, "fomo_stream.kafka.registry.client")
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)  # is not installed
    (found,) = look("mock://", "readings")
    assert code(found) == ConfigError.exit_code


# --- against a real registry


@pytest.fixture
def topic(registry_url: str) -> str:
    """One with a schema."""
    name = unique("readings")
    RegistryClient({"url": registry_url}).register(f"{name}-value", AVRO)
    return name


def test_it_registers_nothing_and_needs_no_answer_about_compatibility(
    proxy: Proxy, registry_url: str, topic: str
) -> None:
    proxy.deny(".* .*/compatibility/.*")
    assert levels(look(proxy.url, topic)) == ["ok", "ok"]
    assert {method for method, _ in proxy.requests} == {"GET", "POST"}
    assert not [path for method, path in proxy.requests if method == "POST" and path.endswith("/versions")]
    assert f"{topic}-scores-value" not in SchemaRegistryClient({"url": registry_url}).get_subjects()


def test_outputs_that_are_registered_or_not_compatible(registry_url: str, topic: str) -> None:
    client, subject = SchemaRegistryClient({"url": registry_url}), f"{topic}-scores-value"
    other = {**READING, "fields": [{"name": "rpm", "type": "int"}]}
    client.register_schema(subject, RegistrySchema(json.dumps(other), "AVRO"))
    assert levels(look(registry_url, topic)) == ["ok", "ok"]
    client.set_compatibility(subject, "FULL")
    refused = look(registry_url, topic)[-1]
    assert code(refused) == RegistryError.exit_code
    assert f"{subject} does not take the schema of outputs" in refused.what
    client.set_compatibility(subject, "NONE")
    RegistryClient({"url": registry_url}).register(subject, AvroWriter(AVRO, "fomo").scored_schema())
    client.set_compatibility(subject, "FULL")
    assert f"{subject} has the schema of outputs" in look(registry_url, topic)[-1].what


def test_a_registry_that_does_not_answer_is_a_problem(proxy: Proxy, topic: str) -> None:
    for denied, count, words, remedy in (
        ("GET .*", 0, f"does not permit it: subject {topic}-value (HTTP 403", "permit to read schemas"),
        ("GET .*/schemas/ids/.*", 1, "does not permit it: schema ", "permit to read schemas"),
        ("POST .*/subjects/.*", 1, f"does not permit it: subject {topic}-scores", "permit to register schemas under"),
        ("", 0, "no registry answers at ", "check --registry, that it runs"),
    ):
        proxy.deny(denied) if denied else proxy.down()
        *others, failed = look(proxy.url, topic)
        assert code(failed) == RegistryError.exit_code
        assert words in failed.what
        assert remedy in failed.remedy
        assert len(others) == count
