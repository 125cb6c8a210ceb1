"""Decide where a partition resumes and with which state, from broker offsets and state entries. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import orjson

from fomo_stream.errors import DamagedStateError, LostOffsetError

POSITION = "position"  # the entry that every commit of a partition writes
BEGINNING = -2  # the offset by which Kafka's clients mean the first record

Note = tuple[str, dict[str, object]]  # an event, and facts about it


class ResumeConfig(Protocol):
    """The settings that decide where a partition resumes: the flags of the same names."""

    delivery: Literal["exactly-once", "at-least-once"]
    on_lost_offset: Literal["fail", "earliest", "latest"]


@dataclass(frozen=True)
class SavedPosition:
    """The position of a partition when its entries were written: the next offset to read, and the ids of its topics."""

    offset: int
    topic_id: str = ""  # empty: the broker does not have ids
    feedback_id: str = ""
    is_warming_up: bool = False

    def encode(self) -> bytes:
        """Return the value of its entry."""
        return orjson.dumps(self)

    @classmethod
    def decode(cls, value: bytes) -> SavedPosition:
        """Reverse `encode`. Raises DamagedStateError."""
        try:
            content = orjson.loads(value)
            return cls(int(content["offset"]), content["topic_id"], content["feedback_id"], content["is_warming_up"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStateError(f"the entry `{POSITION}` is not readable ({error})") from None


@dataclass(frozen=True)
class InputOffsets:
    """The broker's view of an input partition: first and end offset, offset committed by the group, id of the topic."""

    low: int
    high: int
    committed: int | None
    topic_id: str = ""
    warm: range = range(0)  # offsets of its warm-up; a new partition begins with the first


@dataclass(frozen=True)
class Restored:
    """The offsets at which a partition resumes, and its state."""

    start: int  # offset of the first record to read
    entries: Mapping[str, bytes] = field(default_factory=dict)  # its state
    stale: frozenset[str] = frozenset()  # entries that have to be deleted
    learned_until: int = 0  # records before this offset are learned already
    feedback_start: int = BEGINNING  # first label to read
    topic_id: str = ""  # of the input topic
    warm: range = range(0)  # offsets of records that are learned without outputs
    committed: int | None = None  # by the group


NOTHING_RESTORED = Restored(0)


def decide_resume(
    broker: InputOffsets, entries: Mapping[str, bytes], config: ResumeConfig, where: str
) -> tuple[Restored, list[Note]]:
    """Decide where a partition resumes and which entries are valid. Also return notes about anything unusual.

    It resumes at the offset that the group has committed; without one, at the offset in the entry `position` (with
    exactly-once), or at the first one of its warm-up that is retained; if that offset is not retained, `on_lost_offset`
    decides. A recreated topic is read from its beginning, without the old state. A warm-up that has ended stays so.

    The entry `position` says up to which record the state has learned. The group's offset can differ, because somebody
    set it or delivery is at least once. Records before `position` are then scored but not learned again.
    Raises LostOffsetError if the broker no longer retains the next record and `on_lost_offset` is fail, and
    DamagedStateError if the entry is not readable.
    """
    position = SavedPosition.decode(entries[POSITION]) if POSITION in entries else None
    has_state = position is not None
    notes: list[Note] = []
    if position is not None and (
        (position.topic_id and broker.topic_id and position.topic_id != broker.topic_id)
        or (not broker.topic_id and broker.committed is None and position.offset > broker.high)
    ):
        notes.append(("topic_recreated", {"partition": where, "effect": "the state of the old topic is ignored"}))
        return Restored(broker.low, {}, frozenset(entries), committed=broker.committed), notes
    learned_until = min(position.offset, broker.high) if position is not None else 0
    start = broker.committed
    if start is None:
        # A group's offsets expire. With exactly-once, the position in the state is as good as the offset, as one
        # transaction has written both. Without transactions, the state may have been written without the scores.
        first = min(max(broker.low, broker.warm.start), broker.high)
        start = learned_until if has_state and config.delivery == "exactly-once" else first
    if has_state and start != learned_until:
        rereads = start < learned_until
        effect = "records read again are scored, not learned again" if rereads else "some are never learned"
        place = {"partition": where, "state": learned_until, "group": start, "effect": effect}
        notes.append(("offset_differs_from_state", place))
    if not broker.low <= start <= broker.high:
        if config.on_lost_offset == "fail":
            kept = f"the broker keeps {broker.low} to {broker.high}"
            raise LostOffsetError(f"the next record to read of {where} has offset {start}, but {kept}")
        lost, start = start, broker.low if config.on_lost_offset == "earliest" else broker.high
        notes.append(("offset_lost", {"partition": where, "offset": lost, "resumes_at": start}))
    warm = broker.warm if position is None or position.is_warming_up else range(0)
    return Restored(start, dict(entries), frozenset(), learned_until, warm=warm, committed=broker.committed), notes
