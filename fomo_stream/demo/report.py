"""The report at the end of the demo: its readings once more, by the replay, with the injected faults as labels.

The simulator gives the same readings again, so nothing has to be kept but their times. The results of the replay are
those that the service gave live.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from fomo_stream.demo.sensors import Readings, sensor_stream
from fomo_stream.errors import ConfigError
from fomo_stream.records.schema import Schema
from fomo_stream.replaying.command import replay_plan
from fomo_stream.replaying.plan import Plan
from fomo_stream.replaying.results import ReplayResult
from fomo_stream.replaying.sources.file import FileSource
from fomo_stream.replaying.sources.memory import MemoryTable
from fomo_stream.replaying.writing import check_writable
from fomo_stream.settings.replay import NO_REPORT, ReplaySettings

if TYPE_CHECKING:
    from fomo_stream.replaying.progress import Progress
    from fomo_stream.settings.commands import DemoSettings

MOST = 60_000  # readings in a report: its replay takes about ten seconds
FAULTS_EVERY_S = 3.0  # on average


def readings(settings: DemoSettings) -> Readings:
    """The demo's readings, each with the name of the fault in it; the same for the same settings."""
    fault_every = max(300.0, FAULTS_EVERY_S * settings.rate)
    first_fault = settings.min_context + 500  # no fault in the first context
    return sensor_stream(settings.seed, settings.sensors, fault_every, first_fault)


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


def demo_report(
    settings: DemoSettings, topic: str, partition: int, features: tuple[str, ...], times: array[int], progress: Progress
) -> ReplayResult:
    """Replay the readings that were scored. times: milliseconds since 1970, when each was sent; at most MOST."""
    # Not from the environment, as for the demo's service.
    own = ReplaySettings.model_construct(topic=topic, report=settings.report, **settings.of_detector())
    again = zip(times, readings(settings), strict=False)
    table = MemoryTable([{**record, "sent": time, "fault": fault is not None} for time, (record, fault) in again])
    source = FileSource(
        Path(topic), "jsonl", frozenset(), "pump", "sent", "fault",
        records=table.count, partitions=(partition,), in_memory=table,
    )  # fmt: skip
    count = table.count
    first = "the first " if count == MOST else ""
    notes = (
        f"This is the end of a demonstration: {first}{count:,} readings of a simulated pump, replayed after it. "
        "The results equal those that the service gave live.",
        "Labels are the faults that the simulator injected.",
        f"The demo's broker is gone; `fomo-stream demo --seed {settings.seed}` gives the same readings again.",
    )
    plan = Plan(
        settings=own,
        schema=Schema(features),
        source=source,
        has_labels=True,
        label_source="the simulator's faults",
        axis="time",
        notes=notes,
        now_ms=max(times) + 1,
    )
    return replay_plan(plan, progress)
