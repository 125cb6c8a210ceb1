"""`python -m pretrain attend`: draw the context rows that the queries of a table attend to most."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import wilcoxon

from fomo_stream.errors import ConfigError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.attention import Float, attention_weights, most_attended
from fomo_stream.model.checkpoint import load_torch_model
from fomo_stream.model.preprocessing import fit_imputation, impute
from pretrain.commands.flags import add_machine, use_threads
from pretrain.evaluation.plots import plot_attended
from pretrain.evaluation.tables import Table, read_table
from pretrain.priors.draws import Draws
from pretrain.priors.gmm import GmmConfig, sample_gmm

NEAR = 5  # context rows that distances are summed over


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "table",
        type=Path,
        nargs="?",
        help=".npz with arrays X and y, or .csv (default: a synthetic mixture of 2 features)",
    )
    parser.add_argument("--label", metavar="COLUMN", help="label column of a .csv table (default: the last)")
    parser.add_argument(
        "--model", metavar="NAME", default="paper-100", help="a model with attention weights (default: %(default)s)"
    )
    parser.add_argument(
        "--query", metavar="ROW,..", help="rows to draw, one panel each (default: all outliers in one panel)"
    )
    parser.add_argument(
        "--top", type=int, metavar="N", default=5, help="number of context rows to name (default: %(default)s)"
    )
    parser.add_argument(
        "--context",
        metavar="ROWS",
        type=int,
        default=1000,
        help="maximum of context rows, drawn from the inliers (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        default=0,
        help="seed of the mixture and of the context rows (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="file name of the plot, a .png file")
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    use_threads(options.threads)
    if not 2 <= options.context <= MAX_CONTEXT:
        raise ConfigError(f"--context is 2 to {MAX_CONTEXT} rows, not {options.context}")
    table = mixture(options.seed) if options.table is None else read_table(options.table, options.label)
    X, outlying = table.rows, table.labels == 1
    queries = np.flatnonzero(outlying) if options.query is None else _rows(options.query, len(X))
    pool = np.setdiff1d(np.flatnonzero(~outlying), queries)  # no row attends to itself
    if len(pool) < 2:
        raise ConfigError(f"{table.name} has {len(pool)} inliers left for the context; name fewer rows with --query")
    context = np.sort(np.random.default_rng(options.seed).permutation(pool)[: options.context])
    model = load_torch_model(options.model, options.device)
    weights = attention_weights(model, X[context], X[queries])
    together = options.query is None
    titles = [f"all {len(queries)} outliers"] if together else [f"row {row}" for row in queries]
    plot_attended(options.out, X[context], X[queries], weights, options.top, together, titles)
    print(f"{model.name}: {len(queries)} queries, {len(context)} context rows; in brackets: weight / mean weight")
    for title, weight in zip(titles, weights.mean(0, keepdims=True) if together else weights, strict=True):
        _print_rows(title, context, weight, options.top)
    if len(queries) >= 2 and len(context) > NEAR:
        _print_tests(*distances(X[context], X[queries], weights, options.seed))
    print(f"wrote {options.out}")
    return 0


def distances(context: Float, queries: Float, weights: Float, seed: int = 0) -> tuple[Float, Float, Float]:
    """Sums of distances of queries (q, d) to NEAR context rows (n, d), in z-scores: (q,) each.

    To those that they attend to most, by weights (q, n); to random ones; and to those with the nearest neighbours.
    The paper (qualitative analysis of attention) has rows of the highest likelihood for the last ones.
    """
    z = fit_imputation(torch.from_numpy(context)[None])
    rows, asked = (impute(torch.from_numpy(one)[None], z)[0].numpy() for one in (context, queries))
    mean, scale = rows.mean(0), np.maximum(rows.std(0), 1e-12)
    apart, among = (cdist((one - mean) / scale, (rows - mean) / scale) for one in (asked, rows))
    attended = np.argsort(-weights, axis=1, kind="stable")[:, :NEAR]
    rng, dense = np.random.default_rng(seed), np.sort(among, axis=1)[:, NEAR].argsort(kind="stable")[:NEAR]
    by_chance = np.array([rng.choice(len(rows), NEAR, replace=False) for _ in asked])
    found = [np.take_along_axis(apart, at, axis=1).sum(1) for at in (attended, by_chance)]
    return found[0], found[1], apart[:, dense].sum(1)


def _print_tests(attended: Float, by_chance: Float, dense: Float) -> None:
    print(f"sum of distances to {NEAR} context rows, median over queries, in z-scores; p: one-sided Wilcoxon test")
    less, greater = (
        wilcoxon(attended, other, alternative=how).pvalue for other, how in ((by_chance, "less"), (dense, "greater"))
    )
    print(
        f"attended {np.median(attended):.3g}; random {np.median(by_chance):.3g} (p that attended are not nearer: "
        f"{less:.2g}); densest {np.median(dense):.3g} (p that attended are not farther: {greater:.2g})"
    )


def mixture(seed: int) -> Table:
    """50 inliers and 100 outliers of a mixture of 2 features, separated at the 80th percentile (paper, qualitative
    analysis of attention)."""
    config = GmmConfig(max_features=2, min_features=2, components=(2, 3), percentile=80.0, margin=0.0)
    data = sample_gmm(config, Draws(seed), datasets=1, inliers=50, outliers=100)
    rows = np.concatenate([data.inliers[0].numpy(), data.outliers[0].numpy()]).astype(np.float64)
    return Table("mixture", rows, np.repeat([0, 1], [50, 100]), 50, 100)


def _print_rows(title: str, context: NDArray[np.int64], weights: Float, top: int) -> None:
    found = most_attended(weights[None], top)
    cells = [f"{context[i]} ({w * len(context):.2f})" for i, w in zip(found.indices[0], found.weights[0], strict=True)]
    print(f"{title}: {', '.join(cells)}")


def _rows(text: str, count: int) -> NDArray[np.int64]:
    try:
        rows = np.array([int(part) for part in text.split(",")])
    except ValueError:
        raise ConfigError(f"--query {text}: give numbers of rows, as in 3,17") from None
    if not ((rows >= 0) & (rows < count)).all():
        raise ConfigError(f"--query {text}: the table has rows 0 to {count - 1}")
    return rows
