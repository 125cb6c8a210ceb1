"""What the value of a record can be written in: JSON, or by a schema.

`JsonCodec` is in `json_codec`, `SchemaCodec` in `schema_codec`; `avro`, `protobuf` and `json_schema` know the languages
of schemas. `fomo_stream.kafka.decoding` chooses the codec of a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fomo_stream.records.wire_format import Headers


class Codec(Protocol):
    """Reads the fields of a record, and writes the record with its result."""

    def decode(self, value: bytes | None, headers: Headers = ()) -> dict[str, Any]:
        """The fields. The only errors are RecordError, and SchemaPendingError if a schema has to be fetched first."""

    def key(self, key: bytes | None, headers: Headers = ()) -> tuple[bytes | None, Mapping[str, Any]]:
        """What a record's own key names, as text, and its fields, if it has any. Raises SchemaPendingError."""

    def encode(
        self, fields: Mapping[str, Any], result: Mapping[str, Any], raw: bytes | None = None, topic: str = ""
    ) -> bytes:
        """The record with its result. raw: its own bytes, which are kept where they can be; without, it may be shorter.

        fields: as they were decoded. topic: that it is written to. Raises RecordError, ValueError, TypeError or
        RecursionError if that cannot be written.
        """

    def summary(self, summary: Mapping[str, Any], last: Mapping[str, Any], topic: str) -> bytes:
        """The sum of an incident. last: fields of the record that ended it, for outputs whose schema has them."""
