"""Reports of an evaluation in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from pretrain.evaluation.comparison import Scoreboard, wilcoxon_p_values
from pretrain.evaluation.ranking_metrics import METRICS
from pretrain.evaluation.runs import Run
from pretrain.evaluation.stress import StressRow

TITLES = {"auroc": "AUROC", "aupr": "AUPR", "f1": "F1"}


def tables_report(
    boards: dict[str, Scoreboard],
    runs: Sequence[Run],
    models: Sequence[str],
    setting: str,
    plots: Iterable[str],
) -> str:
    """The report on a folder of tables. boards: by metric; models: the zero-shot models among the methods; plots:
    file names."""
    board = boards["auroc"]
    failures = [run for run in runs if run.error]
    parts = ["# Evaluation", setting, _summary(boards, runs)]
    for model in models:
        if len(board.methods) > 1:
            parts.append(_tests(boards, model))
    for metric, each in boards.items():
        parts.append(_per_dataset(each, TITLES[metric]))
    parts += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in plots]
    if failures:
        lines = [f"- {run.dataset}, seed {run.seed}, {run.method}: {run.error}" for run in failures]
        parts.append("## Failed\n\nThese datasets are left out above.\n\n" + "\n".join(lines))
    if affected := sum(run.nonfinite > 0 for run in runs):
        parts.append(f"{affected} runs gave scores that are not finite; they were ranked last (see `nonfinite`).")
    return "\n\n".join(parts) + "\n"


def _summary(boards: dict[str, Scoreboard], runs: Sequence[Run]) -> str:
    board = boards["auroc"]
    ranks = {metric: each.ranks().mean(0) for metric, each in boards.items()}
    rows = []
    for j in np.argsort(ranks["auroc"], kind="stable"):
        method = board.methods[j]
        seconds = [run.fit_seconds + run.score_seconds for run in runs if run.method == method and not run.error]
        cells = [method, *(f"{boards[metric].mean[:, j].mean():.2f}" for metric in METRICS)]
        cells += [f"{ranks[metric][j]:.2f}" for metric in METRICS]
        rows.append([*cells, f"{np.mean(seconds):.2f}"])
    heads = ["method", *TITLES.values(), *(f"rank {title}" for title in TITLES.values()), "s per run"]
    count = f"{len(board.datasets)} datasets, means in percent; rank 1 is the best."
    return f"## Summary\n\n{count}\n\n{markdown_table(heads, rows)}"


def _tests(boards: dict[str, Scoreboard], model: str) -> str:
    rows = []
    for metric, board in boards.items():
        rows.append([TITLES[metric], *map(_p_cell, wilcoxon_p_values(board, model).values())])
    others = [method for method in boards["auroc"].methods if method != model]
    text = (
        f"## {model} against the others\n\np of the one-sided Wilcoxon signed rank test, alternative "
        f'"baseline minus {model} is above zero": below 0.05 (underlined) the baseline is better, above 0.95 (bold) '
        f"{model} is better; -: too few datasets on which the two differ."
    )
    return f"{text}\n\n{markdown_table(['metric', *others], rows)}"


def _p_cell(p: float) -> str:
    if math.isnan(p):
        return "-"
    return f"**{p:.3f}**" if p > 0.95 else f"<u>{p:.3f}</u>" if p < 0.05 else f"{p:.3f}"


def _per_dataset(board: Scoreboard, title: str) -> str:
    rows = []
    for i, name in enumerate(board.datasets):
        cells = [f"{m:.2f} ± {s:.2f}" for m, s in zip(board.mean[i], board.spread[i], strict=True)]
        top = board.mean[i] == board.mean[i].max()
        rows.append(
            [name, f"{board.features[i]:g}", *(f"**{c}**" if t else c for c, t in zip(cells, top, strict=True))]
        )
    rows.append(["mean", "", *(f"{value:.2f}" for value in board.mean.mean(0))])
    rows.append(["mean rank", "", *(f"{value:.2f}" for value in board.ranks().mean(0))])
    table = markdown_table(["dataset", "d", *board.methods], rows)
    return f"## {title} of each dataset\n\nMean ± standard deviation over seeds, in percent.\n\n{table}"


def stress_report(runs: Sequence[Run], rows: Sequence[StressRow], setting: str) -> str:
    """The report on the stress table: means over datasets, standard errors and standard deviations."""
    methods = list(dict.fromkeys(run.method for run in runs))
    parts = ["# Synthetic stress table", setting]
    for i, metric in enumerate(METRICS):
        body = []
        for row in rows:
            cells = [row.name, f"{row.published[i]:.2f}"]
            for method in methods:
                values = [
                    getattr(run, metric)
                    for run in runs
                    if run.dataset == row.name and run.method == method and not run.error
                ]
                cells.append(mean_and_error(values))
            body.append(cells)
        table = markdown_table(["datasets", "the paper's FoMo-0D", *methods], body)
        parts.append(f"## {TITLES[metric]}\n\n{table}")
    if failures := sum(bool(run.error) for run in runs):
        parts.append(f"{failures} runs failed and are left out; see `error` in the CSV.")
    return "\n\n".join(parts) + "\n"


def mean_and_error(values: Sequence[float]) -> str:
    """`97.12 ± 0.40 (sd 2.80, n 50)`: mean, standard error, standard deviation and number of the values; for a single
    value `97.12 (n 1)`."""
    if len(values) < 2:
        return f"{values[0]:.2f} (n 1)" if values else "-"
    spread = float(np.std(values, ddof=1))
    error = spread / math.sqrt(len(values))
    return f"{np.mean(values):.2f} ± {error:.2f} (sd {spread:.2f}, n {len(values)})"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A pipe table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
