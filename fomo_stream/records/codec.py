"""What the value of a record can be written in. JSON is the only one so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Codec(Protocol):
    """Reads the fields of a record, and writes the record with its result."""

    def decode(self, value: bytes | None) -> dict[str, Any]:
        """The fields. The only error is RecordError."""

    def encode(self, fields: Mapping[str, Any], result: Mapping[str, Any], raw: bytes | None = None) -> bytes:
        """The record with its result. raw: its own bytes, which are kept where they can be; without, it may be shorter.

        Raises ValueError, TypeError or RecursionError if that cannot be written.
        """
