"""Replays of samples in memory, as the command runs them, with a cheap model."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memory_source import cheap_model

from fomo_stream.model.checkpoint import save_model
from fomo_stream.replaying.assembly import make_report
from fomo_stream.replaying.one_partition import Job, Outcome
from fomo_stream.replaying.plan import Plan
from fomo_stream.replaying.progress import Progress
from fomo_stream.replaying.sinks import join_parts
from fomo_stream.replaying.workers import replay_partitions, stopped_by_ctrl_c

NOTES = tempfile.TemporaryDirectory()  # of all replays, until the tests end


def cheap_checkpoint(folder: Path) -> str:
    path = folder / "cheap.safetensors"
    save_model(cheap_model(), path)
    return str(path)


class CtrlC(Progress):
    """Somebody presses Ctrl-C when so many blocks are done, of those of this process; and then `again`."""

    def __init__(self, blocks: int, send: Callable[[], None] | None = None) -> None:
        self._blocks = blocks
        self._send = send or (lambda: os.kill(os.getpid(), signal.SIGINT))

    def advance(self, records: int) -> None:
        self._blocks -= 1
        if self._blocks == 0:
            self._send()


def outcomes_of(plan: Plan, progress: Progress | None = None, n_workers: int = 1) -> list[Outcome]:
    """The outcomes of all partitions."""
    progress = progress or Progress()
    numbers = plan.source.partitions
    folder = Path(tempfile.mkdtemp(dir=NOTES.name))
    jobs = [Job(plan.part(number), number, folder) for number in numbers]
    with stopped_by_ctrl_c(progress) as is_stopped:
        return replay_partitions(jobs, plan.settings, n_workers, is_stopped, progress)


def report_of(plan: Plan, outcomes: list[Outcome]) -> dict[str, Any]:
    """The report without its times."""
    if plan.settings.scores_file is not None:
        join_parts(plan.settings.scores_file, plan.source.partitions)
    report = make_report(plan, outcomes, datetime.now(UTC))
    del report["timing"]
    return report
