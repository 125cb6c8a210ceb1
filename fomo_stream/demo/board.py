"""The demo's board: counts, flagged readings, and the injected faults beside them; as a screen or as lines."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from fomo_stream.kafka.observer import Observation, Observer

if TYPE_CHECKING:
    from fomo_stream.settings.commands import DemoSettings

FLAGS_KEPT = 50
INTRO = (
    "fomo-stream demo: a simulated pump sends its readings to Kafka. Each is scored\n"
    "as it arrives: no labels, no training, no tuning. Are injected faults flagged?"
)


@dataclass
class Episode:
    """One injected fault, or (without a fault) consecutive false alarms: shown as one line with its worst outlier."""

    fault: str | None
    flagged: int = 0  # outliers
    time: float = 0.0  # seconds since 1970, of the first of them
    score: float = 0.0  # of the worst of them
    p_value: float = 1.0
    explanation: str = ""

    def flag(self, result: dict[str, Any]) -> None:
        """One of its readings is an outlier."""
        self.time = self.time or time.time()
        self.flagged += 1
        if result["score"] > self.score:
            self.score, self.p_value = result["score"], result["p_value"]
            self.explanation = result.get("explanation", "")

    def line(self) -> str:
        """One line about it."""
        cause = f"fault {self.fault}" if self.fault else "no fault (false alarm)"
        why = f": {self.explanation}" if self.explanation else ""
        return f"outlier score={self.score:.4f} p={self.p_value:.4f} {cause}{why}"


class Board(Observer):
    """The state of the demo: written by the threads of the pump and of the service, read by the screen."""

    def __init__(self, settings: DemoSettings, bootstrap: str, topic: str, out: str) -> None:
        self.settings, self.bootstrap, self.topic, self.out = settings, bootstrap, topic, out
        self.began = time.monotonic()
        self.scored_count = self.false_alarms = self.context_rows = self.generation = 0
        self.faults: list[Episode] = []  # all that were injected
        self.flagged: deque[Episode] = deque(maxlen=FLAGS_KEPT)  # with an outlier, oldest first
        self._fault_of: dict[int, Episode] = {}  # by reading
        self._last_fault: str | None = None
        self._new: list[Episode] = []
        self._lock = threading.Lock()

    def sent(self, record: dict[str, Any], fault: str | None) -> None:
        """A reading was sent, with this injected fault."""
        with self._lock:
            if fault is not None:
                if fault != self._last_fault:
                    self.faults.append(Episode(fault))
                self._fault_of[record["reading"]] = self.faults[-1]
            self._last_fault = fault

    def scored(self, seen: Observation) -> None:
        with self._lock:
            self.scored_count += seen.n_records
            self.context_rows, self.generation = seen.context_rows, seen.generation
            for record, result, _ in seen.outliers:
                episode = self._fault_of.get(record["reading"])
                if episode is None:
                    self.false_alarms += 1
                    goes_on = bool(self.flagged) and self.flagged[-1].fault is None
                    episode = self.flagged[-1] if goes_on else Episode(None)
                if not episode.flagged:
                    self.flagged.append(episode)
                    self._new.append(episode)
                episode.flag(result)

    def new_lines(self) -> list[str]:
        """Lines about the outliers since the last call, and one of `key=value` pairs with the numbers now."""
        with self._lock:
            new, self._new = self._new, []
            phase = self.phase().split(":")[0].replace(" ", "_")
            return [episode.line() for episode in new] + [
                f"t={self.seconds:.0f}s records_per_s={self.rate:.0f} scored={self.scored_count} "
                f"context={self.context_rows} generation={self.generation} faults={len(self.faults)} "
                f"caught={self.caught} false_alarms={self.false_alarms} phase={phase}"
            ]

    def phase(self) -> str:
        """What the service does at this moment."""
        if not self.scored_count:
            return "choosing features from the first records"
        if not self.generation:
            return f"warming up: {self.context_rows} of {self.settings.min_context} rows"
        return "calibrating" if self.scored_count * self.settings.alert_rate < 1 else "scoring"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def rate(self) -> float:
        """Records that were scored per second, on average."""
        return self.scored_count / max(0.1, self.seconds)

    @property
    def caught(self) -> int:
        return sum(episode.flagged > 0 for episode in self.faults)

    def summary(self) -> str:
        """One line about the whole run."""
        share = self.false_alarms / max(1, self.scored_count)
        return (
            f"scored {self.scored_count:,} records in {self.seconds:.0f} s; faults caught {self.caught} of "
            f"{len(self.faults)}; false alarms {self.false_alarms:,} records ({share:.2%})"
        )

    def screen(self) -> Layout:
        """The whole screen: as many of the latest outliers as there is room for."""
        foot = (
            f"The output: kcat -b {self.bootstrap} -t {self.out}   Ctrl-C ends the demo.\n"
            "Delivery is at least once: the embedded broker has no transactions."
        )
        layout = Layout()
        with self._lock:
            layout.split_column(
                Layout(Text(INTRO, "bold"), size=3),
                Layout(self._numbers(), size=4),
                Layout(self._table()),
                Layout(Text(foot, "dim"), size=2),
            )
        return layout

    def _numbers(self) -> RenderableType:
        phase, alarms = self.phase(), f"false alarms {self.false_alarms:,} records"
        colour = "green" if phase == "scoring" else "yellow"
        rows = f"   context of at most {self.context_rows:,} readings, generation {self.generation}"
        return Text.from_markup(
            f"[dim] speed[/]  [bold cyan]{self.rate:,.0f} records/s[/]   {self.scored_count:,} scored\n"
            f"[dim] state[/]  [bold {colour}]{phase}[/]{rows if self.generation else ''}\n"
            f"[dim]faults[/]  [bold green]{self.caught} of {len(self.faults)} caught[/]   {alarms}"
        )

    def _table(self) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True, show_edge=False)
        for name in ("flagged", "score", "injected fault"):
            table.add_column(name, no_wrap=True)
        table.add_column("why", ratio=1)
        for episode in reversed(self.flagged):
            times = f" x{episode.flagged}" if episode.flagged > 1 else ""
            table.add_row(
                time.strftime("%H:%M:%S", time.localtime(episode.time)),
                f"{episode.score:.4f}",
                Text((episode.fault or "false alarm") + times, "bold red" if episode.fault else "dim"),
                Text(episode.explanation, "" if episode.fault else "dim"),
            )
        return table if self.flagged else Text("no outlier yet", "dim")
