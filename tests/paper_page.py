"""The figures of docs/paper.md. `python tests/paper_page.py` writes the small ones, which a test makes again;
`--tables DIR --published DIR` those on ADBench and their pictures, `--time` the times."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from fomo_stream.model.checkpoint import TABLE_MODEL, shipped_models
from pretrain.__main__ import main as pretrain
from pretrain.evaluation.comparison import Scoreboard, scoreboard, wilcoxon_p_values
from pretrain.evaluation.detectors import BASELINES, models
from pretrain.evaluation.published import Published, read_published
from pretrain.evaluation.ranking_metrics import METRICS
from pretrain.evaluation.report import against, markdown_table
from pretrain.evaluation.runs import Run, read_runs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "paper.md"
PICTURES = {"auroc_ranks.svg": "paper-ranks.svg", "auroc_profiles.svg": "paper-profiles.svg"}
CONTEXTS = (1000, 2000, 5000)
LEADERS = ("DTE-NP", "kNN", "ICL", "DTE-C", "LOF")  # the paper's best baselines
Boards = dict[str, Scoreboard]


def written(page: str, name: str, text: str) -> str:
    """The page with another text in the block `name`."""
    return re.sub(rf"(<!-- figures of {name} -->\n).*?(<!-- end -->)", rf"\g<1>\n{text}\n\n\2", page, flags=re.DOTALL)


def block(page: str, name: str) -> str:
    found = re.search(rf"<!-- figures of {name} -->\n\n(.*?)\n\n<!-- end -->", page, flags=re.DOTALL)
    assert found is not None, name
    return found[1]


def evaluated(folder: Path, out: Path, *flags: str) -> list[Run]:
    """The runs of `evaluate` with these flags, on the CPU, of the models that are shipped now."""
    with contextlib.redirect_stdout(io.StringIO()):
        code = pretrain(["evaluate", str(folder), "--device", "cpu", "--out", str(out), *flags])
    assert code == 0
    known = {*models(shipped_models(), "cpu"), *BASELINES}
    return [run for run in read_runs(out / "results.csv") if run.method in known]


def boards_of(runs: Sequence[Run], published: Published | None = None) -> Boards:
    """By metric; models by their names alone."""
    names = published.names_of({run.dataset for run in runs}) if published else {}
    boards = {metric: scoreboard(runs, metric, names)[0] for metric in METRICS}
    plain = [method.partition("@")[0] for method in boards["auroc"].methods]
    return {metric: replace(board, methods=plain) for metric, board in boards.items()}


def summary(boards: Boards) -> str:
    """Means and mean ranks of the methods that were run."""
    ranks = [board.ranks().mean(0) for board in boards.values()]
    means = [board.mean.mean(0) for board in boards.values()]
    methods = boards["auroc"].methods
    order = np.argsort(ranks[0], kind="stable")
    rows = [[methods[j], *(f"{column[j]:.2f}" for column in (*means, *ranks))] for j in order]
    return markdown_table(["method", "AUROC", "AUPR", "F1", "rank by AUROC", "by AUPR", "by F1"], rows)


def small(folder: Path) -> str:
    """Three tables of scikit-learn, two seeds: one class are the outliers."""
    tables = folder / "tables"
    tables.mkdir()
    sources = {"breast-cancer": (load_breast_cancer(), 0), "digits": (load_digits(), 8), "wine": (load_wine(), 2)}
    for name, (data, odd) in sources.items():
        np.savez(tables / f"{name}.npz", X=data.data, y=(data.target == odd).astype(np.int64))
    flags = ("--model", "all", "--baselines", "knn,dte-np,lof,ocsvm", "--seeds", "2")
    return summary(boards_of(evaluated(tables, folder / "out", *flags)))


def of_models(boards: Boards, published: Published) -> str:
    """A line for each shipped model, and for neighbours as they were run here, among the published methods."""
    rows = []
    for model in (*shipped_models(), "knn", "dte-np"):
        beside = {metric: published.among(board, metric, [model]) for metric, board in boards.items()}
        p = wilcoxon_p_values(beside["auroc"], model)
        cells = [f"{board.mean[:, 0].mean():.2f}" for board in beside.values()]
        cells += [f"{board.ranks()[:, 0].mean():.2f}" for board in beside.values()]
        rows.append([model, *cells, *(f"{p[name]:.3f}" for name in LEADERS)])
    heads = ["model", "AUROC", "AUPR", "F1", "rank by AUROC", "by AUPR", "by F1", *(f"p, {name}" for name in LEADERS)]
    return markdown_table(heads, rows)


def of_contexts(tables: Path, out: Path, published: Published) -> str:
    """Mean AUROC and rank of the shipped models, by the size of the context."""
    rows = {model: [model] for model in shipped_models()}
    for context in CONTEXTS:
        flags = ("--model", "all", "--baselines", "none", "--context", str(context))
        runs = [run for run in evaluated(tables, out, *flags) if run.context == context]
        board = boards_of([run for run in runs if run.method not in BASELINES], published)["auroc"]
        for model, cells in rows.items():
            beside = published.among(board, "auroc", [model])
            cells.append(f"{beside.mean[:, 0].mean():.2f} / {beside.ranks()[:, 0].mean():.2f}")
    return markdown_table(["AUROC / rank", *(f"{context:,} rows" for context in CONTEXTS)], rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder of ADBench tables")
    parser.add_argument("--published", type=Path, help="folder of published results")
    parser.add_argument("--out", type=Path, default=Path("evaluation/paper"), help="where runs are kept")
    parser.add_argument("--time", action="store_true", help="measure times")
    options = parser.parse_args()
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        page = written(page, "small", small(Path(folder)))
    if options.tables:
        published, out = read_published(options.published), options.out / "published-split"
        page = written(page, "contexts", of_contexts(options.tables, options.out, published))
        runs = evaluated(options.tables, options.out, "--model", "all", "--baselines", "all")
        boards = boards_of([run for run in runs if run.context == CONTEXTS[-1]], published)
        page = written(page, "random split", of_models(boards, published))
        page = written(page, "baselines", summary(boards))
        flags = ("--model", "all", "--baselines", "knn,dte-np", "--published", str(options.published))
        boards = boards_of(evaluated(options.tables, out, *flags), published)
        page = written(page, "published split", of_models(boards, published))
        page = written(page, "published", against({"auroc": boards["auroc"]}, TABLE_MODEL, published).split("\n\n")[-1])
        for source, name in PICTURES.items():
            shutil.copy(out / source, ROOT / "docs" / "pictures" / name)
    if options.time:
        sys.path.append(str(ROOT / "benchmarks"))
        from inference_time import time_table

        page = written(page, "times", time_table())
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
