"""What a query looks at: the context rows it attends to most, as numbers and as a picture.

As in the paper's qualitative analysis of sample-to-sample attention: cross-attention weights of the last layer,
averaged over heads. Models without a transformer attend to nothing and are refused.

>>> import numpy as np
>>> from fomo_stream import load_model
>>> rng = np.random.default_rng(0)
>>> found = attended_context(load_model("fusion-router"), rng.normal(size=(200, 3)), rng.normal(size=(4, 3)), top=5)
>>> found.indices.shape, bool((np.diff(found.weights) <= 0).all())
((4, 5), True)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fomo_stream.checkpoint import SHIPPED, read_metadata, shipped_models
from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.missing import complete, fit_filling
from fomo_stream.model import TILE, ContextCache, ZeroShotModel, canonical_order, encode_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Float = NDArray[np.float64]
MOST_PANELS = 6


class Attended(NamedTuple):
    """The context rows that each of q queries attends to most, the most attended first."""

    indices: NDArray[np.int64]  # (q, top) into the context's rows
    weights: Float  # (q, top); over all n rows of the context they would sum to one


def attended_context(model: ZeroShotModel, context: Float, queries: Float, top: int = 5) -> Attended:
    """The `top` rows of context (n, d) that each of queries (q, d) attends to most; raw units, NaN = missing.

    Raises ConfigError for a model without a transformer, SchemaError for rows that do not fit each other.
    """
    return most_attended(attention_weights(model, context, queries), top)


def most_attended(weights: Float, top: int = 5) -> Attended:
    """The `top` largest of weights (q, n), or all of them if there are fewer; of equal ones the first row's leads."""
    if top < 1:
        raise ConfigError(f"top is the number of context rows to name: at least 1, not {top}")
    indices = np.argsort(-weights, axis=1, kind="stable")[:, :top]
    return Attended(indices, np.take_along_axis(weights, indices, 1))


def attention_weights(model: ZeroShotModel, context: Float, queries: Float, cache: ContextCache | None = None) -> Float:
    """How much queries (q, d) attend to each row of context (n, d): (q, n), every query's weights sum to one.

    cache: what `encode_rows` made of this context, to save making it again. The order of the context's rows changes
    nothing but the order of the columns. Errors as in `attended_context`.
    """
    if not model.config.layers:
        raise ConfigError(
            f"model {model.name} has no transformer, so its queries attend to nothing;"
            f" models that have one: {', '.join(_models_that_attend()) or 'none is shipped'}"
        )
    if queries.ndim != 2 or queries.shape[1] != context.shape[1]:
        raise SchemaError(f"the context has {context.shape[1]} features, the queries are {queries.shape}")
    cache = encode_rows(model, context) if cache is None else cache
    rows = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float64)).to(model.device)
    with torch.inference_mode():
        tiles = [model.attention_weights(cache, tile[None])[0] for tile in torch.split(rows, TILE)] if len(rows) else []
    found = np.empty((len(rows), len(context)))
    if tiles:  # columns are in the order of the cache's rows
        found[:, canonical_order(context)] = torch.cat(tiles).cpu().numpy()
    return found


def _models_that_attend() -> list[str]:
    return [name for name in shipped_models() if read_metadata(SHIPPED / f"{name}.safetensors")["config"].get("layers")]


def plane(context: Float, queries: Float) -> tuple[Float, Float]:
    """Where to draw context (n, d) and queries (q, d): (n, 2) and (q, 2).

    Two features are drawn as they are; of more, the first two principal components of the context's z-scores; a single
    one over a line. Missing values count as the context's median.
    """
    rows = torch.from_numpy(np.concatenate([context, queries]).astype(np.float64))[None]
    filling = fit_filling(rows[:, : len(context)])
    places = complete(rows, filling)[0].numpy()
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
