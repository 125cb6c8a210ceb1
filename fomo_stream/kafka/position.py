"""Where a partition goes on, and with what: decided from what the broker keeps and what the store says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
from confluent_kafka import OFFSET_BEGINNING

from fomo_stream.errors import DamagedStateError, LostOffsetError, StateError
from fomo_stream.kafka.feedback.effects import Effect
from fomo_stream.logs import kv
from fomo_stream.settings.service import ServiceSettings

POSITION = "position"  # the entry that every commit of a partition writes


def unusable(topic: str, number: int, error: StateError) -> StateError:
    """The error of a partition's state, with where it is and what to do."""
    choices = "choose another --group, or forget what was learned with --reset-state"
    remedy = choices if isinstance(error, DamagedStateError) else f"set that back, {choices}"
    return StateError(f"{topic}[{number}]: {error}; {remedy}")


@dataclass(frozen=True)
class Position:
    """How far a partition had come when its entries were written: the next offset to read, of the topic of that id."""

    offset: int
    topic_id: str = ""  # empty: the broker has none

    def encode(self) -> bytes:
        """As the value of an entry."""
        return orjson.dumps({"offset": self.offset, "topic_id": self.topic_id})

    @classmethod
    def decode(cls, value: bytes) -> Position:
        """What `encode` wrote. Raises StateError."""
        try:
            found = orjson.loads(value)
            return cls(int(found["offset"]), str(found["topic_id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStateError(f"the entry `{POSITION}` is not readable ({error})") from None


@dataclass(frozen=True)
class Input:
    """What the broker says of an input partition: offsets kept, committed by the group, and the topic's id."""

    low: int
    high: int
    committed: int | None
    topic_id: str = ""


@dataclass(frozen=True)
class Restored:
    """Where and with what a partition goes on."""

    start: int  # offset of the first record to read
    entries: Mapping[str, bytes] = field(default_factory=dict)  # what it knows
    stale: frozenset[str] = frozenset()  # entries that are of no use any more, and are to be deleted
    learned_until: int = 0  # records before this offset have been learned already
    feedback_start: int = OFFSET_BEGINNING
    effects: tuple[Effect, ...] = ()  # entries that say when labels took effect
    topic_id: str = ""  # of the input for which this was found


def where_to_go_on(
    found: Input, entries: Mapping[str, bytes], settings: ServiceSettings, where: str
) -> tuple[Restored, list[str]]:
    """Decide where a partition goes on and what of its entries counts; with lines for the log about what is unusual.

    The entries say themselves how far they go. If that is not what the group has committed, then somebody has set the
    group's offsets, or delivery is at least once: what is read again is scored but not learned again.
    Raises LostOffsetError when the offset to go on from is not kept any more and --on-lost-offset is fail.
    """
    position = Position.decode(entries[POSITION]) if POSITION in entries else None
    known = position is not None
    notes = []
    if position is not None and (
        (position.topic_id and found.topic_id and position.topic_id != found.topic_id)
        or (not found.topic_id and found.committed is None and position.offset > found.high)
    ):
        notes.append(kv("topic_recreated", partition=where, effect="nothing of the old one counts"))
        return Restored(found.low, {}, frozenset(entries)), notes
    learned_until = min(position.offset, found.high) if position is not None else 0
    start = found.committed
    if start is None:
        # A group's offsets expire. Entries written together with scores know better; others may have come alone.
        start = learned_until if known and settings.delivery == "exactly-once" else found.low
    if known and start != learned_until:
        effect = "what is read again is scored, not learned again" if start < learned_until else "some is never learned"
        notes.append(kv("offset_differs_from_state", partition=where, state=learned_until, group=start, effect=effect))
    if not found.low <= start <= found.high:
        if settings.on_lost_offset == "fail":
            raise LostOffsetError(
                f"the next record to read of {where} has offset {start}, but the broker keeps {found.low} to "
                f"{found.high}; choose where to go on with --on-lost-offset earliest or latest"
            )
        lost, start = start, found.low if settings.on_lost_offset == "earliest" else found.high
        notes.append(kv("offset_lost", partition=where, offset=lost, goes_on_at=start))
    return Restored(start, dict(entries), frozenset(), learned_until), notes
