"""The demo's screen: counts, flagged readings, and the injected faults beside them."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fomo_stream.kafka.observer import Observation
    from fomo_stream.settings.commands import DemoSettings

RATE_S = 3.0  # seconds over which records per second are averaged
FLAGS_KEPT = 50


@dataclass
class Episode:
    """One injected fault."""

    fault: str
    flagged: bool = False


@dataclass
class Flag:
    """Consecutive outliers with the same cause, shown as one line with the worst of them."""

    at: float  # seconds since 1970, of the first outlier
    fault: str | None  # the injected fault; None: a false alarm
    score: float
    p_value: float
    explanation: str  # of the service; empty without one
    count: int = 1


@dataclass(frozen=True)
class Numbers:
    """The numbers at one moment."""

    seconds: float
    records_per_s: float
    scored: int
    waiting: int  # sent and not yet scored
    context_rows: int
    context_size: int
    generation: int
    phase: str
    injected: int
    caught: int
    false_alarms: int
    delay_ms: float | None  # from a reading's timestamp to its flag, median of the latest
    by_fault: dict[str, tuple[int, int]]  # fault -> caught, injected


class Board:
    """The state of the demo: written by the threads of the pump and of the service, read by the screen."""

    def __init__(self, settings: DemoSettings, bootstrap: str, topic: str, out: str) -> None:
        self.settings, self.bootstrap, self.topic, self.out = settings, bootstrap, topic, out
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._sent = self._scored = self._false_alarms = 0
        self._context_rows = self._generation = 0
        self._times: deque[tuple[float, int]] = deque()
        self._truth: dict[int, Episode] = {}  # reading -> its fault
        self._episodes: list[Episode] = []
        self._flags: deque[Flag] = deque(maxlen=FLAGS_KEPT)
        self._flags_taken = 0
        self._flags_made = 0
        self._last_episode: Episode | None = None
        self._last_sent_fault: str | None = None
        self._delays: deque[float] = deque(maxlen=100)

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    # --- from the other threads

    def sent(self, record: dict[str, Any], fault: str | None) -> None:
        """A reading was sent, with this injected fault."""
        with self._lock:
            self._sent += 1
            if fault is not None:
                if fault != self._last_sent_fault:
                    self._episodes.append(Episode(fault))
                self._truth[record["reading"]] = self._episodes[-1]
            self._last_sent_fault = fault

    def observe(self, seen: Observation) -> None:
        """A micro-batch was scored."""
        now = time.time()
        with self._lock:
            self._scored += seen.n_records
            self._context_rows, self._generation = seen.context_rows, seen.generation
            self._times.append((time.monotonic(), seen.n_records))
            for record, result, _ in seen.outliers:
                if result["timestamp"] is not None:
                    self._delays.append(1000 * now - result["timestamp"])
                self._flag(record, result, now)

    def _flag(self, record: dict[str, Any], result: dict[str, Any], now: float) -> None:
        episode = self._truth.get(record["reading"])
        if episode is None:
            self._false_alarms += 1
        else:
            episode.flagged = True
        fault, why = episode.fault if episode else None, result.get("explanation", "")
        flag = Flag(now, fault, result["score"], result["p_value"], why)
        if self._flags and episode is self._last_episode:
            flag.at, flag.count = self._flags[-1].at, self._flags[-1].count + 1
            if flag.score <= self._flags[-1].score:  # show the worst
                flag = replace(self._flags[-1], count=flag.count)
            self._flags[-1] = flag
        else:
            self._flags_made += 1
            self._flags.append(flag)
        self._last_episode = episode

    # --- for the screen

    def take_new_flags(self) -> list[Flag]:
        """Flags since the last call, oldest first."""
        with self._lock:
            new = min(self._flags_made - self._flags_taken, len(self._flags))
            self._flags_taken = self._flags_made
            return list(self._flags)[len(self._flags) - new :]

    def latest_flags(self, n: int) -> list[Flag]:
        """The last n flags, newest first."""
        with self._lock:
            return list(self._flags)[: -n - 1 : -1]

    def numbers(self) -> Numbers:
        """The numbers now."""
        now = time.monotonic()
        with self._lock:
            while self._times and self._times[0][0] < now - RATE_S:
                self._times.popleft()
            by_fault: dict[str, tuple[int, int]] = {}
            for episode in self._episodes:
                caught, injected = by_fault.get(episode.fault, (0, 0))
                by_fault[episode.fault] = caught + episode.flagged, injected + 1
            return Numbers(
                seconds=now - self._began,
                records_per_s=sum(n for _, n in self._times) / min(RATE_S, max(0.1, now - self._began)),
                scored=self._scored,
                waiting=self._sent - self._scored,
                context_rows=self._context_rows,
                context_size=self.settings.context_size,
                generation=self._generation,
                phase=self._phase(),
                injected=len(self._episodes),
                caught=sum(episode.flagged for episode in self._episodes),
                false_alarms=self._false_alarms,
                delay_ms=float(np.median(self._delays)) if self._delays else None,
                by_fault=dict(sorted(by_fault.items())),
            )

    def _phase(self) -> str:
        if not self._scored:
            return "choosing features from the first records"
        if not self._generation:
            return f"warming up: {self._context_rows} of {self.settings.min_context} rows"
        if self._scored * self.settings.alert_rate < 1:
            return "calibrating"
        return "scoring"

    def summary(self) -> str:
        """One line about the whole run."""
        now = self.numbers()
        share = now.false_alarms / max(1, now.scored)
        return (
            f"scored {now.scored:,} records in {now.seconds:.0f} s; faults caught {now.caught} of {now.injected}; "
            f"false alarms {now.false_alarms:,} ({share:.2%} of records, alert rate {self.settings.alert_rate:.2%})"
        )


# --- plain lines


def plain_numbers(now: Numbers) -> str:
    """One line of `key=value` pairs."""
    return (
        f"t={now.seconds:.0f}s records_per_s={now.records_per_s:.0f} scored={now.scored} "
        f"context={now.context_rows} generation={now.generation} faults={now.injected} caught={now.caught} "
        f"false_alarms={now.false_alarms} phase={now.phase.split(':')[0].replace(' ', '_')}"
    )


def plain_event(flag: Flag) -> str:
    """One line about a flagged reading."""
    cause = f"fault {flag.fault}" if flag.fault else "no fault (false alarm)"
    why = f": {flag.explanation}" if flag.explanation else ""
    return f"outlier score={flag.score:.4f} p={flag.p_value:.4f} {cause}{why}"


# --- the screen

_COLOURS = {"scoring": "green", "calibrating": "yellow"}
TIME_WIDTH, SCORE_WIDTH, FAULT_WIDTH, GAP = 8, 5, 22, 3  # columns of the table, and the space between them


def screen(board: Board, width: int, height: int) -> RenderableType:
    """The whole screen, at most `height` lines."""
    now = board.numbers()
    head = Text.assemble(
        ("fomo-stream demo", "bold"),
        "  A simulated pump sends its readings to Kafka. Each is scored\n"
        "as it arrives: no labels, no training, no tuning. Are injected faults flagged?",
    )
    foot = Text(
        f"The output: kcat -b {board.bootstrap} -t {board.out}   Ctrl-C ends the demo.\n"
        "Delivery is at least once: the embedded broker has no transactions.",
        style="dim",
    )
    fixed = 2 + 1 + 4 + 1 + 2 + 1 + 2  # all lines except the table's rows
    table = _table(board.latest_flags(FLAGS_KEPT), width, max(1, height - fixed))
    return Group(head, Text(), _numbers(board, now), Text(), table, Text(), foot)


def _numbers(board: Board, now: Numbers) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right")
    grid.add_column()
    speed = Text.assemble((f"{now.records_per_s:,.0f} records/s", "bold cyan"), f"   {now.scored:,} scored")
    if now.waiting > 2 * board.settings.rate:
        speed.append(f"   {now.waiting:,} behind", "yellow")
    elif now.delay_ms is not None:
        speed.append(f"   flagged {now.delay_ms:,.0f} ms after the reading", "dim")
    grid.add_row("speed", speed)
    context = Text(now.phase, "bold " + _COLOURS.get(now.phase, "yellow"))
    if now.generation:
        context.append(
            f"   context of at most {now.context_rows:,} readings, generation {now.generation}", "not bold dim"
        )
    grid.add_row("state", context)
    faults = Text.assemble((f"{now.caught} of {now.injected} caught", "bold green" if now.injected else ""))
    faults.append(f"   {now.false_alarms:,} false alarms", "bold" if now.false_alarms else "")
    faults.append(
        f" = {now.false_alarms / max(1, now.scored):.2%} of records (alert rate {board.settings.alert_rate:.2%})", "dim"
    )
    grid.add_row("faults", faults)
    by_fault = ", ".join(f"{name} {caught}/{n}" for name, (caught, n) in now.by_fault.items())
    kinds = Text(by_fault or "none injected yet", "dim", no_wrap=True, overflow="ellipsis")
    grid.add_row("", kinds)
    return grid


def _table(flags: list[Flag], width: int, height: int) -> RenderableType:
    """The first flags, as many as fit in `height` lines; an explanation has one or two of them."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=True, show_edge=False)
    table.add_column("flagged", no_wrap=True, width=TIME_WIDTH)
    table.add_column("score", no_wrap=True, width=SCORE_WIDTH)
    table.add_column("injected fault", no_wrap=True, width=FAULT_WIDTH, overflow="ellipsis")
    table.add_column("why", no_wrap=True, ratio=1, overflow="ellipsis")
    space = width - TIME_WIDTH - SCORE_WIDTH - FAULT_WIDTH - 3 * GAP
    for flag in flags:
        why = wrap(flag.explanation, max(10, space), max_lines=min(2, height), placeholder=" …") or [""]
        height -= len(why)
        if height < 0:
            break
        style = "bold red" if flag.fault else "dim"
        times = f" x{flag.count}" if flag.count > 1 else ""
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(flag.at)),
            f"{flag.score:.4f}",
            Text((flag.fault or "false alarm") + times, style),
            Text("\n".join(why), "" if flag.fault else "dim"),
        )
    if not flags:
        table.add_row("", "", Text("nothing yet", "dim"), "")
    return table
