"""The quantile sketch: rank error by kind of data, values a second, size of the state, rows to follow a mean shift.

    python tests/benchmarks/quantile_bench.py [--rows 1000000] [--span 1000 5000]

A span is the number of rows in which weights fall by a factor e, as a detector's context size. Ranks are compared with
exact ones of the same weighted rows (tests/exact_quantiles.py). Times are seconds of one core's work. Prints a line for
each kind of data, and one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from exact_quantiles import KINDS, rank_errors, ranks
from fomo_stream.detector.quantile_sketch import QuantileSketch

FEATURES = (1, 10, 100)
BATCH = 64  # rows of a small update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--span", type=float, nargs="+", default=[1000, 5000, 70_000, np.inf])
    options = parser.parse_args()
    torch.set_num_threads(1)
    errors = {span: rank_errors_by_kind(options.rows, span) for span in options.span}
    for kind in KINDS:
        print(f"{kind:16}", *(f"{100 * errors[span][kind]:.3f}%" for span in options.span))
    report = {
        "rows": options.rows,
        "worst_rank_error_by_span": {f"{span:g}": round(max(errors[span].values()), 5) for span in options.span},
        "values_per_s_bulk": {d: values_per_second(d, None) for d in FEATURES},
        f"values_per_s_{BATCH}_rows": {d: values_per_second(d, BATCH) for d in FEATURES},
        "state_bytes_per_feature": [state_bytes(n) for n in (10_000, options.rows)],
        "shift": rows_to_follow_a_shift(),
        "device": "cpu",
    }
    print(json.dumps(report))


def rank_errors_by_kind(n: int, span: float) -> dict[str, float]:
    """Largest rank error of each kind of data after n rows."""
    errors = {}
    for kind, make in KINDS.items():
        rng = np.random.default_rng(0)
        rows = make(rng, n)[:, None]
        sketch = QuantileSketch(1, np.log(2) * span)
        sketch.update(rows)
        errors[kind] = float(rank_errors(sketch, rows, rng).max())
    return errors


def values_per_second(d: int, batch: int | None) -> int:
    """Values learned in a second, `batch` rows an update or all at once: the median of 7 runs of 20 merges or more."""
    rng = np.random.default_rng(0)
    sketch = QuantileSketch(d, np.log(2) * 1000)
    rows = rng.normal(size=(20 * sketch.chunk, d))
    parts = [rows] if batch is None else [rows[i : i + batch] for i in range(0, len(rows), batch)]
    times = []
    for _ in range(8):
        start = time.process_time()
        for part in parts:
            sketch.update(part)
        times.append(time.process_time() - start)
    return round(rows.size / float(np.median(times[1:])))


def state_bytes(n: int) -> int:
    """Bytes of the state of one feature after n rows."""
    sketch = QuantileSketch(1)
    sketch.update(np.random.default_rng(0).normal(size=(n, 1)))
    return sum(array.nbytes for array in sketch.to_arrays().values())


def rows_to_follow_a_shift(span: float = 1000) -> dict[str, int]:
    """Rows after a shift of 5 deviations until the new mean has crossed a rank of 0.75 and of 0.6, and the old mean is
    no longer in the range of the knots."""
    rng = np.random.default_rng(0)
    sketch = QuantileSketch(1, np.log(2) * span)
    sketch.update(rng.normal(size=(10_000, 1)))
    rank_of_mean: dict[str, int] = {}
    for n in range(50, 20_001, 50):
        sketch.update(rng.normal(5, 1, size=(50, 1)))
        knots = sketch.knots()
        rank = ranks(knots, 0, np.array([5.0]))[0]
        for name, reached in (
            ("mean_below_rank_0.75", rank < 0.75),
            ("mean_below_rank_0.6", rank < 0.6),
            ("old_mean_out_of_range", knots.values.min() > 0),
        ):
            if reached:
                rank_of_mean.setdefault(name, n)
    return rank_of_mean


if __name__ == "__main__":
    main()
