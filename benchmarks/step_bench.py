"""What a record costs beside River's Half-Space Trees, in one run: one by one, in batches, young, with gaps, with keys.

    python benchmarks/step_bench.py [--records 40000] [--features 10]

Prints a Markdown table: records a second of CPU time, and as a share of River's Half-Space Trees, which score and learn
the same records one by one. Of each way of working, parts take turns, and the median over the parts counts. Contexts of
1,000 rows; they are built in the same thread. Every record is scored, then learned.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from river.anomaly import HalfSpaceTrees
from suite.contenders import records, sensor_rows

from fomo_stream import FoMoDetector

Float = NDArray[np.float64]
Part = Callable[[], int]  # scores and learns some records; returns how many
BATCH, ONE_BY_ONE, KEYS, ROUNDS, PASSES = 64, 512, 64, 15, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=40_000, help="of an established stream")
    parser.add_argument("--features", type=int, default=10)
    options = parser.parse_args()
    rates = measured(dict(ways(sensor_rows(options.records, options.features))))
    rates |= young(sensor_rows(10_000, options.features, seed=1))
    trees = rates["River HalfSpaceTrees"]
    print("| | records/s | share |", "|---|---|---|", sep="\n")
    for name, rate in rates.items():
        print(f"| {name} | {rate:,.0f} | {rate / trees:.3f} |")
    plain, gaps, one_key, keys = (rates[f"batches, {way}"] for way in ("default", "one gap", "one key", f"{KEYS} keys"))
    print(f"\none gap in every record costs {plain / gaps:.2f} times, {KEYS} busy keys {one_key / keys:.2f} times")


def ways(rows: Float) -> Iterator[tuple[str, Part]]:
    """Every way of working, with what it does in a part."""
    unit = (rows - rows.min(axis=0)) / np.maximum(np.ptp(rows, axis=0), 1e-9)
    trees = HalfSpaceTrees(seed=0)
    for record in records(unit[:2000]):
        trees.learn_one(record)
    yield "River HalfSpaceTrees", one_by_one(trees, unit)
    for views in ("default", "fast"):
        yield f"one by one, {views}", one_by_one(learned(rows, views=views), rows)
        yield f"batches, {views}", batches(learned(rows, views=views), rows)
    gaps = rows.copy()
    gaps[np.arange(len(rows)), np.arange(len(rows)) % rows.shape[1]] = np.nan
    yield "batches, one gap", batches(learned(gaps), gaps)
    for name, count in (("one key", 1), (f"{KEYS} keys", KEYS)):
        of_keys = np.column_stack([rows, np.arange(len(rows)) % count])
        yield f"batches, {name}", batches(learned(of_keys, key=rows.shape[1]), of_keys)


def learned(rows: Float, **settings: Any) -> FoMoDetector:
    """A detector that has learned rows."""
    detector = FoMoDetector(device="cpu", backend="numba", **settings)
    for start in range(0, len(rows), 512):
        detector.learn_many(rows[start : start + 512])
    return detector


def one_by_one(detector: FoMoDetector | HalfSpaceTrees, rows: Float) -> Part:
    """Records one after the other."""
    given = cycle(records(rows))

    def part() -> int:
        for record in islice(given, ONE_BY_ONE):
            detector.score_one(record)
            detector.learn_one(record)
        return ONE_BY_ONE

    return part


def batches(detector: FoMoDetector, rows: Float) -> Part:
    """Records in batches."""
    starts = cycle(range(0, len(rows) - BATCH, BATCH))

    def part() -> int:
        for start in islice(starts, 32):
            detector.score_many(rows[start : start + BATCH])
            detector.learn_many(rows[start : start + BATCH])
        return 32 * BATCH

    return part


def measured(parts: dict[str, Part]) -> dict[str, float]:
    """Records a second of CPU time."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(ROUNDS):
        for name, part in parts.items():
            begun = time.thread_time()
            n = part()
            times[name].append(n / (time.thread_time() - begun))
    return {name: float(np.median(of_one)) for name, of_one in times.items()}


def young(rows: Float) -> dict[str, float]:
    """The same of records 256 to 10,000 of a stream, which often get new contexts."""
    rates = {}
    for views in ("default", "fast"):
        of_passes = []
        for _ in range(PASSES):
            part, begun = batches(learned(rows[:256], views=views), rows[256:]), time.thread_time()
            n = sum(part() for _ in range((len(rows) - 256) // (32 * BATCH)))
            of_passes.append(n / (time.thread_time() - begun))
        rates[f"young, {views}"] = float(np.median(of_passes))
    return rates


if __name__ == "__main__":
    main()
