"""Messages about the incidents of a file that is scored: `fomo-stream score --notify`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fomo_stream.errors import FomoError
from fomo_stream.notify.events import Event, key_text, read_event
from fomo_stream.notify.messages import Template
from fomo_stream.notify.messenger import Messenger
from fomo_stream.notify.rehearsal import Rehearsal
from fomo_stream.notify.targets import targets_of
from fomo_stream.partition.partition import Scored
from fomo_stream.records.files import Line
from fomo_stream.records.inference import key_of
from fomo_stream.records.times import known_time, to_milliseconds
from fomo_stream.settings.commands import ScoreSettings

FINISH_S = 600.0  # to wait for targets at the end of the file

Tell = Callable[[Sequence[Line], Scored], None]


@contextmanager
def telling(settings: ScoreSettings, name: str) -> Iterator[Tell]:
    """Called with lines and their results, it tells of their incidents. name: of the file.

    At the end it waits for the targets. Raises ConfigError, and FomoError if they do not take all messages.
    """
    template = Template(settings.template, settings.status_url)
    if settings.dry_run:
        rehearsal = Rehearsal(settings, template, sys.stderr, has_times=settings.time is not None)

        def show(lines: Sequence[Line], scored: Scored) -> None:
            for number, event in _events(settings, name, lines, scored):
                rehearsal.take(event, 0, number)

        yield show
        rehearsal.finish()
        return
    with Messenger(settings, targets_of(settings, template, time.time)) as messenger:

        def send(lines: Sequence[Line], scored: Scored) -> None:
            for number, event in _events(settings, name, lines, scored):
                messenger.take(event, 0, number)
                while messenger.is_full:
                    time.sleep(0.05)
            messenger.turn()

        yield send
        if not messenger.finish(FINISH_S):
            left = sum(one.waiting for one in messenger.health())
            raise FomoError(f"{left} messages were not taken for {FINISH_S:g} s", "check the targets; the log says why")


def _events(settings: ScoreSettings, name: str, lines: Sequence[Line], scored: Scored) -> Iterator[tuple[int, Event]]:
    """The alerts, the ends of incidents and what is told of silence among these lines, in their order."""
    notices = scored.notices
    for line, result in zip(lines, scored.results, strict=True):
        while notices and notices[0].offset == line.number:
            one = notices.pop(0)
            yield line.number, _event({"topic": name, **one.summary}, key_text(one.key))
        if result is not None and result["outlier"]:
            record = line.record or {}
            at = None if settings.time is None else known_time(to_milliseconds(record.get(settings.time)))
            place = {"topic": name, "offset": line.number, "timestamp": at}
            yield line.number, _event({**result, **place}, key_text(key_of(record, settings.key)))


def _event(result: dict[str, object], key: str | None) -> Event:
    return read_event({"fomo": result}, "fomo", key)
