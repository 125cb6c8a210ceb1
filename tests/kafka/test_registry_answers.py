"""What a registry may answer: slow, large, endless, in circles, and nothing at all for very many ids."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from brokers import wait_for

from fomo_stream.errors import FomoError, RecordError, RegistryError, SchemaPendingError
from fomo_stream.kafka.decoding import Decoder
from fomo_stream.kafka.registry import client as client_module
from fomo_stream.kafka.registry import codec_for
from fomo_stream.kafka.registry import schemas as schemas_module
from fomo_stream.kafka.registry.client import MOST_BYTES, RegistryClient
from fomo_stream.partition.record import Pending, Record
from fomo_stream.records.wire_format import KEY_HEADER
from fomo_stream.settings.service import ServiceSettings

READING = {"type": "record", "name": "Reading", "fields": [{"name": "flow", "type": "double"}]}
BODY = bytes.fromhex("0000000000000c40")  # 3.5
DRIP_S = 0.05


class Answers:
    """A registry that answers what a test says. It counts what it is asked for."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}  # by path: an answer
        self.bytes: dict[str, bytes] = {}  # by path: a whole response, which is sent a byte at a time
        self.asked: Counter[str] = Counter()
        self.fails = False
        self.holds = threading.Event()  # answers about unknown ids wait for it
        self.holds.set()
        self._ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self.holds.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, number: int, schema: Any, kind: str = "AVRO", **more: Any) -> None:
        self.schemas[f"/schemas/ids/{number}"] = {"schema": json.dumps(schema), "schemaType": kind, **more}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answers = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and body in one packet

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                answers.asked[path] += 1
                for byte in answers.bytes.get(path, b""):
                    with suppress(OSError):  # nobody reads on
                        self.wfile.write(bytes([byte]))
                        self.wfile.flush()
                    if answers._ended.wait(DRIP_S):
                        self.close_connection = True
                        return
                known, status = answers.schemas.get(path), 500 if answers.fails else 404
                known = None if answers.fails else known
                if known is None:
                    answers.holds.wait()
                body = (
                    known
                    if isinstance(known, bytes)
                    else json.dumps(known or {"error_code": 100 * status + 3}).encode()
                )
                self.send_response(status if known is None else 200)
                self.send_header("Content-Length", str(len(body)))
                if body.startswith(b"\x1f\x8b"):
                    self.send_header("Content-Encoding", "gzip")
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(body)
                    self.wfile.flush()

            def log_message(self, *_values: object) -> None:
                pass

        return Handler


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    yield made
    made.close()


def prefix(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def record(offset: int, value: bytes, key: bytes | None = None, partition: int = 0) -> Record:
    return Record("readings", partition, offset, None, key, value, [])


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
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(
    response: bytes, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_S", 0.5)
    answers.bytes["/schemas/ids/7"] = response
    began = time.monotonic()
    with pytest.raises(RegistryError, match="answer"):
        RegistryClient({"url": answers.url, "timeout": "0.3"}).schema(7)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"schema": "' + b"x" * MOST_BYTES + b'"}', "more than 8 MiB"),
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


def test_the_schemas_of_all_records_that_wait_are_asked_for_at_once(answers: Answers, decoder: Decoder) -> None:
    answers.add(7, READING)
    answers.holds.clear()
    values = [*(prefix(number) + BODY for number in range(100, 300)), prefix(7) + BODY]
    assert not [item for at, value in enumerate(values) for item in decoder.receive(record(at, value), 0.0)]
    assert decoder.waits(0)
    answers.holds.set()
    wait_for(lambda: answers.asked.total() >= 201, "all ids to be asked for")  # nobody has asked for the next record
    items = take(decoder, 201)
    assert [item.offset for item in items] == [*range(201)]
    assert {item.error.reason for item in items[:-1] if item.error} == {"unknown_schema"}
    assert items[-1].fields == {"flow": 3.5}
    [again] = decoder.receive(record(201, values[0]), 0.0)
    assert again.error is not None
    assert answers.asked["/schemas/ids/100"] == 1


def test_a_partition_is_read_on_until_enough_of_its_records_wait(answers: Answers, decoder: Decoder) -> None:
    answers.holds.clear()
    for at in range(1000):
        assert not decoder.to_pause
        assert not list(decoder.receive(record(at, prefix(100 + at) + BODY), 0.0))
    assert decoder.to_pause == {0}
    answers.holds.set()
    assert [item.offset for item in take(decoder, 1000)] == [*range(1000)]
    assert not decoder.to_pause


def test_a_schema_that_is_never_answered_keeps_no_other_waiting(answers: Answers, decoder: Decoder) -> None:
    answers.add(7, READING)
    answers.bytes["/schemas/ids/8"] = HEAD + b"\r\n" + b" " * 100_000
    hostile = {"properties": {"a": {"$ref": "#"}, "b": {"oneOf": [{"$ref": "#"}]}}}
    answers.add(9, hostile, "JSON")
    for partition, number in enumerate((8, 9, 7)):
        value = prefix(number) + (BODY if number == 7 else b'{"a": {"flow": 1}}')
        assert not list(decoder.receive(record(0, value, partition=partition), 0.0))
    began = time.monotonic()
    assert take(decoder, 1, 2)[0].fields == {"flow": 3.5}
    assert take(decoder, 1, 1)[0].fields == {"a": {"flow": 1}}
    assert time.monotonic() - began < 60
    assert decoder.waits(0)


@pytest.mark.parametrize(
    "key", [b'"p7"', b'{"device": "p7"}', b"1" * 30, b'"\\ud800"', b"[" * 300 + b"]" * 300, b"NaN", b"{", b"null"]
)
def test_any_json_in_a_key_is_a_name_or_stays_as_it_is(key: bytes, answers: Answers, decoder: Decoder) -> None:
    answers.add(7, READING)
    answers.add(6, {"type": "string"}, "JSON")
    assert not list(decoder.receive(record(0, prefix(7) + BODY, prefix(6) + key), 0.0))
    [item] = take(decoder, 1)
    assert item.error is None
    assert isinstance(item.key, bytes)
    assert item.key in (prefix(6) + key, b"p7", b'{"device":"p7"}', b"null")


def test_an_unknown_id_in_a_key_is_asked_for_once(answers: Answers, decoder: Decoder) -> None:
    answers.add(7, READING)
    for at in range(300):
        list(decoder.receive(record(at, prefix(7) + BODY, prefix(5000 + at % 3) + b"\x06abc"), 0.0))
    items = take(decoder, 300)
    assert [item.key for item in items] == [prefix(5000 + at % 3) + b"\x06abc" for at in range(300)]
    assert [answers.asked[f"/schemas/ids/{5000 + i}"] for i in range(3)] == [1, 1, 1]


def test_ids_that_were_asked_for_in_an_outage_are_asked_for_again(
    answers: Answers, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas_module, "RETRY_S", 0.05)
    answers.add(7, READING)
    answers.fails = True
    values = [*(prefix(number) for number in range(100, 150)), prefix(7)]
    for at, value in enumerate(values):
        assert not list(decoder.receive(record(at, value + BODY, prefix(300 + at % 2) + b"x"), 0.0))
    wait_for(lambda: answers.asked.total() > 100, "ids to be asked for again")
    assert not list(decoder.ready(0))
    answers.fails = False
    items = take(decoder, 51)
    assert [item.offset for item in items] == [*range(51)]
    assert [item.error is None for item in items] == [False] * 50 + [True]


def test_pending_schemas_are_told_apart_from_those_that_are_unknown(answers: Answers) -> None:
    codec, schemas = codec_for(ServiceSettings(topic="readings", registry={"url": answers.url}), of_service=True)
    assert schemas is not None
    answers.holds.clear()
    with pytest.raises(SchemaPendingError):
        codec.decode(prefix(7) + BODY, [(KEY_HEADER, None)])
    schemas.stop()
