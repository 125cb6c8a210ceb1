"""The display of a training run: a line per log interval on stderr, and the loss curve as loss.png."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from pretrain.evaluation.plots import plot_losses
from pretrain.training.config import TrainConfig
from pretrain.training.run_files import RunFiles
from pretrain.training.train import Observer


class RunDisplay(Observer):
    """Shows one run after the other. The loss curve is drawn after every save, if matplotlib is installed."""

    def __init__(self) -> None:
        self._files: RunFiles | None = None
        self._of_steps = ""

    def started(self, files: RunFiles, config: TrainConfig, step: int) -> None:
        self._files = files
        self._of_steps = f"/{config.steps}" if config.minutes is None else ""

    def logged(self, line: Mapping[str, float]) -> None:
        text = (
            f"step={line['step']}{self._of_steps} loss={line['loss']:.4f} auroc={line['auroc']:.4f}"
            f" seconds={line['seconds']:.0f} ms_per_step={line['ms_per_step']:.1f}"
        )
        print(text, file=sys.stderr, flush=True)

    def saved(self) -> None:
        if self._files is not None:
            plot_losses(self._files.log, self._files.plot)
