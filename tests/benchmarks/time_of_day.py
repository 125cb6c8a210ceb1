"""Is a value of the highest hour found in the lowest one? On generated streams with a daily or weekly pattern.

    python -m tests.benchmarks.time_of_day                 # 200 streams, with the time of day and without
    python -m tests.benchmarks.time_of_day --streams DIR   # also what the time of day costs real streams

With --streams DIR..., each stream of a folder (`X` and `y` in .npz files) is scored as if it had a record a minute,
with the time of day and without: AUROC and average precision. Prints a JSON line for each case, and one of all last.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from fomo_stream import Detector, DetectorConfig, load_model
from fomo_stream.detector.results import Results

Float = NDArray[np.float64]
CYCLES = ((24, 1), (168, 1))  # hours of the day, and of the week


def case(seed: int) -> tuple[Float, Float]:
    """Rows (n, d) and hours (n,) of a stream of 3 to 5 weeks; in the last row one feature is as in the highest hour."""
    rng = np.random.default_rng(seed)
    weeks, per, d = int(rng.integers(3, 6)), int(rng.choice([1, 4, 6])), int(rng.integers(1, 6))
    shape, noise, patterned = rng.choice(["sine", "square", "bump"]), rng.uniform(0.1, 0.35), rng.integers(1, d + 1)
    hours = np.arange(weeks * 168 * per) / per
    since = (hours - rng.uniform(0, 24)) % 24
    level = {
        "sine": np.sin(since / 24 * 2 * np.pi),
        "square": np.where(since < 12, 1.0, -1.0),
        "bump": 2 * np.exp(-(((since - 12) / 3) ** 2)) - 1,
    }[str(shape)]
    is_weekly = seed % 2 == 1
    period = (168 if is_weekly else 24) * per
    if is_weekly:
        level = np.where(hours % 168 >= 120, -1.0, level)
    rows = rng.normal(0, noise, (len(hours), d))
    rows[:, :patterned] += level[:, None] * rng.uniform(0.8, 1.2, patterned)
    rows = rows * rng.uniform(0.5, 50, d) + rng.normal(0, 100, d)
    rng.integers(0, 24 * per)  # not used: without it these would be other cases than those of the documented figures
    cycle = level[:period]
    high, low = np.flatnonzero(cycle > cycle.max() - 0.05), np.flatnonzero(cycle < cycle.min() + 0.05)
    if is_weekly:  # the same hour, on a day of rest
        low = low[(low >= 120 * per) & np.isin(low % (24 * per), high % (24 * per))]
    at = int(rng.choice(low))
    last = len(hours) - period + at
    source = last - at + int(rng.choice(high)) - period
    column = rng.integers(patterned)
    rows[last, column] = rows[source, column]
    return rows[: last + 1], hours[: last + 1]


def scored(rows: Float, hours: Float, with_time: bool) -> Results:
    """Results of all rows (n, d), 256 at a time."""
    config = DetectorConfig(cycles=CYCLES if with_time else ())
    if with_time:
        rows = np.column_stack([rows, hours % 24, hours % 168])
    detector = Detector(load_model(), rows.shape[1] - len(config.cycles), config)
    return Results.concatenate([detector.process(rows[a : a + 256]) for a in range(0, len(rows), 256)])


def of_stream(path: Path, with_time: bool) -> dict[str, Any]:
    """How well the outliers of a real stream are ranked, without its first records."""
    data = np.load(path)
    rows, outlier = data["X"].astype(np.float32).astype(np.float64), data["y"].astype(int)
    if len(rows) > 26_000:
        rows, outlier = rows[::2], outlier[::2]
    results = scored(rows, np.arange(len(rows)) / 60, with_time)
    judged = slice(max(500, len(rows) // 10), None)
    logit, outlier = np.nan_to_num(results.remembered_logit, nan=-1e9)[judged], outlier[judged]
    known = float(np.mean(~np.isnan(results.by_key)))  # of records that a season says something of
    auroc, ap = roc_auc_score(outlier, logit), average_precision_score(outlier, logit)
    return {"stream": path.stem, "with_time": with_time, "auroc": auroc, "ap": ap, "known": known}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--streams", type=Path, nargs="*", default=[])
    args = parser.parse_args()
    found = {}
    for with_time in (True, False):
        hits = []
        for seed in range(args.cases):
            hits.append(bool(scored(*case(seed), with_time).outlier[-1]))
            print(json.dumps({"case": seed, "with_time": with_time, "found": hits[-1]}), flush=True)
        found["with" if with_time else "without"] = float(np.mean(hits)) if hits else None
    for path in (path for folder in args.streams for path in sorted(folder.glob("*.npz"))):
        for with_time in (True, False):
            print(json.dumps(of_stream(path, with_time)), flush=True)
    print(json.dumps({"found": found, "cases": args.cases}))


if __name__ == "__main__":
    main()
