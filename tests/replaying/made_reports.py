"""Made-up reports of replays, in the format of `report["format"] == 1`, as a real replay would give them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from made_detectors import made_detectors
from report_shapes import HOSTILE, START_MS, Bools, Float, Report, Shape


def made_report(shape: Shape | None = None) -> Report:
    """A report of the given shape; the same shape gives the same report."""
    shape = shape or Shape()
    rng = np.random.default_rng(shape.seed)
    starts = _starts(shape, shape.bins)
    is_odd = np.zeros(shape.bins, bool)
    is_odd[rng.integers(0, shape.bins, shape.bins // 40)] = True
    detectors = made_detectors(shape, rng)
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
        "incidents": {"count": 3 * shape.alerts, "open": 2, "median_records": 2, "most_records": 41}
        if shape.alerts
        else {"count": 0, "open": 0, "median_records": None, "most_records": None},
        "reasons": [{"feature": name, "alerts": 40 - i} for i, name in enumerate(shape.features[:20])],
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
        "scored": shape.records - 300 * shape.partitions,
        "skipped": {"not_json": 90 * shape.partitions, "no_features": 10 * shape.partitions},
        "warming_up": 200 * shape.partitions,
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
        "detectors": {one["name"]: 12.5 * (i + 1) for i, one in enumerate(detectors)},
        "seconds_per_record": {one["name"]: 0.000125 * (i + 1) for i, one in enumerate(detectors)},
    }


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
            "scored": n - 300,
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
            **_reasons(shape.features[i % len(shape.features)]),
        }
        for i in range(shape.alerts)
    ]


def _reasons(feature: str) -> Report:
    one = {"feature": feature, "cause": "value", "share": 0.8, "value": 9.8, "usual": 3.1, "range": [2.8, 3.4]}
    return {"reasons": [one], "explanation": f"{feature} is 9.8, usually 3.1 (2.8 to 3.4)"}


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
