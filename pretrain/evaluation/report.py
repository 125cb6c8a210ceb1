"""Reports of an evaluation in Markdown."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pretrain.evaluation.comparison import Scoreboard, wilcoxon_p_values
from pretrain.evaluation.published import Published, is_development, subsets
from pretrain.evaluation.ranking_metrics import METRICS
from pretrain.evaluation.runs import Run
from pretrain.evaluation.stress import StressRow

SPLITS = {
    "random": "a random half of the inliers",
    "published": "the first half of the inliers in the order of the file (fewer than 1,000 rows are bootstrapped)",
}
TEST = (
    'p of the one-sided Wilcoxon signed rank test, alternative "baseline minus {model} is above zero": below 0.05 '
    "(underlined) the baseline is better, above 0.95 (bold) {model} is better; -: too few datasets on which the two "
    "differ."
)
STYLE = "<style>body {font: 15px sans-serif; margin: 2em} td {padding: 2px 8px; border-bottom: 1px solid #ddd}</style>"
RANKED = ("all", "not in development", "development")  # groups of tables that have a column of ranks
TITLES = {"auroc": "AUROC", "aupr": "AUPR", "f1": "F1"}


def tables_report(
    boards: dict[str, Scoreboard],
    runs: Sequence[Run],
    models: Sequence[str],
    setting: str,
    plots: Iterable[str],
    published: Published | None = None,
) -> str:
    """The report on a folder of tables. boards: by metric; models: the zero-shot models among the methods; plots:
    file names; published: results of others, whose names of tables `boards` has."""
    board = boards["auroc"]
    failures = [run for run in runs if run.error]
    parts = ["# Evaluation", setting, _summary(boards, runs)]
    if len(board.methods) > 1:
        parts += [against(boards, model, None) for model in models]
    if published:
        parts += [*(against(boards, model, published) for model in models), _missing(board, published)]
    for metric, each in boards.items():
        parts.append(_per_dataset(each, TITLES[metric], published is not None))
    parts += [f"![{name.removesuffix('.svg').replace('_', ' ')}]({name})" for name in plots]
    if failures:
        lines = [f"- {run.dataset}, seed {run.seed}, {run.method}: {run.error}" for run in failures]
        parts.append("## Failed\n\nThese datasets are left out above.\n\n" + "\n".join(lines))
    if affected := sum(run.nonfinite > 0 for run in runs):
        parts.append(f"{affected} runs gave scores that are not finite; they were ranked last (see `nonfinite`).")
    return "\n\n".join(parts) + "\n"


def against(boards: dict[str, Scoreboard], model: str, published: Published | None) -> str:
    """The paper's table of ranks and p for one model: against published methods, or against those that were run."""
    title = "beside published results" if published else "against the others"
    parts = [f"## {model} {title}", TEST.format(model=model)]
    totals = subsets(list(published.features), np.array(list(published.features.values()))) if published else {}
    for metric, board in boards.items():
        board = (published.among(board, metric, [model]) if published else board).sorted()
        heads, columns = ["method", "mean"], [board.methods, [f"{value:.2f}" for value in board.mean.mean(0)]]
        for name, rows in subsets(board.datasets, board.features).items():
            if not rows.any() or (not published and name != "all"):
                continue
            part = board.of(rows)
            count = f"{name}: {rows.sum()}" + (f" of {totals[name].sum()}" if totals else "")
            if name in RANKED:
                heads.append(f"rank, {count}")
                columns.append([f"{rank:.2f}" for rank in part.ranks().mean(0)])
            heads.append(f"p, {count}")
            p = wilcoxon_p_values(part, model)
            columns.append([_p_cell(p.get(method, math.nan)) for method in board.methods])
        parts += [f"### {TITLES[metric]}", markdown_table(heads, zip(*columns, strict=True))]
    return "\n\n".join(parts)


def _missing(board: Scoreboard, published: Published) -> str:
    """What the comparison with published results does not have, and how they were split."""
    known = published.values["auroc"]
    lists = {
        "Published tables that are not here": sorted(set(known) - set(board.datasets)),
        "Tables here without published results, not compared": sorted(set(board.datasets) - set(known)),
        "Tables that some method has no published result for, not compared": [
            name for name in board.datasets if np.isnan(known.get(name, np.zeros(1))).any()
        ],
        "Development tables, marked with *": [name for name in board.datasets if is_development(name)],
    }
    lines = [f"- {title}: {len(names)}. {', '.join(names)}" for title, names in lists.items()]
    averages = sum(name.endswith("-avg") for name in published.methods)
    lines.append(
        f"- Published methods: {len(published.methods) - averages} of the paper's 26, and {averages} of its 4 averages."
    )
    lines.append(f"- Their split: {SPLITS['published']}, without a limit of the context.")
    return "\n\n".join(["## What is missing", "\n".join(line.strip() for line in lines)])


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


def _p_cell(p: float) -> str:
    if math.isnan(p):
        return "-"
    return f"**{p:.3f}**" if p > 0.95 else f"<u>{p:.3f}</u>" if p < 0.05 else f"{p:.3f}"


def _per_dataset(board: Scoreboard, title: str, marked: bool) -> str:
    rows = []
    for i, name in enumerate(board.datasets):
        cells = [f"{m:.2f} ± {s:.2f}" for m, s in zip(board.mean[i], board.spread[i], strict=True)]
        top = board.mean[i] == board.mean[i].max()
        rows.append(
            [
                f"{name} *" if marked and is_development(name) else name,
                f"{board.features[i]:g}",
                *(f"**{c}**" if t else c for c, t in zip(cells, top, strict=True)),
            ]
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


def html_page(report: str, folder: Path) -> str:
    """A report, and its pictures (SVG files in `folder`), as one page of HTML. Knows the Markdown of this file only."""
    parts = []
    for block in report.strip().split("\n\n"):
        if picture := re.fullmatch(r"!\[.*\]\((.*)\)", block):
            svg = (folder / picture[1]).read_text(encoding="utf-8")
            parts.append(f"<figure>{svg[svg.index('<svg') :]}</figure>")
            continue
        text = (
            re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(block))
            .replace("&lt;u&gt;", "<u>")
            .replace("&lt;/u&gt;", "</u>")
        )
        lines = text.split("\n")
        if head := re.match(r"(#+) (.*)", text):
            parts.append(f"<h{len(head[1])}>{head[2]}</h{len(head[1])}>")
        elif text.startswith("| "):
            rows = [[cell.replace("\\|", "|") for cell in re.split(r" (?<!\\)\| ", line[2:-2])] for line in lines]
            cells = ["".join(f"<td>{cell}</td>" for cell in row) for row in (rows[0], *rows[2:])]
            parts.append("<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>")
        elif text.startswith("- "):
            parts.append("<ul>" + "".join(f"<li>{line[2:]}</li>" for line in lines) + "</ul>")
        else:
            parts.append(f"<p>{text}</p>")
    return f'<!doctype html>\n<meta charset="utf-8">\n<title>Evaluation</title>\n{STYLE}\n' + "\n".join(parts) + "\n"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A pipe table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
