"""Counts everything that a report says about a replay."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from fomo_stream.replaying.blocks import UNREADABLE, Block
from fomo_stream.replaying.tally import drift as drifts
from fomo_stream.replaying.tally.batches import Batches
from fomo_stream.replaying.tally.contexts import Contexts
from fomo_stream.replaying.tally.drift import Drift
from fomo_stream.replaying.tally.incident_sizes import IncidentSizes
from fomo_stream.replaying.tally.levels import Levels
from fomo_stream.replaying.tally.plain import plain
from fomo_stream.replaying.tally.quality import Quality, auroc, by_window
from fomo_stream.replaying.tally.segments import NEVER, Closed, Segments, merged
from fomo_stream.replaying.tally.spec import Arrays, Columns, Int, TallySpec, part, whole
from fomo_stream.replaying.tally.timeline import Timeline
from fomo_stream.replaying.tally.top_alerts import TopAlerts
from fomo_stream.replaying.tally.windows import OUTLIERS, RECORDS, Windows
from fomo_stream.wording import counted


class Tally:
    """Counts the blocks of one partition; tallies of different partitions can be merged.

    Its size does not depend on the number of records. Its report depends on the records alone, and not on where blocks
    end, or on whether the tally was stored and loaded in between.
    """

    def __init__(self, spec: TallySpec) -> None:
        self.spec = spec
        self.windows = Windows(spec)
        self.segments = Segments(spec)
        self.timeline = Timeline()
        self.alerts = TopAlerts(spec)
        self.levels = Levels(spec)
        self.contexts = Contexts()
        self.batches = Batches()
        self.incidents = IncidentSizes()
        self.drifts: dict[int, Drift] = {}  # by partition
        self.partitions: dict[int, dict[str, Any]] = {}  # counts of each, by number
        self.skipped: Counter[str] = Counter()

    def add(self, block: Block) -> None:
        """Count the next block of the partition."""
        if block.partition not in self.partitions:
            if self.partitions:
                raise ValueError("a tally counts one partition; merge those of several")
            self.partitions[block.partition] = _no_records(block.partition)
            self.drifts[block.partition] = Drift(self.spec)
        counts = self.partitions[block.partition]
        self.skipped.update(block.skipped)
        self.batches.add(block.batch_s)
        self.incidents.add(block)
        counts["records"] += len(block) + sum(block.skipped.values())
        counts["odd_times"] += block.odd_times
        if not len(block):
            return
        columns = Columns(self.spec, block)
        counts["unreadable_labels"] += int((block.labels == UNREADABLE).sum()) if self.spec.has_labels else 0
        warming_up = int(np.isnan(block.results.remembered_logit).sum())
        counts["warming_up"] += warming_up
        counts["scored"] += len(block) - warming_up
        counts["alerts"] += int(columns.alerts[0].sum())
        counts["outliers"] += int(columns.is_outlier.sum())
        self.windows.add(columns)
        self.windows.add_segments(self.segments.add(columns))
        self.timeline.add(columns, block.results.generation)
        self.drifts[block.partition].add(columns, block.rows)
        self.levels.add(columns)
        self.contexts.add(block)
        self.alerts.add(block)

    def merge(self, other: Tally) -> Tally:
        """The counts of both, which are of different partitions. Neither of them changes."""
        if both := self.partitions.keys() & other.partitions.keys():
            raise ValueError(f"both tallies count partition {min(both)}")
        result, more = self._finished(), other._finished()
        result.windows.merge(more.windows)
        result.segments.listed = merged(result.segments.listed, more.segments.listed)
        for name in ("timeline", "alerts", "levels", "contexts", "batches", "incidents"):
            getattr(result, name).merge(getattr(more, name))
        result.drifts.update(more.drifts)
        result.partitions.update(more.partitions)
        result.skipped.update(more.skipped)
        return result

    def _finished(self) -> Tally:
        """A copy in which nothing is open at the end of the partition."""
        result = Tally.from_arrays(self.spec, self.arrays())
        result.windows.add_segments(result.segments.finish())
        for drift in result.drifts.values():
            drift.finish()
        for counts in result.partitions.values():
            if counts["auroc"] is None:
                counts["auroc"] = auroc(result.windows)
        return result

    def arrays(self) -> Arrays:
        """The state, to be stored: arrays of numbers, no objects."""
        texts = {"partitions": list(self.partitions.values()), "skipped": self.skipped}
        parts = {f"drift{number}": drift.arrays() for number, drift in self.drifts.items()}
        names = ("windows", "segments", "timeline", "alerts", "levels", "contexts", "batches", "incidents")
        parts |= {name: getattr(self, name).arrays() for name in names}
        return {"json": np.frombuffer(json.dumps(texts).encode("ascii"), np.uint8), **whole(**parts)}

    @classmethod
    def from_arrays(cls, spec: TallySpec, arrays: Arrays) -> Tally:
        """As `arrays` gave them, for the same spec."""
        result, texts = cls(spec), json.loads(arrays["json"].tobytes())
        result.windows = Windows.from_arrays(spec, part(arrays, "windows"))
        result.segments = Segments.from_arrays(spec, part(arrays, "segments"))
        result.timeline = Timeline.from_arrays(part(arrays, "timeline"))
        result.alerts = TopAlerts.from_arrays(spec, part(arrays, "alerts"))
        result.levels = Levels.from_arrays(spec, part(arrays, "levels"))
        result.contexts = Contexts.from_arrays(part(arrays, "contexts"))
        result.batches = Batches.from_arrays(part(arrays, "batches"))
        result.incidents = IncidentSizes.from_arrays(part(arrays, "incidents"))
        result.partitions = {counts["partition"]: counts for counts in texts["partitions"]}
        result.drifts = {p: Drift.from_arrays(spec, part(arrays, f"drift{p}")) for p in result.partitions}
        result.skipped = Counter(texts["skipped"])
        return result

    def batch_ms(self) -> dict[str, float | None]:
        """Quantiles of the time that a micro-batch took, in milliseconds: the only numbers that depend on the clock."""
        result: dict[str, float | None] = plain(self.batches.milliseconds())
        return result

    def report(self) -> dict[str, Any]:
        """The parts of a report that are counted from blocks, as JSON can hold them.

        "source" and "notes" are in part: the caller adds what it knows.
        """
        done = self._finished()
        spec, windows = done.spec, done.windows
        qualities = [Quality(spec, windows, d) for d in range(len(spec.detectors))]
        detectors = []
        for d, (name, quality) in enumerate(zip(spec.detectors, qualities, strict=True)):
            metrics, replicates = quality.metrics()
            detectors.append(
                {
                    "name": name,
                    "metrics": metrics,
                    "counts": quality.counts(),
                    "curves": quality.curves(),
                    "calibration": done.levels.report(d, spec.has_labels),
                    "distribution": quality.distribution(),
                    "replicates": replicates,
                }
            )
        parts = {
            "source": done._source(),
            "notes": _notes(spec, detectors, done._source()),
            "detectors": detectors,
            "windows": _windows(spec, windows),
            "timeline": done.timeline.report(spec.has_labels),
            "generations": done.contexts.generations(),
            "segments": _segments(done.segments.listed, spec),
            "drift": drifts.report([done.drifts[p] for p in sorted(done.drifts)], spec.features, windows.axis),
            "context": done.contexts.report(),
            "partitions": done._partitions(),
            "alerts": done.alerts.alerts,
            "reasons": done.alerts.reasons(),
            "incidents": done.incidents.report(),
        }
        result: dict[str, Any] = plain(parts)
        return result

    def _source(self) -> dict[str, Any]:
        totals = {name: sum(counts[name] for counts in self.partitions.values()) for name in _SUMMED}
        axis = self.windows.axis
        is_time = self.spec.axis == "time" and axis.last >= axis.first
        ends = {"from_ms": axis.first, "to_ms": axis.last} if is_time else {"from_ms": None, "to_ms": None}
        return {**totals, "skipped": dict(sorted(self.skipped.items())), **ends}

    def _partitions(self) -> list[dict[str, Any]]:
        rows = [dict(self.partitions[number]) for number in sorted(self.partitions)]
        for row in rows:
            del row["warming_up"], row["odd_times"], row["unreadable_labels"]
            row["alert_rate"] = row["alerts"] / row["scored"] if row["scored"] else None
            if not self.spec.has_labels:
                row["outliers"] = None
        return rows


_SUMMED = ("records", "scored", "warming_up", "odd_times", "unreadable_labels")


def _no_records(partition: int) -> dict[str, Any]:
    counts: dict[str, Any] = dict.fromkeys((*_SUMMED, "alerts", "outliers"), 0)
    return {"partition": partition, **counts, "auroc": None}


def _windows(spec: TallySpec, windows: Windows) -> dict[str, Any]:
    n, starts = windows.axis.bins, windows.axis.starts()
    return {
        "start": starts,
        "end": starts + windows.axis.width,
        "records": windows.totals[:n, RECORDS],
        "outliers": windows.totals[:n, OUTLIERS] if spec.has_labels else None,
        "by_detector": {name: by_window(spec, windows, d) for d, name in enumerate(spec.detectors)},
    }


def _segments(listed: Closed, spec: TallySpec) -> list[dict[str, Any]]:
    result = []
    for i in range(len(listed)):
        span = {name: int(values[i]) for name, values in listed.spans.items()}
        delay: Int = listed.delay_records[i, :1]
        is_detected = bool(delay[0] != NEVER)
        seconds = listed.delay_ms[i, 0] / 1000 if is_detected and spec.axis == "time" else None
        detection = {"detected": is_detected, "delay_records": int(delay[0]) if is_detected else None}
        result.append({**span, **detection, "delay_s": seconds, "peak": listed.peaks[i]})
    return result


def _notes(spec: TallySpec, detectors: list[dict[str, Any]], source: dict[str, Any]) -> list[str]:
    """Sentences about what could not be counted."""
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
        notes.append(f"The labels of {n_bad:,} records are left out, because they are not true or false, or 1 or 0.")
    if source["odd_times"]:
        notes.append(
            f"{counted(source['odd_times'], 'record')} had no time, or one that differs by more than a minute from "
            "those around it; each counts at the time of the record before it, or of the first good one."
        )
    return notes
