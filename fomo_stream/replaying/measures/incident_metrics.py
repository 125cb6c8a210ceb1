"""Counts the incidents of a replay, and describes the worst: times, reasons, and pictures of features around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.results import Cause
from fomo_stream.partition.incidents import incident_begins
from fomo_stream.records.result import Result
from fomo_stream.replaying.blocks import INLIER, OUTLIER
from fomo_stream.replaying.measures.recorder import MAX_WORST, MeasureSpec, Recorded

MAX_PICTURES = 2  # of an incident: the features of its first reasons
MIN_RECORDS_AROUND = 30  # of the series before and after an incident that a picture shows
MAX_PICTURE_POINTS = 120
VALUE_CAUSES = (Cause.VALUE, Cause.PAST, Cause.LEVEL, Cause.STILL)  # causes whose range is a range of values


def incidents_report(recorded: Sequence[Recorded], spec: MeasureSpec) -> dict[str, Any]:
    """Report the incidents of the detector itself: their number, their sizes in alerts, and the worst ones."""
    still_open = [incident for part in recorded for incident in part.open_incidents]
    ended = [size for part in recorded for size in part.ended_incidents]
    sizes = sorted([*(incident["records"] for incident in still_open), *ended])
    pairs = [(part, incident) for part in recorded for incident in (*part.open_incidents, *part.worst_incidents)]
    pairs.sort(key=lambda pair: (-pair[1]["surprise"], pair[0].partition, pair[1]["from"]["offset"]))
    return {
        "count": len(sizes),
        "open": len(still_open),
        "median_records": sizes[(len(sizes) - 1) // 2] if sizes else None,
        "most_records": sizes[-1] if sizes else None,
        "worst": [_incident_report(incident, part, spec) for part, incident in pairs[:MAX_WORST]],
    }


def incidents_of(
    rows: NDArray[Any], is_alert: NDArray[np.bool_], quiet: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions where incidents of one partition begin, if these records (n,) alert: all, true, false ones.

    An incident is true if the records of its series, from its first to its last alert, contain a labelled outlier;
    false if they contain no labelled outlier but a labelled inlier. rows: (n,), as `MeasureSpec.row`.
    """
    begins = incident_begins(rows["series"], rows["begins"], is_alert, quiet)
    order = np.argsort(rows["series"], kind="stable")
    places, label = np.flatnonzero(is_alert[order]), rows["label"][order]
    starts = np.flatnonzero(begins[order][places])
    first, last = places[starts], places[np.append(starts[1:], len(places))[: len(starts)] - 1]
    n_inliers, n_outliers = (np.append(0, np.cumsum(label == verdict)) for verdict in (INLIER, OUTLIER))
    is_true = n_outliers[last + 1] > n_outliers[first]
    is_false = ~is_true & (n_inliers[last + 1] > n_inliers[first])
    return np.flatnonzero(begins), order[first[is_true]], order[first[is_false]]


def _incident_report(incident: Result, recorded: Recorded, spec: MeasureSpec) -> dict[str, Any]:
    """Describe an incident: its begin and end, and the features of its series around it."""
    rows, highest = recorded.rows, incident["worst"]
    offsets = incident["from"]["offset"], incident["to"]["offset"], highest["offset"]
    report = {
        "partition": recorded.partition,
        **dict(zip(("first", "last", "worst"), offsets, strict=True)),
        **{name: highest[name] for name in ("score", "severity")},
        **{name: incident.get(name) for name in ("key", "records", "surprise", "explanation")},
    }
    begin, end, worst = np.searchsorted(rows["offset"], offsets).tolist()
    if end >= len(rows):
        return {**report, "begin": None, "end": None, "outliers": None, "pictures": []}
    series = np.flatnonzero(rows["series"] == rows["series"][begin])  # positions of the records of its series
    labels = rows["label"][series[(series >= begin) & (series <= end)]]
    first, last = np.searchsorted(series, (begin, end)).tolist()
    room = max(MIN_RECORDS_AROUND, last - first + 1)
    around = series[max(0, first - room) : last + 1 + room]
    reasons = incident.get("reasons") or ()
    named: dict[str, Mapping[str, Any]] = {}  # by feature, the first reason with a range of values, else the first
    for reason in sorted(reasons, key=lambda reason: _usual_range(reason, spec) is None):
        if reason["feature"] not in spec.categorical:
            named.setdefault(reason["feature"], reason)
    order = [name for name in dict.fromkeys(reason["feature"] for reason in reasons) if name in named]
    return {
        **report,
        "begin": int(rows["time"][begin]),
        "end": int(rows["time"][end]),
        # None: none of its records has a label
        "outliers": int((labels == OUTLIER).sum()) if (labels >= 0).any() else None,
        "pictures": [_picture(named[name], recorded, around, worst, spec) for name in order[:MAX_PICTURES]],
    }


def _picture(
    reason: Mapping[str, Any], recorded: Recorded, around: NDArray[np.int64], worst: int, spec: MeasureSpec
) -> dict[str, Any]:
    """Return the values of a feature at some positions (n,) of the records, and its usual range.

    With too many positions, only the lowest and highest value and an alert of each stretch are kept, and the worst one.
    """
    column, rows = spec.features.index(reason["feature"]), recorded.rows
    values, alerts = np.asarray(recorded.values[around, column]), rows["alert"][around, 0]
    if len(around) <= MAX_PICTURE_POINTS:
        kept = np.arange(len(around))
    else:
        edges = np.linspace(0, len(around), MAX_PICTURE_POINTS // 3 + 1).astype(np.int64).tolist()
        kept_positions = {int(np.searchsorted(around, worst))}
        for a, b in pairwise(edges):
            part = values[a:b]
            if np.isfinite(part).any():
                kept_positions |= {a + int(np.nanargmin(part)), a + int(np.nanargmax(part))}
            kept_positions |= {a + int(np.argmax(alerts[a:b]))}
        kept = np.array(sorted(kept_positions))
    return {
        "feature": reason["feature"],
        "x": rows["time"][around][kept],
        "value": values[kept],
        "alert": np.flatnonzero(alerts[kept]),
        "worst": int(np.searchsorted(around[kept], worst)),
        "range": _usual_range(reason, spec),
        "expected": reason.get("expected") if _usual_range(reason, spec) else None,
    }


def _usual_range(reason: Mapping[str, Any], spec: MeasureSpec) -> list[float] | None:
    """Return the usual range of the values of a feature if a reason says it, else None."""
    is_of_values = reason["cause"] in VALUE_CAUSES and reason["feature"] not in spec.counters
    return reason.get("range") if is_of_values else None
