"""Decides which messages are sent, how many a target gets, and when a failed attempt is repeated. Pure.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from fomo_stream.notify.events import Event
from fomo_stream.notify.messages import Message, MessageKind, held_message

MAX_INCIDENTS = 50_000  # that are remembered
FIRST_WAIT_S, MAX_WAIT_S = 1.0, 60.0  # between attempts; a member of a group may pause reading for 300 s
HOUR_S = 3600.0
MAX_LISTED_MESSAGES = 20  # held back messages that the summary names


class NotificationPolicy:
    """Decides about the events of all partitions, in the order in which they are read.

    The first alert of an incident gives a message, and its end gives another, whatever was sent before: events are read
    again when their message was not delivered. The first alert can come after the end, from another partition;
    therefore the incidents that were read are remembered.
    """

    def __init__(self) -> None:
        self._incidents: OrderedDict[str, int | None] = OrderedDict()  # time of an end that came first, else None

    def take(self, event: Event) -> MessageKind | None:
        """Return the kind of message to send about an event; None for no message."""
        if not (event.is_first or event.is_end):
            return None
        name, is_known = event.identity, event.identity in self._incidents
        early_end = self._incidents.pop(name, None)
        self._incidents[name] = event.timestamp if event.is_end and (early_end is not None or not is_known) else None
        if len(self._incidents) > MAX_INCIDENTS:
            self._incidents.popitem(last=False)
        if event.is_end:
            return "closed"
        is_over = early_end is not None and event.timestamp is not None and event.timestamp <= early_end
        return None if is_over else "opened"


class RateLimit:
    """Limits messages to `per_hour` in an hour (0: no limit), plus one that sums up those that were held back."""

    def __init__(self, per_hour: int, link: str | None = None) -> None:
        self._per_hour, self._link = per_hour, link
        self._sent: deque[float] = deque(maxlen=per_hour or 1)  # times of the last messages
        self._counts: Counter[str] = Counter()  # of messages held back, by kind and by severity
        self._first: list[Message] = []

    @property
    def held(self) -> int:
        """The number of messages that are held back."""
        return self._counts["opened"] + self._counts["closed"]

    def holds(self, message: Message, now: float) -> bool:
        """Hold a message back if the limit is reached; return False if it has to be sent now."""
        is_full = self._per_hour and len(self._sent) == self._per_hour and now < self._sent[0] + HOUR_S
        if not is_full and not self.held:
            return False
        self._counts.update((message.kind, message.severity))
        self._first += [message] if len(self._first) < MAX_LISTED_MESSAGES else []
        return True

    def summary(self, now: float = float("inf")) -> Message | None:
        """Return the message about all that is held back, if it has to be sent now."""
        if not self.held or now < self._sent[0] + HOUR_S:
            return None
        return held_message(self._counts, self._first, self._link)

    def sent(self, message: Message, now: float) -> None:
        """Note that a message, or the summary, was sent."""
        self._sent.append(now)
        if message.kind == "held":
            self.forget()

    def forget(self) -> None:
        """Forget the messages that are held back."""
        self._counts.clear()
        self._first.clear()


def retry_wait_s(tries: int, luck: float) -> float:
    """Return the seconds until the next attempt. tries: failed attempts; luck: random number from 0 to 1.

    >>> [retry_wait_s(tries, 1.0) for tries in (1, 2, 3, 7, 100)], retry_wait_s(1, 0.0)
    ([1.0, 2.0, 4.0, 60.0, 60.0], 0.5)
    """
    return min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(tries - 1, 10)) * (0.5 + luck / 2)
