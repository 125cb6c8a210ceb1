"""The detectors of made-up reports: scores, and the measures that follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from report_shapes import OF_ALERTS, RANKING, Bools, Float, Report, Shape


def made_detectors(shape: Shape, rng: np.random.Generator) -> list[Report]:
    named = [("fomo-stream", "own"), *((name, "variant") for name in shape.variants)]
    named += [(name, "rival") for name in shape.rivals]
    return [_detector(shape, name, kind, 2.4 - 0.35 * i, rng) for i, (name, kind) in enumerate(named)]


def _detector(shape: Shape, name: str, kind: str, gap: float, rng: np.random.Generator) -> Report:
    """gap: how far outliers score above inliers, in standard deviations."""
    n, outliers = 20_000, 240
    labels = np.arange(n) < outliers
    scores = rng.normal(size=n) + gap * labels
    alert = scores > np.quantile(scores, 0.99)
    ranked = labels[np.argsort(-scores)]
    hits = np.cumsum(ranked, dtype=np.int64)
    values: dict[str, float | None] = dict.fromkeys((*RANKING, *OF_ALERTS))
    if shape.labels:
        wrong = (np.arange(n) + 1 - hits)[ranked]
        auroc = 1 - wrong.mean() / (n - outliers)
        precision = (hits / (np.arange(n) + 1))[ranked].mean()
        at = hits[outliers - 1] / outliers
        found = (
            auroc,
            precision,
            at,
            hits[199] / 200,
            hits[199] / outliers,
            (labels & alert).sum() / alert.sum(),
            (labels & alert).sum() / outliers,
            0.85 - 0.1 * (3 - gap),
            3.0,
            7.25,
        )
        values = dict(zip((*RANKING, *OF_ALERTS), found, strict=True))
    metrics = {metric: _interval(value, metric) for metric, value in {**values, "alert_rate": alert.mean()}.items()}
    total = shape.records - 1000
    precision_of_alerts = values["alert_precision"]
    true = None if precision_of_alerts is None else int(precision_of_alerts * 0.01 * total)
    return {
        "name": name,
        "kind": kind,
        "settings": {"alert_rate": 0.001} if kind == "variant" else None,
        "metrics": metrics,
        "counts": {
            "records": total,
            "outliers": 12_000 if shape.labels else None,
            "alerts": int(0.0098 * total),
            "true_alerts": true,
            "segments": shape.segments if shape.labels else None,
            "segments_detected": int(0.8 * shape.segments) if shape.labels else None,
        },
        "curves": _curves(ranked, hits) if shape.labels else None,
        "calibration": _calibration(shape, rng),
        "distribution": _distribution(shape, scores, labels),
        "replicates": {
            metric: rng.normal(one["value"], 0.01, shape.replicates).tolist() for metric, one in metrics.items() if one
        }
        if shape.labels and shape.replicates
        else None,
    }


def _interval(value: float | None, metric: str) -> Report | None:
    if value is None:
        return None
    width = 0.03 * value if value > 1 else 0.02 * value * (1.2 - value)
    return (
        {"value": value, "low": value - width, "high": value + width}
        if metric != "delay_s"
        else {"value": value, "low": None, "high": None}
    )


def _curves(ranked: Bools, hits: NDArray[np.integer[Any]]) -> Report:
    at = np.unique(np.geomspace(1, len(ranked), 400).astype(int)) - 1
    recall = hits[at] / hits[-1]
    fpr = (at + 1 - hits[at]) / (len(ranked) - hits[-1])
    return {
        "roc": [[0.0, *fpr.tolist()], [0.0, *recall.tolist()]],
        "pr": [recall.tolist(), (hits[at] / (at + 1)).tolist()],
    }


def _calibration(shape: Shape, rng: np.random.Generator) -> Report:
    requested = np.geomspace(1e-4, 0.5, 25)
    realised = np.minimum(1, requested * np.exp(0.1 * rng.normal()) + (0.002 if shape.labels else 0))
    return {
        "requested": requested.tolist(),
        "realised": realised.tolist(),
        "of_inliers": (0.95 * requested).tolist() if shape.labels else None,
    }


def _distribution(shape: Shape, scores: Float, labels: Bools) -> Report:
    counts, edges = np.histogram(scores, 60)
    of_outliers = np.histogram(scores[labels], edges)[0].tolist() if shape.labels else None
    return {"edges": edges.tolist(), "counts": counts.tolist(), "outliers": of_outliers}
