"""The time that models and baselines take for a context and for queries, on one core: the paper's table of it.

    python benchmarks/inference_time.py --features 10

Rows are of a Gaussian mixture of the prior; detectors are those of `python -m pretrain evaluate`, as users call them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from fomo_stream.model.checkpoint import shipped_models
from pretrain.evaluation.detectors import Method, baselines, limit_threads, models
from pretrain.evaluation.report import markdown_table
from pretrain.evaluation.tables import Float
from pretrain.priors.draws import Draws
from pretrain.priors.gmm import GmmConfig, sample_gmm

CONTEXTS = (500, 2000, 5000)
PEERS = ("knn", "dte-np", "lof", "iforest")
MANY = 1000  # queries of a large call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=10, help="columns, those of the paper's table by default")
    parser.add_argument("--repeats", type=int, default=5, help="calls of which the median counts")
    parser.add_argument("--device", default="cpu", help="of the models: cpu or cuda")
    options = parser.parse_args()
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
