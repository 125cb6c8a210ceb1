"""The loss curve of a run as a picture. matplotlib is optional: without it there is no picture, and nothing fails."""

from __future__ import annotations

import os
from pathlib import Path

from pretrain.run_files import read_log


def plot_losses(log: Path, target: Path) -> bool:
    """Draw loss and AUROC over the steps from a JSONL log; False where matplotlib or the data is missing."""
    lines = read_log(log)
    if not lines:
        return False
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    steps = [line["step"] for line in lines]
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.add_subplot()
    left.plot(steps, [line["loss"] for line in lines], color="tab:blue")
    left.set_xlabel("step")
    left.set_ylabel("loss on synthetic data", color="tab:blue")
    right = left.twinx()
    right.plot(steps, [line["auroc"] for line in lines], color="tab:orange")
    right.set_ylabel("AUROC on synthetic data", color="tab:orange")
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    figure.savefig(beside, format="png", dpi=120)
    os.replace(beside, target)
    return True
