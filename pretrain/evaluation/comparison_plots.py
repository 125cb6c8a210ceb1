"""The plots of a comparison of methods, as PNG: box plots over datasets, and performance profiles."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.evaluation.comparison import PerformanceProfile, Scoreboard
from pretrain.evaluation.plots import new_figure, save_figure
from pretrain.evaluation.report import TITLES
from pretrain.evaluation.tables import Float


def plot_comparison(
    boards: dict[str, Scoreboard], profiles: dict[str, PerformanceProfile], ours: Collection[str], folder: Path
) -> list[str]:
    """Draw box plots of each metric and of its ranks, and its performance profile. ours: the methods to highlight.

    Returns the names of the files; none without matplotlib.
    """
    if find_spec("matplotlib") is None:
        return []
    names = []
    for metric, board in boards.items():
        title = TITLES[metric]
        order = np.argsort(board.ranks().mean(0), kind="stable")
        methods = [board.methods[j] for j in order]
        figures = {
            f"{metric}_box.png": _boxes(board.mean[:, order], methods, ours, f"{title} of a dataset (%)"),
            f"{metric}_rank_box.png": _boxes(board.ranks()[:, order], methods, ours, f"rank by {title} (1 = best)"),
            f"{metric}_profile.png": _profiles(profiles[metric], board.methods, title),
        }
        for name, figure in figures.items():
            save_figure(figure, folder / name)
            names.append(name)
    return names


def _boxes(values: Float, methods: list[str], ours: Collection[str], label: str) -> Any:
    """One box per method: 25-75 %, whiskers 5-95 %, mean as a line, datasets outside the whiskers as circles, as in the
    paper."""
    figure = new_figure(8, 1.2 + 0.45 * len(methods))
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
    return figure


def _profiles(profile: PerformanceProfile, methods: list[str], title: str) -> Any:
    """Share of datasets on which a method is within a ratio of the best, one step curve per method."""
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    styles = ("-", "--", ":")
    for place, j in enumerate(np.argsort(-profile.area, kind="stable")):
        end = max(profile.ratios[-1], 1.0 + 1e-9)
        axes.step(
            [*profile.ratios, end],
            [*profile.share[:, j], profile.share[-1, j]],
            where="post",
            linestyle=styles[place // 10 % len(styles)],
            label=f"{methods[j]} ({profile.area[j]:.3f})",
        )
    axes.set_xlabel(f"τ: best {title} of a dataset / the method's")
    axes.set_ylabel("share of datasets within τ")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    axes.legend(title="area under the curve", fontsize="small", loc="lower right")
    return figure
