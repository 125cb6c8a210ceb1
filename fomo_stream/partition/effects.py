"""Entries of the state topic that record when labels took effect.

Key `feedback/<feedback topic>/<partition>/<input offset>/<offset of the first label>`: before the record at that input
offset was scored, these labels took effect. An entry is needed only as long as the input retains that record, because
only until then can it be replayed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

PREFIX = b"feedback/"  # of keys


class Effect(NamedTuple):
    """One entry, by the parts of its key."""

    input_offset: int  # -1: of an input topic that was deleted
    label_offset: int
    place: bytes  # `feedback/<feedback topic>/<partition>`
    key: bytes

    @classmethod
    def of(cls, topic: str, partition: int, input_offset: int, label_offset: int) -> Effect:
        """The entry of labels that took effect together; `label_offset`: of the first one, in the feedback topic."""
        place = PREFIX + f"{topic}/{partition}".encode()
        return cls(input_offset, label_offset, place, _key(place, input_offset, label_offset))

    @classmethod
    def parse(cls, key: bytes) -> Effect | None:
        """The entry with this key; None if the key is of another kind."""
        parts = key.rsplit(b"/", 2)
        if not key.startswith(PREFIX) or len(parts) < 3 or not (parts[1].isdigit() and parts[2].isdigit()):
            return None
        effect = cls(int(parts[1]), int(parts[2]), parts[0], key)
        return effect if parts[0].count(b"/") == 2 else None


def _key(place: bytes, input_offset: int, label_offset: int) -> bytes:
    return b"%b/%d/%d" % (place, input_offset, label_offset)


class Effects:
    """The entries of one partition by input offset, in 24 bytes each: there may be one for every label.

    >>> effects = Effects()
    >>> for at in (7, 3, 9): effects.add(Effect.of("labels", 0, at, 1))
    >>> effects.remove_before(8), len(effects)
    ([b'feedback/labels/0/3/1', b'feedback/labels/0/7/1'], 1)
    """

    def __init__(self, effects: Iterable[Effect] = ()) -> None:
        self._gone: list[bytes] = []  # keys of entries of a deleted input topic
        self._inputs, self._labels, self._place_of = array("q"), array("q"), array("q")
        self._places: list[bytes] = []  # several if another feedback topic was used before
        for effect in sorted(effects):
            self.add(effect)

    def __len__(self) -> int:
        return len(self._inputs) + len(self._gone)

    def add(self, effect: Effect) -> None:
        """Add an entry."""
        if effect.input_offset < 0:
            self._gone.append(effect.key)
            return
        if effect.place not in self._places:
            self._places.append(effect.place)
        at = bisect_right(self._inputs, effect.input_offset)
        self._inputs.insert(at, effect.input_offset)
        self._labels.insert(at, effect.label_offset)
        self._place_of.insert(at, self._places.index(effect.place))

    def remove_before(self, first: int, most: int = 1000) -> list[bytes]:
        """Remove the entries before offset `first`, the first one that the input retains; returns at most `most` keys.

        All entries of a deleted input topic are removed at once, because later they would look like entries of the new
        topic.
        """
        keys, self._gone = self._gone, []
        n = min(most, bisect_left(self._inputs, first))
        for one, label, place in zip(self._inputs[:n], self._labels[:n], self._place_of[:n], strict=True):
            keys.append(_key(self._places[place], one, label))
        del self._inputs[:n], self._labels[:n], self._place_of[:n]
        return keys
