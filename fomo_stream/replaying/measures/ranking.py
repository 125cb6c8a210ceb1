"""Metrics of rankings: how well scores tell outliers from inliers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
RANKING_METRICS = ("auroc", "average_precision")
CURVE_POINTS = 400


def cells(scores: Float, is_outlier: Bool) -> Int:
    """The cell (n,) of each record, from 0 for the highest scores: all that a metric of the ranking depends on.

    Records of equal score share a cell, and so do inliers if no outlier comes between them, because their order among
    each other has no influence. scores: (n,), none of them NaN.
    """
    values, place = np.unique(-scores, return_inverse=True)
    has_outlier = np.bincount(place[is_outlier], minlength=len(values)) > 0
    begins = has_outlier | np.concatenate([[True], has_outlier[:-1]])[: len(values)]
    return np.asarray(np.cumsum(begins)[place] - 1, dtype=np.int64)


def counts(scores: Float, is_outlier: Bool) -> tuple[Float, Float]:
    """Numbers of inliers and of outliers (k, 1) in each of the `cells` of one ranking."""
    place = cells(scores, is_outlier)
    k = int(place.max()) + 1 if len(place) else 0
    by_class = (np.bincount(place[chosen], minlength=k) for chosen in (~is_outlier, is_outlier))
    inliers, outliers = (column.astype(np.float64)[:, None] for column in by_class)
    return inliers, outliers


def ranking_metrics(inliers: Float, outliers: Float) -> dict[str, Float]:
    """The RANKING_METRICS (r,) of r rankings; NaN where a class is missing.

    inliers, outliers: (k, r), numbers of records in k cells, the highest scores first. AUROC counts half of a tie.
    """
    n_in, n_out = inliers.sum(axis=0), outliers.sum(axis=0)
    true, false = np.cumsum(outliers, axis=0), np.cumsum(inliers, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        auroc = (outliers * (n_in - false + inliers / 2)).sum(axis=0) / (n_in * n_out)
        precision = np.where(true > 0, true / (true + false), 0.0)
        average_precision = (outliers * precision).sum(axis=0) / n_out
    has_both = (n_in > 0) & (n_out > 0)
    values = (np.where(has_both, value, np.nan) for value in (auroc, average_precision))
    return dict(zip(RANKING_METRICS, values, strict=True))


def curves(inliers: Float, outliers: Float) -> dict[str, list[Float]] | None:
    """ROC and PR curves of one ranking (k, 1), with at most CURVE_POINTS points each.

    "roc": false and true positive rates, from (0, 0) to (1, 1); "pr": recall and precision after each cell. None where
    a class is missing.
    """
    true, false = np.cumsum(outliers), np.cumsum(inliers)
    if not len(true) or not true[-1] or not false[-1]:
        return None
    fpr, tpr = np.append(0.0, false / false[-1]), np.append(0.0, true / true[-1])
    rank = np.log1p(true + false)
    roc = _spread((fpr + tpr) / 2)
    pr = _spread((rank / rank[-1] + tpr[1:]) / 2)  # the precision moves most at the first records
    return {"roc": [fpr[roc], tpr[roc]], "pr": [tpr[1:][pr], (true / (true + false))[pr]]}


def _spread(position: Float) -> Int:
    """At most CURVE_POINTS places in ascending positions (k,), evenly spread over them, with the first and the last."""
    wanted = np.linspace(position[0], position[-1], CURVE_POINTS)
    places = np.unique(np.searchsorted(position, wanted))
    places[0], places[-1] = 0, len(position) - 1
    return np.unique(places)
