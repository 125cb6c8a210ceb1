"""Limits the threads of a computation to the requested number, but at most one per processor of this process."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fomo_stream.logs import kv

log = logging.getLogger(__name__)

# Files with the CPU quota of a cgroup: microseconds of all processors that it may use in a period, and the period.
CGROUPS = (("/sys/fs/cgroup/cpu.max",), ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def limit_threads(requested: int) -> int:
    """Let each computation of this process use up to `requested` threads, at most one per processor; return the number.

    Only programs call it, before their first computation. A library should leave this choice to its program.
    """
    # The variables are for libraries that are loaded later; the calls below are for those that are loaded already.
    os.environ.update(dict.fromkeys(POOLS, str(requested)))
    threads = _at_most_usable(requested)
    os.environ.update(dict.fromkeys(POOLS, str(threads)))
    # Idle threads sleep: idle threads that spin can make everything 20 times slower on a machine with other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from threadpoolctl import threadpool_limits

    if torch := sys.modules.get("torch"):  # else it reads the environment when it is loaded
        torch.set_num_threads(threads)
    threadpool_limits(limits=threads)
    return threads


@contextmanager
def limited_threads(requested: int) -> Iterator[None]:
    """Limit the threads as `limit_threads` does; restore the previous limits at the end of the context."""
    from threadpoolctl import threadpool_limits

    threads, torch = _at_most_usable(requested), sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    environment = {name: os.environ.get(name) for name in POOLS}
    os.environ.update(dict.fromkeys(POOLS, str(threads)))
    if torch:
        torch.set_num_threads(threads)
    try:
        with threadpool_limits(limits=threads):
            yield
    finally:
        if torch:
            torch.set_num_threads(before)
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _at_most_usable(requested: int) -> int:
    threads = min(requested, usable_processors())
    if threads < requested:
        reason = f"this process may use only {threads} processors"
        log.warning(kv("threads_limited", wanted=requested, threads=threads, reason=reason))
    return threads


def usable_processors() -> int:
    """Return the number of processors that this process can use: fewer than it may run on if its cgroup has a quota."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in CGROUPS:
        with suppress(OSError, ValueError):
            quota, period = " ".join(Path(name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                usable = min(usable, math.ceil(int(quota) / int(period)))
    return max(1, usable)
