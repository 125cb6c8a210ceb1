"""Evidence profiles as text, JSON and a plot. matplotlib is optional: without it there is no plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.evidence import CHANNELS, RANK_STATISTICS, SPACE_STATISTICS, SPACES
from pretrain.evaluation.evidence_profile import PERCENTILES, Profile, distance, sampling_error
from pretrain.evaluation.plots import new_figure, save_figure

Float = NDArray[np.float64]


def report_text(prior: Profile, tables: Profile | None = None) -> str:
    """The profile of a prior as lines of text, next to that of real tables if there is one."""
    lines = [_line("", ["prior"] if tables is None else ["prior", "tables", "difference"])]
    for label, ours, theirs in _headline(prior, tables):
        lines.append(_line(label, [ours] if theirs is None else [ours, theirs, ours - theirs]))
    both = [prior.offset] if tables is None else [prior.offset, tables.offset, prior.offset - tables.offset]
    names = "AUROC" if tables is None else "prior / tables / difference"
    lines += ["", f"AUROC of each statistic minus the mean over channels, points ({names})"]
    lines.append(_line("", [space.ljust(7 * len(both)) for space in SPACES]))
    for statistic in SPACE_STATISTICS:
        lines.append(_line(statistic, [_cell(both, f"{space}.{statistic}") for space in SPACES]))
    lines += [_line(statistic, [_cell(both, statistic)]) for statistic in RANK_STATISTICS]
    if tables is not None:
        lines += [
            "",
            f"distance of the profiles: {distance(prior, tables):.2f} points (root mean square over channels);"
            f" by chance alone the profile of the tables moves by {sampling_error(tables):.2f},"
            f" that of the prior by {sampling_error(prior):.2f}",
        ]
    return "\n".join(lines)


def write_report(prior: Profile, tables: Profile | None, directory: Path) -> None:
    """Write profile.json and, with matplotlib, profile.png."""
    directory.mkdir(parents=True, exist_ok=True)
    both = {"prior": prior} if tables is None else {"prior": prior, "tables": tables}
    summary: dict[str, Any] = {name: as_json(profile) for name, profile in both.items()}
    if tables is not None:
        summary["distance"] = round(distance(prior, tables), 3)
    (directory / "profile.json").write_text(json.dumps(summary, indent=1) + "\n")
    _plot(both, directory / "profile.png")


def as_json(profile: Profile) -> dict[str, Any]:
    """A profile as numbers for JSON, channels by name."""
    plain = {name: round(getattr(profile, name), 3) for name in ("datasets", "level", "contrast", "outside")}
    by_channel = {
        name: dict(zip(CHANNELS, getattr(profile, name).round(3).tolist(), strict=True))
        for name in ("offset", "error", "spread")
    }
    best = {f"p{p}": round(value, 3) for p, value in zip(PERCENTILES, profile.best.tolist(), strict=True)}
    return {**plain, "sampling_error": round(sampling_error(profile), 3), "best": best, **by_channel}


def _headline(prior: Profile, tables: Profile | None) -> list[tuple[str, float, float | None]]:
    """Label, number of the prior, number of the tables."""

    def rows(profile: Profile) -> list[tuple[str, float]]:
        return [
            ("datasets", profile.datasets),
            ("removed by the training filter, %", 100 * profile.outside),
            *((f"best channel, {p}th percentile", value) for p, value in zip(PERCENTILES, profile.best, strict=True)),
            ("mean over channels", profile.level),
            ("spread of a channel over datasets", float(profile.spread.mean())),
            ("spread of (local ratio - 20 neighbours)", profile.contrast),
        ]

    ours, theirs = rows(prior), rows(tables) if tables is not None else None
    return [(label, value, None if theirs is None else theirs[i][1]) for i, (label, value) in enumerate(ours)]


def _line(label: str, cells: Sequence[str | float]) -> str:
    texts = [cell.rjust(10) if isinstance(cell, str) else f"{cell:10.1f}" for cell in cells]
    return " ".join([f"{label:40}", *texts]).rstrip()


def _cell(parts: Sequence[Float], statistic: str) -> str:
    return "".join(f"{_mean(part, statistic):+7.1f}" for part in parts)


def _mean(by_channel: Float, statistic: str) -> float:
    """Mean over the two channels of a statistic, which are nearly equal."""
    return float(np.mean([by_channel[CHANNELS.index(f"{statistic}.{kind}")] for kind in ("far", "rare")]))


def _plot(profiles: dict[str, Profile], target: Path) -> bool:
    """One panel per space: AUROC of every channel minus the mean, with standard errors; False without matplotlib."""
    figure = new_figure(13, 5.5)
    if figure is None:
        return False
    panels = figure.subplots(1, len(SPACES) + 1, sharey=True, width_ratios=[14, 14, 14, 3])
    groups = {space: [f"{space}.{name}" for name in SPACE_STATISTICS] for space in SPACES}
    groups["ranks"] = list(RANK_STATISTICS)
    for panel, (title, statistics) in zip(panels, groups.items(), strict=True):
        for k, (name, profile) in enumerate(profiles.items()):
            offset = [_mean(profile.offset, statistic) for statistic in statistics]
            error = [_mean(profile.error, statistic) for statistic in statistics]
            place = np.arange(len(statistics)) + 0.25 * k
            panel.errorbar(place, offset, error, fmt="o", ms=4, lw=1, label=name)
        panel.set_title(title)
        panel.set_xticks(range(len(statistics)), [name.removeprefix(f"{title}.") for name in statistics], rotation=90)
        panel.axhline(0, color="grey", lw=0.5)
    panels[0].set_ylabel("AUROC minus the mean over channels, points")
    panels[0].legend()
    save_figure(figure, target)
    return True
