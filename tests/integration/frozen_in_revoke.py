"""`fomo-stream`, suspended once inside its first revocation callback: before the client hears that it has given up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from fomo_stream.cli.main import program
from fomo_stream.kafka.assignment import Assignment

give_up = Assignment.give_up


def freeze_and_give_up(self: Assignment, numbers: Iterable[int]) -> None:
    Assignment.give_up = give_up  # type: ignore[method-assign]
    os.kill(os.getpid(), signal.SIGSTOP)
    give_up(self, numbers)


if __name__ == "__main__":
    Assignment.give_up = freeze_and_give_up  # type: ignore[method-assign]
    program()
