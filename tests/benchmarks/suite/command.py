"""The command line of the suite."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from .exponents import exponents
from .machine import environment
from .report import Absent, Measurement, Report
from .scale import FULL, QUICK, Scale
from .tables import comparison, table

Benchmark = Callable[[Scale], Iterable[Measurement | Absent]]


def benchmarks() -> Mapping[str, Benchmark]:
    """The benchmarks by name, in the order in which they run."""
    import torch

    from . import build, codec, confidence, drift, explaining, memory, metrics, replay, scoring, service, streaming

    torch.set_num_threads(1)
    modules = (scoring, build, codec, streaming, confidence, explaining, drift, metrics, memory, replay, service)
    return dict(zip(NAMES, (module.measure for module in modules), strict=True))


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


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure speed, latency and memory.")
    made.add_argument("--only", metavar="NAMES", help=f"some of {','.join(NAMES)} (default: all)")
    made.add_argument("--quick", action="store_true", help="small sizes, and no service: about a minute")
    made.add_argument("--records", type=int, metavar="N", help="records of the replay (the bar: 1000000)")
    made.add_argument("--out", type=Path, metavar="FILE", help="write the measurements as JSON")
    made.add_argument("--plots", type=Path, metavar="DIR", help="draw the measurements; needs matplotlib")
    made.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="compare two files, run nothing")
    return made


def run(names: Sequence[str], scale: Scale) -> Report:
    """Measure these benchmarks."""
    report, available = Report(environment()), benchmarks()
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        report.add(available[name](scale))
    report.add(exponents(report.measurements))
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
    if options.plots and find_spec("matplotlib") is None:
        made.error("--plots needs matplotlib, which is in the extra `bench`")
    scale = QUICK if options.quick else FULL
    if options.records is not None:
        scale = replace(scale, replay_records=options.records)
    show(run(names, scale), options.out, options.plots)
    return 0


def show(report: Report, out: Path | None, plots: Path | None) -> None:
    """Print the table; write the document and the pictures where they are wanted."""
    if out is not None:
        report.write(out)
    if plots is not None:
        from .plots import draw

        draw(report, plots)
    print(table(report))
