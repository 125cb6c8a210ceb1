"""Avro: what is read, and what is written behind it."""

from __future__ import annotations

import io
import json
import random
from typing import Any
from uuid import UUID

import fastavro
import pytest
from fastavro.utils import generate_one
from hypothesis import given, settings
from hypothesis import strategies as st
from made_schemas import RESULT, as_json, avro_bytes, avro_schemas, comparable

from fomo_stream.errors import RecordError
from fomo_stream.records.avro import AvroWriter
from fomo_stream.records.schema import Schema
from fomo_stream.records.writer_schema import (
    Kind,
    ReferencedSchema,
    RegisteredWriter,
    SchemaText,
    WrittenFields,
    with_current_names,
)


def writer_of(schema: Any, *references: ReferencedSchema) -> AvroWriter:
    return AvroWriter(SchemaText(Kind.AVRO, json.dumps(schema), references), "fomo")


def read_by_fastavro(schema: Any, data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(json.loads(json.dumps(schema))), None)


@given(schema=avro_schemas(), seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_every_value_is_read_and_comes_back_with_the_result(schema: Any, seed: int) -> None:
    random.seed(seed)  # of fastavro's generator
    value = generate_one(json.loads(json.dumps(schema)))
    body = avro_bytes(schema, value)
    writer = writer_of(schema)
    expected = read_by_fastavro(schema, body)
    assert comparable(writer.read(body)) == comparable(as_json(expected))
    json.dumps(writer.read(body), allow_nan=True)
    scored = writer.scored(body, RESULT)
    assert scored.startswith(body)
    back = read_by_fastavro(json.loads(writer.scored_schema().text), scored)
    result = back.pop("fomo")
    assert comparable(as_json(back)) == comparable(as_json(expected))
    assert all(result[name] == RESULT[name] for name in ("score", "outlier", "explanation", "offset"))
    reasons = [(one["value"], one["text"], one["low"]) for one in result["reasons"]]
    assert reasons == [(3.0, None, 0.5), (None, "north", None)]
    # read by the schema of the record alone, the result is left over
    old = fastavro.schemaless_reader(
        io.BytesIO(scored),
        fastavro.parse_schema(json.loads(writer.scored_schema().text)),
        fastavro.parse_schema(json.loads(json.dumps(schema))),
    )
    assert comparable(as_json(old)) == comparable(as_json(expected))


def decimal(precision: Any, scale: int, **more: Any) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale, **more}


VALUES: list[tuple[Any, Any, Any]] = [
    ({"type": "long", "logicalType": "timestamp-millis"}, 2**62, 2**62),  # "never", in Java
    ({"type": "long", "logicalType": "timestamp-nanos"}, 1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789Z"),
    ({"type": "long", "logicalType": "timestamp-micros"}, -1, "1969-12-31T23:59:59.999999Z"),
    ({"type": "int", "logicalType": "time-millis"}, 90_000_000, 90_000_000),
    ({"type": "int", "logicalType": "date"}, 2**31 - 1, 2**31 - 1),
    (decimal(40, 3), b"\xff", "-0.001"),
    (decimal(50, 2), (10**45).to_bytes(20, "big"), f"1{'0' * 43}.00"),
    (decimal(18, 1, type="fixed", name="D", size=8), bytes(7) + b"\x7b", "12.3"),
    (decimal(2, 3), b"\x01", "AQ=="),  # no such decimal
    ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, bytes(16), f"{UUID(int=0)}"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES)
def test_values_beyond_those_of_python_lose_nothing(kind: Any, value: Any, expected: Any) -> None:
    plain = {name: one for name, one in kind.items() if name != "logicalType"}
    body = avro_bytes({"type": "record", "name": "R", "fields": [{"name": "x", "type": plain}]}, {"x": value})
    writer = writer_of({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})
    assert writer.read(body) == {"x": expected}


def test_types_of_other_schemas_are_found() -> None:
    enum = {"type": "enum", "name": "State", "namespace": "plant", "symbols": ["ON", "OFF"]}
    state = ReferencedSchema("plant.State", "state", 1, SchemaText(Kind.AVRO, json.dumps(enum)))
    fields: list[dict[str, Any]] = [{"name": "state", "type": "State"}, {"name": "rpm", "type": "int"}]
    record = {"type": "record", "name": "Motor", "namespace": "plant", "fields": fields}
    motor = ReferencedSchema("plant.Motor", "motor", 1, SchemaText(Kind.AVRO, json.dumps(record), (state,)))
    fields = [{"name": "a", "type": "plant.Motor"}, {"name": "b", "type": ["null", "plant.State"]}]
    writer = writer_of({"type": "record", "name": "R", "fields": fields}, motor, state)
    assert writer.read(b"\x02\x08\x02\x00") == {"a": {"state": "OFF", "rpm": 4}, "b": "ON"}
    assert writer.scored_schema().references[0].subject == "motor"
    assert writer.leaves.keys() == {"a.state", "a.rpm", "b"}


def test_a_renamed_feature_is_found_under_its_former_name() -> None:
    motor = {"type": "record", "name": "M", "fields": [{"name": "speed", "type": "int", "aliases": ["rpm"]}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "engine", "aliases": ["motor"], "type": motor}]}
    writer = writer_of(schema)
    fields = WrittenFields(writer.read(b"\x06"), RegisteredWriter(writer, writer, {}), b"\x06")
    schema_of_stream = Schema(("motor.rpm",))
    assert schema_of_stream.rows([with_current_names(fields, schema_of_stream.features)]).tolist() == [[3.0]]
    assert fields == {"engine": {"speed": 3}}
    assert with_current_names(fields, ("engine.speed",)) is fields


def test_a_value_that_is_no_record_is_refused() -> None:
    with pytest.raises(RecordError, match="named fields") as caught:
        writer_of("string").read(b"\x04ab")
    assert caught.value.reason == "not_an_object"
    assert writer_of("string").read_value(b"\x04ab") == "ab"
