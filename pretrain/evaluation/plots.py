"""All plots, as PNG.

matplotlib is optional: without it no file is written. Only `plot_attended`, which makes nothing else, fails then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fomo_stream.errors import ConfigError
from fomo_stream.model.attention import most_attended
from fomo_stream.model.preprocessing import fit_imputation, impute
from pretrain.evaluation.comparison import Scoreboard
from pretrain.evaluation.report import TITLES
from pretrain.evaluation.tables import Float
from pretrain.training.run_files import read_log, replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 6  # of attended rows


def plot_losses(log: Path, target: Path) -> bool:
    """Draw loss and AUROC over the steps of a log (JSONL); False without matplotlib or log lines."""
    lines = read_log(log)
    if not lines:
        return False
    figure = new_figure(7, 4)
    if figure is None:
        return False
    steps = [line["step"] for line in lines]
    left = figure.add_subplot()
    left.plot(steps, [line["loss"] for line in lines], color="tab:blue")
    left.set_xlabel("step")
    left.set_ylabel("loss on synthetic data", color="tab:blue")
    right = left.twinx()
    right.plot(steps, [line["auroc"] for line in lines], color="tab:orange")
    right.set_ylabel("AUROC on synthetic data", color="tab:orange")
    save_figure(figure, target)
    return True


def plot_panels(
    labels: Sequence[str],
    panels: Mapping[str, tuple[Sequence[float], Sequence[float] | None]],
    target: Path,
    title: str,
) -> bool:
    """One panel per quantity, one point per label. panels: by name, values and their standard deviations, or None.

    Returns False without matplotlib.
    """
    figure = new_figure(3.2 * len(panels), 3.6)
    if figure is None:
        return False
    figure.suptitle(title)
    for axes, (name, (values, errors)) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        axes.errorbar(range(len(labels)), values, yerr=errors, marker="o", capsize=3, color="tab:blue")
        axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
        axes.set_title(name, fontsize="medium")
        axes.grid(alpha=0.3)
    save_figure(figure, target)
    return True


def plot_comparison(boards: Mapping[str, Scoreboard], ours: Collection[str], folder: Path) -> list[str]:
    """Draw box plots of each metric over datasets. ours: the methods to highlight.

    Returns the names of the files; none without matplotlib.
    """
    names = []
    for metric, board in boards.items():
        figure = new_figure(8, 1.2 + 0.45 * len(board.methods))
        if figure is None:
            return []
        order = np.argsort(board.ranks().mean(0), kind="stable")
        methods = [board.methods[j] for j in order]
        _boxes(figure, board.mean[:, order], methods, ours, f"{TITLES[metric]} of a dataset (%)")
        names.append(f"{metric}_box.png")
        save_figure(figure, folder / names[-1])
    return names


def _boxes(figure: Any, values: Float, methods: list[str], ours: Collection[str], label: str) -> None:
    """One box per method: 25-75 %, whiskers 5-95 %, mean as a line, datasets outside the whiskers as circles, as in the
    paper."""
    axes = figure.add_subplot()
    drawn = axes.boxplot(
        [values[:, j] for j in range(len(methods))],
        orientation="horizontal",
        whis=(5, 95),
        showmeans=True,
        meanline=True,
        meanprops={"color": "tab:red", "linestyle": "-"},
        medianprops={"linewidth": 0},
        widths=0.6,
        tick_labels=methods,
        patch_artist=True,
    )
    for box, method in zip(drawn["boxes"], methods, strict=True):
        box.set_facecolor("mistyrose" if method in ours else "white")
    axes.invert_yaxis()  # best mean rank on top
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(label)


def plane(context: Float, queries: Float) -> tuple[Float, Float]:
    """Coordinates for the plot of context (n, d) and queries (q, d): (n, 2) and (q, 2).

    Two features are used directly. More features: the first two principal components of the z-scores of the context.
    One feature: a line. Missing values are filled with the median of the context.
    """
    rows = torch.from_numpy(np.concatenate([context, queries]).astype(np.float64))[None]
    imputation = fit_imputation(rows[:, : len(context)])
    places = impute(rows, imputation)[0].numpy()
    if places.shape[1] > 2:
        seen = places[: len(context)]
        deviation = seen.std(0)
        z = (places - seen.mean(0)) / np.where(deviation > 0, deviation, 1.0)
        places = z @ np.linalg.svd(z[: len(context)], full_matrices=False)[2][:2].T
    places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    return places[: len(context)], places[len(context) :]


def plot_attended(
    path: str | Path,
    context: Float,
    queries: Float,
    weights: Float,
    top: int = 5,
    together: bool = False,
    titles: Sequence[str] = (),
) -> None:
    """Draw a PNG of the context rows in the plane, coloured by attention, with the `top` rows of each query numbered.

    weights: (q, n) of `attention_weights`. One panel per query with its title, at most MAX_PANELS; with `together`,
    one panel with the mean over all queries. Raises ConfigError without matplotlib, and for too many panels.
    """
    groups = [np.arange(len(queries))] if together else [np.array([i]) for i in range(len(queries))]
    if not 1 <= len(groups) <= MAX_PANELS or not len(queries):
        raise ConfigError(
            f"a plot has 1 to {MAX_PANELS} panels, one per query: name fewer queries, or draw them together"
        )
    places, asked = plane(context, queries)
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    figure = new_figure(4.2 * columns + 1, 4 * lines)
    if figure is None:
        raise ConfigError("plots need matplotlib: pip install 'fomo-stream[pretrain]'")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    shares = [weights[group].mean(0) * len(context) for group in groups]
    brightest = max(float(share.max()) for share in shares)
    for i, (group, share) in enumerate(zip(groups, shares, strict=True)):
        points = _panel(panels[i], places, asked[group], share, brightest, top)
        panels[i].set_title("".join(titles[i : i + 1]))
    for panel in panels[len(groups) :]:
        panel.set_axis_off()
    figure.colorbar(points, ax=list(panels), label="attention, times the mean")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, Path(path))


def _panel(panel: Axes, places: Float, asked: Float, share: Float, brightest: float, top: int) -> Any:
    order = np.argsort(share, kind="stable")  # rows with most attention are drawn last, on top of the others
    x, y = places[order].T
    size = 12 + 60 * share[order] / brightest
    points = panel.scatter(x, y, s=size, c=share[order], vmin=0, vmax=brightest, cmap="viridis_r")
    x, y = asked.T
    panel.scatter(x, y, s=40, marker="x", color="tab:red", label="query" if len(asked) == 1 else "queries")
    found = most_attended(share[None], top).indices[0]
    x, y = places[found].T
    panel.scatter(x, y, s=90, facecolors="none", edgecolors="black")
    for rank, row in enumerate(found, 1):
        panel.annotate(str(rank), places[row], xytext=(4, 4), textcoords="offset points", weight="bold")
    panel.legend(loc="best", fontsize="small")
    return points


def new_figure(width: float, height: float) -> Any:
    """An empty figure (inches), or None without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, target: Path) -> None:
    """Write a figure as PNG."""
    replace_file(target, lambda path: figure.savefig(path, format="png", dpi=120))
