"""Which context rows a query attends to most, as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError
from fomo_stream.model.imputation import fit_imputation, impute

if TYPE_CHECKING:
    from matplotlib.axes import Axes
from fomo_stream.model.attention import most_attended

Float = NDArray[np.float64]

MOST_PANELS = 6


def plane(context: Float, queries: Float) -> tuple[Float, Float]:
    """Where to draw context (n, d) and queries (q, d): (n, 2) and (q, 2).

    Two features are drawn as they are; of more, the first two principal components of the context's z-scores; a single
    one over a line. Missing values count as the context's median.
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
    """Draw context rows in the plane, coloured by attention, with the `top` rows of each query numbered, as a PNG.

    weights: (q, n) of `attention_weights`. One panel a query, at most MOST_PANELS, with `titles`; or `together`, one
    panel with the mean over queries. Raises ConfigError without matplotlib, and for too many panels.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'fomo-stream[pretrain]'") from None
    groups = [np.arange(len(queries))] if together else [np.array([i]) for i in range(len(queries))]
    if not 1 <= len(groups) <= MOST_PANELS or not len(queries):
        raise ConfigError(f"a picture has 1 to {MOST_PANELS} panels, one a query: name fewer, or draw them together")
    places, asked = plane(context, queries)
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(4.2 * columns + 1, 4 * lines), layout="constrained")
    FigureCanvasAgg(figure)
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
    beside = Path(path).with_name(f".{Path(path).name}.{os.getpid()}.tmp")
    figure.savefig(beside, format="png", dpi=120)
    os.replace(beside, path)


def _panel(panel: Axes, places: Float, asked: Float, share: Float, brightest: float, top: int) -> Any:
    order = np.argsort(share, kind="stable")  # the most attended last, so on top
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
