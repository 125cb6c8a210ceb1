"""`python -m pretrain train`: train a model, or resume the run in --out."""

from __future__ import annotations

import argparse
from pathlib import Path

from pretrain.commands.flags import add_machine, add_settings, configuration, use_threads
from pretrain.commands.progress import RunDisplay
from pretrain.training.train import train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--out", type=Path, metavar="RUN", required=True, help="directory of the run")
    parser.add_argument("--init-from", type=Path, metavar="RUN", help="start with the weights of another run")
    parser.add_argument(
        "--stop-after", type=float, metavar="MINUTES",
        help="save and exit after MINUTES; the same command resumes the run",
    )  # fmt: skip
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    use_threads(options.threads)
    config = configuration(options)
    train(
        config, options.out, options.device, init_from=options.init_from, stop_after=options.stop_after,
        observer=RunDisplay(),
    )  # fmt: skip
    return 0
