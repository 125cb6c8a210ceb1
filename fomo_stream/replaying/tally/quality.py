"""Metrics of one detector with their intervals, and its curves and distributions."""

from __future__ import annotations

from typing import Any

import numpy as np

from fomo_stream.replaying.blocks import INLIER, OUTLIER
from fomo_stream.replaying.tally import intervals
from fomo_stream.replaying.tally.keyed_counts import KeyedCounts
from fomo_stream.replaying.tally.metrics import RANKING_METRICS, curves, quantile, ranking_metrics
from fomo_stream.replaying.tally.spec import Float, Int, TallySpec
from fomo_stream.replaying.tally.windows import (
    ALERTS,
    DETECTED,
    LABELLED,
    LABELLED_ALERTS,
    OUTLIERS,
    RECORDS,
    SCORED,
    SEGMENTS,
    TRUE_ALERTS,
    Windows,
)

METRICS = (
    *RANKING_METRICS,
    "alert_precision",
    "alert_recall",
    "alert_rate",
    "segments_detected",
    "delay_records",
    "delay_s",
)
SHARES = set(METRICS) - {"delay_records", "delay_s"}  # between 0 and 1
BARS = 60  # of the histogram of scores


class Quality:
    """Metrics of detector d."""

    def __init__(self, spec: TallySpec, windows: Windows, d: int) -> None:
        n = windows.axis.bins
        self._used = np.flatnonzero(windows.totals[:n, RECORDS])
        self._totals: Int = windows.totals[self._used]
        self._own: Int = windows.by_detector[self._used, d]
        self._counts = windows.detectors[d]
        self._spec = spec

    def metrics(self) -> tuple[dict[str, Any], dict[str, Float] | None]:
        """Each metric with its interval, and the replicates of its bootstrap, if there are any."""
        n_windows = len(self._used)
        rough = self._all(np.ones((n_windows, 1)))
        descending = self._counts.ranked.counts[::-1, :, None].astype(np.float64)
        fine = ranking_metrics(descending[:, INLIER], descending[:, OUTLIER], self._spec.alert_rate)
        values = {name: float(value[0]) for name, value in {**rough, **fine}.items()}
        if n_windows < intervals.FEWEST_WINDOWS:
            return {name: _with_interval(value, None, 0) for name, value in values.items()}, None
        # the replicates are of rounded scores: moved, so that they lie around the value
        drawn = self._all(intervals.resamples(n_windows))
        replicates = {name: _within(name, drawn[name] + (values[name] - rough[name])) for name in METRICS}
        counting = self._windows_that_count()
        ends = {name: intervals.interval(replicates[name], counting[name]) for name in METRICS}
        metrics = {name: _with_interval(values[name], ends[name], counting[name]) for name in METRICS}
        return metrics, {name: replicates[name] for name in METRICS if metrics[name] and ends[name]} or None

    def _all(self, weights: Float) -> dict[str, Float]:
        """All METRICS (r,) where the windows (w,) have weights (w, r)."""
        by_class = [self._weighted(self._counts.scores.counts[..., c], weights) for c in (INLIER, OUTLIER)]
        ranked = ranking_metrics(by_class[0][::-1], by_class[1][::-1], self._spec.alert_rate)
        totals, own = self._totals.T @ weights, self._own.T @ weights
        outliers, inliers = totals[OUTLIERS], totals[LABELLED] - totals[OUTLIERS]
        true = own[TRUE_ALERTS]
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = true / own[LABELLED_ALERTS]
            values = {
                "alert_precision": np.where((outliers > 0) & (inliers > 0), precision, np.nan),
                "alert_recall": true / outliers,
                "alert_rate": own[ALERTS] / own[SCORED],
                "segments_detected": own[DETECTED] / totals[SEGMENTS],
            }
        values["delay_records"] = self._median(self._counts.delay_records, weights)
        values["delay_s"] = self._median(self._counts.delay_ms, weights) / 1000
        if self._spec.axis == "record":
            values["delay_s"] = np.full(weights.shape[1], np.nan)
        return {**ranked, **values}

    def _windows_that_count(self) -> dict[str, int]:
        """For each metric, the number of windows that have what it is the share of."""
        used = {
            "alert_precision": self._own[:, LABELLED_ALERTS],
            "alert_rate": self._own[:, SCORED],
            "segments_detected": self._totals[:, SEGMENTS],
            "delay_records": self._own[:, DETECTED],
            "delay_s": self._own[:, DETECTED],
        }
        return {name: int(np.count_nonzero(used.get(name, self._totals[:, OUTLIERS]))) for name in METRICS}

    def _weighted(self, counts: Int, weights: Float) -> Float:
        """Counts (k, windows) by weights (w, r): (k, r)."""
        return np.asarray(counts[:, self._used] @ weights, dtype=np.float64)

    def _median(self, counts: KeyedCounts, weights: Float) -> Float:
        low, _ = counts.cells()
        return quantile(low, low, self._weighted(counts.counts, weights), 0.5)

    def counts(self) -> dict[str, int | None]:
        """What the metrics count."""
        totals, own = self._totals.sum(axis=0), self._own.sum(axis=0)
        ranked = self._counts.ranked.counts
        numbers: dict[str, int | None] = {"records": int(own[SCORED]), "alerts": int(own[ALERTS])}
        labels = {
            "labelled": totals[LABELLED],
            "ranked": ranked.sum(),
            "outliers": totals[OUTLIERS],
            "labelled_alerts": own[LABELLED_ALERTS],
            "true_alerts": own[TRUE_ALERTS],
            "segments": totals[SEGMENTS],
            "segments_detected": own[DETECTED],
        }
        return {**numbers, **{name: int(n) if self._spec.has_labels else None for name, n in labels.items()}}

    def curves(self) -> dict[str, list[Float]] | None:
        """ROC and PR curves."""
        descending = self._counts.ranked.counts[::-1].astype(np.float64)
        return curves(descending[:, INLIER], descending[:, OUTLIER])

    def distribution(self) -> dict[str, Any] | None:
        """A histogram of the scores; its first and last bar also count the scores beyond."""
        counts = self._counts.scores.counts.sum(axis=1).astype(np.float64)
        if not counts.any():
            return None
        low, high = self._counts.scores.cells()
        ends = [float(quantile(low, high, counts.sum(axis=1, keepdims=True), q)[0]) for q in (0.001, 0.999)]
        margin = 0.1 * (ends[1] - ends[0])
        first, last = max(low[0], ends[0] - margin), min(high[-1], ends[1] + margin)
        edges = np.linspace(first, last if last > first else first + 1.0, BARS + 1)
        bars = [_bars(edges, low, high, column) for column in (counts.sum(axis=1), counts[:, OUTLIER])]
        return {"edges": edges, "counts": bars[0], "outliers": bars[1] if self._spec.has_labels else None}


def by_window(spec: TallySpec, windows: Windows, d: int) -> dict[str, Float | Int | None]:
    """Metrics of detector d in each window, for the windows with what they need; NaN for the others."""
    n = windows.axis.bins
    counts, own = windows.detectors[d].scores, windows.by_detector[:n, d]
    by_class = counts.counts[::-1, :n].astype(np.float64)
    ranked = ranking_metrics(by_class[..., INLIER], by_class[..., OUTLIER], spec.alert_rate)
    low, high = counts.cells()
    with np.errstate(invalid="ignore"):
        alert_rate = own[:, ALERTS] / own[:, SCORED]
    return {
        "auroc": ranked["auroc"],
        "average_precision": ranked["average_precision"],
        "alerts": own[:, ALERTS],
        "alert_rate": alert_rate,
        "true_alerts": own[:, TRUE_ALERTS] if spec.has_labels else None,
        "median_score": quantile(low, high, counts.counts[:, :n].sum(axis=2).astype(np.float64), 0.5),
    }


def auroc(windows: Windows) -> float:
    """AUROC of the first detector; NaN where a class is missing."""
    descending = windows.detectors[0].ranked.counts[::-1, :, None].astype(np.float64)
    return float(ranking_metrics(descending[:, INLIER], descending[:, OUTLIER], 1.0)["auroc"][0])


def _with_interval(value: float, ends: tuple[float, float] | None, n_windows: int) -> dict[str, Any] | None:
    if np.isnan(value):
        return None
    if ends is None:
        return {"value": value, "low": None, "high": None, "windows": n_windows}
    return {"value": value, "low": min(ends[0], value), "high": max(ends[1], value), "windows": n_windows}


def _within(name: str, values: Float) -> Float:
    return np.clip(values, 0.0, 1.0) if name in SHARES else np.maximum(values, 0.0)


def _bars(edges: Float, low: Float, high: Float, counts: Float) -> Int:
    """Counts (bars,) between edges, from counts (k,) in cells from low to high, over which they are spread evenly."""
    width = np.where(high > low, high - low, 1.0)
    with np.errstate(over="ignore"):
        share = np.clip((edges[1:-1, None] - low) / width, 0.0, 1.0)
    share = np.where(high > low, share, edges[1:-1, None] > low)  # a cell of one value belongs to the bar it begins
    until = np.round(share @ counts)
    return np.diff(np.concatenate([[0.0], until, [counts.sum()]])).astype(np.int64)
