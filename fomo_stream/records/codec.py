"""What the value of a record can be written in. JSON is the only one so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fomo_stream.records.json_codec import JsonCodec


class Codec(Protocol):
    """Reads the fields of a record, and writes the record with its result."""

    def decode(self, value: bytes | None) -> dict[str, Any]:
        """The fields. The only error is RecordError."""

    def encode(self, fields: Mapping[str, Any], result: Mapping[str, Any], raw: bytes | None = None) -> bytes:
        """The record with its result. raw: its own bytes, which are kept where they can be; without, it may be shorter.

        Raises ValueError, TypeError or RecursionError if that cannot be written.
        """


def codec_of(field: str, scores_only: bool, max_bytes: int) -> Codec:
    """The codec of a topic's records: the only place that chooses one.

    field: of the result; scores_only: leaves out the record's own fields; max_bytes: of a record.
    """
    return JsonCodec(field, scores_only, max_bytes)
