"""`python -m pretrain unpack`: make a run of a pack, to go on with `train` and the same flags."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", type=Path, help="directory with the files of one pack")
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")


def run(options: argparse.Namespace) -> int:
    from pretrain.training.carry import unpack

    step = unpack(options.pack, options.out)
    print(f"unpacked {options.pack} to {options.out}, step {step}")
    return 0
