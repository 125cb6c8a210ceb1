"""Schemas and files that would cost far more than their size says: a little of either must not cost much."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fomo_stream.errors import RecordError
from fomo_stream.kafka.registry.protoc import descriptors
from fomo_stream.records import writer
from fomo_stream.records.avro import AvroWriter
from fomo_stream.records.json_schema import JsonSchemaWriter
from fomo_stream.records.protobuf import ProtobufWriter
from fomo_stream.records.writer import MOST_LEAVES, Kind, Reference, SchemaText, Writer


@contextmanager
def cheap(seconds: float = 5.0, megabytes: int = 100) -> Iterator[None]:
    """What is done here takes neither long nor much memory."""
    began = time.monotonic()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < seconds


def avro(schema: Any) -> Writer:
    return AvroWriter(SchemaText(Kind.AVRO, json.dumps(schema)), "fomo")


def json_writer(schema: Any) -> Writer:
    return JsonSchemaWriter(SchemaText(Kind.JSON, json.dumps(schema)), "fomo", 10_000)


def proto(text: str) -> Writer:
    text = f'syntax = "proto3";\n{text}'
    return ProtobufWriter(SchemaText(Kind.PROTOBUF, text, (), descriptors(text, "own.proto", ())), "fomo")


# Types of two fields each, of the type before: 2^levels leaves.


def doubled_avro(levels: int, leaf: Any = "int") -> Writer:
    made: Any = leaf
    for level in range(levels):
        name = f"T{level - 1}" if level else leaf
        fields = [{"name": "a", "type": made}, {"name": "b", "type": name}]
        made = {"type": "record", "name": f"T{level}", "fields": fields}
    return avro(made)


def doubled_json(levels: int, leaf: Any = None) -> Writer:
    types = {"T0": leaf or {"type": "number"}}
    for level in range(1, levels + 1):
        one = {"$ref": f"#/definitions/T{level - 1}"}
        types[f"T{level}"] = {"type": "object", "properties": {"a": one, "b": one}}
    return json_writer({"$ref": f"#/definitions/T{levels}", "definitions": types})


def doubled_proto(levels: int) -> Writer:
    lines = [f"message T{n} {{ T{n - 1} a = 1; T{n - 1} b = 2; }}" for n in range(levels, 1, -1)]
    return proto("\n".join([*lines, "message T1 { double a = 1; double b = 2; }"]))


@pytest.mark.parametrize("doubled", [doubled_avro, doubled_json, doubled_proto])
def test_fields_that_multiply_are_bounded(doubled: Callable[[int], Writer]) -> None:
    assert len(doubled(13).leaves) == 2**13
    with cheap(), pytest.raises(RecordError, match="more than 10,000 fields") as caught:
        doubled(19)
    assert caught.value.reason == "unsupported_schema"


def test_types_that_multiply_without_any_leaf_are_bounded() -> None:
    with cheap(), pytest.raises(RecordError, match="fields"):
        doubled_avro(60, "null")
    with cheap(), pytest.raises(RecordError, match="fields"):
        doubled_json(19, {"type": "object"})


@pytest.mark.parametrize("n", [MOST_LEAVES, MOST_LEAVES + 1])
def test_the_bound_is_that_of_leaves(n: int) -> None:
    fields = [{"name": f"f{i}", "type": "int"} for i in range(n)]
    makers: list[Callable[[], Writer]] = [
        lambda: avro({"type": "record", "name": "R", "fields": fields}),
        lambda: json_writer({"properties": {f"f{i}": {"type": "number"} for i in range(n)}}),
        lambda: proto("message R {" + "".join(f"int32 f{i} = {i + 1};" for i in range(n)) + "}"),
    ]
    for make in makers:
        if n > MOST_LEAVES:
            with pytest.raises(RecordError, match="more than 10,000 fields"):
                make()
        else:
            assert len(make().leaves) == n


def test_a_type_in_itself_has_no_leaves() -> None:
    node: dict[str, Any] = {"properties": {"flow": {"type": "number"}, "left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    mutual = {
        "properties": {"a": {"$ref": "#/definitions/A"}},
        "definitions": {
            "A": {"properties": {"x": {"type": "number"}, "b": {"$ref": "#/definitions/B"}}},
            "B": {"properties": {"y": {"type": "number"}, "a": {"$ref": "#/definitions/A"}}},
        },
    }
    with cheap():
        assert list(json_writer({**node, "$ref": "#/none"}).leaves) == ["flow"]
        assert "tree.flow" in json_writer({"properties": {"tree": node}}).leaves
        assert list(json_writer(mutual).leaves) == ["a.x", "a.b.y"]
        tree = proto(
            "message Tree { double flow = 1; Tree left = 2; Tree right = 3; Other o = 4; }\n"
            "message Other { Tree a = 1; double y = 2; }"
        )
        assert list(tree.leaves) == ["flow", "o.y"]
        assert tree.read(bytes.fromhex("12090900000000000004401a00"))["left"]["flow"] == 2.5


def test_long_names_and_many_former_names_cost_little() -> None:
    inner = {f"f{i}": {"type": "number"} for i in range(5000)}
    long = {"properties": {"x" * 500_000: {"properties": inner}, "flow": {"type": "number"}}}
    with cheap():
        assert list(json_writer(long).leaves) == ["flow"]
    fields: Any = "int"
    for level in range(6):
        aliases = [f"old{i}" for i in range(1000)]
        fields = {"type": "record", "name": f"T{level}", "fields": [{"name": "f", "aliases": aliases, "type": fields}]}
    with cheap():
        assert 1000 <= len(avro(fields).aliases) <= 20_000


def test_few_bytes_of_a_list_become_few_values() -> None:
    nulls = [{"name": f"n{i}", "type": "null"} for i in range(5000)]
    item = {"type": "record", "name": "Item", "fields": [{"name": "x", "type": "int"}, *nulls]}
    for kind in ({"type": "array", "items": item}, {"type": "map", "values": item}):
        with pytest.raises(RecordError, match="without bytes"):
            avro({"type": "record", "name": "R", "fields": [{"name": "list", "type": kind}]})
    endless = {"type": "record", "name": "E", "fields": [{"name": "e", "type": "E"}]}
    with pytest.raises(RecordError, match="without bytes"):
        avro({"type": "record", "name": "R", "fields": [{"name": "e", "type": {"type": "array", "items": endless}}]})


def test_a_schema_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "COMPILE_S", 0.05)
    choices = [{"type": "null"}] * 200_000
    fields = {f"f{i}": {"$ref": "#/definitions/A"} for i in range(5000)}
    slow = {"properties": fields, "definitions": {"A": {"oneOf": choices}}}
    with cheap(), pytest.raises(RecordError, match="fields are not found in") as caught:
        json_writer(slow)
    assert caught.value.reason == "unsupported_schema"


def test_schemas_that_refer_to_each_other_are_read_once() -> None:
    texts = [{"type": "record", "name": "S0", "fields": [{"name": "x", "type": "int"}]}]
    texts += [{"type": "record", "name": f"S{n}", "fields": [{"name": "x", "type": f"S{n - 1}"}]} for n in range(1, 60)]
    schema = SchemaText(Kind.AVRO, json.dumps(texts[0]))
    for text in texts[1:]:  # each refers twice to the one before
        both = tuple(Reference(f"r{i}", f"r{i}", 1, schema) for i in range(2))
        schema = SchemaText(Kind.AVRO, json.dumps(text), both)
    with cheap():
        assert list(AvroWriter(schema, "fomo").leaves) == [".".join("x" * 60)]
