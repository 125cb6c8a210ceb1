"""What is told, how many messages a target gets, and when a try is repeated. A pure core.

Times are seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from fomo_stream.notify.events import Event
from fomo_stream.notify.messages import Message, MessageKind, held_message

MAX_INCIDENTS = 50_000  # incidents that are remembered
FIRST_WAIT_S, MAX_WAIT_S = 1.0, 60.0  # before another try; a member may read nothing for 300
HOUR_S = 3600.0
MAX_LISTED_MESSAGES = 20  # messages that were held back and are named


class NotificationPolicy:
    """Decides for the events of all partitions, in the order in which they are read.

    An incident is opened by its first alert and closed by its end, whatever was told before: they may be read again
    because nobody has taken their message. The first alert can come after the end, from another partition. So the
    incidents that were read are remembered.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, int | None] = OrderedDict()  # the time of an end that was read first, else None

    def take(self, event: Event) -> MessageKind | None:
        """What is told of an event."""
        if not (event.is_first or event.is_end):
            return None
        name, is_known = event.identity, event.identity in self._known
        early_end = self._known.pop(name, None)
        self._known[name] = event.timestamp if event.is_end and (early_end is not None or not is_known) else None
        if len(self._known) > MAX_INCIDENTS:
            self._known.popitem(last=False)
        if event.is_end:
            return "closed"
        is_over = early_end is not None and event.timestamp is not None and event.timestamp <= early_end
        return None if is_over else "opened"


class RateLimit:
    """At most `per_hour` messages within an hour; 0: any number. One more then tells of all that was held back."""

    def __init__(self, per_hour: int, link: str | None = None) -> None:
        self._per_hour, self._link = per_hour, link
        self._sent: deque[float] = deque(maxlen=per_hour or 1)  # when the last ones were sent
        self._counts: Counter[str] = Counter()  # of what is held back: by kind, and of those that are critical
        self._first: list[Message] = []

    @property
    def held(self) -> int:
        """Messages that are held back."""
        return self._counts["opened"] + self._counts["closed"]

    def holds(self, message: Message, now: float) -> bool:
        """Whether a message is held back; else it is to be sent now."""
        is_full = self._per_hour and len(self._sent) == self._per_hour and now < self._sent[0] + HOUR_S
        if not is_full and not self.held:
            return False
        self._counts.update((message.kind, message.severity))
        self._first += [message] if len(self._first) < MAX_LISTED_MESSAGES else []
        return True

    def summary(self, now: float = float("inf")) -> Message | None:
        """What tells of all that is held back, if it is to be sent now."""
        if not self.held or now < self._sent[0] + HOUR_S:
            return None
        return held_message(self._counts, self._first, self._link)

    def sent(self, message: Message, now: float) -> None:
        """A message was sent, perhaps the summary."""
        self._sent.append(now)
        if message.kind == "held":
            self.forget()

    def forget(self) -> None:
        """Nothing is held back any more."""
        self._counts.clear()
        self._first.clear()


def retry_wait_s(tries: int, luck: float) -> float:
    """Seconds until a message is tried again. tries: that failed; luck: from 0 to 1.

    >>> [retry_wait_s(tries, 1.0) for tries in (1, 2, 3, 7, 100)], retry_wait_s(1, 0.0)
    ([1.0, 2.0, 4.0, 60.0, 60.0], 0.5)
    """
    return min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(tries - 1, 10)) * (0.5 + luck / 2)
