"""The detector without Kafka: import time, rows a second, time of one row, time to encode a context.

    python tests/benchmarks/detector_bench.py [--model fusion] [--device cpu] [--threads 1]

Prints one JSON line for each measurement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from fomo_stream import FoMoDetector, load_model
from fomo_stream.model.scoring import encode_rows, logits_of

FEATURES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shown = {"model": options.model, "device": options.device, "threads": options.threads, "features": FEATURES}
    print(json.dumps({"import_s": import_seconds()}))
    for context in (1000, 5000):
        print(json.dumps({**measure_model(options.model, options.device, context), "context": context, **shown}))
    print(json.dumps({**measure_river(options.model, options.device), "context": 1000, **shown}))


def import_seconds() -> float:
    """Median time of `import fomo_stream` in a new interpreter."""
    code = "import time; t = time.perf_counter(); import fomo_stream; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return round(statistics.median(float(run.stdout) for run in runs), 4)


def median_seconds(work: Callable[[], object], repeats: int = 7) -> float:
    """Median duration of a call, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_model(name: str, device: str, context: int) -> dict[str, float]:
    """Encoding a context, and scoring micro-batches against it."""
    rng = np.random.default_rng(0)
    rows, batch = rng.normal(size=(context, FEATURES)), rng.normal(size=(64, FEATURES))
    model = load_model(name, device)
    encode = median_seconds(lambda: encode_rows(model, rows), repeats=3)
    cache = encode_rows(model, rows)
    score = median_seconds(lambda: logits_of(model, cache, batch))
    return {"encode_s": round(encode, 3), "rows_per_s": round(64 / score), "batch": 64}


def measure_river(name: str, device: str) -> dict[str, float]:
    """Score and learn, one record at a time and 64 at a time, generations included."""
    rng = np.random.default_rng(0)
    detector = FoMoDetector(model=name, device=device, context_size=1000)
    detector.learn_many(rng.normal(size=(3000, FEATURES)))

    def many() -> None:
        batch = rng.normal(size=(64, FEATURES))
        detector.score_many(batch)
        detector.learn_many(batch)

    def one() -> None:
        record = dict(enumerate(rng.normal(size=FEATURES).tolist()))
        detector.score_one(record)
        detector.learn_one(record)

    def mean_ms(work: Callable[[], None], times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            work()
        return 1000 * (time.perf_counter() - start) / times

    return {"one_ms": round(mean_ms(one, 1500), 3), "batch_ms": round(mean_ms(many, 60), 2), "batch": 64}


if __name__ == "__main__":
    main()
