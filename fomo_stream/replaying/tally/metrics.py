"""Metrics of a ranking, from the counts of inliers and outliers at each score."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
RANKING_METRICS = ("auroc", "average_precision", "f1", "precision_at_rate", "recall_at_rate")
CURVE_POINTS = 400


def ranking_metrics(inliers: Float, outliers: Float, alert_rate: float) -> dict[str, Float]:
    """The RANKING_METRICS (r,) of r rankings; NaN where a class is missing.

    inliers, outliers: (k, r), numbers of records at k scores, the scores descending. Records of equal score are in a
    random order: AUROC counts half of a tie, and the precision and the recall of the first records are expected values.
    `f1` is that of a detector that flags as many records as there are outliers; `..._at_rate` are of one that flags
    the share `alert_rate` with the highest scores, at least one record.
    """
    n_in, n_out = inliers.sum(axis=0), outliers.sum(axis=0)
    true, false = np.cumsum(outliers, axis=0), np.cumsum(inliers, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        auroc = (outliers * (n_in - false + inliers / 2)).sum(axis=0) / (n_in * n_out)
        precision = np.where(true > 0, true / (true + false), 0.0)
        average_precision = (outliers * precision).sum(axis=0) / n_out
        flagged = np.maximum(1.0, np.round(alert_rate * (n_in + n_out)))
        found = _expected_true(inliers, outliers, true, true + false, flagged)
        f1 = _expected_true(inliers, outliers, true, true + false, n_out) / n_out
        values = (auroc, average_precision, f1, found / flagged, found / n_out)
    has_both = (n_in > 0) & (n_out > 0)
    return {name: np.where(has_both, value, np.nan) for name, value in zip(RANKING_METRICS, values, strict=True)}


def _expected_true(inliers: Float, outliers: Float, true: Float, until: Float, flagged: Float) -> Float:
    """The expected number (r,) of outliers among the first `flagged` (r,) records.

    true, until: (k, r) numbers of outliers and of records at each score and above.
    """
    if not len(until):
        return np.zeros_like(flagged)
    place = np.argmax(until >= flagged, axis=0)[None]  # of the last score that is flagged at least in part
    arrays = (inliers, outliers, true, until)
    inliers, outliers, true, until = (np.take_along_axis(array, place, 0)[0] for array in arrays)
    return np.asarray(true - outliers * (until - flagged) / (inliers + outliers))


def curves(inliers: Float, outliers: Float) -> dict[str, list[Float]] | None:
    """ROC and PR curves of one ranking (k,), scores descending, with at most CURVE_POINTS points each.

    "roc": false and true positive rates, from (0, 0) to (1, 1); "pr": recall and precision at each score. None where a
    class is missing.
    """
    n_in, n_out = inliers.sum(), outliers.sum()
    if not n_in or not n_out:
        return None
    true, false = np.cumsum(outliers), np.cumsum(inliers)
    fpr, tpr = np.append(0.0, false / n_in), np.append(0.0, true / n_out)
    rank = np.log1p(true + false)
    roc = _spread((fpr + tpr) / 2)
    pr = _spread((rank / rank[-1] + tpr[1:]) / 2)  # the precision moves most at the first records
    return {"roc": [fpr[roc], tpr[roc]], "pr": [tpr[1:][pr], (true / (true + false))[pr]]}


def _spread(position: Float) -> NDArray[np.int64]:
    """At most CURVE_POINTS places in ascending positions (k,), evenly spread over them, with the first and the last."""
    wanted = np.linspace(position[0], position[-1], CURVE_POINTS)
    places = np.unique(np.searchsorted(position, wanted))
    places[0], places[-1] = 0, len(position) - 1
    return np.unique(places)


def quantile(low: Float, high: Float, counts: Float, share: float) -> Float:
    """The quantile (r,) of values in k cells from low (k,) to high (k,), ascending, by counts (k, r); NaN without any.

    The values are taken to be spread evenly over their cell.
    """
    total = counts.sum(axis=0)
    if not len(low):
        return np.full(total.shape, np.nan)
    until = np.cumsum(counts, axis=0)
    place = np.argmax(until >= np.maximum(share * total, 1e-9), axis=0)
    here = np.take_along_axis(counts, place[None], 0)[0]
    before = np.take_along_axis(until, place[None], 0)[0] - here
    with np.errstate(invalid="ignore", divide="ignore"):
        value = low[place] + (high[place] - low[place]) * (share * total - before) / here
    return np.where(total > 0, value, np.nan)
