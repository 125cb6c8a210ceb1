"""What `fomo-stream doctor` says about a schema registry: one in memory, and a real one that fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
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

READING = {"type": "record", "name": "Reading", "fields": [{"name": "flow", "type": "double"}]}
AVRO = SchemaText(Kind.AVRO, json.dumps(READING))
PROTOBUF = SchemaText(Kind.PROTOBUF, 'syntax = "proto3"; message Reading { double flow = 1; }')
JSON = SchemaText(Kind.JSON, json.dumps({"title": "Reading", "type": "object", "properties": {}}))


def look(url: str, topic: str, **changes: Any) -> list[Finding]:
    """The findings about a topic whose outputs have schemas."""
    settings = DoctorSettings(**{"topic": topic, "registry": url, "output_format": "registry", **changes})
    return list(schema_registry(settings))


def levels(found: list[Finding]) -> list[str]:
    return [one.level for one in found]


def code(finding: Finding) -> int:
    """With which the command ends because of this finding."""
    return finding.error.exit_code if finding.error is not None else 0


@pytest.mark.parametrize(("schema", "kind"), [(AVRO, "Avro"), (PROTOBUF, "Protobuf"), (JSON, "JSON")])
@pytest.mark.parametrize("scores_only", [False, True])
def test_a_registry_with_the_schema_of_the_input(schema: SchemaText, kind: str, scores_only: bool) -> None:
    topic = unique("readings")
    RegistryClient({"url": "mock://doctor"}).register(f"{topic}-value", schema)
    source, outputs, alerts = look("mock://doctor", topic, alerts=f"{topic}-pages", scores_only=scores_only)
    assert source.level == "ok"
    assert source.what.endswith(f"the newest schema of {topic}-value is version 1, in {kind}")
    assert f"{topic}-scores-value gets the schema of outputs" in outputs.what
    assert f"{topic}-pages-value gets the schema of outputs" in alerts.what


def test_subjects_of_outputs_are_looked_at_where_they_are_needed_and_known() -> None:
    topic = unique("readings")
    RegistryClient({"url": "mock://doctor"}).register(f"{topic}-value", AVRO)
    assert levels(look("mock://doctor", topic, output_format="json")) == ["ok"]
    by_record = look("mock://doctor", topic, subject_strategy="record")
    assert levels(by_record) == ["ok", "not checked"]
    assert "--subject-strategy record" in by_record[-1].what
    assert levels(look("mock://doctor", unique("readings"))) == ["not checked", "not checked"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([{"name": "fomo", "type": "int"}, {"name": "flow", "type": "double"}], "choose another --result-field"),
        ([{"name": "next", "type": ["null", "Reading"]}], "contains itself"),
    ],
)
def test_a_schema_that_cannot_be_used(fields: list[Any], words: str) -> None:
    topic = unique("readings")
    schema = SchemaText(Kind.AVRO, json.dumps({**READING, "fields": fields}))
    RegistryClient({"url": "mock://doctor"}).register(f"{topic}-value", schema)
    source, unusable, outputs = look("mock://doctor", topic)
    assert levels([source, unusable, outputs]) == ["ok", "warning", "not checked"]
    assert words in unusable.what


@pytest.mark.parametrize("registry", [{"url": "http://127.0.0.1:1", "no.such": "x"}, {"url": "mock://"}])
def test_settings_that_cannot_be_used_are_a_problem(registry: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    if registry["url"] == "mock://":
        monkeypatch.delitem(sys.modules, "fomo_stream.kafka.registry.client")
        monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    (found,) = look(registry, "readings")  # type: ignore[arg-type]  # a registry of tests
    assert code(found) == ConfigError.exit_code


# --- against a real registry


@pytest.fixture
def topic(registry_url: str) -> str:
    """One with a schema."""
    name = unique("readings")
    RegistryClient({"url": registry_url}).register(f"{name}-value", AVRO)
    return name


def test_it_registers_nothing(proxy: Proxy, registry_url: str, topic: str) -> None:
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


@pytest.mark.parametrize(
    ("trouble", "words", "remedy"),
    [
        ("may not read", "does not permit it: subject {topic}-value (HTTP 403", "permit to read schemas"),
        ("may not read schemas", "does not permit it: schema ", "permit to read schemas"),
        ("may not look up", "does not permit it: subject {topic}-scores-value", "permit to register schemas under"),
        ("down", "no registry answers at ", "check --registry, that it runs"),
    ],
)
def test_a_registry_that_does_not_answer_is_a_problem(
    trouble: str, words: str, remedy: str, proxy: Proxy, topic: str
) -> None:
    troubles: dict[str, Callable[[], None]] = {
        "may not read": lambda: proxy.deny("GET .*"),
        "may not read schemas": lambda: proxy.deny("GET .*/schemas/ids/.*"),
        "may not look up": lambda: proxy.deny("POST .*/subjects/.*"),
        "down": proxy.down,
    }
    troubles[trouble]()
    *others, failed = look(proxy.url, topic)
    assert code(failed) == RegistryError.exit_code
    assert words.format(topic=topic) in failed.what
    assert remedy in failed.remedy
    assert len(others) == (trouble in ("may not read schemas", "may not look up"))


def test_what_a_registry_does_not_answer_is_not_needed(proxy: Proxy, topic: str) -> None:
    proxy.deny(".* .*/compatibility/.*")
    assert levels(look(proxy.url, topic)) == ["ok", "ok"]
