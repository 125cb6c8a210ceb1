"""How far the redrive of a partition of dead letters has come."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import TopicPartition

ANY = ""  # in place of a reason: letters of all reasons


@dataclass(frozen=True)
class RedrivePosition:
    """Done letters of a partition: all below `offset`, and more of some kinds.

    ahead: by reason (ANY: all) and limit of attempts, the offset below which all letters of that reason with fewer
    attempts are done. A letter at the limit of a run therefore stays for a run with a higher limit.

    >>> position = RedrivePosition(10).advanced(50, ["not_json"], 5)
    >>> position.is_done("not_json", 4, 49), position.is_done("not_json", 5, 49), position.is_done("too_large", 4, 49)
    (True, False, False)
    >>> position.advanced(60, [], 5)
    RedrivePosition(offset=60, ahead={})
    >>> position = position.advanced(60, [], 5, held=55)
    >>> position.first([], 5), position.first([], 6)
    (60, 55)
    """

    offset: int
    ahead: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def committed(cls, found: TopicPartition, first: int, end: int) -> RedrivePosition:
        """The group's committed position; `first` without one, or when the topic was created again and ends earlier."""
        try:
            entries = json.loads(found.metadata or "[]")
            ahead = {(str(reason), int(limit)): int(to) for reason, limit, to in entries}
        except (ValueError, TypeError):  # another tool has set the offset
            ahead = {}
        is_usable = found.offset >= 0 and max(found.offset, *ahead.values(), 0) <= end
        return cls(found.offset, ahead) if is_usable else cls(first)

    def as_offset(self, topic: str, partition: int) -> TopicPartition:
        """The offset to commit; `ahead` is its metadata."""
        entries = [[reason, limit, to] for (reason, limit), to in sorted(self.ahead.items())]
        return TopicPartition(topic, partition, self.offset, json.dumps(entries) if entries else "")

    def is_done(self, reason: str, attempts: int, offset: int) -> bool:
        """Whether an earlier run has handled the letter at `offset`, with this reason and so many attempts."""
        return offset < self.offset or any(
            offset < to and attempts < limit and name in (ANY, reason) for (name, limit), to in self.ahead.items()
        )

    def first(self, reasons: Sequence[str], limit: int) -> int:
        """Below it, all letters with one of these reasons (none: any) and fewer attempts than `limit` are done."""
        return min(
            max([self.offset, *(to for (name, most), to in self.ahead.items() if most >= limit and name in (ANY, one))])
            for one in reasons or (ANY,)
        )

    def advanced(self, to: int, reasons: Sequence[str], limit: int, held: int | None = None) -> RedrivePosition:
        """The position when a run has handled all letters below `to` that were not done.

        The run was about these reasons (none: any) and fewer attempts than `limit`; held: the first letter that it left
        because of its attempts.
        """
        offset = self.offset
        if not reasons and self.first((), limit) == offset:  # it has seen every letter from there on
            offset = to if held is None else held
        ahead = dict(self.ahead)
        for reason in reasons or (ANY,):
            ahead[reason, limit] = max(to, ahead.get((reason, limit), 0))
        kept = {kind: end for kind, end in ahead.items() if end > offset and not _is_covered(kind, ahead)}
        return RedrivePosition(offset, kept)


def _is_covered(kind: tuple[str, int], ahead: Mapping[tuple[str, int], int]) -> bool:
    """Whether another entry says the same or more."""
    reason, limit = kind
    return any(
        other != kind and other[0] in (ANY, reason) and other[1] >= limit and to >= ahead[kind]
        for other, to in ahead.items()
    )
