"""Pretrain models on synthetic data, evaluate them, and export checkpoints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fomo_stream.errors import ConfigError, FomoError
from pretrain.commands import ablate, attend, evaluate, export, smoke, train

COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "export": export,
    "attend": attend,
    "ablate": ablate,
    "smoke": smoke,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        code: int = COMMANDS[options.command].run(options)
        return code
    except FomoError as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # e.g. a path without write permission, a full disk
        print(f"pretrain: {error}", file=sys.stderr)
        return ConfigError.exit_code
    except KeyboardInterrupt:  # a command that has to save something handles Ctrl-C itself
        return 130


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m pretrain", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        text = (module.__doc__ or "").partition(": ")[2].removesuffix(".")
        description = f"{text[0].upper()}{text[1:]}."
        module.add_arguments(commands.add_parser(name, help=text, description=description))
    return result


if __name__ == "__main__":
    sys.exit(main())
