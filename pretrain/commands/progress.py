"""The display of a training run: progress on stderr, and the loss curve as loss.png."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pretrain.evaluation.plots import plot_losses
from pretrain.training.config import TrainConfig
from pretrain.training.run_files import RunFiles
from pretrain.training.train import Observer

if TYPE_CHECKING:
    from rich.progress import Progress


class RunDisplay(Observer):
    """Shows one run after the other.

    On a terminal it draws a progress bar, if rich is installed; otherwise it prints a line per log interval. The loss
    curve is drawn after every save, if matplotlib is installed.
    """

    def __init__(self) -> None:
        self._files: RunFiles | None = None
        self._bar: Progress | None = None
        self._of_steps = ""

    def started(self, files: RunFiles, config: TrainConfig, step: int) -> None:
        self._files = files
        self._of_steps = f"/{config.steps}" if config.minutes is None else ""
        self._bar = _new_bar() if sys.stderr.isatty() else None
        if self._bar is not None:
            self._bar.start()

    def stepped(self, step: int, progress: float) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=progress, step=f"step {step}{self._of_steps}")

    def logged(self, line: Mapping[str, float]) -> None:
        if self._bar is not None:
            speed = f"{1e3 / line['ms_per_step']:.1f} steps/s"
            quality = f"loss {line['loss']:.4f}  AUROC {line['auroc']:.4f}"
            self._bar.update(self._bar.task_ids[0], speed=speed, quality=quality)
        else:
            print(_text(line), file=sys.stderr, flush=True)

    def saved(self) -> None:
        if self._files is not None:
            plot_losses(self._files.log, self._files.plot)

    def ended(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _new_bar() -> Progress | None:
    """A progress bar from 0 to 1 with one task, or None without rich."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    bar = Progress(
        BarColumn(bar_width=16),
        TextColumn("{task.fields[step]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[quality]}"),
        console=Console(stderr=True),
        refresh_per_second=4,
    )
    bar.add_task("", total=1.0, step="", speed="", quality="")
    return bar


def _text(line: Mapping[str, float]) -> str:
    """A log line as `key=value` text."""
    return (
        f"step={line['step']} loss={line['loss']:.4f} auroc={line['auroc']:.4f} seconds={line['seconds']:.0f}"
        f" ms_per_step={line['ms_per_step']:.1f}"
    )
