"""CPU time of several variants of the same work, in turns, so that a noisy moment meets all; and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Work = Callable[[], int]  # does some records' work; returns their number
SLOW_S = 0.5  # a variant whose single run takes longer is repeated FEW times only
FEW = 3


class Cost(NamedTuple):
    """CPU seconds a record."""

    median: float
    mean: float  # of all records: for work whose cost is uneven, such as learning, which now and then builds a context
    spread: float  # half the distance between the quartiles


def costs(variants: Mapping[str, Work], repeats: int, seconds: float) -> dict[str, Cost]:
    """The cost of each variant. Each runs once to warm up; a repeat then takes at least `seconds`."""
    loops = {name: _loops(work, seconds) for name, work in variants.items()}
    runs: dict[str, list[tuple[float, int]]] = {name: [] for name in variants}
    for turn in range(repeats):
        for name, work in variants.items():
            if turn < FEW or loops[name] > 1 or runs[name][0][0] < SLOW_S:
                runs[name].append(_run(work, loops[name]))
    return {name: cost_of(found) for name, found in runs.items()}


def cost_of(runs: list[tuple[float, int]]) -> Cost:
    """The cost from runs: their CPU seconds and numbers of records."""
    each = np.array([spent / count for spent, count in runs])
    low, median, high = np.quantile(each, [0.25, 0.5, 0.75]).tolist()
    mean = sum(spent for spent, _ in runs) / sum(count for _, count in runs)
    return Cost(median, mean, (high - low) / 2)


def _run(work: Work, loops: int) -> tuple[float, int]:
    began = time.process_time()
    count = sum(work() for _ in range(loops))
    return time.process_time() - began, count


def _loops(work: Work, seconds: float) -> int:
    """How many calls take at least `seconds`."""
    work()
    spent, _ = _run(work, 1)
    return max(1, int(np.ceil(seconds / max(spent, 1e-6))))


PACKAGES = (
    "fomo-stream",
    "torch",
    "numpy",
    "scipy",
    "numba",
    "scikit-learn",
    "river",
    "pysad",
    "orjson",
    "confluent-kafka",
)


def environment() -> dict[str, Any]:
    """Processor, cores, versions and commit."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
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
