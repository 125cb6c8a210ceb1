"""The wire format of Confluent's serializers: how a record names the schema by which it was written.

A value is a zero byte and four bytes with the id of the schema, then the body. Or a header has a byte 1 and the 16
bytes of the schema's GUID, and the value is the body alone. In Protobuf, the indexes of the message in the schema
follow the id or the GUID.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from fomo_stream.errors import RecordError

VALUE_HEADER, KEY_HEADER = "__value_schema_id", "__key_schema_id"
NO_SCHEMA_ID = "no_schema_id"  # reasons of dead letters
NEEDS_REGISTRY = "needs_registry"

SchemaId = int | str  # a number, or a GUID as text
Headers = Iterable[tuple[str, bytes | None]]
RecordFields = Mapping[str, Any]  # of a record, or of its result

_PREFIX_BYTES = 5  # bytes
_GUID_BYTES = 17


def has_prefix(data: bytes) -> bool:
    """Return whether the data begin like a record with the id of a schema. JSON never does."""
    return len(data) >= _PREFIX_BYTES and data[0] == 0


def schema_id_of(data: bytes, headers: Headers, name: str) -> tuple[SchemaId, bytes]:
    """Return the schema id of a value or key, and the bytes after it. name: of the header. Raises RecordError."""
    header = next((value for key, value in headers if key == name), None)
    if header is not None and len(header) >= _GUID_BYTES and header[0] == 1:
        return str(UUID(bytes=header[1:_GUID_BYTES])), header[_GUID_BYTES:] + data
    if header is not None and has_prefix(header):
        return int.from_bytes(header[1:_PREFIX_BYTES], "big"), header[_PREFIX_BYTES:] + data
    if not has_prefix(data):
        what = f"it has no schema id: it does not begin with a zero byte, and it has no header {name}"
        raise RecordError(NO_SCHEMA_ID, f"{what}; is its producer's serializer one for the schema registry?")
    return int.from_bytes(data[1:_PREFIX_BYTES], "big"), data[_PREFIX_BYTES:]


def with_prefix(schema_id: int, head: bytes, body: bytes) -> bytes:
    """Return a value. head: the bytes between the id and the body."""
    return b"\0" + schema_id.to_bytes(4, "big") + head + body


def without_ids(headers: list[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the headers without a schema id: the value of an output has another schema than the record."""
    return [header for header in headers if header[0] != VALUE_HEADER]
