"""The command line of the suite, and how much it measures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .report import Absent, Measurement, Report, comparison, table, written_into
from .timing import environment

PAGE = Path("docs/performance.md")  # of this repository, in which it runs


@dataclass(frozen=True)
class Load:
    """What the service gets. Counts are records."""

    partitions: int = 4
    other_partitions: tuple[int, ...] = (1, 8)  # of further services, which are measured while young
    young: int = 40_000
    established: int = 100_000  # of each partition, before the measured stretch
    stretch: int = 60_000
    warm: int = 40_000  # before latencies are measured
    rate: float = 1000.0  # records/s ...
    seconds: float = 30.0  # ... for so long


@dataclass(frozen=True)
class Scale:
    """Sizes and repeats of a run."""

    contexts: tuple[int, ...] = (1000, 5000)  # rows
    features: tuple[int, ...] = (10, 50, 500)
    batches: tuple[int, ...] = (1, 64)  # rows of a scoring call
    builds: tuple[tuple[int, int], ...] = ((1000, 10), (5000, 10), (1000, 50))  # context rows, features
    codec_features: tuple[int, ...] = (10, 50)
    repeats: int = 7
    seconds: float = 0.05  # CPU time of a repeat, at least
    river_context: int = 1000  # rows
    river_learned: int = 100  # contexts' worth of records before the measurement: the stream is established
    river_records: int = 640  # of a repeat
    confidence_records: int = 8192  # of a repeat: several builds
    metrics_records: int = 60_000
    memory_contexts: tuple[int, int] = (5000, 1000)  # one large context; contexts of further partitions
    memory_records: int = 12_000  # of each partition; the history is full then
    more_partitions: int = 8
    replay_records: int = 40_000
    guilty_features: tuple[int, ...] = (5, 10, 20, 50)
    guilty_cases: int = 10  # at most, of each kind, family of streams and number of features
    explained_batches: int = 200  # of 64 records
    drift_seeds: int = 3
    drift_records: int = 12_000
    load: Load | None = Load()  # None: the service, which takes minutes, is left out


FULL = Scale()
QUICK = Scale(
    contexts=(1000,),
    features=(10, 50),
    builds=((1000, 10),),
    repeats=3,
    river_learned=3,
    river_records=128,
    confidence_records=1024,
    metrics_records=10_000,
    memory_records=2000,
    replay_records=10_000,
    guilty_features=(10,),
    guilty_cases=5,
    explained_batches=40,
    drift_seeds=1,
    drift_records=6000,
    load=None,
)


Benchmark = Callable[[Scale], Iterable[Measurement | Absent]]


NAMES = (
    "scoring",
    "build",
    "codec",
    "river",
    "confidence",
    "explaining",
    "drift",
    "metrics",
    "memory",
    "replay",
    "service",
)


def benchmarks() -> Mapping[str, Benchmark]:
    """The benchmarks by name, in the order in which they run."""
    import torch

    from . import memory, metrics, opinions, replay, service, speed

    torch.set_num_threads(1)
    measures = (
        speed.scoring,
        speed.build,
        speed.codec,
        speed.river,
        opinions.confidence,
        opinions.explaining,
        opinions.drift,
        metrics.measure,
        memory.measure,
        replay.measure,
        service.measure,
    )
    return dict(zip(NAMES, measures, strict=True))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure speed, latency and memory.")
    made.add_argument("--only", metavar="NAMES", help=f"some of {','.join(NAMES)} (default: all)")
    made.add_argument("--quick", action="store_true", help="small sizes, and no service: about a minute")
    made.add_argument("--records", type=int, metavar="N", help="records of the replay (the bar: 1000000)")
    made.add_argument("--out", type=Path, metavar="FILE", help="write the measurements as JSON")
    made.add_argument("--docs", action="store_true", help=f"write the measurements into {PAGE}")
    made.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="compare two files, run nothing")
    return made


def run(names: Sequence[str], scale: Scale) -> Report:
    """Measure these benchmarks."""
    report, available = Report(environment()), benchmarks()
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        report.add(available[name](scale))
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if options.compare:
        try:
            print(comparison(*map(Report.read, options.compare)))
        except (OSError, ValueError) as error:
            made.error(f"cannot compare: {error}")
        return 0
    names = list(NAMES) if options.only is None else options.only.split(",")
    if unknown := sorted(set(names) - set(NAMES)):
        made.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.out and not options.out.absolute().parent.is_dir():  # a run takes minutes
        made.error(f"--out {options.out}: there is no folder {options.out.parent}")
    scale = QUICK if options.quick else FULL
    if options.records is not None:
        scale = replace(scale, replay_records=options.records)
    report = run(names, scale)
    if options.out is not None:
        report.write(options.out)
    if options.docs:
        PAGE.write_text(written_into(PAGE.read_text(), report))
    print(table(report))
    return 0
