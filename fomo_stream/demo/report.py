"""The report at the end of the demo: its readings once more, by the replay, with the injected faults as labels.

The simulator gives the same readings again, so nothing has to be kept but their times. The results of the replay are
those that the service gave live.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fomo_stream.demo.sensors import Readings, sensor_stream
from fomo_stream.errors import ConfigError
from fomo_stream.records.schema import Schema
from fomo_stream.replaying.blocks import INLIER, OUTLIER, Sample
from fomo_stream.replaying.command import replay_plan
from fomo_stream.replaying.plan import Plan
from fomo_stream.replaying.results import ReplayResult
from fomo_stream.replaying.sources.base import IsStopped
from fomo_stream.replaying.writing import check_writable
from fomo_stream.settings.replay import NO_REPORT, ReplaySettings

if TYPE_CHECKING:
    from fomo_stream.replaying.progress import Progress
    from fomo_stream.settings.commands import DemoSettings

MOST = 60_000  # readings in a report: its replay takes about ten seconds
FAULTS_EVERY_S = 3.0  # on average


@dataclass(frozen=True)
class Scored:
    """What the service has scored of the demo's readings: the first ones."""

    partition: int
    features: tuple[str, ...]
    times: array[int]  # milliseconds since 1970, when each was sent; at most MOST of them


def readings(settings: DemoSettings) -> Readings:
    """The demo's readings, each with the name of the fault in it; the same for the same settings."""
    fault_every = max(300.0, FAULTS_EVERY_S * settings.rate)
    first_fault = settings.min_context + 500  # no fault in the first context
    return sensor_stream(settings.seed, settings.sensors, fault_every, first_fault)


@dataclass(frozen=True)
class DemoSource:
    """The readings that the service has scored, as a source of the replay."""

    settings: DemoSettings
    scored: Scored
    name: str

    @property
    def partitions(self) -> tuple[int, ...]:
        return (self.scored.partition,)

    def start(self, partition: int) -> int:
        return 0

    def total(self, partition: int) -> int:
        return len(self.scored.times)

    def read(self, partition: int, start: int, is_stopped: IsStopped) -> Iterator[Sample]:
        every = zip(self.scored.times, readings(self.settings), strict=False)
        for offset, (timestamp, (record, fault)) in enumerate(islice(every, start, None), start):
            if is_stopped():
                return
            label = INLIER if fault is None else OUTLIER
            yield Sample(offset, timestamp, record["pump"].encode(), record, label=label)

    def part(self, partition: int) -> DemoSource:
        return self


def report_path(settings: DemoSettings) -> Path | None:
    """Where the report goes; None: nowhere. Raises ConfigError if a file that was named could not be written."""
    if settings.report == NO_REPORT:
        return None
    path = Path(settings.report).absolute()
    try:
        check_writable("--report", path)
    except ConfigError:
        if "report" in settings.model_fields_set:
            raise
        return None  # the demo also runs where nothing can be written
    return path


def demo_report(settings: DemoSettings, topic: str, scored: Scored, progress: Progress | None = None) -> ReplayResult:
    """Replay what was scored."""
    # Not from the environment, as for the demo's service.
    own = ReplaySettings.model_construct(topic=topic, report=settings.report, **settings.of_detector())
    count = len(scored.times)
    first = "the first " if count == MOST else ""
    notes = (
        f"This is the end of a demonstration: {first}{count:,} readings of a simulated pump, replayed after it. "
        "The results equal those that the service gave live.",
        "Labels are the faults that the simulator injected.",
        f"The demo's broker is gone; `fomo-stream demo --seed {settings.seed}` gives the same readings again.",
    )
    plan = Plan(
        settings=own,
        schema=Schema(scored.features),
        source=DemoSource(settings, scored, topic),
        has_labels=True,
        label_source="the simulator's faults",
        axis="time",
        notes=notes,
        now_ms=max(scored.times) + 1,
    )
    return replay_plan(plan, progress)
