"""Micro-batches by size and age, and the offset up to which a partition is finished. Pure: takes the time."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class MicroBatch(Generic[Item]):
    """Collects items until there are `size` of them, or the oldest has waited `age` seconds.

    >>> batch = MicroBatch(size=2, age=0.02)
    >>> batch.add("a", now=0.0), batch.is_due(now=0.01), batch.is_due(now=0.02)
    (False, False, True)
    >>> batch.add("b", now=0.02), batch.take()
    (True, ['a', 'b'])
    """

    def __init__(self, size: int, age: float) -> None:
        self._size = size
        self._age = age
        self.items: list[Item] = []
        self._deadline = float("inf")

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: Item, now: float) -> bool:
        """Add one item; True when the batch is full and has to be taken."""
        if not self.items:
            self._deadline = now + self._age
        self.items.append(item)
        return len(self.items) >= self._size

    def is_due(self, now: float) -> bool:
        """Whether the batch is full or its oldest item has waited long enough."""
        return len(self.items) >= self._size or now >= self._deadline

    def take(self) -> list[Item]:
        """All items in the order they came; the batch is empty afterwards."""
        items, self.items = self.items, []
        self._deadline = float("inf")
        return items


class OffsetTracker:
    """The offset that may be committed while outputs are acknowledged in any order.

    Offsets are opened in ascending order when a record is read, and closed when the broker has its output.
    Everything below `committable` is closed, so committing it can lose nothing. Offsets may have gaps, as in
    compacted topics.

    >>> tracker = OffsetTracker()
    >>> for offset in (3, 4, 7): tracker.open(offset)
    >>> tracker.close(4); tracker.committable
    >>> tracker.close(3); tracker.committable
    5
    """

    def __init__(self) -> None:
        self._open: deque[int] = deque()
        self._closed: set[int] = set()
        self.committable: int | None = None  # next offset to read after a restart; None: nothing finished yet

    def __len__(self) -> int:
        """Number of records read and not yet committable."""
        return len(self._open)

    def open(self, offset: int) -> None:
        """A record was read."""
        self._open.append(offset)

    def close(self, offset: int) -> None:
        """The broker has everything that the record led to."""
        self._closed.add(offset)
        while self._open and self._open[0] in self._closed:
            first = self._open.popleft()
            self._closed.remove(first)
            self.committable = first + 1
