"""Progress of a replay on standard error: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

EVERY_S = 10.0


class Rate:
    """Records a second since the first ones: before them a model was loaded.

    >>> rate = Rate()
    >>> rate.after(10, now=5.0), rate.after(30, now=7.0)
    (0.0, 15.0)
    """

    def __init__(self) -> None:
        self._began: float | None = None  # seconds, monotonic
        self._records = 0

    def after(self, records: int, now: float) -> float:
        """The rate when so many more are done."""
        if self._began is None:
            self._began = now
            return 0.0
        self._records += records
        return self._records / (now - self._began) if now > self._began else 0.0


class Progress:
    """Counts replayed records, and shows nothing."""

    def begin(self, name: str, total: int | None) -> None:
        """The replay of `total` records (None: not known) begins."""

    def advance(self, records: int) -> None:
        """So many more records are done."""

    def stopping(self) -> None:
        """It will end early."""

    def end(self) -> None:
        """Nothing more is shown."""


class LineProgress(Progress):
    """A line every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, name: str, total: int | None) -> None:
        self._name, self._total, self._done, self._rate = name, total, 0, Rate()
        self._shown = time.monotonic()

    def advance(self, records: int) -> None:
        self._done += records
        now = time.monotonic()
        rate = self._rate.after(records, now)
        if now - self._shown >= EVERY_S:
            self._shown = now
            print(progress_line(self._name, self._done, self._total, rate), file=self._stream, flush=True)


def progress_line(name: str, done: int, total: int | None, rate: float) -> str:
    """One line. rate: records a second.

    >>> progress_line("sensors", 50_000, 200_000, 5000.0)
    'sensors: 50,000 of at most 200,000 records (25 %), 5,000 a second, 30 s left'
    >>> progress_line("rows.csv", 50_000, None, 6250.0)
    'rows.csv: 50,000 records, 6,250 a second'
    """
    if not total:
        return f"{name}: {done:,} records, {rate:,.0f} a second"
    left = f", {_duration((total - done) / rate)} left" if rate and done <= total else ""
    share = min(100, int(100 * done / total))
    return f"{name}: {done:,} of at most {total:,} records ({share} %), {rate:,.0f} a second{left}"


def _duration(seconds: float) -> str:
    """
    >>> _duration(30), _duration(90), _duration(7260)
    ('30 s', '1 min 30 s', '2 h 1 min')
    """
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


class BarProgress(Progress):
    """A bar with the rate and the time left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Bar | None = None
        self._task: TaskID

    def begin(self, name: str, total: int | None) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
        self._bar = Progress(
            *columns, TimeRemainingColumn(), console=Console(file=self._stream), transient=True, refresh_per_second=2
        )
        self._task = self._bar.add_task(escape(name), total=total, rate="")
        self._rate = Rate()
        self._bar.start()

    def advance(self, records: int) -> None:
        if self._bar is not None:
            rate = self._rate.after(records, time.monotonic())
            self._bar.update(self._task, advance=records, rate=f"{rate:,.0f} a second" if rate else "")

    def stopping(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description="stopping")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def shown_progress(stream: TextIO | None = None) -> Progress:
    """The progress to show on a stream (None: standard error)."""
    stream = sys.stderr if stream is None else stream
    if stream is None:  # it is closed
        return Progress()
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)
