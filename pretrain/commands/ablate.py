"""`python -m pretrain ablate`: train the variants of a study and compare their cost and quality."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fomo_stream.errors import ConfigError
from pretrain.commands.flags import add_machine, literal, setting, use_threads
from pretrain.commands.train import RunDisplay
from pretrain.evaluation.ablate import Ablation, ablate, held_back_data
from pretrain.evaluation.studies import SIZES, STUDIES, Study, Variant, configured
from pretrain.training.presets import PRESETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(f"{name} ({study.about})" for name, study in STUDIES.items())
    parser.add_argument("study", nargs="?", choices=sorted(STUDIES), metavar="STUDY", help=known)
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="PATH=V1,V2,..",
        help="instead of a study: every combination of these values, e.g. routers=100,200,500,0; may be repeated",
    )
    parser.add_argument(
        "--base",
        choices=sorted(PRESETS),
        metavar="PRESET",
        help="preset of all variants (default: that of the study, or paper-20)",
    )
    parser.add_argument(
        "--size",
        choices=SIZES,
        default="small",
        help="small: minutes on a CPU; paper: the sizes of the paper (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="length of every run in steps")
    parser.add_argument("--minutes", type=float, metavar="N", help="length of every run in minutes, instead of steps")
    parser.add_argument("--seeds", type=int, metavar="N", default=1, help="runs per variant (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="as in train, for every run")
    parser.add_argument(
        "--datasets", type=int, metavar="N", default=64, help="held-back synthetic datasets (default: %(default)s)"
    )
    parser.add_argument("--tables", type=Path, metavar="DIR", help="evaluate on these real tables too")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the study (default: ablations/STUDY)")
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    if (options.study is None) == (not options.vary):
        raise ConfigError(f"name a study ({', '.join(STUDIES)}) or give --vary PATH=V1,V2,...")
    if min(options.seeds, options.datasets) < 1:
        raise ConfigError("--seeds and --datasets need at least 1")
    use_threads(options.threads)
    study = Study("", {options.size: grid(options.vary)}) if options.vary else STUDIES[options.study]
    title = f"{options.study}, {study.about}" if options.study else ", ".join(v.partition("=")[0] for v in options.vary)
    plan = planned(study, options)
    for result in ablate(plan, title, RunDisplay()):
        print(f"{result.variant}: {result.ms_per_step:.1f} ms/step, loss {result.loss:.3f}, AUROC {result.auroc:.2f}")
    print(f"wrote {plan.out / 'report.md'}")
    return 0


def planned(study: Study, options: argparse.Namespace) -> Ablation:
    """The ablation for the flags."""
    base, size = options.base or study.base, options.size
    changes: dict[str, Any] = {}
    if options.minutes is not None:
        changes |= {"minutes": options.minutes, "steps": 10**9}
    if options.steps is not None:
        changes["steps"] = options.steps
    changes |= dict(setting(text, "--set") for text in options.set)
    variants = [(v, configured(base, size, changes | dict(v.settings))) for v in study.variants[size]]
    out = options.out or Path("ablations") / (options.study or "custom")
    contexts = study.contexts.get(size, ())
    return Ablation(
        variants,
        held_back_data(configured(base, size, changes).data, [config.data for _, config in variants], contexts),
        out,
        options.seeds,
        options.datasets,
        options.tables,
        options.device,
        contexts,
    )


def grid(vary: Sequence[str]) -> list[Variant]:
    """Every combination of values; vary: texts `PATH=V1,V2,...`. Raises ConfigError for any other text."""
    axes = []
    for text in vary:
        path, equals, values = text.partition("=")
        if not equals or not all(values.split(",")):
            raise ConfigError(f"--vary {text}: give PATH=V1,V2,..., e.g. routers=100,200,500,0")
        axes.append([(path, literal(value)) for value in values.split(",")])
    return [Variant(", ".join(f"{p}={v}" for p, v in point), dict(point)) for point in product(*axes)]
