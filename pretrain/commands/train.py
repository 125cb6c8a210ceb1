"""`python -m pretrain train`: train, or go on with the run in --out."""

from __future__ import annotations

import argparse
from pathlib import Path

from pretrain.presets import add_settings, configuration
from pretrain.train import train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 (%(default)s)")
    parser.add_argument("--init-from", type=Path, metavar="RUN", help="start from the weights of another run")
    parser.add_argument("--threads", type=int, help="CPU threads")


def run(options: argparse.Namespace) -> int:
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    train(configuration(options), options.out, options.device, init_from=options.init_from)
    return 0
