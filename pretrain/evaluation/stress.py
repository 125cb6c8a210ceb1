"""The synthetic stress table of the paper: Gaussian mixtures as in pretraining, and others that differ more and more.

Source: the paper, appendix "Generalization Analyses", section "Generalization to Out-of-Distribution Synthetic
Datasets" and its table. Each dataset is ranked once: 1,000 queries, 5 % of them outliers, against 5,000 inliers.

    >>> task = stress_task(ROWS["binary"], number=0, context=50, queries=40)
    >>> task.context.shape[0], task.queries.shape[0], task.labels.sum()
    (50, 40, np.int64(2))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

import torch

from pretrain.evaluation.tables import Task
from pretrain.priors.draws import Draws, stream_seed
from pretrain.priors.gmm import GmmConfig, sample_gmm

QUERIES, OUTLIER_SHARE = 1000, 0.05
_STRESS_STREAM = 201


@dataclass(frozen=True)
class StressRow:
    """One row of the table. published: the paper's mean AUROC, AUPR and F1 over 1,000 datasets, in percent."""

    name: str
    gmm: GmmConfig
    published: tuple[float, float, float]
    binary: bool = False  # whether a feature is constant in inliers, 0 or 1, and has the other value in outliers


_PLAIN = GmmConfig()
_FAR = GmmConfig(means=(5.0, 50.0), variances=(5.0, 50.0))
_WIDE = replace(_PLAIN, min_features=100, max_features=500)
_ALL = replace(_FAR, min_features=100, max_features=500, components=(5, 50))
ROWS = {
    row.name: row
    for row in (
        StressRow("in-distribution", _PLAIN, (98.55, 91.17, 86.74)),
        StressRow("means-variances", _FAR, (94.79, 80.62, 76.32)),
        StressRow("components", replace(_PLAIN, components=(5, 50)), (97.69, 86.72, 81.20)),
        StressRow("features", _WIDE, (96.22, 86.37, 83.23)),
        StressRow("binary", _PLAIN, (100.00, 100.00, 99.97), binary=True),
        StressRow("all-combined", _ALL, (85.44, 64.17, 63.99), binary=True),
    )
}


def stress_task(row: StressRow, number: int, context: int, queries: int = QUERIES) -> Task:
    """Dataset `number` of a row, drawn on the CPU, so it is the same on every machine.

    The paper has "binary outliers with values either 0 or 1 in one dimension". Only this reading explains its 100 %,
    and the two modes in (e), "all combined": a model with 100 inputs has the feature in 40 % of the datasets.
    """
    draws = Draws(stream_seed(_STRESS_STREAM, crc32(row.name.encode()), number))
    strange = round(OUTLIER_SHARE * queries)
    data = sample_gmm(row.gmm, draws, 1, context + queries - strange, strange)
    inliers, outliers = data.inliers[0], data.outliers[0]
    feature = draws.subset(torch.ones(1, dtype=torch.long), data.mixtures.inflated)[0]
    if row.binary:
        usual = float(draws.integers(0, 1, 1))
        inliers[:, feature], outliers[:, feature] = usual, 1 - usual
    width = int(data.mixtures.n_features[0])
    order = draws.order(queries)
    query_rows = torch.cat([inliers[context:], outliers])[order, :width]
    labels = (order >= queries - strange).long()
    context_rows = inliers[:context, :width]
    return Task(row.name, number, context_rows.double().numpy(), query_rows.double().numpy(), labels.numpy())
