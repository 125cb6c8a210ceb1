"""Micro-batches. Pure: the caller passes the time."""

from __future__ import annotations

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
        """Take the first items, all or at most `most`, in order of arrival; the rest remains due."""
        most = len(self.items) if most is None else most
        items, self.items = self.items[:most], self.items[most:]
        if not self.items:
            self._deadline = float("inf")
        return items
