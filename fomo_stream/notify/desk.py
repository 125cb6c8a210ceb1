"""What is told of incidents, to whom, and when: a pure core, which takes the time.

Programs (webhooks, Alertmanager) are told of every opening and every end at once. People are told of at most one
opening of a key in `throttle` seconds, and get at most `most` messages a minute; what comes then is held back, and told
together in one message. An incident that ends while it is held back is told once, as ended.

Times are seconds of any clock that never goes back.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fomo_stream.notify.events import Event

MINUTE_S = 60.0
MOST_OPEN = 100_000  # incidents that are remembered; of the oldest ones beyond that, only the end is told
MOST_ENDED = 10_000  # that are remembered
MOST_HELD = 1000  # held back; at more all are told at once
MOST_KEYS = 100_000

Audience = Literal["programs", "people"]
Told = Literal["opened", "updated", "closed", "several"]


class Place:
    """A record that was read. It counts the messages about it that are not answered."""

    __slots__ = ("is_forgotten", "offset", "partition", "unanswered")

    def __init__(self, partition: int, offset: int) -> None:
        self.partition, self.offset = partition, offset
        self.unanswered = 0
        self.is_forgotten = False  # its partition was taken away, and others tell of it


class Message(NamedTuple):
    """What is told of an incident, or of several.

    event: the newest; first: the first one that was read, which is the opening if that is known; alerts: so far.
    """

    kind: Told
    event: Event
    first: Event | None
    alerts: int
    held: tuple[Message, ...] = ()

    @property
    def id(self) -> str:
        """The same for each copy of a message: incident, kind and count."""
        if self.kind == "several":
            return f"several:{self.held[0].id}:{len(self.held)}"
        return f"{self.event.identity}:{self.kind}:{self.alerts}"

    @property
    def severity(self) -> str:
        """Of several: `critical` if one of them is."""
        found = {one.event.severity for one in self.held} or {self.event.severity}
        return "critical" if "critical" in found else self.event.severity


class Due(NamedTuple):
    """A message that is due. places: of the records that are done when it is answered."""

    audience: Audience
    message: Message
    places: tuple[Place, ...]


@dataclass(slots=True)
class Open:
    """An incident that has not ended."""

    partition: int  # of the topic of alerts
    first: Event  # the opening, unless that was before all that was read
    last: Event
    alerts: int
    told: float  # when it was told last
    has_news: bool = False  # alerts since then

    def message(self, kind: Told) -> Message:
        """What is told of it now."""
        return Message(kind, self.last, self.first, self.alerts)


@dataclass(slots=True)
class _Waiting:
    """A message to people that is held back."""

    message: Message
    places: list[Place]
    opens: bool  # whether it tells of an opening, too


@dataclass(slots=True)
class _Batch:
    due: float
    held: OrderedDict[str, _Waiting] = field(default_factory=OrderedDict)  # by incident


class Desk:
    """Decides for the incidents of all partitions. has_people: whether anybody but programs is told."""

    def __init__(self, update_every: float, throttle: float, most: int, has_people: bool) -> None:
        self._update_every, self._throttle, self._most = update_every, throttle, most
        self._has_people = has_people
        self.open: OrderedDict[str, Open] = OrderedDict()  # by identity, oldest first
        self._ended: OrderedDict[str, None] = OrderedDict()  # the last ones
        self._updates: list[tuple[float, str]] = []  # a heap of when to look whether there is news
        self._told: OrderedDict[str, float] = OrderedDict()  # by key: when people were told of an opening
        self._sent: deque[float] = deque()  # messages to people of the last minute
        self._batches: dict[str | None, _Batch] = {}  # by key; None: of all keys, beyond the messages of a minute
        self._held: dict[str, str | None] = {}  # by incident: the batch that holds it back

    def recall(self, event: Event, place: Place, now: float) -> None:
        """Take an event that was told before, only to know what is open."""
        if event.kind == "closed":
            self._end(event.identity)
        else:
            self._note(event, place, now)

    def take(self, event: Event, place: Place, now: float) -> list[Due]:
        """The notices that follow from an event at once."""
        known = self.open.get(event.identity)
        if event.kind == "closed":
            self._end(event.identity)
            alerts = event.facts()["records"] or (known.alerts if known else 1)
            ended = event if known is None else event._replace(key=known.first.key)
            return self._tell(Message("closed", ended, None if known is None else known.first, alerts), place, now)
        if known is None:
            kind: Told = "opened" if event.is_first else "updated"
            return self._tell(self._note(event, place, now).message(kind), place, now)
        if event.is_first and known.first.offset == event.offset:  # read twice: its message may not have arrived
            return self._tell(Message("opened", known.first, known.first, 1), place, now)
        self._note(event, place, now)
        return self._update(event.identity, known, now, (place,))

    def due(self, now: float) -> list[Due]:
        """The notices whose time has come."""
        notices: list[Due] = []
        while self._updates and self._updates[0][0] <= now:
            identity = heapq.heappop(self._updates)[1]
            if (known := self.open.get(identity)) is not None and known.has_news:
                notices += self._update(identity, known, now, ())
        for key in [key for key, batch in self._batches.items() if batch.due <= now]:
            if key in self._batches:
                notices += self._release(key, now)
        return notices

    def flush(self, now: float) -> list[Due]:
        """All that is held back, in one message."""
        every = [one for batch in self._batches.values() for one in batch.held.values()]
        self._batches.clear()
        return self._tell_held(every, now) if every else []

    @property
    def next_due(self) -> float:
        """When `due` has something to do; infinity: never, as things are."""
        times = [batch.due for batch in self._batches.values()] + [one[0] for one in self._updates[:1]]
        return min(times, default=float("inf"))

    @property
    def held(self) -> int:
        """Messages to people that are held back."""
        return len(self._held)

    def forget(self, partition: int) -> None:
        """Forget a partition of the topic of alerts, whose places are forgotten: another instance tells of it."""
        for identity in [identity for identity, known in self.open.items() if known.partition == partition]:
            del self.open[identity]
        for identity, key in list(self._held.items()):
            if all(place.is_forgotten for place in self._batches[key].held[identity].places):
                del self._held[identity], self._batches[key].held[identity]
                if not self._batches[key].held:
                    del self._batches[key]

    # -- what is known ---------------------------------------------------------------------------------------

    def _note(self, event: Event, place: Place, now: float) -> Open:
        known = self.open.get(event.identity)
        if known is None:
            known = Open(place.partition, event, event, 1, now)
            if event.identity not in self._ended:  # its end can be in another partition, and so be read before
                self.open[event.identity] = known
                if len(self.open) > MOST_OPEN:
                    self.open.popitem(last=False)
            return known
        known.last = event._replace(key=known.first.key)  # the key stays: it is a label in Alertmanager
        known.alerts += 1
        return known

    def _end(self, identity: str) -> None:
        self.open.pop(identity, None)
        self._ended[identity] = None
        if len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)

    def _update(self, identity: str, known: Open, now: float, places: tuple[Place, ...]) -> list[Due]:
        """Tell that it goes on, now or later. No record waits for this: an end tells more."""
        if not self._update_every:
            return []
        if now < known.told + self._update_every:
            if not known.has_news:
                heapq.heappush(self._updates, (known.told + self._update_every, identity))
            known.has_news = True
            return []
        known.told, known.has_news = now, False
        message = known.message("updated")
        notices = [Due("programs", message, places)]
        if self._has_people and identity not in self._held:
            notices += self._to_people(_Waiting(message, list(places), False), now)
        return notices

    # -- what people are told --------------------------------------------------------------------------------

    def _tell(self, message: Message, place: Place, now: float) -> list[Due]:
        """An opening or an end: to programs at once, to people perhaps later."""
        notices = [Due("programs", message, (place,))]
        if not self._has_people:
            return notices
        identity, opens = message.event.identity, message.kind == "opened"
        if identity in self._held:  # told once, with its end
            earlier = self._batches[self._held[identity]].held[identity]
            earlier.message = message
            earlier.places.append(place)
            place.unanswered += 1
            return notices
        waiting, key = _Waiting(message, [place], opens), _key(message.event)
        if opens and key in self._told and now < self._told[key] + self._throttle:
            return notices + self._hold(key, self._told[key] + self._throttle, waiting, now)
        if opens and key in self._batches:  # then this message tells of those held back, too
            notices += self._hold(key, now, waiting, now)
            return notices + (self._release(key, now) if key in self._batches else [])
        return notices + self._to_people(waiting, now)

    def _to_people(self, waiting: _Waiting, now: float) -> list[Due]:
        """One message: now, or with others where the last minute had too many."""
        if self._is_full(now):
            return self._hold(None, now + MINUTE_S, waiting, now)
        self._note_told([waiting], now)
        return [Due("people", waiting.message, tuple(waiting.places))]

    def _hold(self, key: str | None, due: float, waiting: _Waiting, now: float) -> list[Due]:
        batch = self._batches.setdefault(key, _Batch(due))
        batch.held[waiting.message.event.identity] = waiting
        self._held[waiting.message.event.identity] = key
        for place in waiting.places:
            place.unanswered += 1
        return self.flush(now) if self.held > MOST_HELD else []

    def _release(self, key: str | None, now: float) -> list[Due]:
        """Tell of those held back, together; or with all others, where the last minute had too many messages."""
        every = list(self._batches.pop(key).held.values())
        if key is None or not self._is_full(now):
            return self._tell_held(every, now)
        self._let_go(every)
        return [notice for one in every for notice in self._hold(None, now + MINUTE_S, one, now)]

    def _let_go(self, every: list[_Waiting]) -> None:
        for one in every:
            del self._held[one.message.event.identity]
            for place in one.places:
                place.unanswered -= 1

    def _tell_held(self, every: list[_Waiting], now: float) -> list[Due]:
        self._let_go(every)
        self._note_told(every, now)
        places = tuple(place for one in every for place in one.places)
        messages = tuple(one.message for one in every)
        if len(messages) == 1:
            return [Due("people", messages[0], places)]
        several = Message("several", messages[-1].event, messages[-1].first, len(messages), messages)
        return [Due("people", several, places)]

    def _note_told(self, told: list[_Waiting], now: float) -> None:
        self._sent.append(now)
        for key in {_key(one.message.event) for one in told if one.opens}:
            self._told.pop(key, None)
            self._told[key] = now
        while self._told and (len(self._told) > MOST_KEYS or next(iter(self._told.values())) <= now - self._throttle):
            self._told.popitem(last=False)

    def _is_full(self, now: float) -> bool:
        while self._sent and self._sent[0] <= now - MINUTE_S:
            self._sent.popleft()
        return len(self._sent) >= self._most or None in self._batches


def due_until(desk: Desk, now: float) -> Iterator[tuple[float, list[Due]]]:
    """The notices that are due up to this moment, each at its own time: for a clock that jumps."""
    while (due := desk.next_due) <= now:
        yield due, desk.due(due)


def _key(event: Event) -> str:
    """The key of an incident; without one, its partition."""
    return f"{event.topic}:{event.partition}" if event.key is None else f"{event.topic}:{event.partition}:{event.key}"
