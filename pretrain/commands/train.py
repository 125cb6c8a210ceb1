"""`python -m pretrain train`: train, or go on with the run in --out."""

from __future__ import annotations

import argparse
from pathlib import Path

from pretrain.commands import add_machine, use_threads
from pretrain.training.carry import pack
from pretrain.training.presets import add_settings, configuration
from pretrain.training.train import train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--init-from", type=Path, metavar="RUN", help="start from the weights of another run")
    parser.add_argument(
        "--stop-after", type=float, metavar="MINUTES", help="end this call after so long; the run can be resumed"
    )
    parser.add_argument("--pack-to", type=Path, metavar="DIR", help="write a pack of the run at the end (see pack)")
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    use_threads(options.threads)
    config = configuration(options)
    train(config, options.out, options.device, init_from=options.init_from, stop_after=options.stop_after)
    if options.pack_to is not None:
        pack(options.out, options.pack_to)
    return 0
