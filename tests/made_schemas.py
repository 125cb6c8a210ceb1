"""Made schemas of Avro, with data that fit them, and what their values are as JSON, found in another way.

And classes of Protobuf's messages, as a consumer has them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

from fastavro import parse_schema, schemaless_writer
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

# A result as the service makes it.
RESULT: dict[str, Any] = {
    **{"topic": "sensors", "partition": 3, "offset": 8, "timestamp": None, "score": 0.99, "remembered_logit": 5.25},
    **{"logit": 6.5, "p_value": 0.001, "outlier": True, "severity": "critical", "confidence": 0.5, "missing": 1},
    **{"model": "fusion@1", "generation": 3, "regime": 1, "status": "ok", "incident": "3-8", "surprise": 4.5},
    "reasons": [
        {
            "feature": "flow",
            "cause": "value",
            "share": 0.75,
            "value": 3,
            "usual": 1.5,
            "range": [0.5, 2.5],
            "scope": "all",
        },
        {"feature": "site", "cause": "category", "share": 0.25, "value": "north", "frequency": 0.01, "scope": "key"},
    ],
    "explanation": "flow is 3, usually 1.5",
}

_LOGICAL: list[Any] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4},
    {"type": "string", "logicalType": "no such type"},
]
_SCALARS = ["boolean", "int", "long", "float", "double", "string", "bytes", *_LOGICAL]


@st.composite
def avro_schemas(draw: st.DrawFn, depth: int = 2) -> dict[str, Any]:
    """A record with fields of all types, nested, each type with a name of its own."""
    count = 0

    def named(kind: str, **rest: Any) -> dict[str, Any]:
        nonlocal count
        count += 1
        return {"type": kind, "name": f"T{count}", **rest}

    def a_type(left: int) -> Any:
        kinds = ["scalar", "enum", "fixed"] + ["record", "array", "map", "union", "again"] * (left > 0)
        kind = draw(st.sampled_from(kinds))
        if kind == "record":
            return a_record(left - 1)
        if kind == "array":
            return {"type": "array", "items": a_type(left - 1)}
        if kind == "map":
            return {"type": "map", "values": a_type(left - 1)}
        if kind == "union":
            others = [a_type(0) for _ in range(draw(st.integers(1, 3)))]
            return _union(others)
        if kind == "enum":
            return named("enum", symbols=draw(st.lists(_names, min_size=1, max_size=3, unique=True)))
        if kind == "fixed":
            return named("fixed", size=draw(st.integers(1, 20)))
        if kind == "again" and count:  # a type that has a name, used once more
            return {"type": "array", "items": named("enum", symbols=["A", "B"])}
        return draw(st.sampled_from(_SCALARS))

    def a_record(left: int) -> dict[str, Any]:
        names = draw(st.lists(_names, min_size=1, max_size=4, unique=True))
        made = named("record")
        return {**made, "fields": [{"name": name, "type": a_type(left)} for name in names]}

    made = a_record(depth)
    return {**made, "namespace": "made"}


def avro_bytes(schema: Any, value: Any) -> bytes:
    """A value, as fastavro writes it."""
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


def proto_class(compiled: bytes, name: str) -> Any:
    """The class of a message. compiled: a FileDescriptorSet."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


_names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)


def _union(types: list[Any]) -> list[Any]:
    """With null, and with every unnamed type at most once, as Avro wants it."""
    kept: dict[Any, Any] = {}
    for one in types:
        kind = one["type"] if isinstance(one, dict) else one
        kept.setdefault(one.get("name", kind) if isinstance(one, dict) else kind, one)
    if "int" in kept and "long" in kept:  # which values of Python cannot tell apart
        del kept["int"]
    if "float" in kept and "double" in kept:
        del kept["float"]
    if "bytes" in kept and "string" in kept:  # which Avro lets a reader take for each other
        del kept["bytes"]
    # fastavro's writer tries each type in turn, and fails where a value is none of a logical type.
    kept = {name: one["type"] if isinstance(one, dict) and "name" not in one else one for name, one in kept.items()}
    if "bytes" in kept:  # as which fastavro would write a value of a fixed type, also where it is too long a decimal
        kept = {name: one for name, one in kept.items() if not isinstance(one, dict) or one["type"] != "fixed"}
    return ["null", *kept.values()]


def as_json(value: Any) -> Any:
    """What fastavro reads, as JSON: the other implementation of what `AvroWriter.read` promises."""
    if isinstance(value, dict):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [as_json(one) for one in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, (date, time)) else value


def comparable(value: Any) -> Any:
    """Texts of times and UUIDs in one form: the number of decimals differs, and the dashes."""
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if isinstance(value, str) and ":" in value and "." in value:
        body, zone = (value[:-1], "Z") if value.endswith("Z") else (value, "")
        return body.rstrip("0").rstrip(".") + zone
    return value.replace("-", "") if isinstance(value, str) and len(value) in (32, 36) else value
