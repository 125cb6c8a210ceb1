"""Made-up reports of replays, in the format of `report["format"] == 1`, as a real replay would give them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Report = dict[str, Any]
Float = NDArray[np.float64]
Bools = NDArray[np.bool_]

START_MS, DAY_MS = 1_759_276_800_000, 86_400_000  # 2025-10-01
NAMES = ("flow", "pressure", "temperature", "vibration", "current", "voltage", "humidity", "speed", "torque", "noise")
RANKING = ("auroc", "average_precision", "f1", "precision_at_rate", "recall_at_rate")
OF_ALERTS = ("alert_precision", "alert_recall", "segments_detected", "delay_records", "delay_s")
HOSTILE = "<script>window.hacked=1</script></script><!--<script><img src=x onerror=window.hacked=1>&amp;\u2028'\""


@dataclass(frozen=True)
class Shape:
    """How large a made report is, and its parts that may be missing."""

    records: int = 1_000_000
    labels: bool = True
    rivals: Sequence[str] = ("river.HalfSpaceTrees", "river.OneClassSVM", "knn")
    variants: Sequence[str] = ("alert_rate=0.001 context_size=5000",)
    features: Sequence[str] = NAMES
    partitions: int = 4
    windows: int = 64
    bins: int = 2048
    segments: int = 60
    alerts: int = 100
    record_size: int = 160  # characters of a record of the top alerts
    generations: int = 400
    axis: str = "time"
    name: str = "sensors"
    replicates: int = 500
    seed: int = 0

    @property
    def end(self) -> int:
        """The end of the range, on its axis."""
        return START_MS + 31 * DAY_MS if self.axis == "time" else self.records


LARGEST = Shape(
    features=tuple(f"{NAMES[i % 10]}_{i:02d}" for i in range(100)),
    partitions=64,
    windows=128,
    bins=4096,
    segments=1000,
    record_size=2000,
    generations=2000,
)
SMALLEST = Shape(
    records=900,
    labels=False,
    rivals=(),
    variants=(),
    features=("value",),
    partitions=1,
    windows=1,
    bins=1,
    segments=0,
    alerts=0,
    generations=1,
    axis="record",
    name="rows.csv",
    replicates=0,
)
HOSTILE_SHAPE = Shape(
    features=(HOSTILE, "flow"), name=HOSTILE, rivals=(f"mine:{HOSTILE}",), variants=(), bins=200, windows=32, segments=5
)


def made_report(shape: Shape | None = None) -> Report:
    """A report of the given shape; the same shape gives the same report."""
    shape = shape or Shape()
    rng = np.random.default_rng(shape.seed)
    starts = _starts(shape, shape.bins)
    is_odd = np.zeros(shape.bins, bool)
    is_odd[rng.integers(0, shape.bins, shape.bins // 40)] = True
    detectors = _detectors(shape, rng)
    report: Report = {
        "format": 1,
        "source": _source(shape),
        "notes": ["Warms up: the first 800 records have no score, because the range begins after the group did."],
        "summary": _summary(shape),
        "settings": {
            "topic": shape.name,
            "group": "fomo",
            "from_": "2025-10-01",
            "to": "2025-11-01",
            "alert_rate": 0.01,
            "compare": list(shape.rivals),
            "context_size": 1000,
            "label": "is_anomaly",
            "kernel": "numba",
        },
        "versions": {
            "fomo_stream": "0.1.0",
            "model": "fusion-router@789ca06a",
            "kernel": "numba",
            "python": "3.11.2",
            "numpy": "2.3.1",
            "torch": "2.13.0",
            "river": "0.22.0" if shape.rivals else None,
        },
        "timing": _timing(detectors),
        "detectors": detectors,
        "windows": _windows(shape, detectors, rng),
        "timeline": _timeline(shape, starts, is_odd, rng),
        "generations": _generations(shape, rng),
        "segments": _segments(shape, rng),
        "drift": _drift(shape, rng),
        "context": {
            "generations": shape.generations * shape.partitions,
            "rows": 5000,
            "renewed_mean": 0.0412,
            "regimes": 2,
            "regime_changes": [{"partition": 0, "offset": shape.records // 8, "time": int(starts[shape.bins // 2])}]
            if shape.bins > 1
            else [],
        },
        "partitions": _partitions(shape, rng),
        "alerts": _alerts(shape, rng),
    }
    return _rounded(report)  # type: ignore[no-any-return]


def with_nulls(value: Any, key: str = "") -> Any:
    """The same report, in which every number that may be unknown is null."""
    if isinstance(value, dict):
        kept = {"source", "settings", "versions", "timing"}
        return {name: part if name in kept else with_nulls(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [with_nulls(part, key) for part in value]
    known = {"format", "partition", "offset", "from", "to", "start", "end", "time", "times", "records", "edges"}
    return None if isinstance(value, (int, float)) and key not in known else value


def _source(shape: Shape) -> Report:
    each = shape.records // shape.partitions
    is_topic = shape.axis == "time"
    return {
        "name": shape.name,
        "kind": "topic" if is_topic else "file",
        "partitions": shape.partitions,
        "records": shape.records,
        "scored": shape.records - 200,
        "skipped": {"not_json": 180, "no_features": 20},
        "warming_up": 800,
        "ranges": [{"partition": p, "from": 1000, "to": 1000 + each} for p in range(shape.partitions)],
        "from_ms": START_MS if is_topic else None,
        "to_ms": shape.end if is_topic else None,
        "axis": shape.axis,
        "features": list(shape.features),
        "is_complete": True,
    }


def _summary(shape: Shape) -> list[str]:
    lines = [f"{shape.records:,} records of {shape.name} were replayed in 2.9 minutes, 5,820 records a second."]
    if shape.labels:
        lines.append("fomo-stream ranks an outlier above a normal record in 94.1 % of cases, the best of all.")
    else:
        lines.append("There are no labels, so the report cannot say how many alerts are right.")
    return [*lines, "0.98 % of records raised an alert; 1 % was requested.", "temperature has drifted the most."]


def _timing(detectors: Sequence[Report]) -> Report:
    return {
        "started": "2026-11-23T01:02:03Z",
        "seconds": 171.8,
        "records_per_s": 5820.7,
        "detector_share": 0.91,
        "batch_ms": {"p50": 9.12, "p90": 10.4, "p99": 15.2, "max": 80.3},
        "resumed": 0,
        "detectors": {one["name"]: 12.5 * (i + 1) for i, one in enumerate(detectors)},
        "seconds_per_record": {one["name"]: 0.000125 * (i + 1) for i, one in enumerate(detectors)},
    }


def _detectors(shape: Shape, rng: np.random.Generator) -> list[Report]:
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


def _starts(shape: Shape, n: int) -> Float:
    first = START_MS if shape.axis == "time" else 0
    return np.round(np.linspace(first, shape.end, n, endpoint=False))


def _windows(shape: Shape, detectors: Sequence[Report], rng: np.random.Generator) -> Report:
    n, each = shape.windows, shape.records // shape.windows
    starts = _starts(shape, n)

    def of(detector: Report) -> Report:
        auroc = detector["metrics"]["auroc"]
        swing = np.sin(np.arange(n) / 7 + rng.uniform(0, 6)) * 0.03
        known = (
            {
                "auroc": (auroc["value"] + swing - 0.03).tolist(),
                "average_precision": (0.5 + 5 * swing).tolist(),
                "true_alerts": [int(0.006 * each)] * n,
            }
            if auroc
            else dict.fromkeys(("auroc", "average_precision", "true_alerts"), [None] * n)
        )
        if auroc and n > 20:
            known["auroc"][12] = None  # a window without outliers
        return {
            **known,
            "alerts": rng.poisson(0.01 * each, n).tolist(),
            "alert_rate": (0.01 + 0.1 * np.abs(swing)).tolist(),
            "median_score": (swing - 1).tolist(),
        }

    return {
        "start": starts.tolist(),
        "end": [*starts[1:].tolist(), shape.end],
        "records": [each] * n,
        "outliers": rng.poisson(0.01 * each, n).tolist() if shape.labels else None,
        "by_detector": {one["name"]: of(one) for one in detectors},
    }


def _timeline(shape: Shape, starts: Float, is_odd: Bools, rng: np.random.Generator) -> Report:
    n, each = shape.bins, shape.records // shape.bins
    calm = 0.4 * np.sin(np.arange(n) / 60)
    peak = rng.gumbel(1.2, 0.5, n) + calm + is_odd * rng.uniform(3, 7, n)
    return {
        "start": starts.tolist(),
        "records": rng.poisson(each, n).tolist(),
        "max": peak.tolist(),
        "median": (calm - 2 + 0.1 * rng.normal(size=n)).tolist(),
        "alerts": np.where(peak > 3.4, rng.poisson(2, n) + 1, 0).tolist(),
        "outliers": np.where(is_odd, rng.poisson(4, n) + 1, 0).tolist() if shape.labels else None,
        "generation": (1 + np.arange(n) * shape.generations // n).tolist(),
    }


def _generations(shape: Shape, rng: np.random.Generator) -> Report:
    n = shape.generations
    renewed = [None, *rng.uniform(0.01, 0.08, n - 1).tolist()]
    return {
        "times": _starts(shape, n).tolist(),
        "generation": list(range(1, n + 1)),
        "partition": [i % shape.partitions for i in range(n)],
        "rows": np.minimum(5000, 200 * np.arange(1, n + 1)).tolist(),
        "renewed": renewed,
        "count": n * shape.partitions,
    }


def _segments(shape: Shape, rng: np.random.Generator) -> list[Report]:
    def one(start: float) -> Report:
        detected, records, at = bool(rng.random() < 0.8), int(rng.integers(1, 90)), int(rng.integers(0, shape.records))
        return {
            "partition": int(rng.integers(shape.partitions)),
            "from": at,
            "to": at + records,
            "start": int(start),
            "end": int(start) + 1000 * records,
            "records": records,
            "detected": detected,
            "delay_records": int(rng.integers(0, records)) if detected else None,
            "delay_s": float(rng.uniform(0, 60)) if detected else None,
            "peak": float(rng.normal(6, 2)),
        }

    return [one(start) for start in _starts(shape, shape.segments)] if shape.labels else []


def _drift(shape: Shape, rng: np.random.Generator) -> Report:
    d, w = len(shape.features), shape.windows
    strength = np.sort(rng.exponential(0.2, d))[::-1]
    psi = 0.01 + strength[:, None] * np.linspace(0, 1, w) ** 2 * rng.uniform(0.8, 1.2, (d, w))
    return {
        "features": list(shape.features),
        "psi": psi.tolist(),
        "missing": (0.02 * rng.random((d, w))).tolist(),
        "median": (rng.normal(20, 5, (d, 1)) + np.cumsum(rng.normal(0, 0.2, (d, w)), 1)).tolist(),
        "reference_records": 5000,
    }


def _partitions(shape: Shape, rng: np.random.Generator) -> list[Report]:
    n = shape.records // shape.partitions
    return [
        {
            "partition": p,
            "records": n,
            "scored": n - 50,
            "alerts": int(rng.poisson(0.0098 * n)),
            "alert_rate": 0.0098,
            "outliers": int(rng.poisson(0.012 * n)) if shape.labels else None,
            "auroc": float(rng.uniform(0.9, 0.96)) if shape.labels else None,
        }
        for p in range(shape.partitions)
    ]


def _alerts(shape: Shape, rng: np.random.Generator) -> list[Report]:
    return [
        {
            "partition": int(rng.integers(shape.partitions)),
            "offset": int(rng.integers(shape.records)),
            "time": int(rng.integers(*((START_MS, shape.end) if shape.axis == "time" else (0, shape.end)))),
            "score": 0.99999 - 1e-4 * i,
            "logit": 11 - 0.05 * i,
            "p_value": 1e-4 * (1 + i // 10),
            "severity": "critical" if i < 30 else "warning",
            "label": int(rng.random() < 0.7) if shape.labels and i % 7 else None,
            "record": _record(shape, rng),
            "reasons": None,
        }
        for i in range(shape.alerts)
    ]


def _record(shape: Shape, rng: np.random.Generator) -> str:
    values: Report = {name: round(float(rng.normal(20, 5)), 2) for name in shape.features}
    values |= {"device": "pump-17", "note": HOSTILE}
    text = json.dumps(values, ensure_ascii=False)
    return text[: shape.record_size] if len(text) > shape.record_size else text.ljust(min(shape.record_size, 2000))


def _rounded(value: Any) -> Any:
    """Floats with 6 significant digits; NaN as null."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return None if value != value else int(value) if abs(value) >= 1e6 else float(f"{value:.6g}")
    return value
