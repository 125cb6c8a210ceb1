"""Kernels are compiled by a process of their own, so that no process scores with code that it compiled itself.

Code that was just compiled and the same code read from the cache do not round alike: logits differ by up to 1e-7. So a
process that needs a kernel that the cache lacks starts another Python, which compiles all of them, and then loads them.
Where that is not possible, because no folder can be written or the other process fails, it compiles itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from numba.core import event

EVENT = "fomo_stream:compile"  # numba's kind of event, while another process compiles, or is waited for
PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fomo_stream.model.kernels import compiling
compiling.compile_all()
"""
LONGEST_S = 900.0


class _Here:
    """Of this process."""

    may_start = True  # another process; once
    reason = "no folder of the cache can be written"  # why this process compiles, if it does


def why_here() -> str:
    """Why this process compiles, if it does."""
    return _Here.reason


def may_be_started() -> bool:
    """Whether another process can still compile for this one."""
    # An application that embeds Python, or is packed with it, is another program, which must not be started again.
    is_python = Path(sys.executable or "").name.lower().startswith("python") and not hasattr(sys, "frozen")
    if _Here.may_start and not is_python:
        _Here.may_start, _Here.reason = False, "this program is not started by a Python that could compile for it"
    return _Here.may_start


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Of the processes that share a cache, one compiles and the others wait, where the system can lock files."""
    with event.trigger_event(EVENT), (folder / "compiling.lock").open("a") as file:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file ends the lock


def compile_in_other_process() -> None:
    """Fill the cache. Without effect if the other process fails; then `why_here` says how."""
    _Here.may_start, _Here.reason = False, "it is not among those that are compiled ahead"
    command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=LONGEST_S)
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().rpartition("\n")[2] or f"exit status {error.returncode}"
        _Here.reason = f"another process that compiled them failed: {last}"
    except (OSError, subprocess.TimeoutExpired) as error:
        _Here.reason = f"another process that compiled them failed: {error}"


def compile_all() -> None:
    """The other process: compile here all that models use, and keep it in the cache."""
    from fomo_stream.model.checkpoint import load_model
    from fomo_stream.model.scoring import warm_up

    _Here.may_start = False
    warm_up(load_model("default", "cpu", "numba"))
