"""`python -m pretrain train`: train a model, or resume the run in --out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from fomo_stream.model.checkpoint import resolve_device
from pretrain.commands.flags import add_machine, add_settings, configuration, use_threads
from pretrain.evaluation.plots import plot_losses
from pretrain.training.config import TrainConfig
from pretrain.training.run_files import RunFiles
from pretrain.training.train import Observer, train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--out", type=Path, metavar="RUN", required=True, help="directory of the run")
    parser.add_argument(
        "--stop-after",
        type=float,
        metavar="MINUTES",
        help="save and exit after MINUTES; the same command resumes the run",
    )
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    use_threads(options.threads)
    config = configuration(options)
    if config.precision == "bf16" and resolve_device(options.device) == "cpu" and not cpu_multiplies_bf16():
        print("pretrain: bf16 is about ten times slower than fp32 on this CPU; leave out --precision", file=sys.stderr)
    train(config, options.out, options.device, stop_after=options.stop_after, observer=RunDisplay())
    return 0


def cpu_multiplies_bf16() -> bool:
    """Whether this CPU has instructions for it (AMX); True also where torch cannot tell."""
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(found.get("amx_bf16", not found))


class RunDisplay(Observer):
    """Shows one run after the other: a line per log interval on stderr; after every save loss.png, the loss curve, if
    matplotlib is installed."""

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
