"""`python -m pretrain evaluate`: compare models and baselines on labelled tables, or on the synthetic stress table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

from fomo_stream.errors import ConfigError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.checkpoint import TABLE_MODEL, shipped_models
from pretrain.commands.flags import add_machine, listed
from pretrain.evaluation import stress
from pretrain.evaluation.comparison import scoreboard
from pretrain.evaluation.detectors import BASELINES, USUAL, Method, baselines, limit_threads, models
from pretrain.evaluation.plots import plot_comparison
from pretrain.evaluation.published import read_published
from pretrain.evaluation.ranking_metrics import METRICS
from pretrain.evaluation.report import SPLITS, html_page, stress_report, tables_report
from pretrain.evaluation.runs import Pending, Run, run_all
from pretrain.evaluation.tables import Table, Task, draw_task, published_split, read_table, table_files
from pretrain.training.run_files import replace_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="folder of tables: .npz with arrays X and y, or .csv"
    )
    parser.add_argument("--stress", action="store_true", help="use the synthetic stress table of the paper instead")
    parser.add_argument(
        "--model",
        action="append",
        metavar="A,B,..",
        help=f"names or .safetensors files, or all that are shipped; may be repeated (default: {TABLE_MODEL})",
    )
    parser.add_argument(
        "--baselines",
        metavar="A,B,..",
        help=f"any of {','.join(BASELINES)}, or all, or none (default: {','.join(USUAL)}; with --stress none)",
    )
    parser.add_argument("--datasets", metavar="A,B,..", help="only these tables, or these rows of the stress table")
    parser.add_argument(
        "--seeds", type=int, metavar="N", default=5, help="random splits per table (default: %(default)s)"
    )
    parser.add_argument(
        "--context",
        metavar="ROWS,..",
        default=str(MAX_CONTEXT),
        help="maximum of context rows; several compare every method at each of them (default: %(default)s)",
    )
    parser.add_argument(
        "--max-test",
        type=int,
        metavar="ROWS",
        default=10_000,
        help="maximum of query rows per table, 0: all (default: %(default)s)",
    )
    parser.add_argument("--label", metavar="COLUMN", help="label column of .csv tables (default: the last)")
    parser.add_argument(
        "--contaminated",
        type=float,
        metavar="SHARE",
        default=0.0,
        help="share of outliers among the context rows, 0 to 0.5 (default: %(default)s, as in the paper)",
    )
    parser.add_argument(
        "--split",
        choices=SPLITS,
        help="; ".join(f"{name}: the context is {text}" for name, text in SPLITS.items())
        + " (default: published with --published, else random)",
    )
    parser.add_argument(
        "--published",
        type=Path,
        metavar="DIR",
        help="folder of published results (semi_*.xlsx, avg_*.csv): print ranks and p of ours among them, as the paper",
    )
    parser.add_argument(
        "--datasets-per-row",
        type=int,
        metavar="N",
        default=1000,
        help="datasets per row of the stress table (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="directory of the report (default: evaluation/DIR or evaluation/stress)"
    )
    add_machine(parser, threads=1)


def run(options: argparse.Namespace) -> int:
    if (options.folder is None) == (not options.stress):
        raise ConfigError("give a folder of tables, or --stress")
    if min(options.seeds, options.threads, options.datasets_per_row) < 1:
        raise ConfigError("--seeds, --threads and --datasets-per-row need at least 1")
    if options.max_test < 2 and options.max_test != 0:
        raise ConfigError(f"--max-test {options.max_test}: an inlier and an outlier are 2 rows; 0 takes all")
    if not 0 <= options.contaminated <= 0.5:
        raise ConfigError(f"--contaminated {options.contaminated:g}: a share of 0 to 0.5")
    contexts = [int(text) if text.isdecimal() else 0 for text in listed(options.context)]
    if not contexts or len(set(contexts)) < len(contexts) or not all(2 <= rows <= MAX_CONTEXT for rows in contexts):
        raise ConfigError(f"--context {options.context}: a context has 2 to {MAX_CONTEXT} rows; give each size once")
    with limit_threads(options.threads):
        return _run_stress(options, contexts) if options.stress else _run_tables(options, contexts)


def _run_tables(options: argparse.Namespace, contexts: list[int]) -> int:
    published = read_published(options.published) if options.published else None
    split = options.split or ("published" if published else "random")
    files = table_files(options.folder, listed(options.datasets))
    # read all tables first: a mistake in the last one must not appear after hours
    digests = {name: read_table(path, options.label).digest for name, path in files.items()}
    how = f"-{options.contaminated:g}" * (options.contaminated > 0) + f"-{split}" * (split != "random")
    digests = {name: digest + how for name, digest in digests.items()}

    @lru_cache(maxsize=1)
    def read(name: str) -> Table:
        return read_table(files[name], options.label)

    def draw(name: str, seed: int, context: int) -> Task:
        table = published_split(read(name), seed) if split == "published" else read(name)
        return draw_task(table, seed, context, options.max_test, options.contaminated)

    found = models(_models(options.model), options.device)
    out = options.out or Path("evaluation") / options.folder.resolve().name
    methods = {**found, **_baselines(options.baselines or ",".join(USUAL))}

    def runs_at(context: int) -> list[Run]:
        each = product(files, range(options.seeds))
        tasks = [Pending(name, seed, partial(draw, name, seed, context), digests[name]) for name, seed in each]
        return run_all(tasks, methods, out / "results.csv", context, options.max_test)

    runs = _at_each(contexts, runs_at)
    ours = list(dict.fromkeys(run.method for run in runs if run.method.removesuffix(f", {run.context} rows") in found))
    names = published.names_of(files) if published else {}
    boards = {metric: scoreboard(runs, metric, names)[0] for metric in METRICS}
    if not boards["auroc"].datasets:
        raise ConfigError(f"on every table some method failed; see the errors in {out / 'results.csv'}")
    drawn = {metric: published.among(board, metric, ours) for metric, board in boards.items()} if published else boards
    plots = plot_comparison(drawn, ours, out)
    cut = f"at most {options.max_test} queries, " if options.max_test else ""
    polluted = f", {options.contaminated:.0%} of them outliers" if options.contaminated else ""
    setting = (
        f"{len(files)} tables, {options.seeds} seeds; context: {SPLITS[split]}, at most {options.context} "
        f"rows{polluted}; {cut}weighted as the whole table."
    )
    report = tables_report(boards, runs, ours, setting, plots, published)
    replace_file(out / "report.html", lambda path: path.write_text(html_page(report, out), encoding="utf-8"))
    return _finish(report, out, "\n## AUROC of each dataset" if published else "\n### AUPR")


def _run_stress(options: argparse.Namespace, contexts: list[int]) -> int:
    names = listed(options.datasets)
    if unknown := [name for name in names if name not in stress.ROWS]:
        raise ConfigError(f"there is no row {', '.join(unknown)}; there are {', '.join(stress.ROWS)}")
    rows = [stress.ROWS[name] for name in names] or list(stress.ROWS.values())
    methods = {**models(_models(options.model), options.device, bare=True), **_baselines(options.baselines or "none")}
    out = options.out or Path("evaluation") / "stress"

    def runs_at(context: int) -> list[Run]:
        each = product(range(options.datasets_per_row), rows)  # all rows of the stress table grow together
        tasks = [Pending(row.name, number, partial(stress.stress_task, row, number, context)) for number, row in each]
        return run_all(tasks, methods, out / "results.csv", context, stress.QUERIES)

    runs = _at_each(contexts, runs_at)
    setting = (
        f"{options.datasets_per_row} datasets per row, {stress.QUERIES} queries, {stress.OUTLIER_SHARE:.0%} of them "
        f"outliers, context of {options.context} rows. Mean ± standard error (sd: between datasets), in percent."
    )
    return _finish(stress_report(runs, rows, setting), out, "\n## AUPR")


def _at_each(contexts: list[int], runs_at: Callable[[int], list[Run]]) -> list[Run]:
    """The runs with contexts of each size. If there are several, the size is a part of the name of a method."""
    runs = [run for context in contexts for run in runs_at(context)]
    return [replace(run, method=f"{run.method}, {run.context} rows") for run in runs] if contexts[1:] else runs


def _finish(report: str, out: Path, end: str) -> int:
    """Write the report; print it as far as `end`."""
    replace_file(out / "report.md", lambda path: path.write_text(report, encoding="utf-8"))
    print(report.partition(end)[0])
    print(f"wrote {out / 'report.md'}")
    return 0


def _baselines(text: str) -> dict[str, Method]:
    return baselines({"all": BASELINES, "none": ()}.get(text, listed(text)))


def _models(texts: list[str] | None) -> list[str]:
    names = [name for text in texts or () for name in listed(text)] or [TABLE_MODEL]
    return shipped_models() if names == ["all"] else names
