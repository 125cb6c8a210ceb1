"""Reports of made-up replays: what is measured of made streams, with all that a real replay adds."""

from __future__ import annotations

from typing import Any

import numpy as np
from blocks import OWN, explained, made_stream, measured

from fomo_stream.replaying.measures.plain import plain
from fomo_stream.replaying.measures.summary import summary

Report = dict[str, Any]

HOSTILE = "<script>window.hacked=1</script></script><!--<script><img src=x onerror=window.hacked=1>&amp;\u2028'\""
FEATURES = tuple(f"f{i}" for i in range(10))
RIVALS = ("river.HalfSpaceTrees", "knn")


def made_report(
    records: int = 12_000,
    *,
    labels: bool = True,
    rivals: tuple[str, ...] = RIVALS,
    features: tuple[str, ...] = FEATURES,
    partitions: int = 2,
    axis: str = "time",
    name: str = "sensors",
    record: str = "pump-17",
) -> Report:
    """A report of a topic; the same arguments give the same report. record: a text in each of the records."""
    names, parts = (OWN, *rivals), []
    for partition in range(partitions):
        blocks = made_stream(partition, records // partitions, len(features), names, partition)
        for block in blocks:
            block.fields[:] = [{**fields, "device": record} for fields in block.fields]
        parts.append(
            [explained(block, (np.flatnonzero(block.results.outlier) % len(features)).tolist()) for block in blocks]
        )
    report = measured(*parts, features=features, has_labels=labels, axis=axis)
    batch_ms = report.pop("batch_ms")
    for i, detector in enumerate(report["detectors"]):
        detector |= {"kind": "rival" if i else "own", "settings": None}
    ranges = [{"partition": p, "from": 0, "to": records // partitions} for p in range(partitions)]
    kind = {"name": name, "kind": "topic" if axis == "time" else "file", "partitions": partitions, "ranges": ranges}
    report["source"] |= {**kind, "axis": axis, "features": list(features), "is_complete": True}
    report |= {
        "format": 1,
        "notes": ["Warms up: the first records have no score.", *report["notes"]],
        "settings": {"topic": name, "from_": "2025-10-01", "alert_rate": 0.01, "compare": list(rivals)},
        "versions": {"fomo_stream": "0.1.0", "numpy": "2.3.1", "river": None},
        "timing": {
            "started": "2026-11-23T01:02:03Z",
            "seconds": 171.8,
            "records_per_s": 5820.7,
            "detector_share": 0.91,
            "batch_ms": batch_ms,
            "detectors": {detector: 12.5 * (i + 1) for i, detector in enumerate(names)},
            "seconds_per_record": {detector: 0.000125 * (i + 1) for i, detector in enumerate(names)},
        },
    }
    report["summary"] = summary(report)
    return plain(report)  # type: ignore[no-any-return]


def with_nulls(value: Any, key: str = "") -> Any:
    """The same report, in which every number that may be unknown is null."""
    if isinstance(value, dict):
        kept = {"source", "settings", "versions", "timing"}
        return {name: part if name in kept else with_nulls(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [with_nulls(part, key) for part in value]
    known = {"format", "partition", "offset", "from", "to", "start", "end", "time", "times", "records", "edges"}
    return None if isinstance(value, (int, float)) and key not in known else value
