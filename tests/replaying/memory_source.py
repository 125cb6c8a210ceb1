"""Replays of made records in memory, as the command runs them, with a cheap model."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pipelines import cheap_model

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.errors import RecordError
from fomo_stream.model.checkpoint import save_model
from fomo_stream.records.schema import Schema
from fomo_stream.replaying.assembly import make_report
from fomo_stream.replaying.blocks import Sample
from fomo_stream.replaying.partition_run import Job, PartitionOutcome
from fomo_stream.replaying.plan import Plan
from fomo_stream.replaying.progress import Progress
from fomo_stream.replaying.report_files import join_parts
from fomo_stream.replaying.workers import replay_partitions, stopped_by_ctrl_c
from fomo_stream.settings.replay import ReplaySettings

NOTES = tempfile.TemporaryDirectory()  # of all replays, until the tests end
SCHEMA = Schema(("x", "y"))


class QuickSettings(ReplaySettings):
    """Few records are enough for a generation, a regime, or to forget one."""

    def detector_config(self) -> DetectorConfig:
        return replace(super().detector_config(), lag=16, recent_every=32, calibration_size=50)


def quick_settings(**changes: Any) -> QuickSettings:
    flags: dict[str, Any] = {"topic": "t", "min_context": 10, "context_size": 20, "adapt_after": 60, "alert_rate": 0.1}
    return QuickSettings(**{**flags, "batch_size": 8, "report": "none", **changes})


def sample(offset: int, partition: int = 0) -> Sample:
    """Of three series; some are bad, some lack a feature, some have a bad time; after 90 all is different."""
    rng = np.random.default_rng([partition, offset])
    key = (b"p", b"q", None)[rng.integers(3)]
    shift = 20 if offset >= 90 else 0
    timestamp = [1_000_000 + 10 * offset, 5, None, 10**15][rng.choice(4, p=[0.97, 0.01, 0.01, 0.01])]
    label = int(rng.integers(-1, 2))
    if rng.random() < 0.05:
        return Sample(offset, timestamp, key, {}, RecordError("not_json", "no JSON"))
    fields: dict[str, Any] = {"x": float(rng.normal(shift)), "y": float(rng.normal(5 + shift, 2)), "z": 0}
    for name in rng.choice(np.array(["x", "y", "z"]), size=rng.choice(3, p=[0.8, 0.1, 0.1]), replace=False):
        del fields[str(name)]
    return Sample(offset, timestamp, key, fields, label=label)


@dataclass(frozen=True)
class MemorySource:
    """Made samples: `records` of each partition, with gaps in their offsets."""

    records: int = 200
    partitions: tuple[int, ...] = (0,)
    name: str = "t"
    make: Callable[[int, int], Sample] = sample
    kind: Literal["memory"] = "memory"

    def start(self, partition: int) -> int:
        return 0

    def total(self, partition: int) -> int | None:
        return self.records

    def part(self, partition: int) -> MemorySource:
        return self

    def read(self, partition: int, is_stopped: Callable[[], bool]) -> Iterator[Sample]:
        for offset in range(self.records):
            if is_stopped():
                return
            if offset % 13:
                yield self.make(offset, partition)


def make_plan(settings: ReplaySettings | None = None, source: MemorySource | None = None) -> Plan:
    """A plan over samples in memory."""
    notes = ("Equal to the live output from the first record.",)
    settings, source = settings or quick_settings(), source or MemorySource()
    return Plan(settings, SCHEMA, source, True, "time", notes, now_ms=10**12)


def cheap_checkpoint(folder: Path) -> str:
    path = folder / "cheap.safetensors"
    save_model(cheap_model(), path)
    return str(path)


class CtrlC(Progress):
    """Somebody presses Ctrl-C when so many blocks are done, of those of this process; and then `again`."""

    def __init__(self, blocks: int, send: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._blocks = blocks
        self._send = send or (lambda: os.kill(os.getpid(), signal.SIGINT))

    def advance(self, records: int) -> None:
        self._blocks -= 1
        if self._blocks == 0:
            self._send()


def outcomes_of(plan: Plan, progress: Progress | None = None, n_workers: int = 1) -> list[PartitionOutcome]:
    progress = progress or Progress()
    numbers = plan.source.partitions
    folder = Path(tempfile.mkdtemp(dir=NOTES.name))
    jobs = [Job(plan.part(number), number, folder) for number in numbers]
    progress.begin(plan.source.name, None)
    with stopped_by_ctrl_c() as is_stopped:
        outcomes = replay_partitions(jobs, plan.settings, n_workers, is_stopped, progress)
    if plan.settings.scores_file is not None:
        join_parts(plan.settings.scores_file, [job.scores for job in jobs])
    return outcomes


def report_of(plan: Plan, outcomes: list[PartitionOutcome]) -> dict[str, Any]:
    """The report without its times."""
    report = make_report(plan, outcomes, datetime.now(UTC))
    del report["timing"]
    return report
