"""`python -m pretrain profile`: compare the evidence profile of a prior with that of real tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fomo_stream.errors import ConfigError
from fomo_stream.model.checkpoint import resolve_device
from pretrain.commands.flags import add_machine, add_settings, configuration, listed, use_threads
from pretrain.evaluation.evidence_profile import (
    Profile,
    prior_areas,
    profile_of,
    report_text,
    table_areas,
)
from pretrain.priors.mixture import BatchSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument(
        "--batches", type=int, metavar="N", default=40, help="batches of the prior (default: %(default)s)"
    )
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="folder of real tables: .npz with arrays X and y, or .csv"
    )
    parser.add_argument("--label", metavar="COLUMN", help="label column of .csv tables (default: the last)")
    parser.add_argument("--names", metavar="A,B,..", help="only these tables")
    parser.add_argument(
        "--context", type=int, metavar="ROWS", default=1000, help="context rows of a real table (default: %(default)s)"
    )
    parser.add_argument(
        "--splits", type=int, metavar="N", default=2, help="random splits of a real table (default: %(default)s)"
    )
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    if options.batches < 1 or options.splits < 1 or options.context < 2:
        raise ConfigError("--batches and --splits need at least 1, --context at least 2")
    if options.names and options.tables is None:
        raise ConfigError("--names selects real tables; give their folder with --tables")
    use_threads(options.threads)
    config = configuration(options)
    tables: Profile | None = None
    if options.tables is not None:
        areas = table_areas(options.tables, listed(options.names), options.context, options.splits, options.label)
        tables = profile_of(areas, config.min_auc, config.max_auc, options.splits)
    source = BatchSource(config.data, config.seed, resolve_device(options.device))
    prior = profile_of(prior_areas(source, options.batches, _progress), config.min_auc, config.max_auc)
    print(report_text(prior, tables))
    return 0


def _progress(step: int) -> None:
    if sys.stderr.isatty():
        print(f"\rbatch {step + 1}", end="\r", file=sys.stderr, flush=True)
