"""What keys cost: CPU time and bytes of state a record, memory, and the time to come back.

    python benchmarks/keyed_cost.py [--before 160000]

The records of a partition have 10 features and keys drawn at random. They are scored in batches of 256 and of 64, with
a commit every 256 records, after so many records before. Prints a Markdown table: a row for records without keys, of
one key, of 64 and of 100,000 keys with shared contexts, and of 64 keys with contexts of their own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from typing import cast

import numpy as np

from fomo_stream import Detector, DetectorConfig, load_model

CASES = ((0, 0), (1, 0), (64, 0), (64, 64), (100_000, 64))  # keys, own contexts
MEASURED, FEATURES, COMMIT = 12_800, 10, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=int, default=160_000, metavar="N", help="records before those measured")
    options = parser.parse_args()
    print(
        "| keys | contexts of their own | us, batches of 256 | us, of 64 | state, bytes | memory, MiB | back after, s |"
    )
    print("|---" * 7 + "|", flush=True)
    for n_keys, own in CASES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # memory is of a process
            found = pool.apply(measured, (n_keys, own, options.before))
        large, small, state, memory, back = found
        print(
            f"| {n_keys:,} | {own} | {large:.0f} | {small:.0f} | {state:.0f} | {memory:.0f} | {back:.2f} |", flush=True
        )


def measured(n_keys: int, own: int, before: int) -> tuple[float, float, float, float, float]:
    """Microseconds a record in batches of 256 and of 64, bytes of state a record, MiB, and seconds to come back."""
    rng = np.random.default_rng(0)
    config, model = DetectorConfig(own_contexts=own), load_model("default", "cpu")
    detector = Detector(model, FEATURES, config)

    def score(n: int, batch: int) -> int:
        """Score n records; the bytes of state that were written."""
        written = 0
        for _ in range(0, n, COMMIT):
            rows = rng.normal(size=(COMMIT, FEATURES))
            keys = [f"key-{k}" for k in rng.integers(0, n_keys, COMMIT)] if n_keys else None
            for start in range(0, COMMIT, batch):
                part = slice(start, start + batch)
                detector.process(rows[part], keys[part] if keys else None)
            written += sum(len(name) + len(value or b"") for name, value in detector.changes().items())
        return written

    score(before, COMMIT)
    times = []
    state = 0
    for batch in (COMMIT, 64):
        began = time.process_time()
        state = score(MEASURED, batch)
        times.append((time.process_time() - began) / MEASURED * 1e6)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    log = cast(dict[str, bytes], detector.copy().changes())
    began = time.process_time()
    again = Detector(model, FEATURES, config)
    again.recover(log)
    back = time.process_time() - began
    return times[0], times[1], state / MEASURED, memory, back


if __name__ == "__main__":
    main()
