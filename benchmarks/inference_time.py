"""The time that models and baselines take for a context and for queries, on one core: the paper's table of it.

    python benchmarks/inference_time.py --features 10
    python benchmarks/inference_time.py --routers 0,100,200,500

Rows are of a Gaussian mixture of the prior; detectors are those of `python -m pretrain evaluate`, as users call them.
With --routers, the time and the peak memory of the paper's model with so many routers, 0 for full attention: its
network alone, with random weights, on random inputs. Memory needs Linux, or a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from fomo_stream.model.architecture import PRESETS
from fomo_stream.model.checkpoint import resolve_device, shipped_models
from fomo_stream.model.zero_shot import Features, ZeroShotModel
from pretrain.evaluation.detectors import Method, baselines, limit_threads, models
from pretrain.evaluation.report import markdown_table
from pretrain.evaluation.tables import Float
from pretrain.priors.draws import Draws
from pretrain.priors.gmm import GmmConfig, sample_gmm

CONTEXTS = (500, 2000, 5000)
PEERS = ("knn", "dte-np", "lof", "iforest")
MANY = 1000  # queries of a large call
ROUTERS, PAPER_CONTEXTS = (0, 100, 200, 500), (1000, 2000, 5000, 10_000)
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=10, help="columns, those of the paper's table by default")
    parser.add_argument("--repeats", type=int, default=5, help="calls of which the median counts")
    parser.add_argument("--device", default="cpu", help="of the models: cpu or cuda")
    parser.add_argument("--routers", metavar="R,..", help="compare these numbers of routers of the paper's model")
    parser.add_argument(
        "--contexts", metavar="ROWS,..", default=",".join(map(str, PAPER_CONTEXTS)), help="of --routers"
    )
    options = parser.parse_args()
    if options.routers:
        routers, contexts = ([int(part) for part in text.split(",")] for text in (options.routers, options.contexts))
        print(router_table(routers, contexts, options.repeats, options.device))
    else:
        print(time_table(options.features, options.repeats, options.device))


def time_table(features: int = 10, repeats: int = 5, device: str = "cpu") -> str:
    """A pipe table of all shipped models and PEERS at CONTEXTS."""
    rows = []
    methods = {**models(shipped_models(), device), **baselines(PEERS)}
    with limit_threads(1):
        for name, method in methods.items():
            for context in CONTEXTS:
                times = measured(method, context, features, repeats)
                rows.append([name.partition("@")[0], f"{context:,}", *(f"{1000 * value:.3g}" for value in times)])
    return markdown_table(["method", "context rows", "fit, ms", "one query, ms", f"{MANY:,} queries, ms"], rows)


def router_table(
    routers: Sequence[int] = ROUTERS,
    contexts: Sequence[int] = PAPER_CONTEXTS,
    repeats: int = 5,
    device: str = "cpu",
) -> str:
    """A pipe table of the paper's model with each number of routers at each context."""
    rows = []
    for context in contexts:
        for count in routers:
            with multiprocessing.get_context("spawn").Pool(1) as fresh:  # memory that others left would be used again
                encode, forward, peak = fresh.apply(cost_of_routers, (count, context, repeats, resolve_device(device)))
            cells = [f"{1000 * encode:.3g}", f"{1000 * forward:.3g}", f"{peak / MIB:.0f}"]
            rows.append([f"{context:,}", f"{count}" if count else "0: full attention", *cells])
    heads = ["context rows", "routers", "encode, ms", f"forward with {MANY:,} queries, ms", "peak memory, MiB"]
    return markdown_table(heads, rows)


def cost_of_routers(routers: int, context: int, repeats: int, device: str) -> tuple[float, float, float]:
    """Least seconds (of one core, or of the GPU) to encode a context and for a whole forward pass, and the bytes that
    these took beyond the weights.

    The paper's network alone: inputs are random, without the quantile map, whose cost does not depend on routers.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ZeroShotModel(replace(PRESETS["paper-100"], routers=routers)).to(device).eval()
    rows, few, queries = (
        Features(None, torch.randn(1, count, model.config.raw_features, device=device)) for count in (context, 2, MANY)
    )
    on_gpu = device != "cpu"
    wait: Callable[[], object] = torch.cuda.synchronize if on_gpu else lambda: None
    clock = time.perf_counter if on_gpu else time.process_time  # other processes change the second one less
    calls: tuple[Callable[[], object], ...] = (
        lambda: model.encode_features(rows),
        lambda: model.forward_features(rows, queries),
    )
    times: list[list[float]] = [[] for _ in calls]
    with torch.inference_mode():
        model.forward_features(few, few)  # the first call allocates
        before = torch.cuda.memory_allocated() if on_gpu else _resident("VmRSS")
        for _ in range(repeats):
            for found, call in zip(times, calls, strict=True):
                began = clock()
                call()
                wait()
                found.append(clock() - began)
    peak = torch.cuda.max_memory_allocated() if on_gpu else _resident("VmHWM")
    return min(times[0]), min(times[1]), peak - before


def _resident(name: str) -> int:
    """Bytes of memory of this process: VmRSS now, VmHWM at most."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def measured(method: Method, context: int, features: int, repeats: int) -> tuple[float, float, float]:
    """Median seconds to fit `context` rows, to score one row, and to score MANY."""
    config = GmmConfig(max_features=features, min_features=features)
    data = sample_gmm(config, Draws(0), 1, context, MANY)
    rows, queries = (part[0].double().numpy() for part in (data.inliers, data.outliers))
    detector = method(0)
    detector.fit(rows)
    detector.score(queries[:2])  # the first call compiles and allocates
    single = np.split(queries[: 4 * repeats], 4 * repeats)
    return (
        _seconds(detector.fit, [rows] * repeats),
        _seconds(detector.score, single),
        _seconds(detector.score, [queries] * repeats),
    )


def _seconds(call: Callable[[Float], object], arguments: Sequence[Float]) -> float:
    """Median time of a call."""
    found = []
    for argument in arguments:
        began = time.perf_counter()
        call(argument)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


if __name__ == "__main__":
    main()
