"""Memory: the largest resident set of a process, with one large context, and for each further partition.

    python -m suite.memory VARIANT CONTEXT PARTITIONS RECORDS

run in benchmarks, prints the MiB of a process that scores so many records in each of so many partitions; with no
partition, of one that has loaded the model and scored a few rows. Needs Linux.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from .report import Absent, Measurement, Sizes
from .scale import Scale

FEATURES = 10
WARM_UP = 500  # records; compiles the kernels that are not in the cache yet, which takes memory


def measure(scale: Scale) -> Iterator[Measurement | Absent]:
    """The detector without Kafka, for each of our variants."""
    if not Path("/proc/self/status").is_file():
        yield Absent("memory", "it is read from /proc/self/status, which this system lacks")
        return
    from .contenders import models

    small = scale.memory_contexts[1]
    for name, _ in models():
        peak_of(name, small, 1, WARM_UP)
        sizes: Sizes = {"variant": name, "features": FEATURES}
        yield Measurement("memory", {"of": "model", **sizes}, peak_of(name, small, 0, 0), "MiB")
        yield from contexts(name, lambda *given, name=name: peak_of(name, *given), scale)


def contexts(variant: str, peak: Callable[[int, int, int], float], scale: Scale) -> Iterator[Measurement]:
    """A process with one context, large and small, and what each further partition adds.

    peak: MiB by context size, partitions and records of each partition.
    """
    large, small = scale.memory_contexts
    records, more = scale.memory_records, scale.more_partitions
    one = peak(small, 1, records)
    for of, size, mib in (
        ("one context", large, peak(large, 1, records)),
        ("one context", small, one),
        ("further partition", small, (peak(small, 1 + more, records) - one) / more),
    ):
        sizes: Sizes = {"variant": variant, "context": size, "features": FEATURES, "records": records}
        yield Measurement("memory", {"of": of, **sizes}, mib, "MiB")


def peak_of(variant: str, context: int, partitions: int, records: int) -> float:
    """MiB of a process of its own (a new program's peak counts from 0)."""
    command = [sys.executable, "-m", "suite.memory", variant, *map(str, (context, partitions, records))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return float(done.stdout)


def peak_mib(process: str | int = "self") -> float:
    """The largest resident set so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def main(variant: str, context: str, partitions: str, records: str) -> None:
    from fomo_stream import Detector, DetectorConfig
    from fomo_stream.model.scoring import encode_rows, logits_of

    from .contenders import models, sensor_rows

    model = next(model for name, model in models() if name == variant)
    rows = sensor_rows(64, FEATURES)
    logits_of(model, encode_rows(model, rows), rows)
    config = DetectorConfig(context_size=int(context), min_context=min(200, int(context)))
    detectors = [Detector(model, FEATURES, config) for _ in range(int(partitions))]
    for number, detector in enumerate(detectors):
        rows = sensor_rows(int(records), FEATURES, seed=number)
        for start in range(0, len(rows), 64):
            detector.process(rows[start : start + 64])
    print(peak_mib())


if __name__ == "__main__":
    main(*sys.argv[1:])
