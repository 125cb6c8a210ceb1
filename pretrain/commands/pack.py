"""`python -m pretrain pack`: write what a run needs to go on elsewhere as a few small files."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="directory of the pack, at most 6 files under 16 MiB")


def run(options: argparse.Namespace) -> int:
    from pretrain.training.carry import pack

    files = pack(options.run, options.out)
    size = sum(file.stat().st_size for file in files) / 2**20
    print(f"packed {options.run} into {len(files)} files in {options.out}, {size:.1f} MiB")
    return 0
