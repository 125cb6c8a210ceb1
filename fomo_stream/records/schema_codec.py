"""The codec of records with schemas: each is read by the schema of its own writer.

Results are written as JSON, or in the record's own language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from fomo_stream.errors import RecordError
from fomo_stream.records.json_codec import checked, encode
from fomo_stream.records.wire_format import KEY_HEADER, VALUE_HEADER, Headers, RecordFields, has_prefix, with_prefix
from fomo_stream.records.writer_schema import Kind, RegisteredWriter, WrittenFields

# Finds the writer of a value or key in its bytes and headers, and returns its body, too. The last argument is the name
# of the header with the id of the schema. Raises RecordError, or SchemaPendingError.
FindWriter = Callable[[bytes, Headers, str], tuple[RegisteredWriter, bytes]]


class SchemaCodec:
    """The `Codec` of records with schemas. find: the writers; field: of results; as_json: results are JSON."""

    def __init__(self, find: FindWriter, field: str, scores_only: bool, max_bytes: int, as_json: bool) -> None:
        self._find, self._field, self._scores_only, self._max_bytes = find, field, scores_only, max_bytes
        self._as_json = as_json

    def decode(self, value: bytes | None, headers: Headers = ()) -> dict[str, Any]:
        registered, body = self._find(checked(value, self._max_bytes), headers, VALUE_HEADER)
        return WrittenFields(registered.writer.read(body), registered, body)

    def key(self, key: bytes | None, headers: Headers = ()) -> tuple[bytes | None, Mapping[str, Any]]:
        """See `Codec.key`. A key without a schema stays as it is; one with several fields is named by its JSON."""
        if key is None or not (has_prefix(key) or any(name == KEY_HEADER for name, _ in headers)):
            return key, {}
        try:
            registered, body = self._find(key, headers, KEY_HEADER)
            value = registered.writer.read_value(body)
            text = value.encode() if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
        except (RecordError, ValueError, TypeError):  # not a schema id; half a character, a number beyond 64 bits
            return key, {}  # a number of eight bytes begins with a zero byte, too
        return text, value if isinstance(value, dict) else {}

    def encode(self, fields: RecordFields, result: RecordFields, raw: bytes | None = None, topic: str = "") -> bytes:
        assert isinstance(fields, WrittenFields)
        registered = fields.writer
        if not self._as_json:
            body = (b"{}" if registered.output.kind is Kind.JSON else b"") if self._scores_only else fields.body
            return with_prefix(registered.ids[topic], registered.output.head, registered.output.scored(body, result))
        return encode(fields, result, self._field, self._scores_only, None if raw is None else fields.json)

    def summary(self, summary: RecordFields, last: RecordFields, topic: str) -> bytes:
        """See `Codec.summary`. With a schema, it has the fields of the record that ended the incident."""
        return encode({}, summary, self._field) if self._as_json else self.encode(last, summary, None, topic)
