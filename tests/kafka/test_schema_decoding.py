"""Records with schemas as the service decodes them: ids, keys, waiting, and schemas that change."""

from __future__ import annotations

import json
import logging
from typing import Any
from uuid import UUID

import pytest
from brokers import wait_for
from confluent_kafka.schema_registry import Schema as RegistrySchema
from hypothesis import given
from hypothesis import strategies as st
from made_schemas import RESULT

from fomo_stream.errors import ConfigError, RecordError, SchemaError, SchemaPendingError
from fomo_stream.kafka.decoding import Decoder
from fomo_stream.kafka.registry import codec_for
from fomo_stream.kafka.registry.client import RegistryClient
from fomo_stream.partition.record import Record, series_key
from fomo_stream.records.avro import AvroWriter
from fomo_stream.records.evolution import Evolution
from fomo_stream.records.schema_codec import SchemaCodec
from fomo_stream.records.wire_format import KEY_HEADER, VALUE_HEADER
from fomo_stream.records.writer import Kind, Registered, SchemaText
from fomo_stream.settings.service import ServiceSettings

URL = "mock://tests-of-decoding"
READING = {"type": "record", "name": "Reading", "fields": [{"name": "flow", "type": "double"}]}
BODY = bytes.fromhex("0000000000000c40")  # 3.5
CLIENT = RegistryClient({"url": URL}).client


def schema_id(schema: Any, subject: str = "readings-value", kind: str = "AVRO") -> int:
    return int(CLIENT.register_schema(subject, RegistrySchema(json.dumps(schema), kind)))


def prefix(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def settings(**changes: Any) -> ServiceSettings:
    return ServiceSettings(**{"topic": "readings", "registry": URL, **changes})


def record(value: bytes | None, key: bytes | None = None, headers: Any = (), offset: int = 0) -> Record:
    return Record("readings", 0, offset, None, key, value, list(headers))


def series(key: bytes | None, value: bytes, field: str | None = None, headers: Any = ()) -> Any:
    codec, _ = codec_for(settings(), of_service=False)
    return series_key(record(value, key, headers), codec.decode(value), field, codec)


# --- ids


def test_the_id_may_be_in_a_header() -> None:
    codec, _ = codec_for(settings(), of_service=False)
    number = schema_id(READING)
    guid = CLIENT.get_latest_version("readings-value").guid
    assert codec.decode(BODY, [(VALUE_HEADER, b"\1" + UUID(guid).bytes)]) == {"flow": 3.5}
    assert codec.decode(BODY, [(VALUE_HEADER, prefix(number))]) == {"flow": 3.5}
    assert codec.decode(prefix(number) + BODY, [("other", None)]) == {"flow": 3.5}


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        (None, (), "tombstone"),
        (b'{"flow": 3.5}', (), "no_schema_id"),
        (b"\0\0\0", (), "no_schema_id"),
        (b"\1\0\0\0\7" + BODY, (), "no_schema_id"),
        (prefix(4_000_000_000) + BODY, (), "unknown_schema"),
        (BODY, ((VALUE_HEADER, b"\1" + bytes(16)),), "unknown_schema"),
        (b"\0" * 2000, (), "too_large"),
    ],
)
def test_values_that_cannot_be_read(value: bytes | None, headers: Any, reason: str) -> None:
    codec, _ = codec_for(settings(max_record_bytes=1000), of_service=False)
    with pytest.raises(RecordError) as caught:
        codec.decode(value, headers)
    assert caught.value.reason == reason


def test_without_a_registry_a_value_with_an_id_says_what_to_do() -> None:
    codec, _ = codec_for(ServiceSettings(topic="readings"), of_service=True)
    for value, headers in ((prefix(7) + BODY, ()), (BODY, [(VALUE_HEADER, b"\1" + bytes(16))])):
        with pytest.raises(RecordError, match="--registry") as caught:
            codec.decode(value, headers)
        assert caught.value.reason == "needs_registry"


def test_headers_with_ids_are_those_of_the_input_alone() -> None:
    from fomo_stream.records.wire_format import without_ids

    assert without_ids([(VALUE_HEADER, b"1"), (KEY_HEADER, b"2"), ("own", None)]) == [(KEY_HEADER, b"2"), ("own", None)]


# --- keys


def test_the_series_is_named_by_the_content_of_a_key() -> None:
    value = prefix(schema_id(READING)) + BODY
    text = prefix(schema_id("string", "readings-key")) + b"\x04p7"
    device = {"type": "record", "name": "Key", "fields": [{"name": "device", "type": "string"}]}
    whole = prefix(schema_id(device, "devices-key")) + b"\x04p7"
    assert series(text, value) == b"p7"
    assert series(whole, value) == b'{"device":"p7"}'
    assert series(whole, value, "device") == "p7"
    assert series(whole, value, "flow") == "3.5"  # the value comes first
    assert series(text, value, "device") is None
    assert series(prefix(schema_id({"type": "string"}, "names-key", "JSON")) + b'"p7"', value) == b"p7"


@pytest.mark.parametrize("key", [None, b"", b"p7", (7).to_bytes(8, "big"), (1 << 50).to_bytes(8, "big"), bytes(16)])
def test_keys_without_a_schema_stay_as_they_are(key: bytes | None) -> None:
    assert series(key, prefix(schema_id(READING)) + BODY) == key


# --- waiting


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3))), st.lists(st.integers(0, 3), unique=True))
def test_waiting_changes_no_order(records: list[tuple[int, int]], answers: list[int]) -> None:
    """records: the partition and the schema of each; answers: the schemas that become known, one after the other."""
    writer = AvroWriter(SchemaText(Kind.AVRO, json.dumps(READING)), "fomo")
    known: set[int] = set()

    def find(data: bytes, headers: Any, header: str) -> tuple[Registered, bytes]:
        if data[0] not in known:
            raise SchemaPendingError("later")
        if data[0] == 3:
            raise RecordError("unknown_schema", "no such schema")
        return Registered(writer, writer, {}), data[1:]

    decoder = Decoder(SchemaCodec(find, "fomo", False, 1000, True), None)
    taken: dict[int, list[int]] = {0: [], 1: []}
    for offset, (partition, schema) in enumerate(records):
        one = Record("readings", partition, offset, None, None, bytes([schema]) + BODY, [])
        taken[partition] += [item.offset for item in decoder.receive(one, 0.0)]
    for answer in [*answers, *({0, 1, 2, 3} - set(answers))]:
        known.add(answer)
        for partition in taken:
            taken[partition] += [item.offset for item in decoder.ready(partition)]
            expected = [at for at, (number, _) in enumerate(records) if number == partition]
            assert taken[partition] == expected[: len(taken[partition])]
            assert decoder.waits(partition) == (len(taken[partition]) < len(expected))
    assert sum(map(len, taken.values())) == len(records)
    assert decoder.bytes == 0


def test_a_thread_answers_and_ends() -> None:
    codec, schemas = codec_for(settings(), of_service=True)
    assert schemas is not None
    value = prefix(schema_id(READING)) + BODY
    with pytest.raises(SchemaPendingError):
        codec.decode(value)

    def fields() -> dict[str, Any]:
        try:
            return codec.decode(value)
        except SchemaPendingError:
            return {}

    assert wait_for(fields, "the schema") == {"flow": 3.5}
    schemas.stop()
    for thread in schemas.threads:
        thread.join(10)
        assert not thread.is_alive()


# --- schemas that change


def changes(*schemas: Any, features: tuple[str, ...] = ("flow", "motor.rpm")) -> list[list[dict[str, Any]]]:
    """What is told of each of these schemas: a line each, and one for each field that does not fit."""
    evolution, told = Evolution(), []
    for version, fields in enumerate(schemas, 1):
        writer = AvroWriter(SchemaText(Kind.AVRO, json.dumps({**READING, "fields": fields})), "fomo")
        place = {"id": 7, "subject": "readings-value", "version": version}
        found = list(evolution.look(writer, place, features, ()))
        told.append([{**one.about, "bad": one.is_incompatible, "count": one.new_fields} for one in found])
    return told


def field(name: str, kind: Any = "double", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def test_what_a_new_schema_changes_is_told() -> None:
    motor = field("motor", {"type": "record", "name": "Motor", "fields": [field("rpm", "int")]})
    first = [field("flow"), motor]
    told = changes(
        first,
        [*first, field("heat"), field("site", "string")],
        [field("inflow", aliases=["flow"]), motor],
        [field("flow")],
        [field("flow", "float"), motor],
        [field("flow", {"type": "array", "items": "double"}), motor],
    )
    assert told[0] == [{"id": 7, "subject": "readings-value", "version": 1, "bad": False, "count": 0}]
    assert (told[1][0]["new_fields"], told[1][0]["count"]) == ("heat,site", 2)
    assert told[2][0]["renamed"] == "flow=inflow"
    assert "new_fields" not in told[2][0]
    assert told[3][0]["missing_features"] == "motor.rpm"
    assert len(told[4]) == 1
    wrong = told[5][1]
    assert wrong["bad"]
    assert (wrong["subject"], wrong["versions"], wrong["field"]) == ("readings-value", "1,6", "flow")
    assert (wrong["was"], wrong["now"]) == ("double", "array")


# --- settings


@pytest.mark.parametrize(
    ("changes_", "words"),
    [
        ({"registry": {"url": URL, "no.such.setting": "hunter2"}}, "no.such.setting"),
        ({"registry": {"url": URL, "timeout": "hunter2"}}, "could not convert"),
        ({"registry": {"url": URL, "basic.auth.user.info": "hunter2"}}, "form"),
    ],
)
def test_settings_that_the_client_refuses_show_no_secret(changes_: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        codec_for(settings(**changes_), of_service=True)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(settings(**changes_))


def test_no_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The HTTP library would log each with its address, in which there can be a password."""
    caplog.set_level(logging.INFO)
    RegistryClient({"url": URL})
    assert not logging.getLogger("httpx2").isEnabledFor(logging.INFO)


def test_a_schema_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "reading.avsc"
    path.write_text(json.dumps(READING))
    codec, schemas = codec_for(ServiceSettings(topic="t", schema_file=path), of_service=True)
    assert schemas is None
    fields = codec.decode(BODY)
    assert json.loads(codec.encode(fields, RESULT, BODY)) == {"flow": 3.5, "fomo": RESULT}
    assert codec.key(b"\0\0\0\0\7p7") == (b"\0\0\0\0\7p7", {})
    path.write_text("no schema")
    with pytest.raises(SchemaError, match=r"reading.avsc cannot be read as an Avro schema"):
        codec_for(ServiceSettings(topic="t", schema_file=path), of_service=True)
