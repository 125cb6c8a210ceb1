"""Prints messages in place of sending them, by the times of the records: as if somebody had been told then."""

from __future__ import annotations

import sys
from typing import TextIO

from fomo_stream.notify.delivery import Ledger
from fomo_stream.notify.desk import Desk, Due, due_until
from fomo_stream.notify.events import Event
from fomo_stream.notify.messages import Template
from fomo_stream.settings.notify import MessageFlags


class Rehearsal:
    """Takes events in the order of their records. has_times: else each opening and each end is told, and no more."""

    def __init__(self, settings: MessageFlags, template: Template, out: TextIO, has_times: bool = True) -> None:
        how = settings.update_every, settings.throttle, settings.group_above
        self._desk = Desk(*(how if has_times else (0.0, 0.0, sys.maxsize)), has_people=True)
        self._ledger, self._template, self._out = Ledger(), template, out
        self._now = float("-inf")  # seconds since 1970
        self.printed = 0

    def take(self, event: Event, partition: int, offset: int) -> None:
        """The next event. A time before that of an earlier record counts as that one."""
        if event.timestamp is not None:
            self._now = max(self._now, event.timestamp / 1000.0)
        now = max(self._now, 0.0)
        for _, notices in due_until(self._desk, now):
            self._print(notices)
        self._print(self._desk.take(event, self._ledger.read(partition, offset), now))

    def finish(self) -> None:
        """Print what is held back."""
        self._print(self._desk.flush(max(self._now, 0.0)))

    def _print(self, notices: list[Due]) -> None:
        for notice in notices:
            if notice.audience == "people":
                text = self._template.text(notice.message)
                print(text.title, *(f"  {line}" for line in text.body.splitlines()), "", sep="\n", file=self._out)
                self.printed += 1
