"""Measures all records of a replay: makes the counted parts of its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fomo_stream.replaying.measures.drift import drift_report
from fomo_stream.replaying.measures.incident_metrics import incidents_report
from fomo_stream.replaying.measures.quality import Quality
from fomo_stream.replaying.measures.recorder import MAX_SILENCE_NOTICES, MeasureSpec, Recorded, Records
from fomo_stream.replaying.measures.segments import all_segments
from fomo_stream.replaying.measures.top_alerts import highest_per_incident, keys_report, reasons_report
from fomo_stream.replaying.report_files import json_value
from fomo_stream.settings.flags import LEVELS
from fomo_stream.wording import counted

MAX_TIMELINE_BINS = 4096


def measure(recorded: Sequence[Recorded], spec: MeasureSpec) -> dict[str, Any]:
    """Return the parts of a report that are counted from records, as JSON can hold them. recorded: of each partition.

    "source" and "notes" are incomplete: the caller adds more.
    """
    recorded = sorted(recorded, key=lambda part: part.partition)
    records = Records(recorded, spec)
    segments = all_segments([(part.partition, part.rows) for part in recorded])
    keys = {(part.partition, offset): key for part in recorded for offset, key in part.keys_of_outliers.items()}
    detectors = []
    for d, name in enumerate(spec.detectors):
        quality = Quality(spec, records, segments, d)
        metrics, replicates = quality.metrics()
        detectors.append({"name": name, "metrics": metrics, "counts": quality.counts(), "replicates": replicates})
    source = _source_counts(recorded, records, spec)
    drift = drift_report([part.values for part in recorded], spec.features)
    parts = {
        "source": source,
        "notes": _measure_notes(spec, detectors, source),
        "detectors": detectors,
        "windows": _windows(records, spec),
        "timeline": _timeline(records, spec),
        "segments": segments.report(spec.axis == "time", keys),
        "drift": drift,
        "alerts": highest_per_incident([alert for part in recorded for alert in part.alerts.alerts]),
        "reasons": reasons_report(sum((part.alerts.first_reasons for part in recorded), Counter()), spec.features),
        "keys": keys_report([part.alerts for part in recorded]),
        "incidents": incidents_report(recorded, spec),
        "silence": _silence_report(recorded),
    }
    result: dict[str, Any] = json_value(parts)
    return result


def _source_counts(recorded: Sequence[Recorded], records: Records, spec: MeasureSpec) -> dict[str, Any]:
    skipped = sum((part.skipped for part in recorded), Counter[str]())
    n_scored = int(np.count_nonzero(~np.isnan(records.of("score", 0))))
    has_times = spec.axis == "time" and len(records) > 0
    return {
        "records": len(records) + skipped.total(),
        "scored": n_scored,
        "warming_up": len(records) - n_scored,
        "odd_times": sum(part.odd_times for part in recorded),
        "unreadable_labels": sum(part.unreadable_labels for part in recorded),
        "skipped": dict(sorted(skipped.items())),
        "suppressed": dict(sorted(sum((part.suppressed for part in recorded), Counter[str]()).items())),
        "from_ms": records.axis.first if has_times else None,
        "to_ms": records.axis.last if has_times else None,
    }


def _windows(records: Records, spec: MeasureSpec) -> dict[str, Any]:
    starts = records.axis.starts
    outliers = np.bincount(records.window[records.is_outlier], minlength=len(starts))
    return {
        "start": starts,
        "end": starts + records.axis.width,
        "records": np.bincount(records.window, minlength=len(starts)),
        "outliers": outliers if spec.has_labels else None,
    }


def _timeline(records: Records, spec: MeasureSpec) -> dict[str, Any]:
    """Return the scores of the first detector by bin of time, for bins with records."""
    axis = records.axis_of(MAX_TIMELINE_BINS)
    place, n = axis.places(records.times), len(axis.starts)
    score, alert = records.of("score", 0), records.of("alert", 0)
    is_scored = ~np.isnan(score)
    peak = np.full(n, np.nan)
    np.fmax.at(peak, place, score)
    masks = slice(None), alert, records.is_outlier
    all_records, alerts, outliers = (np.bincount(place[mask], minlength=n) for mask in masks)
    with np.errstate(invalid="ignore"):
        total = np.bincount(place[is_scored], score[is_scored], n)
        mean = total / np.bincount(place[is_scored], minlength=n)
    used = np.flatnonzero(all_records)
    return {
        "width": axis.width,
        "start": axis.starts[used],
        "records": all_records[used],
        "max": peak[used],
        "mean": mean[used],
        "alerts": alerts[used],
        "outliers": outliers[used] if spec.has_labels else None,
    }


def _silence_report(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """Return how often each level was silent, and the first notices about it."""
    counts: Counter[tuple[str, str]] = sum((part.silence for part in recorded), Counter())
    notices = [notice for part in recorded for notice in part.silence_notices]
    earliest = sorted(notices, key=lambda notice: notice["from"]["timestamp"])
    levels = {level: {"silent": counts[level, "silent"]} for level in LEVELS}
    return {**levels, "told": earliest[:MAX_SILENCE_NOTICES]}


def _measure_notes(spec: MeasureSpec, detectors: list[dict[str, Any]], source: dict[str, Any]) -> list[str]:
    """Return sentences about what could not be counted."""
    notes = []
    counts, n = detectors[0]["counts"], source["scored"] + source["warming_up"]
    if spec.has_labels and n:
        has_both = 0 < counts["outliers"] < counts["labelled"]  # else the summary says so
        if has_both and not all(detector["metrics"]["auroc"] for detector in detectors):
            silent = min(detectors, key=lambda detector: detector["counts"]["records"])
            notes.append(
                "Detectors are compared on the records that all of them scored, and these are of one class or none: "
                f"{silent['name']} scored {silent['counts']['records']:,} of {n:,} records."
            )
        elif has_both and not detectors[0]["metrics"]["auroc"]["windows"]:
            notes.append("The range is too short for intervals: it has fewer than 8 windows with records.")
        elif has_both and detectors[0]["metrics"]["auroc"]["low"] is None:
            notes.append("Outliers are in fewer than 8 windows of time, too few for intervals.")
    if n_bad := source["unreadable_labels"]:
        notes.append(
            f"The labels of {counted(n_bad, 'record')} are left out, because they are not true or false, or 1 or 0."
        )
    if source["odd_times"]:
        notes.append(
            f"{counted(source['odd_times'], 'record')} had no time, or one that differs by more than a minute from "
            "those around it; each counts at the time of the record before it, or of the first good one."
        )
    return notes
