"""Records with schemas as the service decodes them: ids, keys, waiting, and odd answers of a registry."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from brokers import wait_for
from confluent_kafka.schema_registry import Schema as RegistrySchema
from hypothesis import given
from hypothesis import strategies as st
from made_schemas import RESULT

sys.path.append(str(Path(__file__).parents[1] / "notify"))

from receivers import Receiver, Reply, Request, receiving

from fomo_stream.errors import ConfigError, FomoError, RecordError, RegistryError, SchemaError, SchemaPendingError
from fomo_stream.kafka import decoding
from fomo_stream.kafka.decoding import Decoder
from fomo_stream.kafka.registry import client as client_module
from fomo_stream.kafka.registry import codec_for
from fomo_stream.kafka.registry.client import MAX_ANSWER_BYTES, RegistryClient
from fomo_stream.partition.record import Pending, Record, series_key
from fomo_stream.records.avro import AvroWriter
from fomo_stream.records.schema_codec import SchemaCodec
from fomo_stream.records.wire_format import KEY_HEADER, VALUE_HEADER, without_ids
from fomo_stream.records.writer_schema import Kind, RegisteredWriter, SchemaText
from fomo_stream.settings.service_settings import ServiceSettings

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


def record(offset: int, value: bytes, key: bytes | None = None, partition: int = 0, headers: Any = ()) -> Record:
    return Record("readings", partition, offset, None, key, value, list(headers))


def series(key: bytes | None, value: bytes, field: str | None = None, headers: Any = ()) -> Any:
    codec, _ = codec_for(settings(), of_service=False)
    return series_key(record(0, value, key, headers=headers), codec.decode(value), field, codec)


# --- ids and keys


def test_the_id_may_be_in_a_header() -> None:
    codec, _ = codec_for(settings(), of_service=False)
    number = schema_id(READING)
    guid = CLIENT.get_latest_version("readings-value").guid
    assert codec.decode(BODY, [(VALUE_HEADER, b"\1" + UUID(guid).bytes)]) == {"flow": 3.5}
    assert codec.decode(BODY, [(VALUE_HEADER, prefix(number))]) == {"flow": 3.5}
    assert codec.decode(prefix(number) + BODY, [("other", None)]) == {"flow": 3.5}
    ids = [(VALUE_HEADER, b"1"), (KEY_HEADER, b"2"), ("own", None)]
    assert without_ids(ids) == ids[1:]  # the one of the value is of the input alone


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        (None, (), "tombstone"),
        (b'{"flow": 3.5}', (), "no_schema_id"),
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
    for key in (None, b"", b"p7", (7).to_bytes(8, "big"), (1 << 50).to_bytes(8, "big"), bytes(16)):  # without a schema
        assert series(key, value) == key


# --- waiting


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3))), st.lists(st.integers(0, 3), unique=True))
def test_waiting_changes_no_order(records: list[tuple[int, int]], answers: list[int]) -> None:
    """records: the partition and the schema of each; answers: the schemas that become known, one after the other."""
    writer = AvroWriter(SchemaText(Kind.AVRO, json.dumps(READING)), "fomo")
    known: set[int] = set()

    def find(data: bytes, headers: Any, header: str) -> tuple[RegisteredWriter, bytes]:
        if data[0] not in known:
            raise SchemaPendingError("later")
        if data[0] == 3:
            raise RecordError("unknown_schema", "no such schema")
        return RegisteredWriter(writer, writer, {}), data[1:]

    decoder = Decoder(SchemaCodec(find, "fomo", False, 1000, True), None)
    taken: dict[int, list[int]] = {0: [], 1: []}
    for offset, (partition, schema) in enumerate(records):
        one = record(offset, bytes([schema]) + BODY, partition=partition)
        taken[partition] += [item.offset for item in [decoder.receive(one, 0.0)] if item is not None]
    for answer in [*answers, *({0, 1, 2, 3} - set(answers))]:
        known.add(answer)
        for partition in taken:
            taken[partition] += [item.offset for item in decoder.ready(partition)]
            expected = [at for at, (number, _) in enumerate(records) if number == partition]
            assert taken[partition] == expected[: len(taken[partition])]
            assert decoder.waits(partition) == (len(taken[partition]) < len(expected))
    assert sum(map(len, taken.values())) == len(records)
    assert decoder.bytes == 0


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
    assert not logging.getLogger("httpx2").isEnabledFor(logging.INFO)  # it would log addresses, perhaps with a password


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


# --- what a registry may answer: slow, large, endless, in circles, and nothing at all for very many ids


class Answers:
    """A registry that answers what a test says, and nothing about other ids until `holds` is set."""

    def __init__(self, server: Receiver) -> None:
        self.url, self.released = server.url, server.released
        self.schemas: dict[str, Any] = {}  # by path: an answer
        self.asked: Counter[str] = Counter()
        self.holds = threading.Event()
        self.holds.set()
        server.firing = self._answer

    def add(self, number: int, schema: Any, kind: str = "AVRO", **more: Any) -> None:
        self.schemas[f"/schemas/ids/{number}"] = {"schema": json.dumps(schema), "schemaType": kind, **more}

    def _answer(self, request: Request) -> Reply:
        path = request.path.partition("?")[0]
        self.asked[path] += 1
        known = self.schemas.get(path)
        if isinstance(known, Reply):
            return known
        if known is None:
            self.holds.wait()
        body = known if isinstance(known, bytes) else json.dumps(known or {"error_code": 40403}).encode()
        headers = (("Content-Encoding", "gzip"),) if body.startswith(b"\x1f\x8b") else ()
        return Reply(404 if known is None else 200, headers, body)


@pytest.fixture
def answers() -> Iterator[Answers]:
    with receiving() as server:
        made = Answers(server)
        yield made
        made.holds.set()


def take(decoder: Decoder, n: int, partition: int = 0) -> list[Pending]:
    """The next n records of a partition that wait."""
    items: list[Pending] = []

    def all_there() -> bool:
        items.extend(decoder.ready(partition))
        return len(items) >= n

    wait_for(all_there, "the records that wait")
    return items


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n"


@pytest.mark.parametrize("response", [HEAD + b"\r\n" + b" " * 100_000, HEAD + b"X: " + b"x" * 10_000])
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(response: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def drip() -> None:
        with suppress(OSError), server.accept()[0] as connection:
            for byte in response:
                connection.sendall(bytes([byte]))
                if is_over.wait(0.05):
                    break

    monkeypatch.setattr(client_module, "MAX_ANSWER_S", 0.5)
    is_over, began = threading.Event(), time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(RegistryError, match="answer"):
            RegistryClient({"url": f"http://127.0.0.1:{server.getsockname()[1]}", "timeout": "0.3"}).schema(7)
        is_over.set()
        thread.join()
    assert time.monotonic() - began < 60


def test_a_registry_that_is_down_leaves_no_past_record_out() -> None:
    codec, _ = codec_for(settings(registry={"url": "http://127.0.0.1:1", "max.retries": "0"}), of_service=False)
    with pytest.raises(RegistryError):
        Decoder(codec, None).receive(record(0, prefix(7) + BODY), 0.0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"schema": "' + b"x" * MAX_ANSWER_BYTES + b'"}', "more than 8 MiB"),
        (gzip.compress(b" " * (64 << 20)), "compressed"),
        (b"[" * 100_000, "registry"),
        (b"null", "registry"),
    ],
)
def test_an_answer_that_cannot_be_used_is_an_error_of_one_sentence(body: bytes, says: str, answers: Answers) -> None:
    answers.schemas["/schemas/ids/7"] = body
    with pytest.raises(FomoError, match=says):
        RegistryClient({"url": answers.url}).schema(7)


def test_what_schemas_refer_to_is_fetched_once(answers: Answers) -> None:
    for number in range(20):  # each refers to the one before by ten names
        both = [{"name": f"r{i}", "subject": f"s{number - 1}", "version": 1} for i in range(10 if number else 0)]
        schema = json.dumps({**READING, "name": f"R{number}"})
        about = {"schema": schema, "references": both, "id": number, "version": 1}
        answers.schemas[f"/subjects/s{number}/versions/1"] = {**about, "subject": f"s{number}"}
    answers.add(7, READING, references=[{"name": "r", "subject": "s19", "version": 1}])
    found = RegistryClient({"url": answers.url}).schema(7)
    assert found.references[0].schema.references[9].schema is found.references[0].schema.references[0].schema
    assert set(answers.asked.values()) == {1}
    assert len(answers.asked) == 21


def test_schemas_in_a_circle_and_endless_ones_are_refused(answers: Answers) -> None:
    circle = {"schema": json.dumps(READING), "references": [{"name": "r", "subject": "s", "version": 1}]}
    answers.schemas["/subjects/s/versions/1"] = {**circle, "id": 1, "version": 1, "subject": "s"}
    answers.add(7, READING, references=circle["references"])
    for n in range(200):
        more = [{"name": "r", "subject": "t", "version": n + 1}]
        about = {"schema": json.dumps(READING), "references": more, "id": n, "version": n, "subject": "t"}
        answers.schemas[f"/subjects/t/versions/{n}"] = about
    answers.add(8, READING, references=[{"name": "r", "subject": "t", "version": 1}])
    client = RegistryClient({"url": answers.url})
    for number, says in ((7, "refers to itself by s, version 1"), (8, "more than 100 schemas")):
        with pytest.raises(RecordError, match=says) as caught:
            client.schema(number)
        assert caught.value.reason == "unsupported_schema"


@pytest.fixture
def decoder(answers: Answers) -> Iterator[Decoder]:
    codec, schemas = codec_for(ServiceSettings(topic="readings", registry={"url": answers.url}), of_service=True)
    assert schemas is not None
    yield Decoder(codec, None)
    schemas.stop()
    answers.released.set()
    for thread in schemas.threads:
        thread.join(60)
        assert not thread.is_alive()


def test_the_schemas_of_all_records_that_wait_are_asked_for_at_once(
    answers: Answers, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition is read on until enough of its records wait."""
    monkeypatch.setattr(decoding, "MAX_WAITING_RECORDS", 100)
    answers.add(7, READING)
    answers.holds.clear()
    values = [*(prefix(number) + BODY for number in range(100, 199)), prefix(7) + BODY]
    for at, value in enumerate(values):
        assert not decoder.to_pause
        assert decoder.receive(record(at, value), 0.0) is None
    assert decoder.waits(0)
    assert decoder.to_pause == {0}
    answers.holds.set()
    wait_for(lambda: answers.asked.total() >= 100, "all ids to be asked for")  # nobody has asked for the next record
    items = take(decoder, 100)
    assert [item.offset for item in items] == [*range(100)]
    assert not decoder.to_pause
    assert {item.error.reason for item in items[:-1] if item.error} == {"unknown_schema"}
    assert items[-1].fields == {"flow": 3.5}
    again = decoder.receive(record(100, values[0]), 0.0)
    assert again is not None
    assert again.error is not None
    assert answers.asked["/schemas/ids/100"] == 1


def test_a_schema_that_is_never_answered_keeps_no_other_waiting(answers: Answers, decoder: Decoder) -> None:
    answers.add(7, READING)
    answers.schemas["/schemas/ids/8"] = Reply(-1)
    hostile = {"properties": {"a": {"$ref": "#"}, "b": {"oneOf": [{"$ref": "#"}]}}}
    answers.add(9, hostile, "JSON")
    for partition, number in enumerate((8, 9, 7)):
        value = prefix(number) + (BODY if number == 7 else b'{"a": {"flow": 1}}')
        assert decoder.receive(record(0, value, partition=partition), 0.0) is None
    began = time.monotonic()
    assert take(decoder, 1, 2)[0].fields == {"flow": 3.5}
    assert take(decoder, 1, 1)[0].fields == {"a": {"flow": 1}}
    assert time.monotonic() - began < 60
    assert decoder.waits(0)


def test_any_json_in_a_key_is_a_name_or_stays_as_it_is(answers: Answers, decoder: Decoder) -> None:
    answers.add(7, READING)
    answers.add(6, {"type": "string"}, "JSON")
    keys = [b'"p7"', b'{"device": "p7"}', b"1" * 30, b'"\\ud800"', b"[" * 300 + b"]" * 300, b"NaN", b"{", b"null"]
    decoder.receive(record(0, prefix(7) + BODY, prefix(6) + keys[0]), 0.0)
    items: list[Any] = [*take(decoder, 1)]
    items += [decoder.receive(record(at, prefix(7) + BODY, prefix(6) + key), 0.0) for at, key in enumerate(keys)][1:]
    for key, item in zip(keys, items, strict=True):
        assert item is not None
        assert item.error is None
        assert item.key in (prefix(6) + key, b"p7", b'{"device":"p7"}', b"null")
