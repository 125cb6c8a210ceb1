"""The machine: its description, its peaks as measured, and the least time that scoring can take on it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from .report import Measurement
from .timing import Cost, costs

PACKAGES = (
    "fomo-stream", "torch", "numpy", "scipy", "numba", "scikit-learn", "river", "pysad", "orjson", "confluent-kafka",
)  # fmt: skip
SIDE = 512  # of the matrices
CHAIN = 16  # multiply-adds of an element
SPACES = 3  # in which a row is compared with the context
PER_DISTANCE = 25  # FLOP for the densities: an exponential, its powers, the sums and the comparisons
NETWORK = 2 * (88 * 64 + 2 * 2 * 64 * 128 + 64 * 128 + 2 * 128)  # FLOP: input, two feed-forward layers, head


def environment() -> dict[str, Any]:
    """Processor, cores, versions and commit."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain") else ""),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


@cache
def peaks() -> dict[str, Cost]:
    """Seconds for a FLOP of one core, float32: of a matrix product, and of a loop of fused multiply-adds."""
    from numba import njit

    left, right = np.ones((2, SIDE, SIDE), dtype=np.float32)
    values, out = np.linspace(0, 1, 2048, dtype=np.float32), np.empty(2048, dtype=np.float32)

    def chain(values: Any, out: Any, factor: Any, times: int) -> None:
        for _ in range(times):
            for i in range(len(values)):
                x = values[i]
                for _ in range(CHAIN):
                    x = x * factor + factor
                out[i] = x

    compiled: Callable[[Any, Any, Any, int], None] = njit(fastmath=True)(chain)

    def product() -> int:
        np.matmul(left, right)
        return 2 * SIDE**3

    def multiply_adds() -> int:
        compiled(values, out, np.float32(0.5), 1000)
        return 1000 * 2 * CHAIN * len(values)

    return costs({"matrix product": product, "multiply-adds": multiply_adds}, 5, 0.05)


@cache
def bandwidth(size: int) -> Cost:
    """Seconds for a byte of one core that reads `size` bytes again and again: from the cache that holds them."""
    values = np.ones(max(size // 4, 64), dtype=np.float32)
    summed, times = _compiled_sum(), max(1, (1 << 24) // values.nbytes)

    def read() -> int:
        summed(values, times)
        return times * values.nbytes

    return costs({"read": read}, 5, 0.02)["read"]


@cache
def _compiled_sum() -> Callable[[Any, int], float]:
    from numba import njit

    def summed(values: Any, times: int) -> float:
        total: Any = np.float32(0)
        for turn in range(times):
            for i in range(turn % 2, len(values)):  # not the same each time, or one pass would be enough
                total += values[i]
        return total  # type: ignore[no-any-return]

    compiled: Callable[[Any, int], float] = njit(fastmath=True)(summed)
    return compiled


def context_bytes(context: int, features: int) -> int:
    """Bytes of the context's rows in all spaces, float32."""
    return SPACES * context * features * 4


def flop(context: int, features: int) -> int:
    """Operations to score a record: distances in every space, densities, projections, the network."""
    return SPACES * context * (3 * features + PER_DISTANCE) + 2 * features**2 + NETWORK


def floor(context: int, features: int, batch: int) -> float:
    """The least seconds for a record: the operations at the peak, or the context's rows read once for each batch."""
    fastest = min(peak.median for peak in peaks().values())
    size = context_bytes(context, features)
    return max(flop(context, features) * fastest, size * bandwidth(size).median / batch)


def measure(contexts: tuple[int, ...], features: tuple[int, ...]) -> Iterator[Measurement]:
    """The peaks, and the bandwidth for contexts of these sizes."""
    for kind, cost in peaks().items():
        yield rate("machine", {"of": kind}, cost, 1e-9, "GFLOP/s")
    for n in contexts:
        for d in features:
            size = context_bytes(n, d)
            parameters: dict[str, str | int] = {"of": "reading", "context": n, "features": d}
            yield rate("machine", parameters, bandwidth(size), 1e-9, "GB/s")


def rate(name: str, parameters: dict[str, str | int], cost: Cost, scale: float, unit: str) -> Measurement:
    """A rate from a cost, times `scale`."""
    value = scale / cost.median
    return Measurement(name, parameters, value, unit, value * cost.spread / cost.median)
