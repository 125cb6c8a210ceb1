"""What schemas of all languages promise: results that are replaced, and bytes and schemas that cannot be used."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from made_schemas import RESULT, avro_bytes, proto_class

from fomo_stream.errors import RecordError
from fomo_stream.kafka.registry.protoc import descriptors
from fomo_stream.records import avro, json_schema, protobuf
from fomo_stream.records.writer_schema import Kind, SchemaText, Writer


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields]}


AVRO = record(
    *(("flow", "double"), ("text", "string"), ("bytes", "bytes"), ("fixed", {"type": "fixed", "name": "F", "size": 6})),
    ("enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("list", {"type": "array", "items": {"type": "array", "items": "long"}}),
    ("map", {"type": "map", "values": ["null", "double"]}),
    ("amount", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
)
PROTO = """syntax = "proto3";
message R { double flow = 1; string text = 2; bytes bytes = 3; map<string, double> map = 4; repeated double list = 5;
  R inner = 6; }
"""
VALUES: dict[str, Any] = {"flow": 2.0, "text": "a secret text", "bytes": b"xyz", "map": {"k": 1.5}}
AVRO_VALUES = {"fixed": b"123456", "enum": "B", "list": [[1, 2], []], "amount": None, "at": 1_700_000_000_000}


def schema_of(kind: Kind, text: str) -> SchemaText:
    return SchemaText(kind, text, (), descriptors(text, "own.proto", ()) if kind is Kind.PROTOBUF else b"")


def writer_of(schema: SchemaText, field: str = "fomo") -> Writer:
    if schema.kind is Kind.JSON:
        return json_schema.JsonSchemaWriter(schema, field, 100_000)
    return (avro.AvroWriter if schema.kind is Kind.AVRO else protobuf.ProtobufWriter)(schema, field)


def proto_bytes() -> bytes:
    reading = proto_class(descriptors(PROTO, "own.proto", ()), "R")
    return bytes(reading(**VALUES, list=[1.0, 2.0], inner={"inner": {"flow": 1.0}}).SerializeToString())


# By language: a schema, the body of a record, and the reasons of damaged ones.
LANGUAGES: dict[Kind, tuple[str, Callable[[], bytes], set[str]]] = {
    Kind.AVRO: (json.dumps(AVRO), lambda: avro_bytes(AVRO, VALUES | AVRO_VALUES), {"not_avro"}),
    Kind.JSON: (
        json.dumps({"title": "R", "properties": {"flow": {"type": "number"}}}),
        lambda: json.dumps({**VALUES, "bytes": "eHl6"}).encode(),
        {"not_json", "not_utf8", "not_an_object"},
    ),
    Kind.PROTOBUF: (PROTO, proto_bytes, {"not_protobuf"}),
}


@pytest.mark.parametrize("kind", LANGUAGES)
def test_an_earlier_result_is_replaced(kind: Kind) -> None:
    text, body, _ = LANGUAGES[kind]
    once = writer_of(schema_of(kind, text))
    again = writer_of(once.scored_schema())
    assert again.scored_schema().text == once.scored_schema().text
    scored = once.scored(body(), RESULT)
    back = again.read(again.scored(scored, RESULT | {"score": 0.5}))
    assert (again.read(scored)["fomo"]["score"], back.pop("fomo")["score"]) == (0.99, 0.5)
    assert back == once.read(body())
    other = writer_of(once.scored_schema(), "second")
    if kind is Kind.PROTOBUF:
        with pytest.raises(RecordError, match="does not leave the number"):
            other.scored_schema()
        return
    both = writer_of(other.scored_schema()).read(other.scored(scored, RESULT | {"score": 0.25}))
    assert (both["fomo"]["score"], both["second"]["score"]) == (0.99, 0.25)


@pytest.mark.parametrize("empty", [avro.EMPTY_SCHEMA, json_schema.EMPTY_SCHEMA, protobuf.empty_schema()])
def test_an_output_may_hold_a_result_alone(empty: SchemaText) -> None:
    writer = writer_of(empty)
    scored = writer.scored(b"{}" if empty.kind is Kind.JSON else b"", RESULT)
    fields = writer_of(writer.scored_schema()).read(scored)
    assert list(fields) == ["fomo"]
    assert fields["fomo"]["explanation"] == RESULT["explanation"]


def damaged(body: bytes, rng: random.Random) -> bytes:
    """The body cut, changed, or with a huge number or deep nesting in it."""
    at = rng.randrange(len(body))
    huge = [b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 12, b"\x80" * 9, b"\xfe\xff\xff\xff\x0f", DEEP]
    changed = body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
    return rng.choice([body[:at], changed, body[:at] + rng.choice(huge) + body[at:], body + b"\0"])


DEEP = b""
for _ in range(10_000):  # messages in messages
    DEEP = b"\x32" + bytes([len(DEEP) & 127 | 128, len(DEEP) >> 7 & 127 | 128, len(DEEP) >> 14]) + DEEP


@pytest.mark.parametrize("kind", LANGUAGES)
def test_damaged_bytes_are_refused_in_little_memory(kind: Kind) -> None:
    text, body, reasons = LANGUAGES[kind]
    writer, whole, rng = writer_of(schema_of(kind, text)), body(), random.Random(0)
    errors: list[tuple[str, str]] = []
    tracemalloc.start()
    for _ in range(2000):
        try:
            json.dumps(writer.read(damaged(whole, rng)))
        except RecordError as error:
            errors.append((error.reason, str(error)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    assert len(errors) > 500
    assert {reason for reason, _ in errors} <= reasons
    assert not any("secret" in said for _, said in errors)


def nested(depth: int) -> Any:
    made: Any = "int"
    for number in range(depth):
        made = record(("x", made), name=f"N{number}")
    return made


CANNOT_BE_USED: list[tuple[Kind, Any, str]] = [
    (Kind.AVRO, record(("next", ["null", "R"])), r"R contains itself \(next\)"),
    (Kind.AVRO, record(("a", {"type": "array", "items": "null"})), "a is an array"),
    (Kind.AVRO, nested(150), "more than 100 levels"),
    (Kind.AVRO, record(("x", "no.such.Type")), "no.such.Type"),
    (Kind.AVRO, ["null", record(("x", "int"))], "only be added to a record"),
    (Kind.JSON, [], "not a JSON object"),
    (Kind.PROTOBUF, "message Reading { double flow = ; }", "protoc: schema.proto:1:"),
    (Kind.PROTOBUF, 'syntax = "proto3"; message R { double fomo = 1; }', "another --result-field"),
    (Kind.PROTOBUF, 'syntax = "proto2"; message R { extensions 1000 to max; }', "does not leave the number"),
]


@pytest.mark.parametrize(("kind", "schema", "words"), CANNOT_BE_USED)
def test_a_schema_that_cannot_be_used_says_why(kind: Kind, schema: Any, words: str) -> None:
    with pytest.raises(RecordError, match=words) as caught:
        writer_of(schema_of(kind, schema if kind is Kind.PROTOBUF else json.dumps(schema))).scored_schema()
    assert caught.value.reason == "unsupported_schema"
