"""An output: one record to produce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fomo_stream.partition.record import Headers, Record

# (topic, partition of the source, key) -> partition to write to; -1: by key
PartitionOf = Callable[[str, int, bytes | None], int]

OVERHEAD_BYTES = 200  # of a record without its headers, and of a batch that holds only this record


@dataclass(slots=True)
class Output:
    """One record to produce. source: the record that it is about, if any."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int = -1  # -1: chosen by key
    timestamp: int = 0  # milliseconds since 1970; 0: the time of producing
    source: Record | None = None

    def size(self) -> int:
        """Its size in bytes in a batch of its own, or a little less."""
        size = len(self.value or b"") + len(self.key or b"") + OVERHEAD_BYTES
        for name, value in self.headers:
            size += len(name) + len(value or b"") + 10
        return size
