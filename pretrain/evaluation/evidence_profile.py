"""Evidence profiles: how a prior's datasets look to classical detectors, beside how real tables look to them.

Every evidence channel ranks the queries of a dataset, and its AUROC says how well it would do alone. The profile of
many datasets is the mean of that over them, less the mean over channels, in points: which detectors do well there, and
which badly. Where the profiles of a prior and of real tables differ, a network learns to trust the wrong evidence.

Aggregates only: nothing about a single table is ever kept, printed or written, because a prior that is fitted to
tables one by one has seen them. That is also why a folder of fewer than FEWEST_TABLES tables is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError
from fomo_stream.model.evidence import CHANNELS
from fomo_stream.model.imputation import fit_imputation, impute
from pretrain.evaluation.tables import Task, draw_task, read_table, table_files
from pretrain.priors.gmm import Batch
from pretrain.priors.mixture import BatchSource
from pretrain.training.evidence_pages import evidence_page
from pretrain.training.metrics import auroc

FEWEST_TABLES = 5
MOST_QUERIES = 4000  # of a table: enough for an AUROC
PERCENTILES = (5, 25, 50, 75, 95)
Float = NDArray[np.float64]


@dataclass(frozen=True)
class Profile:
    """What many datasets have in common. All in points of AUROC (0 to 100) but for the counts and `outside`."""

    datasets: int  # N; every split of a table counts
    level: float  # mean over datasets and channels
    offset: Float  # (C,) mean over datasets of each channel's AUROC, less `level`
    error: Float  # (C,) standard error of `offset`: what other datasets of the same kind would move it by
    spread: Float  # (C,) standard deviation over datasets of a channel's AUROC less the dataset's mean over channels
    contrast: float  # standard deviation over datasets of the z-scores' local ratio (5) less their 20 neighbours
    best: Float  # (5,) PERCENTILES over datasets of the AUROC of the best channel
    outside: float  # share of datasets whose best channel is outside of the training filter


def profile_of(areas: Float, low: float = 0.0, high: float = 1.0, splits: int = 1) -> Profile:
    """The profile of N datasets. areas: (N, C) AUROC of every channel, in [0, 1]; low, high: the training filter on
    the best channel: the others count for `best` and `outside` only; splits: how many rows each table has in `areas`.

    Raises ConfigError where the filter leaves fewer than two datasets.
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
    """The distance by which chance alone moves a profile of so many datasets, in points."""
    return float(np.sqrt(np.mean(profile.error**2)))


def prior_areas(source: BatchSource, batches: int, report: Callable[[int], None] | None = None) -> Float:
    """AUROC (batches * B, C) of every channel on the batches of steps 0, 1, ...; report is told the step."""
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

    folder, names, label: as in `tables`; context: most rows of a context, which is a random half of the inliers; the
    other half and the outliers are queries. Raises ConfigError for what is no table, and for too few of them.
    """
    files = table_files(folder, names)
    if len(files) < FEWEST_TABLES:
        raise ConfigError(
            f"these are {len(files)} tables; a profile needs {FEWEST_TABLES}, because of fewer it would say too much"
            " about each"
        )
    found = []
    for path in files.values():
        table = read_table(path, label)
        found += [_areas(_batch(draw_task(table, split, context, MOST_QUERIES))) for split in range(splits)]
    return np.concatenate(found)


def _areas(batch: Batch) -> Float:
    page = evidence_page(batch, with_context=False)
    areas: Float = auroc(page.queries, page.labels).cpu().numpy()
    return areas


def _batch(task: Task) -> Batch:
    """One table as a batch of one dataset."""
    context, queries = torch.from_numpy(task.context)[None], torch.from_numpy(task.queries)[None]
    imputation = fit_imputation(context)
    labels, n_features = torch.from_numpy(task.labels).float()[None], torch.tensor([task.context.shape[1]])
    return Batch(impute(context, imputation), impute(queries, imputation), labels, n_features)
