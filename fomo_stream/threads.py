"""The number of threads of a computation: as requested, but at most one per processor of this process."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from fomo_stream.logs import kv

log = logging.getLogger(__name__)

ROOT = Path("/")
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def limit_threads(wanted: int) -> int:
    """Let each computation of this process use up to `wanted` threads, at most one per processor; returns the number.

    For programs, before their first computation. A library should leave this choice to the program that uses it.
    """
    threads = _at_most_usable(wanted)
    # For libraries that are loaded later; the calls below are for those that are loaded already.
    os.environ.update(dict.fromkeys(POOLS, str(threads)))
    # Idle threads sleep. Idle threads that spin can make everything 20 times slower on a machine with other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    with suppress(RuntimeError):  # it can be set only once, and only before its first use
        torch.set_num_interop_threads(1)
    threadpool_limits(limits=threads)
    return threads


@contextmanager
def limited_threads(wanted: int) -> Iterator[None]:
    """Within it, each computation uses up to `wanted` threads, as with `limit_threads`; after it, as many as before."""
    import torch
    from threadpoolctl import threadpool_limits

    threads, before = _at_most_usable(wanted), torch.get_num_threads()
    environment = {name: os.environ.get(name) for name in POOLS}
    os.environ.update(dict.fromkeys(POOLS, str(threads)))
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(limits=threads):
            yield
    finally:
        torch.set_num_threads(before)
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _at_most_usable(wanted: int) -> int:
    threads = min(wanted, usable_processors())
    if threads < wanted:
        reason = f"this process may use only {threads} processors"
        log.warning(kv("threads_limited", wanted=wanted, threads=threads, reason=reason))
    return threads


def usable_processors() -> int:
    """The number of processors that this process can use: those it may run on, or fewer if its cgroup has a quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, cpu_quota(ROOT))))


def cpu_quota(root: Path) -> float:
    """Seconds of processor time per second that the cgroups of this process allow; infinite without a limit.

    root: the folder that holds `proc` and `sys`. Limits of parent groups count too; of cgroups v1 only that of a
    container. Files that cannot be read are ignored.
    """
    mounted = root / "sys" / "fs" / "cgroup"
    lines = _text(root / "proc" / "self" / "cgroup").splitlines()
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    # In a container the path may be that of the host and not exist here; then the top folder is its own group.
    shares = [_text(mounted / group / "cpu.max") for group in (PurePosixPath(own), *PurePosixPath(own).parents)]
    first_version = (_text(mounted / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return min(map(_share, [*shares, " ".join(first_version)]))


def _share(text: str) -> float:
    try:
        quota, period = map(int, text.split())
    except ValueError:  # no such file, or `max`
        return math.inf
    return quota / period if quota > 0 else math.inf  # -1: no limit


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
