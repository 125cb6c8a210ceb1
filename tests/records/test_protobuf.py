"""Protobuf: what is read, what is written behind it, and both forms of schemas."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st
from made_schemas import RESULT, proto_class

from fomo_stream.errors import RecordError
from fomo_stream.kafka.registry.protoc import descriptors
from fomo_stream.records.protobuf import RESULT_NUMBER, ProtobufWriter, message_indexes
from fomo_stream.records.writer_schema import Kind, SchemaText

PROTO3 = """
// A comment first.
syntax = "proto3";
package plant;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/field_mask.proto";
import "confluent/type/decimal.proto";
import "google/type/decimal.proto";
enum State { OFF = 0; ON = 1; }
message Other { string name = 1; }
message Reading {
  message Motor { int32 rpm = 1; optional double heat = 2; repeated Motor parts = 3; }
  double flow = 1;
  float ratio = 2;
  int32 small = 3;
  int64 large = 4;
  uint64 unsigned = 5;
  sint32 zigzag = 6;
  fixed64 fixed = 7;
  bool is_on = 8;
  string site = 9;
  bytes raw = 10;
  State state = 11;
  Motor motor = 12;
  repeated double history = 13;
  map<string, double> limits = 14;
  map<int32, Motor> motors = 15;
  map<bool, State> states = 16;
  optional int32 maybe = 17;
  oneof which { double left = 18; string right = 19; Motor both = 20; }
  google.protobuf.Timestamp at = 21;
  google.protobuf.Duration took = 22;
  google.protobuf.Struct extra = 23;
  google.protobuf.DoubleValue wrapped = 24;
  google.protobuf.BytesValue wrapped_bytes = 25;
  google.protobuf.FieldMask mask = 26;
  confluent.type.Decimal amount = 27;
  google.type.Decimal price = 28;
  repeated State history_of_states = 29;
}
"""
PROTO2 = """
syntax = "proto2";
package plant;
message Reading {
  required double flow = 1;
  optional int32 count = 2 [default = 7];
  optional group Part = 3 { optional string name = 1; }
  repeated string names = 4;
}
"""


def schema_of(text: str) -> SchemaText:
    return SchemaText(Kind.PROTOBUF, text, (), descriptors(text, "own.proto", ()))


def class_of(schema: SchemaText, name: str) -> Any:
    return proto_class(schema.compiled, name)


SCHEMA = schema_of(PROTO3)
WRITER = ProtobufWriter(SCHEMA, "fomo", (1,))
READING = class_of(SCHEMA, "plant.Reading")
WIDE = {"large", "unsigned", "fixed"}  # integers that the JSON of Protobuf has as text

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_double = st.floats(allow_nan=False, allow_infinity=False)
_motors = st.recursive(
    st.fixed_dictionaries({}, optional={"rpm": st.integers(-9, 9), "heat": _double}),
    lambda inner: st.fixed_dictionaries({"parts": st.lists(inner, max_size=2)}),
    max_leaves=4,
)
_readings = st.fixed_dictionaries(
    {},
    optional={
        "flow": _double,
        "ratio": st.integers(-100, 100).map(float),
        "small": st.integers(-(2**31), 2**31 - 1),
        "large": st.integers(-(2**63), 2**63 - 1),
        "unsigned": st.integers(0, 2**64 - 1),
        "zigzag": st.integers(-(2**31), 2**31 - 1),
        "fixed": st.integers(0, 2**64 - 1),
        "is_on": st.booleans(),
        "site": _text,
        "raw": st.binary(max_size=4),
        "state": st.sampled_from([0, 1]),
        "motor": _motors,
        "history": st.lists(_double, max_size=3),
        "limits": st.dictionaries(_text, _double, max_size=2),
        "states": st.dictionaries(st.booleans(), st.sampled_from([0, 1])),
        "maybe": st.integers(0, 3),
        "left": _double,
        "wrapped": _double.map(lambda value: {"value": value}),
        "wrapped_bytes": st.binary(max_size=3).map(lambda value: {"value": value}),
        "at": st.builds(lambda s: {"seconds": s}, st.integers(-(10**10), 10**10)),
        "history_of_states": st.lists(st.sampled_from([0, 1]), max_size=2),
    },
)


@given(_readings)
def test_fields_are_those_of_the_json_of_protobuf(values: dict[str, Any]) -> None:
    message = READING(**values)
    fields = WRITER.read(message.SerializeToString())
    expected = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    expected |= {name: int(expected[name]) for name in WIDE}
    assert fields == expected
    json.dumps(fields)


@given(_readings)
def test_a_record_comes_back_with_its_result(values: dict[str, Any]) -> None:
    message = READING(**values)
    body = message.SerializeToString()
    scored = WRITER.scored(body, RESULT)
    assert scored.startswith(body)
    again = ProtobufWriter(WRITER.scored_schema(), "fomo", (1,))
    assert again.scored_schema().text == WRITER.scored_schema().text
    twice = again.scored(scored, RESULT | {"score": 0.5, "reasons": []})
    for data, score, count in ((scored, 0.99, 2), (twice, 0.5, 0)):
        known = class_of(WRITER.scored_schema(), "plant.Reading").FromString(data)
        result = known.fomo
        assert (result.score, result.outlier, len(result.reasons)) == (score, True, count)
        assert not result.HasField("timestamp")
        known.ClearField("fomo")
        old = READING.FromString(data)  # of a reader that knows the input alone
        old.DiscardUnknownFields()
        assert old == message == READING.FromString(known.SerializeToString())
    reasons = class_of(WRITER.scored_schema(), "plant.Reading").FromString(scored).fomo.reasons
    assert [(one.value, one.text, one.low) for one in reasons] == [(3.0, "", 0.5), (0.0, "north", 0.0)]


def test_types_that_are_well_known() -> None:
    message = READING(
        **{"at": {"seconds": 1, "nanos": 500}, "took": {"seconds": 90, "nanos": 500_000_000}, "left": 1.5},
        **{"amount": {"value": b"\x04\xe2", "precision": 9, "scale": 2}, "price": {"value": "1.10"}},
        **{"mask": {"paths": ["a.b", "c"]}, "motors": {3: {"rpm": 1}}, "wrapped_bytes": {"value": b"ab"}},
    )
    message.extra.update({"a": [1, None, {"b": True}], "c": "text"})
    fields = WRITER.read(message.SerializeToString())
    expected = {
        **{"at": "1970-01-01T00:00:01.000000500Z", "took": 90.5, "amount": "12.50", "price": "1.10", "mask": "a.b,c"},
        **{"extra": {"a": [1.0, None, {"b": True}], "c": "text"}, "motors": {"3": {"rpm": 1, "parts": []}}},
        **{"wrapped_bytes": "YWI=", "left": 1.5},
    }
    assert {name: fields[name] for name in expected} == expected
    assert not {"right", "both", "maybe", "motor", "wrapped"} & fields.keys()
    roles = {name: WRITER.leaves[name].role for name in ("at", "took", "amount", "motor.rpm", "raw", "limits", "site")}
    assert list(roles.values()) == ["time", "number", "number", "number", "bytes", "map", "text"]
    message = READING(amount={"value": b"\x01", "scale": 2**31 - 1})  # which claims much memory
    assert WRITER.read(message.SerializeToString())["amount"] == "AQ=="


@pytest.mark.parametrize("is_encoded", [False, True])
def test_schemas_import_others_in_both_forms(is_encoded: bool) -> None:
    def compiled(text: str, name: str, *references: tuple[str, bytes]) -> bytes:
        files = descriptors(text, name, references)
        own = FileDescriptorSet.FromString(files).file[-1].SerializeToString()
        return descriptors(b64encode(own).decode(), name, references) if is_encoded else files

    base = compiled('syntax = "proto3"; package base; message Motor { int32 rpm = 1; }', "name-of-its-own.proto")
    user = 'syntax = "proto3"; import "folder/base.proto"; message Reading { base.Motor motor = 1; }'
    schema = SchemaText(Kind.PROTOBUF, user, (), compiled(user, "own.proto", ("folder/base.proto", base)))
    assert ProtobufWriter(schema, "fomo").read(b"\x0a\x02\x08\x05") == {"motor": {"rpm": 5}}


def test_proto2() -> None:
    schema = schema_of(PROTO2)
    writer, reading = ProtobufWriter(schema, "fomo"), class_of(schema, "plant.Reading")
    body = reading(flow=1.0, part={"name": "a"}).SerializeToString()
    assert writer.read(body) == {"flow": 1.0, "part": {"name": "a"}, "names": []}
    scored = class_of(writer.scored_schema(), "plant.Reading").FromString(writer.scored(body, RESULT))
    assert scored.fomo.reasons[1].text == "north"
    assert writer.read(b"") == {"names": []}  # without a field that is required, too


def test_the_message_in_the_file() -> None:
    for indexes, name in (((0,), "plant.Other"), ((1,), "plant.Reading"), ((1, 0), "plant.Reading.Motor")):
        writer = ProtobufWriter(SCHEMA, "fomo", indexes)
        assert writer.name == name
        assert message_indexes(writer.head + b"body") == (indexes, len(writer.head))
        assert class_of(writer.scored_schema(), name).DESCRIPTOR.fields_by_name["fomo"].number == RESULT_NUMBER
    for indexes in ((7,), (1, 5), (-1,)):
        with pytest.raises(RecordError, match="does not have"):
            ProtobufWriter(SCHEMA, "fomo", indexes)
    for head in (b"", b"\xff" * 20, b"\x03", b"\xfe\xff\xff\xff\x0f"):
        with pytest.raises(RecordError):
            message_indexes(head)
