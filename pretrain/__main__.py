"""`python -m pretrain COMMAND`: synthetic data in, checkpoints and reports out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fomo_stream.errors import ConfigError, FomoError
from pretrain.commands import ablate, attend, bench, evaluate, export, pack, profile, train, unpack

COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "export": export,
    "profile": profile,
    "attend": attend,
    "ablate": ablate,
    "bench": bench,
    "pack": pack,
    "unpack": unpack,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        code: int = COMMANDS[options.command].run(options)
        return code
    except FomoError as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # a path that cannot be written to, a full disk
        print(f"pretrain: {error}", file=sys.stderr)
        return ConfigError.exit_code
    except KeyboardInterrupt:  # commands that have something to save see to it themselves
        return 130


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m pretrain", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        text = (module.__doc__ or "").partition(": ")[2]
        module.add_arguments(commands.add_parser(name, help=text, description=text))
    return result


if __name__ == "__main__":
    sys.exit(main())
