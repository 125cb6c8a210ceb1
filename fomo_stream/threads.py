"""The number of threads of a computation: as requested, but at most one per processor of this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fomo_stream.logs import kv

log = logging.getLogger(__name__)

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def limit_threads(wanted: int) -> int:
    """Let each computation of this process use up to `wanted` threads, at most one per processor; returns the number.

    For programs, before their first computation. A library should leave this choice to the program that uses it.
    """
    # For libraries that are loaded later (joblib loads NumPy); the calls below are for those that are loaded already.
    os.environ.update(dict.fromkeys(POOLS, str(wanted)))
    threads = _at_most_usable(wanted)
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
    from joblib import cpu_count

    return int(cpu_count())
