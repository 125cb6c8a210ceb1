"""One module per command: `add_arguments(parser)` and `run(options) -> exit status`; the docstring is its help.

Here is what several of them ask for.
"""

from __future__ import annotations

import argparse

from fomo_stream.errors import ConfigError


def add_machine(parser: argparse.ArgumentParser, threads: int | None = None) -> None:
    """The flags --device and --threads."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 (%(default)s)")
    usual = "torch's choice" if threads is None else "%(default)s"
    parser.add_argument("--threads", type=int, default=threads, help=f"CPU threads ({usual})")


def use_threads(threads: int | None) -> None:
    """Heed --threads."""
    import torch

    if threads is not None:
        if threads < 1:
            raise ConfigError(f"--threads needs at least 1, not {threads}")
        torch.set_num_threads(threads)


def listed(text: str | None) -> list[str]:
    """`a,b` as a list of names."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
