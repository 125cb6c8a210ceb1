"""A run as pictures, with matplotlib."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .report import Measurement, Report, by_name

WIDTH, LINE = 10.0, 0.22  # inches: of a picture, and of a bar


def draw(report: Report, folder: Path) -> list[Path]:
    """Write scoring.png (cost by features) and a bar chart for each other quantity. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, group in by_name(report.measurements).items():
        path = folder / f"{name.replace(' ', '-')}.png"
        (_lines if name == "scoring" else _bars)(group, path)
        written.append(path)
    return written


def _lines(items: Sequence[Measurement], path: Path) -> None:
    """A panel for each context size: CPU time of a record by features, both logarithmic."""
    contexts = sorted({int(item.parameters["context"]) for item in items})
    figure = _figure(WIDTH, 6.0)
    panels = figure.subplots(1, len(contexts), squeeze=False, sharey=True)[0]
    for panel, context in zip(panels, contexts, strict=True):
        curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for item in items:
            if item.parameters["context"] == context:
                name = f"{item.parameters['variant']}, batch {item.parameters['batch']}"
                curves[name].append((int(item.parameters["features"]), item.value))
        for name, points in curves.items():
            style = {"linestyle": "--", "color": "black"} if name.startswith("floor") else {}
            panel.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name, **style)
        panel.set(xscale="log", yscale="log", title=f"context {context:,}", xlabel="features")
        features = sorted({int(item.parameters["features"]) for item in items})
        panel.set_xticks(features, [str(number) for number in features])
        panel.set_xticks([], minor=True)
    panels[0].set_ylabel("CPU time of a record, us")
    panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)


def _bars(items: Sequence[Measurement], path: Path) -> None:
    """A panel for each unit."""
    units = list(dict.fromkeys(item.unit for item in items))
    groups = [[item for item in items if item.unit == unit] for unit in units]
    figure = _figure(WIDTH, 1.0 + LINE * len(items) + 0.6 * len(units))
    panels = figure.subplots(len(units), 1, squeeze=False, height_ratios=[len(group) for group in groups])[:, 0]
    for panel, unit, group in zip(panels, units, groups, strict=True):
        values, errors = [item.value for item in group], [item.spread or 0.0 for item in group]
        panel.barh(range(len(group)), values, xerr=errors)
        panel.set_yticks(range(len(group)), [item.label for item in group], fontsize=7)
        panel.invert_yaxis()
        panel.set(xlabel=unit or "exponent", title=items[0].name if panel is panels[0] else "")
    figure.savefig(path, dpi=120)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
