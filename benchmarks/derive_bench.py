"""What derived features cost: a line of JSON with CPU time, memory and bytes of state.

Records with eight derived features against records that have the same values as eight plain fields: one partition, the
default views, batches of 256, on one core. The second half of the records is measured; of five runs the median counts.

    python benchmarks/derive_bench.py [--records 20000] [--keys 300]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

from fomo_stream.detector.detector import Detector
from fomo_stream.loading import load_ready
from fomo_stream.model.architecture import Model
from fomo_stream.partition.partition import Waiting
from fomo_stream.partition.record import FileItem
from fomo_stream.partition.running import Running
from fomo_stream.records.derivations import parse_derivations
from fomo_stream.records.derived import DerivedFeatures
from fomo_stream.records.schema import Schema
from fomo_stream.settings.commands import ScoreSettings

DERIVE = (
    *("count(10m)", "gap()", "sum(amount,24h)", "mean(amount,7d)", "distinct(shop,24h)", "new(device)", "share(shop)"),
    "speed(lat,lon)",
)
BATCH, RUNS = 256, 5


def payments(n: int, n_keys: int) -> list[dict[str, Any]]:
    """Each of `n_keys` users has about one in 150 minutes."""
    rng, at = random.Random(0), 1.7e9
    found: list[dict[str, Any]] = []
    for _ in range(n):
        at += rng.expovariate(n_keys / 9000)
        names = {"user": f"u{rng.randrange(n_keys)}", "shop": f"s{rng.randrange(20)}", "device": f"d{rng.randrange(3)}"}
        place = {"lat": 50 + rng.random(), "lon": 8 + rng.random()}
        found.append({**names, **place, "at": round(at, 3), "amount": rng.lognormvariate(3, 0.5)})
    return found


def us_a_record(
    model: Model, records: Sequence[dict[str, Any]], derive: tuple[str, ...], names: Sequence[str]
) -> float:
    """CPU time of the second half of the records."""
    settings = ScoreSettings(file="-", key="user", time="at", derive=derive)
    first = Detector(model, len(names), settings.detector_config())
    partition = Running(Waiting(0, settings), first, Schema(tuple(names)))
    items = [FileItem(at, record, record["user"], None) for at, record in enumerate(records)]
    half, began = len(items) // 2 // BATCH * BATCH, 0.0
    for start in range(0, len(items), BATCH):
        began = time.process_time() if start == half else began
        partition.score(items[start : start + BATCH])
    return 1e6 * (time.process_time() - began) / (len(items) - half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=300)
    given = parser.parse_args()
    records, model = payments(given.records, given.keys), load_ready()
    tracemalloc.start()
    derived = DerivedFeatures(parse_derivations(DERIVE), 100_000)
    made = derived.follow(records, [one["user"] for one in records], [round(1000 * one["at"]) for one in records])
    del made[1:]
    memory, state = tracemalloc.get_traced_memory()[0], derived.changes()
    tracemalloc.stop()
    derived = DerivedFeatures(parse_derivations(DERIVE), 100_000)
    made = derived.follow(records, [one["user"] for one in records], [round(1000 * one["at"]) for one in records])
    plain = [{"user": one["user"], "at": one["at"], **{f"f{i}": one[n] for i, n in enumerate(DERIVE)}} for one in made]
    us_a_record(model, plain[:2000], (), [f"f{i}" for i in range(8)])
    times = [
        (us_a_record(model, plain, (), [f"f{i}" for i in range(8)]), us_a_record(model, records, DERIVE, DERIVE))
        for _ in range(RUNS)
    ]
    of_plain, of_derived = (statistics.median(column) for column in zip(*times, strict=True))
    report = {
        "keys": given.keys,
        "plain_us": round(of_plain, 1),
        "derived_us": round(of_derived, 1),
        "ratio": round(statistics.median(one / other for other, one in times), 2),
        "memory_bytes_a_key": round(memory / len(state)),
        "state_bytes_a_key": round(sum(len(value or b"") for value in state.values()) / len(state)),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
