"""Evidence profiles: which classical detectors do well on the datasets of a prior, compared with real tables.

Every evidence channel ranks the queries of a dataset; its AUROC is its quality as a single detector. The profile of
many datasets is the mean AUROC of each channel minus the mean over channels, in points. If the profiles of a prior and
of real tables differ, a network learns to trust the wrong evidence.

Only aggregates are printed, nothing about a single table: a prior must not be fitted to single tables.
For the same reason a folder with fewer than FEWEST_TABLES tables is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fomo_stream.errors import ConfigError
from fomo_stream.model.config import CHANNELS, RANK_STATISTICS, SPACE_STATISTICS, SPACES
from fomo_stream.model.preprocessing import fit_imputation, impute
from pretrain.evaluation.tables import Float, Task, draw_task, read_table, table_files
from pretrain.priors.datasets import Batch
from pretrain.priors.mixture import BatchSource
from pretrain.training.loader import auroc, evidence_batch

FEWEST_TABLES = 5
MAX_QUERIES = 4000  # of a table: enough for an AUROC
PERCENTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class Profile:
    """The profile of many datasets, in points of AUROC (0 to 100), except for `datasets` and `outside`."""

    datasets: int  # N; every split of a table counts
    level: float  # mean over datasets and channels
    offset: Float  # (C,) mean over datasets of the AUROC of each channel, minus `level`
    error: Float  # (C,) standard error of `offset`
    spread: Float  # (C,) standard deviation over datasets of a channel's AUROC minus the mean over channels
    contrast: float  # standard deviation over datasets of local ratio (5) minus 20 neighbours, z-scores
    best: Float  # (5,) PERCENTILES over datasets of the AUROC of the best channel
    outside: float  # share of datasets that the training filter removes


def profile_of(areas: Float, low: float = 0.0, high: float = 1.0, splits: int = 1) -> Profile:
    """The profile of N datasets.

    areas: (N, C) AUROC of every channel, in [0, 1]; low, high: the training filter on the best channel (datasets
    outside count for `best` and `outside` only); splits: rows per table in `areas`.
    Raises ConfigError if the filter leaves fewer than two datasets.
    """
    best = areas.max(1)
    kept = areas[(best >= low) & (best <= high)]
    if len(kept) < 2:
        raise ConfigError(
            f"{len(kept)} of {len(areas)} datasets have a best channel within {low:g}..{high:g}; a profile needs two:"
            " more --batches, or another --min-auc and --max-auc"
        )
    centred = 100 * (kept - kept.mean(1, keepdims=True))
    spread = centred.std(0, ddof=1)
    local, wide = CHANNELS.index("z.ratio5.far"), CHANNELS.index("z.mean20.far")
    return Profile(
        datasets=len(areas),
        level=float(100 * kept.mean()),
        offset=centred.mean(0),
        error=spread / np.sqrt(len(kept) / splits),
        spread=spread,
        contrast=float((centred[:, local] - centred[:, wide]).std(ddof=1)),
        best=np.percentile(100 * best, PERCENTILES),
        outside=1 - len(kept) / len(areas),
    )


def distance(one: Profile, other: Profile) -> float:
    """Root mean square over channels of the difference between two profiles, in points."""
    return float(np.sqrt(np.mean((one.offset - other.offset) ** 2)))


def sampling_error(profile: Profile) -> float:
    """The expected distance of a profile from the true one by chance, in points."""
    return float(np.sqrt(np.mean(profile.error**2)))


def prior_areas(source: BatchSource, batches: int, report: Callable[[int], None] | None = None) -> Float:
    """AUROC (batches * B, C) of every channel on the batches of steps 0, 1, ...; report: gets each step."""
    found = []
    for step in range(batches):
        found.append(_areas(source.batch(step)))
        if report is not None:
            report(step)
    return np.concatenate(found)


def table_areas(
    folder: Path, names: Sequence[str] = (), context: int = 1000, splits: int = 1, label: str | None = None
) -> Float:
    """AUROC (tables * splits, C) of every channel on real tables, for `profile_of`.

    folder, names, label: as in `tables`; context: maximum of context rows, from a random half of the inliers; the other
    half and the outliers are queries. Raises ConfigError for a file that is no table, and for too few tables.
    """
    files = table_files(folder, names)
    if len(files) < FEWEST_TABLES:
        raise ConfigError(
            f"these are {len(files)} tables; a profile needs {FEWEST_TABLES}, because with fewer it would say too much"
            " about each"
        )
    found = []
    for path in files.values():
        table = read_table(path, label)
        found += [_areas(_batch(draw_task(table, split, context, MAX_QUERIES))) for split in range(splits)]
    return np.concatenate(found)


def _areas(batch: Batch) -> Float:
    evidence = evidence_batch(batch)
    assert evidence.queries.channels is not None
    areas: Float = auroc(evidence.queries.channels, evidence.labels).cpu().numpy()
    return areas


def _batch(task: Task) -> Batch:
    """One table as a batch of one dataset."""
    context, queries = torch.from_numpy(task.context)[None], torch.from_numpy(task.queries)[None]
    imputation = fit_imputation(context)
    labels, n_features = torch.from_numpy(task.labels).float()[None], torch.tensor([task.context.shape[1]])
    return Batch(impute(context, imputation), impute(queries, imputation), labels, n_features)


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
