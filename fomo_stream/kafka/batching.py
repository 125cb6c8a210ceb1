"""Micro-batches, the offset up to which a partition is finished, and how long to wait for a sample.

Pure: the caller passes the time.
"""

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

    def take(self, most: int | None = None) -> list[Item]:
        """The first items, all or at most so many, in the order they came; the rest stays due."""
        most = len(self.items) if most is None else most
        items, self.items = self.items[:most], self.items[most:]
        if not self.items:
            self._deadline = float("inf")
        return items


class OffsetTracker:
    """The offset that may be committed while records are finished in any order.

    Offsets are opened in ascending order when a record is read, and closed when it is finished. Everything below
    `committable` is closed, so committing it can lose nothing. Offsets may have gaps, as in compacted topics.

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
        self.last = -1  # offset opened last

    def __len__(self) -> int:
        """Number of records read and not yet committable."""
        return len(self._open)

    def open(self, offset: int) -> None:
        """A record was read."""
        self._open.append(offset)
        self.last = offset

    @property
    def ahead(self) -> frozenset[int]:
        """Closed offsets that come after an open one."""
        return frozenset(self._closed)

    def close(self, offset: int) -> None:
        """A record is finished."""
        self._closed.add(offset)
        while self._open and self._open[0] in self._closed:
            first = self._open.popleft()
            self._closed.remove(first)
            self.committable = first + 1


FEW = 20  # records: fewer may not be typical


class Patience:
    """How long to wait for a sample of `wanted` records on a stream of any speed.

    With fewer than `wanted` the wait ends `seconds` after the 20th, or six times as long after the first.

    >>> patience = Patience(wanted=200, seconds=5)
    >>> patience.is_over(3, now=0.0), patience.is_over(25, now=8.0), patience.is_over(25, now=13.0)
    (False, False, True)
    """

    def __init__(self, wanted: int, seconds: float) -> None:
        self._wanted = wanted
        self._seconds = seconds
        self._deadline = float("inf")

    def is_over(self, waiting: int, now: float) -> bool:
        """Whether the waiting records have to be enough; while none waits, the clock does not run."""
        if not waiting:
            self._deadline = float("inf")
            return False
        self._deadline = min(self._deadline, now + self._seconds * (1 if waiting >= FEW else 6))
        return waiting >= self._wanted or now >= self._deadline
