"""Codecs: the formats in which the value of a record can be written, JSON or one with a schema.

`JsonCodec` is in `json_codec`, `SchemaCodec` in `schema_codec`; `avro`, `protobuf` and `json_schema` know the languages
of schemas. `fomo_stream.kafka.decoding` chooses the codec of a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fomo_stream.records.wire_format import Headers, RecordFields


class Codec(Protocol):
    """Reads the fields of a record, and writes the record with its result."""

    def decode(self, value: bytes | None, headers: Headers = ()) -> dict[str, Any]:
        """Return the fields. Raises only RecordError, and SchemaPendingError if a schema has to be fetched first."""

    def key(self, key: bytes | None, headers: Headers = ()) -> tuple[bytes | None, Mapping[str, Any]]:
        """Return a record's own key as text, and the fields of the key, if it has any. Raises SchemaPendingError."""

    def encode(self, fields: RecordFields, result: RecordFields, raw: bytes | None = None, topic: str = "") -> bytes:
        """Write the record with its result. raw: its own bytes, which are kept where possible; else it may be shorter.

        fields: as `decode` returned them. topic: where it is written to. Raises RecordError, ValueError, TypeError or
        RecursionError if it cannot be written.
        """

    def summary(self, summary: RecordFields, last: RecordFields, topic: str) -> bytes:
        """Write the summary of an incident. last: fields of the record that ended it, for outputs with a schema."""
