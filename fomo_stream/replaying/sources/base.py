"""What every source of records can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from fomo_stream.replaying.blocks import Sample

IsStopped = Callable[[], bool]


class Source(Protocol):
    """Past records. It is sent to worker processes, so it is small and opens its file or client where it reads."""

    @property
    def partitions(self) -> tuple[int, ...]: ...

    @property
    def name(self) -> str: ...

    def start(self, partition: int) -> int:
        """The first offset of the range."""
        ...

    def total(self, partition: int) -> int | None:
        """How many records the range has at most; None if that is not known."""
        ...

    def read(self, partition: int, start: int, is_stopped: IsStopped) -> Iterator[Sample]:
        """The records of the range from offset `start` on, in order, in constant memory; ends early if `is_stopped`."""
        ...

    def part(self, partition: int) -> Source:
        """The same source, with only as much as is needed to read this partition."""
        ...
