"""The command line of the suite."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .report import Absent, Measurement, Report, comparison, table, written_into
from .scale import Scale
from .timing import environment

PAGE = Path("docs/performance.md")  # of this repository, in which it runs


FULL = Scale()
QUICK = Scale(
    contexts=(1000,),
    features=(10, 50),
    builds=((1000, 10),),
    repeats=3,
    river_learned=3,
    river_records=128,
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
