"""`python -m pretrain ablate`: train every variant of a study and compare what it costs and how good it is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fomo_stream.errors import ConfigError
from pretrain.commands import add_machine, use_threads
from pretrain.evaluation.studies import SIZES, STUDIES, Study, configured, grid
from pretrain.training.presets import PRESETS, setting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = "; ".join(f"{name}: {study.about}" for name, study in STUDIES.items())
    parser.add_argument("study", nargs="?", choices=sorted(STUDIES), metavar="STUDY", help=known)
    parser.add_argument(
        "--vary", action="append", default=[], metavar="PATH=V1,V2,..",
        help="in place of a study: every combination of these values, e.g. routers=100,200,500,0",
    )  # fmt: skip
    parser.add_argument("--base", choices=sorted(PRESETS), help="preset that is varied (the study's, or paper-20)")
    parser.add_argument("--size", choices=SIZES, default="small", help="small: minutes on a CPU (%(default)s)")
    parser.add_argument("--steps", type=int, help="of every run")
    parser.add_argument("--minutes", type=float, help="of training for every run, instead of steps")
    parser.add_argument("--seeds", type=int, default=1, help="runs per variant (%(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="as in train, for every run")
    parser.add_argument("--datasets", type=int, default=64, help="held-back synthetic datasets (%(default)s)")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="judge on these real tables too")
    parser.add_argument("--out", type=Path, help="directory of the study (ablations/STUDY)")
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    from pretrain.evaluation.ablate import ablate

    if (options.study is None) == (not options.vary):
        raise ConfigError(f"name a study ({', '.join(STUDIES)}) or give --vary PATH=V1,V2,...")
    if min(options.seeds, options.datasets) < 1:
        raise ConfigError("--seeds and --datasets need at least 1")
    use_threads(options.threads)
    study = Study("", {options.size: grid(options.vary)}) if options.vary else STUDIES[options.study]
    title = f"{options.study}, {study.about}" if options.study else ", ".join(v.partition("=")[0] for v in options.vary)
    plan = planned(study, options)
    for result in ablate(plan, title):
        print(f"{result.variant}: {result.ms_per_step:.1f} ms/step, loss {result.loss:.3f}, AUROC {result.auroc:.2f}")
    print(f"wrote {plan.out / 'report.md'}")
    return 0


def planned(study: Study, options: argparse.Namespace) -> Any:
    """The ablation that the flags ask for: an `Ablation`."""
    from pretrain.evaluation.ablate import Ablation, judged

    base, size = options.base or study.base, options.size
    changes: dict[str, Any] = {}
    if options.minutes is not None:
        changes |= {"minutes": options.minutes, "steps": 10**9}
    if options.steps is not None:
        changes["steps"] = options.steps
    changes |= dict(setting(text, "--set") for text in options.set)
    variants = [(v, configured(base, size, changes | dict(v.settings))) for v in study.variants[size]]
    plain = configured(base, size, changes | dict(study.judged_by))
    out = options.out or Path("ablations") / (options.study or "custom")
    return Ablation(
        variants, judged(plain.data, [config.data for _, config in variants]), out,
        options.seeds, options.datasets, options.tables, options.device,
    )  # fmt: skip
