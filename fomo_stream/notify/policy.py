"""Which events are told: an incident when it opens, and when it ends. A pure core."""

from __future__ import annotations

from collections import OrderedDict

from fomo_stream.notify.events import Event
from fomo_stream.notify.messages import Told

MOST_KNOWN = 50_000  # incidents that are remembered


class Policy:
    """Decides for the events of all partitions, in the order in which they are read.

    An opening and an end are always told, whatever was told before: they may be read again because nobody has taken
    their message. The first alert of an incident can be missing in the topic, or come after the end, which may be in
    another partition. So the incidents that were read are remembered.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, int | None] = OrderedDict()  # the time of an end that was read first, else None
        self._since: dict[tuple[str, int | None], int] = {}  # by partition of an input: the first offset that was read

    def take(self, event: Event) -> Told | None:
        """What is told of an event."""
        name, is_known = event.identity, event.identity in self._known
        early_end = self._known.pop(name, None)
        told: Told | None = None
        if event.is_end:
            told, left = "closed", event.timestamp if early_end is not None or not is_known else None
        else:
            is_over = early_end is not None and event.timestamp is not None and event.timestamp <= early_end
            began_here = self._began_here(event)
            if (event.is_first and not is_over) or (began_here and not is_known):
                told = "opened"
            left = early_end if is_over and not event.is_first else None
        self._known[name] = left
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return told

    def begin_again(self) -> None:
        """Partitions were taken away: other instances tell of incidents that begin before the next event."""
        self._since.clear()

    def _began_here(self, event: Event) -> bool:
        """Whether the incident of an alert began after the first alert that was read of its partition."""
        since = self._since.setdefault((event.topic, event.partition), event.offset or 0)
        began = event.incident.rpartition("-")[2]
        return began.isdecimal() and int(began) > since
