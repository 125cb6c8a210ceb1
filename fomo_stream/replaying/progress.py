"""Shows the progress of a replay: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_PERIOD_S = 10.0


class Progress:
    """Counts replayed records and shows them on a stream; without one, it shows nothing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._bar: Bar | None = None

    def begin(self, name: str, total: int | None) -> None:
        """Begin to show a replay of `total` records (None: not known)."""
        self._name, self._total, self._done, self._shown = name, total, 0, time.monotonic()
        # Records at the first report, and its time: the rate must not count the time to load a model.
        self._first: tuple[int, float] | None = None
        if self._stream is not None and self._stream.isatty():
            text = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
            )
            console = Console(file=self._stream)
            self._bar = Bar(*text, TimeRemainingColumn(), console=console, transient=True, refresh_per_second=2)
            self._bar.add_task(escape(name), total=total, rate="")
            self._bar.start()

    def advance(self, records: int) -> None:
        """Count so many more records."""
        self._done, now = self._done + records, time.monotonic()
        done, began = self._first = self._first or (self._done, now)
        rate = (self._done - done) / (now - began) if now > began else 0.0
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=records, rate=f"{rate:,.0f} a second" if rate else "")
        elif self._stream is not None and now - self._shown >= LINE_PERIOD_S:
            self._shown = now
            print(progress_line(self._name, self._done, self._total, rate), file=self._stream, flush=True)

    def end(self) -> None:
        """Stop showing the progress."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def shown_progress() -> Progress:
    """Return a progress that is shown on standard error."""
    return Progress(sys.stderr)


def progress_line(name: str, done: int, total: int | None, rate: float) -> str:
    """Return one line about the progress. rate: records a second.

    >>> progress_line("sensors", 50_000, 200_000, 2000.0)
    'sensors: 50,000 of at most 200,000 records (25 %), 2,000 a second, 1 min 15 s left'
    >>> progress_line("rows.csv", 50_000, None, 6250.0)
    'rows.csv: 50,000 records, 6,250 a second'
    """
    if not total:
        return f"{name}: {done:,} records, {rate:,.0f} a second"
    minutes, seconds = divmod(int((total - done) / rate) if rate else 0, 60)
    left = f", {minutes} min {seconds} s left" if rate and done <= total else ""
    percent = min(100, 100 * done // total)
    return f"{name}: {done:,} of at most {total:,} records ({percent} %), {rate:,.0f} a second{left}"
