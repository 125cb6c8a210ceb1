"""The offset up to which the records of a partition are finished. Pure."""

from __future__ import annotations

from collections import deque


class OffsetTracker:
    """Tracks which offset may be committed when records are finished out of order.

    Offsets are opened in ascending order when a record is read, and closed when it is finished. Everything below
    `committable` is closed, so committing it loses nothing. Offsets may have gaps, as in compacted topics.

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
