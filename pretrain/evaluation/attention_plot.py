"""A plot of the context rows that a query attends to most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError
from fomo_stream.model.attention import most_attended
from fomo_stream.model.imputation import fit_imputation, impute
from pretrain.evaluation.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Float = NDArray[np.float64]

MAX_PANELS = 6


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
