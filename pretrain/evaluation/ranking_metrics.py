"""Ranking metrics with weighted rows: AUROC, AUPR and F1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pretrain.evaluation.tables import Float, Int

METRICS = ("auroc", "aupr", "f1")


class Metrics(NamedTuple):
    """Each in [0, 1]."""

    auroc: float
    aupr: float
    f1: float


def ranking_metrics(labels: Int, scores: Float, inlier_weight: float = 1.0, outlier_weight: float = 1.0) -> Metrics:
    """AUROC, AUPR (average precision) and F1 at the true number of outliers; ties count as chance.

    labels: (q,), 1 = outlier, with both kinds; scores: (q,), finite; the weights are those of a `Task`. F1: the flagged
    weight equals the weight of the outliers, so precision = recall = F1; rows that tie at the threshold are flagged in
    equal parts. Needs NumPy only, because a rented GPU machine may have no scikit-learn.
    """
    order = np.argsort(-scores, kind="stable")
    scores, is_outlier = scores[order], labels[order] == 1
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))  # of the groups of equal scores
    hits = np.add.reduceat(np.where(is_outlier, outlier_weight, 0.0), starts)
    misses = np.add.reduceat(np.where(is_outlier, 0.0, inlier_weight), starts)
    found, flagged, total = hits.cumsum(), (hits + misses).cumsum(), hits.sum()
    share = np.clip((total - (flagged - hits - misses)) / (hits + misses), 0.0, 1.0)
    return Metrics(
        float((misses * (found - hits / 2)).sum() / (total * misses.sum())),
        float((hits * found / flagged).sum() / total),
        float((share * hits).sum() / total),
    )
