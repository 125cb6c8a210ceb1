"""Makes blocks of scored records, and reports of them, for tests of what comes after the scoring."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fomo_stream.detector.results import Results, Scores, Status
from fomo_stream.replaying.blocks import BLOCK, UNKNOWN, Block, BlockJudgement
from fomo_stream.replaying.measures.measure import measure
from fomo_stream.replaying.measures.recorder import MeasureSpec, Recorder
from fomo_stream.replaying.measures.summary import summary
from fomo_stream.replaying.report_files import json_value

Float = NDArray[np.float64]
Int = NDArray[np.int64]
OWN = "fomo-stream"
Report = dict[str, Any]

HOSTILE = "<script>window.hacked=1</script></script><!--<script><img src=x onerror=window.hacked=1>&amp;\u2028'\""
FEATURES = tuple(f"f{i}" for i in range(10))
RIVALS = ("river.HalfSpaceTrees", "knn")


def incident(records: int, first: int = 0, feature: str | None = None) -> Report:
    """The sum of one of so many alerts, the first of which is the highest, because of this feature."""
    reason = {"feature": feature, "cause": "value", "value": 9.0, "usual": 3.0, "range": [2.0, 4.0]}
    places = {"from": {"offset": first}, "to": {"offset": first + records - 1}}
    worst = {"offset": first, "score": 0.99, "severity": "critical"}
    why = {"reasons": [] if feature is None else [reason], "explanation": f"{feature} is 9, usually 3 (2 to 4)"}
    return {**places, "worst": worst, "records": records, "surprise": 5.0 * records, **why}


def results(logit: Float, alert: NDArray[np.bool_]) -> Results:
    """Results with these logits (n,), NaN while warming up."""
    known = ~np.isnan(logit)
    scores = Scores.of(logit[:, None], known.astype(np.int64), np.where(known, 1.0, np.nan))
    p_value, severity = np.where(known, 0.5, np.nan), np.where(alert, 2, 0).astype(np.int8)
    made = Results.of(scores, logit, expit(logit), p_value, alert, severity, Status.OK)
    return replace(made, status=[Status.OK if one else Status.WARMING_UP for one in known])


def block(
    scores: Mapping[str, Float] | Float,
    labels: Any = None,
    *,
    first: int = 0,
    partition: int = 0,
    times: Any = None,
    rows: Float | None = None,
    alerts: Mapping[str, NDArray[np.bool_]] | NDArray[np.bool_] | None = None,
    fields: list[dict[str, Any]] | None = None,
    **more: Any,
) -> Block:
    """A block of n records from offset `first` on; scores (n,) by detector, the first one OWN unless named otherwise.

    Without alerts, a record alerts if its score is above 2. Without rows, they have no features.
    """
    named = scores if isinstance(scores, Mapping) else {OWN: np.asarray(scores, np.float64)}
    own, n = next(iter(named)), len(next(iter(named.values())))
    if not isinstance(alerts, Mapping):
        alerts = {name: score > 2 if alerts is None else alerts for name, score in named.items()}
    offsets = np.arange(first, first + n)
    more.setdefault("outputs", [{"incident": f"{partition}-{at}", "severity": "critical"} for at in offsets.tolist()])
    return Block(
        partition=partition,
        offsets=offsets,
        times=offsets * 1000 if times is None else np.asarray(times, np.int64),
        labels=np.full(n, UNKNOWN, np.int8) if labels is None else np.asarray(labels, np.int8),
        rows=np.zeros((n, 0)) if rows is None else rows,
        results=results(named[own], alerts[own]),
        judgements={name: BlockJudgement(score, alerts[name]) for name, score in named.items()},
        fields=[{"n": int(offset)} for offset in offsets] if fields is None else fields,
        **more,
    )


def made_stream(
    seed: int,
    n: int,
    features: int = 3,
    detectors: tuple[str, ...] = (OWN,),
    partition: int = 0,
    size: int = BLOCK,
    guilty: str | None = None,
) -> list[Block]:
    """A stream of n records in blocks: outliers in short segments, scores that drift, some missing values."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(n, np.int8)
    for start in rng.integers(0, n, max(1, n // 200)):
        labels[start : start + rng.integers(1, 8)] = 1
    labels[rng.random(n) < 0.1] = UNKNOWN
    level = np.cumsum(rng.normal(size=n)) / max(1.0, n**0.5)
    scores = {name: level + rng.normal(size=n) + (2.0 - 0.3 * i) * (labels == 1) for i, name in enumerate(detectors)}
    for score in scores.values():
        score[: min(n, 50)] = np.nan
    rows = rng.normal(size=(n, features)) + np.linspace(0, 1, n)[:, None]
    rows[rng.random(rows.shape) < 0.02] = np.nan
    times = 1_760_000_000_000 + np.cumsum(rng.integers(0, 20_000, n))
    made = []
    for a in range(0, n, size):
        part = slice(a, min(a + size, n))
        numbers = [number for number in range(a, min(a + size, n)) if number % BLOCK == 0]  # the same for every size
        made.append(
            block(
                {name: score[part] for name, score in scores.items()},
                labels[part],
                first=a,
                partition=partition,
                times=times[part],
                rows=rows[part],
                skipped={"not_json": len(numbers)},
                ended_incidents=[incident(3 + number // BLOCK, number, guilty) for number in numbers],
                open_incidents=[incident(2)],
            )
        )
    return made


def explained(one: Block, columns: Sequence[int], said: str = "{} is 9, usually 3 (2 to 4)") -> Block:
    """The same, where the first reasons of its alerts are about these columns; -1: it has none."""
    outputs = [dict(output) for output in one.outputs]
    for place, column in zip(np.flatnonzero(one.results.outlier).tolist(), columns, strict=True):
        if column >= 0:
            outputs[place] |= {"reasons": [{"feature": f"f{column}"}], "explanation": said.format(f"f{column}")}
    return replace(one, outputs=outputs)


def spec_of(blocks: list[Block], **more: Any) -> MeasureSpec:
    features = tuple(f"f{i}" for i in range(blocks[0].rows.shape[1]))
    given = {"features": features, "alert_rate": 0.01, "has_labels": True, "axis": "time", **more}
    return MeasureSpec(tuple(blocks[0].judgements), **given)


def measured(*partitions: list[Block], **more: Any) -> dict[str, Any]:
    """What is measured of the blocks of each partition."""
    spec = spec_of(partitions[0], **more)
    with TemporaryDirectory() as folder:
        recorded = []
        for blocks in partitions:
            recorder = Recorder(Path(folder), spec, blocks[0].partition)
            for part in blocks:
                recorder.add(part)
            recorded.append(pickle.loads(pickle.dumps(recorder.close())))  # as from another process
        return measure(recorded, spec)


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
        blocks = made_stream(partition, records // partitions, len(features), names, partition, guilty=features[0])
        for block in blocks:
            block.fields[:] = [{**fields, "device": record} for fields in block.fields]
        parts.append(
            [explained(block, (np.flatnonzero(block.results.outlier) % len(features)).tolist()) for block in blocks]
        )
    report = measured(*parts, features=features, has_labels=labels, axis=axis)
    for i, detector in enumerate(report["detectors"]):
        detector |= {"kind": "rival" if i else "own", "settings": None}
    ranges = [{"partition": p, "from": 0, "to": records // partitions} for p in range(partitions)]
    kind = {"name": name, "kind": "topic" if axis == "time" else "file", "partitions": partitions, "ranges": ranges}
    report["source"] |= {**kind, "axis": axis, "features": list(features), "is_complete": True}
    report |= {
        "format": 2,
        "notes": ["Warms up: the first records have no score.", *report["notes"]],
        "settings": {"topic": name, "from_": "2025-10-01", "alert_rate": 0.01, "compare": list(rivals)},
        "versions": {"fomo_stream": "0.1.0", "numpy": "2.3.1", "river": None},
        "timing": {
            "started": "2026-11-23T01:02:03Z",
            "seconds": 171.8,
            "records_per_s": 5820.7,
            "detector_share": 0.91,
            "detectors": {detector: 12.5 * (i + 1) for i, detector in enumerate(names)},
            "seconds_per_record": {detector: 0.000125 * (i + 1) for i, detector in enumerate(names)},
        },
    }
    report["summary"] = summary(report)
    content: dict[str, Any] = json_value(report)
    return content


def with_nulls(value: Any, key: str = "") -> Any:
    """The same report, in which every number that may be unknown is null."""
    if isinstance(value, dict):
        kept = {"source", "settings", "versions", "timing"}
        return {name: part if name in kept else with_nulls(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [with_nulls(part, key) for part in value]
    known = {"format", "partition", "offset", "from", "to", "start", "end", "time", "times", "records", "edges"}
    return None if isinstance(value, (int, float)) and key not in known else value
