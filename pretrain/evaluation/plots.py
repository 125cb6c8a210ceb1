"""All plots: comparisons as SVG, others as PNG.

matplotlib is optional: without it no file is written. Only `plot_attended`, which makes nothing else, fails then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fomo_stream.errors import ConfigError
from fomo_stream.model.attention import most_attended
from fomo_stream.model.preprocessing import fit_imputation, impute
from pretrain.evaluation.comparison import PROFILE_END, Scoreboard, one_sided_p, performance_profiles
from pretrain.evaluation.detectors import BASELINES
from pretrain.evaluation.published import SHALLOW
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


def plot_comparison(boards: Mapping[str, Scoreboard], ours: Collection[str], folder: Path) -> list[str]:
    """Draw, for each metric: its boxes and those of the ranks over datasets, performance profiles and the heat map of
    the p of all pairs. ours: the methods to highlight.

    Returns the names of the files; none without matplotlib.
    """
    names = []
    for metric, board in boards.items():
        board = board.sorted()
        size = len(board.methods)
        for kind, width, height, draw in (
            ("box", 8.0, 1.2 + 0.25 * size, partial(_boxes, values=board.mean, label=f"{TITLES[metric]} (%)")),
            ("ranks", 8.0, 1.2 + 0.25 * size, partial(_boxes, values=board.ranks(), label="rank of a dataset")),
            ("profiles", 8.0, 5.0, _profiles),
            ("p", 2.5 + 0.3 * size, 2.0 + 0.3 * size, _heat_map),
        ):
            figure = new_figure(width, height)
            if figure is None:
                return []
            draw(figure, board=board, ours=ours)
            names.append(f"{metric}_{kind}.svg")
            save_figure(figure, folder / names[-1])
    return names


def colour_of(method: str, ours: Collection[str]) -> str:
    """By the group of the method, as in the paper: ours red; shallow ones green, deep ones blue, averages grey."""
    if method in ours:
        return "salmon"
    if method.endswith("-avg"):
        return "lightgrey"
    shallow = method.partition(", ")[0] in (*SHALLOW, *BASELINES)  # behind the name may be a size of the context
    return "lightgreen" if shallow else "lightskyblue"


def _boxes(figure: Any, board: Scoreboard, ours: Collection[str], values: Float, label: str) -> None:
    """One box per method: 25-75 %, whiskers 5-95 %, mean as a line, datasets outside the whiskers as circles, as in the
    paper."""
    axes = figure.add_subplot()
    drawn = axes.boxplot(
        [values[:, j] for j in range(len(board.methods))],
        orientation="horizontal",
        whis=(5, 95),
        showmeans=True,
        meanline=True,
        meanprops={"color": "tab:red", "linestyle": "-"},
        medianprops={"linewidth": 0},
        widths=0.6,
        tick_labels=board.methods,
        patch_artist=True,
    )
    for box, method in zip(drawn["boxes"], board.methods, strict=True):
        box.set_facecolor(colour_of(method, ours))
    axes.invert_yaxis()  # best mean rank on top
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(label)


def _profiles(figure: Any, board: Scoreboard, ours: Collection[str]) -> None:
    """The share of datasets on which the best value is at most tau times that of a method (Dolan and More 2002). The
    legend names ours and the ten with the largest area below the line."""
    axes = figure.add_subplot()
    ratios, areas = performance_profiles(board.mean)
    named = {board.methods[j] for j in np.argsort(-areas, kind="stable")[:10]} | set(ours)
    share = np.arange(1, len(ratios) + 1) / len(ratios)
    for j in np.argsort(-areas, kind="stable"):
        method = board.methods[j]
        style: dict[str, Any] = {"label": f"{method} ({areas[j]:.3f})"} if method in named else {"color": "lightgrey"}
        style |= {"color": "red", "linewidth": 2.5, "zorder": 3} if method in ours else {"linewidth": 1}
        axes.step(np.append(ratios[:, j], PROFILE_END), np.append(share, share[-1]), where="post", **style)
    axes.set_xlim(1, PROFILE_END)
    axes.set_xlabel("tau: best value / value of the method")
    axes.set_ylabel("share of datasets")
    axes.legend(fontsize="small", title="area")


def _heat_map(figure: Any, board: Scoreboard, ours: Collection[str]) -> None:
    """p of the one-sided test, alternative "the row is better than the column"."""
    axes = figure.add_subplot()
    p = np.array([[one_sided_p(row, column) for column in board.mean.T] for row in board.mean.T])
    image = axes.imshow(p, vmin=0, vmax=1, cmap="RdYlGn_r")
    places = range(len(board.methods))
    axes.set_xticks(places, board.methods, rotation=90)
    axes.set_yticks(places, board.methods)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        if label.get_text() in ours:
            label.set_color("red")
    for (i, j), value in np.ndenumerate(p):
        if np.isfinite(value):
            axes.text(j, i, f"{value:.2f}".lstrip("0"), ha="center", va="center", fontsize=6)
    figure.colorbar(image, ax=axes, shrink=0.6, label="p: below 0.05, the row is better than the column")


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
    """Write a figure as PNG or SVG, by the name of the file. Equal figures give equal SVG."""
    import matplotlib

    kind = target.suffix[1:]
    more: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": 120}
    with matplotlib.rc_context({"svg.hashsalt": "fomo", "svg.fonttype": "none"}):
        replace_file(target, lambda path: figure.savefig(path, format=kind, **more))
