"""Plots of the loss and of ablations, and helpers for all plots.

matplotlib is optional: without it no file is written, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretrain.training.run_files import read_log, replace_file


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
