"""The cost of learning without scoring: CPU time a record, longest pause, and bytes of state by kind of entry.

    python benchmarks/learning_bench.py [--features 10 50] [--records 100000]

Scores are random numbers and a model that costs nothing builds the generations, so that only learning is measured.
Times are of an established stream, without builds. Bytes are values of state entries that are written for each record,
as the service writes them, for commits of 5 and of 256 records; `young` is the mean over the first 10,000 records,
`established` over the 20,000 before `--records`. Generations are counted on their own, as their size depends on the
model. Prints one JSON line for each number of features.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "detector"))

from streams import MODEL
from suite.contenders import sensor_rows

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.context import Context
from fomo_stream.detector.detector import Detector, DetectorCall
from fomo_stream.partition.labels import RecordIndex
from fomo_stream.partition.position import SavedPosition

YOUNG, LAST = 10_000, 20_000  # records
BATCHES = (64, 512)
TIMED = 16_384  # records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--records", type=int, default=100_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for d in options.features:
        report: dict[str, Any] = {"features": d, "learning": cost(d)}
        for size in (256, 5) if d == options.features[0] else (256,):
            report[f"bytes_{size}_records_a_commit"] = bytes_by_kind(d, size, options.records)
        print(json.dumps(report), flush=True)


def cost(d: int) -> dict[str, Any]:
    """CPU microseconds a record and the longest call, by records a call."""
    rng = np.random.default_rng(0)
    detector = Detector(MODEL, d, DetectorConfig())
    detector.process(sensor_rows(20_000, d))
    rows, logits = sensor_rows(TIMED, d, seed=1), rng.normal(size=TIMED)
    found: dict[str, Any] = {}

    def patched(_: Detector, call: DetectorCall, *_known: Any) -> None:
        scores = call.work.scores
        scores.logit[: call.k], scores.by_view[: call.k] = logits[: call.k], logits[: call.k, None]
        scores.by_key[: call.k], scores.confidence[: call.k], scores.generation[: call.k] = np.nan, 0.0, 0

    with patch.object(Detector, "_score_visits", patched), patch.object(Context, "is_due", lambda *_: False):
        for batch in BATCHES:
            times = []
            gc.disable()
            for first in range(0, TIMED, batch):
                begun = time.thread_time()
                detector.process(rows[first : first + batch])
                times.append(time.thread_time() - begun)
            gc.enable()
            found[f"us_a_record_batch_{batch}"] = round(1e6 * sum(times) / TIMED, 2)
            found[f"longest_call_ms_batch_{batch}"] = round(1e3 * max(times), 3)
            found[f"median_call_ms_batch_{batch}"] = round(1e3 * float(np.median(times)), 3)
    changes = []
    detector.changes()
    for first in range(0, 5120, 256):
        detector.process(rows[first : first + 256])
        begun = time.thread_time()
        detector.changes()
        changes.append(time.thread_time() - begun)
    found["changes_ms_256_records"] = round(1e3 * float(np.median(changes)), 3)
    return found


def bytes_by_kind(d: int, size: int, n: int) -> dict[str, dict[str, float]]:
    """Bytes of values a record, by kind of entry, and entries a commit."""
    detector, index = Detector(MODEL, d, DetectorConfig()), RecordIndex(DetectorConfig().feedback_memory)
    counts: dict[str, Counter[str]] = {"young": Counter(), "established": Counter()}
    rows = sensor_rows(n, d)
    for first in range(0, n, size):
        stop = min(first + size, n)
        detector.process(rows[first:stop])
        for number in range(first, stop):
            index.add(number, 3 * number, b"sensor-%d" % (number % 997))
        if first >= YOUNG and stop + size < n - LAST:
            continue
        entries = {f"detector/{key}": value for key, value in detector.changes().items()} | index.changes("index")
        entries["position"] = SavedPosition(3 * stop, "x" * 22).encode()
        if YOUNG <= first < n - LAST:
            continue  # what has changed since the young stream
        count = counts["young" if first < YOUNG else "established"]
        for key, value in entries.items():
            count[kind(key)] += len(value or b"")
        count.update(entries=len(entries), commits=1)
    return {period: per_record(found, size) for period, found in counts.items()}


def per_record(found: Counter[str], size: int) -> dict[str, float]:
    entries, commits = found.pop("entries"), found.pop("commits")
    each = {name: round(value / (size * commits), 1) for name, value in sorted(found.items())}
    apart = sum(value for name, value in each.items() if not name.startswith("detector/generation"))
    return {**each, "all but generations": round(apart, 1), "entries a commit": round(entries / commits, 1)}


def kind(key: str) -> str:
    """The name of an entry without its numbers."""
    return "/".join(part for part in key.split("/") if not part.isdigit())


if __name__ == "__main__":
    main()
