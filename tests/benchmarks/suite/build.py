"""Builds of generations: CPU time of one, in a stream that does not change, once the reservoirs are full."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from fomo_stream import Detector, DetectorConfig
from fomo_stream.detector.generation import Generation

from .contenders import Float, models, sensor_rows
from .report import Measurement
from .scale import Scale
from .timing import Cost, cost_of, costs

P = ParamSpec("P")
R = TypeVar("R")
CHUNK = 256  # records that a variant processes before the next has its turn
SPAN = 4  # contexts' worth of records; the builds of the second half count


class Timed(Executor):
    """Runs tasks at once, and notes the CPU time of those that build a generation."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        began = time.process_time()
        result = fn(*args, **kwargs)
        spent = time.process_time() - began
        if isinstance(result, Generation):
            self.seconds.append(spent)
        future.set_result(result)
        return future


def measure(scale: Scale) -> Iterator[Measurement]:
    """Our builds, and scikit-learn's kd-tree of the same context."""
    for n, d in scale.builds:
        rows = sensor_rows(SPAN * n, d)
        found = {name: cost_of([(spent, 1) for spent in seconds]) for name, seconds in builds(rows, n).items()}
        found |= costs({"kNN kd-tree": _tree(rows[:n])}, scale.repeats, scale.seconds)
        for name, cost in found.items():
            yield _measurement(name, n, d, cost)


def builds(rows: Float, context: int) -> dict[str, list[float]]:
    """By variant, CPU seconds of the builds that the later half of the rows makes."""
    config = DetectorConfig(context_size=context, min_context=context)
    made = {}
    for name, model in models():
        executor = Timed()
        made[name] = Detector(model, rows.shape[1], config, executor=executor), executor
    for start in range(0, len(rows), CHUNK):
        for detector, executor in made.values():
            detector.process(rows[start : start + CHUNK])
            if detector.records <= len(rows) // 2:
                executor.seconds.clear()
    return {name: executor.seconds for name, (_, executor) in made.items()}


def _tree(rows: Float) -> Callable[[], int]:
    from sklearn.neighbors import KDTree

    def work() -> int:
        KDTree(rows)
        return 1

    return work


def _measurement(name: str, n: int, d: int, cost: Cost) -> Measurement:
    parameters: dict[str, str | int] = {"variant": name, "context": n, "features": d}
    return Measurement("build", parameters, 1000 * cost.median, "ms", 1000 * cost.spread)
