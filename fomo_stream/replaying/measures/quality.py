"""Computes the metrics of one detector with their intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.replaying.measures import intervals
from fomo_stream.replaying.measures.incident_metrics import incidents_of
from fomo_stream.replaying.measures.recorder import MAX_WINDOWS, MeasureSpec, Records
from fomo_stream.replaying.measures.segments import NOT_DETECTED, Segments

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

RANKING_METRICS = ("auroc", "average_precision")
ALERT_METRICS = ("alert_precision", "alert_recall", "alert_rate")
INCIDENT_METRICS = ("incident_precision", "segments_detected", "false_incidents", "delay_records", "delay_s")
METRICS = (*RANKING_METRICS, *ALERT_METRICS, *INCIDENT_METRICS)
INLIERS_PER_RATE = 10_000  # false incidents are counted per so many labelled inliers
MAX_RANKING_CELLS = 4096  # of a ranking in the bootstrap


class Quality:
    """The metrics of detector d. All counts are (windows,), for the windows of `Records.axis`."""

    def __init__(self, spec: MeasureSpec, records: Records, segments: Segments, d: int) -> None:
        self._spec, self._records = spec, records
        self._score: Float = records.of("score", d)
        self._is_scored: Bool = ~np.isnan(self._score)
        alert: Bool = records.of("alert", d)
        is_detected = segments.delay_records[:, d] != NOT_DETECTED
        began = records.axis.places(segments.spans["start"])
        self._delays = segments.delay_records[is_detected, d], segments.delay_ms[is_detected, d]
        self._delay_windows = began[is_detected]
        masks = {
            "records": np.ones(len(records), bool),
            "labelled": records.is_labelled,
            "outliers": records.is_outlier,
            "inliers": records.is_labelled & ~records.is_outlier,
            "scored": self._is_scored,
            "alerts": alert,
            "labelled_alerts": alert & records.is_labelled,
            "true_alerts": alert & records.is_outlier,
        }
        self.by_window = {name: _by_window(records.window[mask]) for name, mask in masks.items()}
        self.by_window |= {"segments": _by_window(began), "segments_detected": _by_window(self._delay_windows)}
        incidents = [incidents_of(rows, rows["alert"][:, d], spec.quiet) for rows in records.parts]
        names = ("incidents", "true_incidents", "false_incidents")
        for name, begins in zip(names, zip(*incidents, strict=True), strict=True):
            windows = [records.window[part][begin] for part, begin in zip(records.slices, begins, strict=True)]
            self.by_window[name] = _by_window(np.concatenate(windows))
        self.by_window["judged_incidents"] = self.by_window["true_incidents"] + self.by_window["false_incidents"]
        ranked = records.is_ranked
        self._ranked = self._score[ranked], records.is_outlier[ranked], records.window[ranked]
        self._by_class = class_counts(*self._ranked[:2])

    def metrics(self) -> tuple[dict[str, Any], dict[str, Float] | None]:
        """Return each metric with its interval, and the replicates of the bootstrap, if there are any."""
        all_once = np.ones((MAX_WINDOWS, 1))
        exact = ranking_metrics(*self._by_class)
        values = {name: float(value[0]) for name, value in {**exact, **self._of_alerts(all_once)}.items()}
        used = np.flatnonzero(self.by_window["records"])
        if len(used) < intervals.MIN_WINDOWS:
            return {name: _with_interval(value, None, 0) for name, value in values.items()}, None
        weights = np.zeros((MAX_WINDOWS, intervals.REPLICATES))
        weights[used] = intervals.resamples(len(used))
        replicates = {**self._of_ranking(weights), **self._of_alerts(weights)}
        counting = self._windows_that_count()
        ends = {name: intervals.interval(replicates[name], counting[name]) for name in METRICS}
        metrics = {name: _with_interval(values[name], ends[name], counting[name]) for name in METRICS}
        return metrics, {name: replicates[name] for name in METRICS if metrics[name] and ends[name]} or None

    def _of_ranking(self, weights: Float) -> dict[str, Float]:
        """Return the RANKING_METRICS (r,) for weights (MAX_WINDOWS, r) of the windows, from MAX_RANKING_CELLS cells."""
        score, is_outlier, window = self._ranked
        place = ranking_cells(score, is_outlier)
        place //= int(place.max(initial=0)) // MAX_RANKING_CELLS + 1
        shape = int(place.max(initial=-1)) + 1, MAX_WINDOWS
        by_class = (place[chosen] * MAX_WINDOWS + window[chosen] for chosen in (~is_outlier, is_outlier))
        drawn = (np.bincount(c, minlength=shape[0] * MAX_WINDOWS).reshape(shape) @ weights for c in by_class)
        return ranking_metrics(*drawn)

    def _of_alerts(self, weights: Float) -> dict[str, Float]:
        """Return the other metrics (r,) for weights (MAX_WINDOWS, r) of the windows."""
        n = {name: by_window @ weights for name, by_window in self.by_window.items()}
        has_both = (n["outliers"] > 0) & (n["labelled"] > n["outliers"])
        with np.errstate(invalid="ignore", divide="ignore"):
            values = {
                "alert_precision": np.where(has_both, n["true_alerts"] / n["labelled_alerts"], np.nan),
                "alert_recall": n["true_alerts"] / n["outliers"],
                # a valid range gives alerts of records without a score, too
                "alert_rate": np.where(n["scored"] > 0, n["alerts"] / n["scored"], np.nan),
                "incident_precision": np.where(has_both, n["true_incidents"] / n["judged_incidents"], np.nan),
                "segments_detected": n["segments_detected"] / n["segments"],
                "false_incidents": INLIERS_PER_RATE * n["false_incidents"] / n["inliers"],
            }
        records, ms = (_medians(delays, self._delay_windows, weights) for delays in self._delays)
        seconds = ms / 1000 if self._spec.axis == "time" else np.full_like(ms, np.nan)
        return {**values, "delay_records": records, "delay_s": seconds}

    def _windows_that_count(self) -> dict[str, int]:
        """Return for each metric the number of windows that contribute to its denominator."""
        share_of = {
            "alert_precision": "labelled_alerts",
            "alert_rate": "scored",
            "incident_precision": "judged_incidents",
            "segments_detected": "segments",
            "false_incidents": "inliers",
            "delay_records": "segments_detected",
            "delay_s": "segments_detected",
        }
        return {name: int(np.count_nonzero(self.by_window[share_of.get(name, "outliers")])) for name in METRICS}

    def counts(self) -> dict[str, int | None]:
        """Return the counts behind the metrics; `records` are those with a score."""
        n = {name: int(by_window.sum()) for name, by_window in self.by_window.items()}
        n["ranked"] = len(self._ranked[0])
        incidents = ("segments", "segments_detected", "true_incidents", "false_incidents")
        of_labels = ("labelled", "ranked", "outliers", "labelled_alerts", "true_alerts", *incidents)
        labelled = {name: n[name] if self._spec.has_labels else None for name in of_labels}
        return {"records": n["scored"], "alerts": n["alerts"], "incidents": n["incidents"], **labelled}


def _by_window(windows: Int) -> Int:
    """Return how many are in each window (MAX_WINDOWS,)."""
    return np.bincount(windows, minlength=MAX_WINDOWS)


def _medians(values: Int, windows: Int, weights: Float) -> Float:
    """Return the lower median (r,) of values (m,) for weights (MAX_WINDOWS, r) of their windows; NaN without values."""
    order = np.argsort(values, kind="stable")
    result = np.full(weights.shape[1], np.nan)
    for r, column in enumerate(weights.T):
        until = np.cumsum(column[windows[order]])
        if len(until) and until[-1]:
            result[r] = values[order[np.searchsorted(until, until[-1] / 2)]]
    return result


def _with_interval(value: float, ends: tuple[float, float] | None, n_windows: int) -> dict[str, Any] | None:
    if np.isnan(value):
        return None
    if ends is None:
        return {"value": value, "low": None, "high": None, "windows": n_windows}
    return {"value": value, "low": min(ends[0], value), "high": max(ends[1], value), "windows": n_windows}


def ranking_cells(scores: Float, is_outlier: Bool) -> Int:
    """Return the cell (n,) of each record, from 0 for the highest scores: ranking metrics depend on nothing else.

    Records of equal score share a cell, and so do inliers without an outlier between them, because their order does not
    matter. scores: (n,), without NaN.
    """
    values, place = np.unique(-scores, return_inverse=True)
    has_outlier = np.bincount(place[is_outlier], minlength=len(values)) > 0
    begins = has_outlier | np.concatenate([[True], has_outlier[:-1]])[: len(values)]
    return np.asarray(np.cumsum(begins)[place] - 1, dtype=np.int64)


def class_counts(scores: Float, is_outlier: Bool) -> tuple[Float, Float]:
    """Return the numbers of inliers and of outliers (k, 1) in each of the `ranking_cells` of one ranking."""
    place = ranking_cells(scores, is_outlier)
    k = int(place.max()) + 1 if len(place) else 0
    by_class = (np.bincount(place[chosen], minlength=k) for chosen in (~is_outlier, is_outlier))
    inliers, outliers = (column.astype(np.float64)[:, None] for column in by_class)
    return inliers, outliers


def ranking_metrics(inliers: Float, outliers: Float) -> dict[str, Float]:
    """Return the RANKING_METRICS (r,) of r rankings; NaN where a class is missing.

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
