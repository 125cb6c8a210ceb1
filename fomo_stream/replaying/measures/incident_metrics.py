"""The incidents of a replay: how many, and the worst ones, with when, why, and pictures of the features around them."""

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

MAX_PICTURES = 2  # of an incident: of its first reasons
MIN_RECORDS_AROUND = 30  # records of its series before and after an incident that a picture shows, at least
MAX_PICTURE_POINTS = 120  # of a picture, at most
VALUE_CAUSES = (Cause.VALUE, Cause.PAST, Cause.LEVEL, Cause.STILL)  # whose range is one of values


def incidents_report(recorded: Sequence[Recorded], spec: MeasureSpec) -> dict[str, Any]:
    """How many incidents the alerts of the detector itself make, how many alerts each has, and the worst ones."""
    still_open = [incident for one in recorded for incident in one.open_incidents]
    ended = [size for one in recorded for size in one.ended_incidents]
    sizes = sorted([*(one["records"] for one in still_open), *ended])
    every = [(one, its) for one in recorded for its in (*one.open_incidents, *one.worst_incidents)]
    every.sort(key=lambda pair: (-pair[1]["surprise"], pair[0].partition, pair[1]["from"]["offset"]))
    return {
        "count": len(sizes),
        "open": len(still_open),
        "median_records": sizes[(len(sizes) - 1) // 2] if sizes else None,
        "most_records": sizes[-1] if sizes else None,
        "worst": [_incident_report(its, one, spec) for one, its in every[:MAX_WORST]],
    }


def incidents_of(
    rows: NDArray[Any], is_alert: NDArray[np.bool_], quiet: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The places where incidents of one partition begin, if these records (n,) alert: of all, of true and false ones.

    An incident is true if of the records of its series, from its first alert to its last one, some is a labelled
    outlier; false if none is, but some is a labelled inlier: somebody looked in vain. rows: (n,), as `MeasureSpec.row`.
    """
    begins = incident_begins(rows["series"], rows["begins"], is_alert, quiet)
    order = np.argsort(rows["series"], kind="stable")
    places, label = np.flatnonzero(is_alert[order]), rows["label"][order]
    starts = np.flatnonzero(begins[order][places])
    first, last = places[starts], places[np.append(starts[1:], len(places))[: len(starts)] - 1]
    n_inliers, n_outliers = (np.append(0, np.cumsum(label == one)) for one in (INLIER, OUTLIER))
    is_true = n_outliers[last + 1] > n_outliers[first]
    is_false = ~is_true & (n_inliers[last + 1] > n_inliers[first])
    return np.flatnonzero(begins), order[first[is_true]], order[first[is_false]]


def _incident_report(incident: Result, recorded: Recorded, spec: MeasureSpec) -> dict[str, Any]:
    """An incident, and of the records of its series: from when to when it was, and what its features did around it."""
    rows, highest = recorded.rows, incident["worst"]
    offsets = incident["from"]["offset"], incident["to"]["offset"], highest["offset"]
    its = {
        "partition": recorded.partition,
        **dict(zip(("first", "last", "worst"), offsets, strict=True)),
        **{name: highest[name] for name in ("score", "severity")},
        **{name: incident.get(name) for name in ("key", "records", "surprise", "explanation")},
    }
    begin, end, worst = np.searchsorted(rows["offset"], offsets).tolist()
    if end >= len(rows):
        return {**its, "begin": None, "end": None, "outliers": None, "pictures": []}
    series = np.flatnonzero(rows["series"] == rows["series"][begin])  # places of the records of its series
    labels = rows["label"][series[(series >= begin) & (series <= end)]]
    first, last = np.searchsorted(series, (begin, end)).tolist()
    room = max(MIN_RECORDS_AROUND, last - first + 1)
    around = series[max(0, first - room) : last + 1 + room]
    reasons = incident.get("reasons") or ()
    named: dict[str, Mapping[str, Any]] = {}  # of a feature the first reason that has a range of values, or the first
    for reason in sorted(reasons, key=lambda one: _usual_range(one, spec) is None):
        if reason["feature"] not in spec.categorical:
            named.setdefault(reason["feature"], reason)
    order = [name for name in dict.fromkeys(one["feature"] for one in reasons) if name in named]
    return {
        **its,
        "begin": int(rows["time"][begin]),
        "end": int(rows["time"][end]),
        # None: no record of it has a label
        "outliers": int((labels == OUTLIER).sum()) if (labels >= 0).any() else None,
        "pictures": [_picture(named[name], recorded, around, worst, spec) for name in order[:MAX_PICTURES]],
    }


def _picture(
    reason: Mapping[str, Any], recorded: Recorded, around: NDArray[np.int64], worst: int, spec: MeasureSpec
) -> dict[str, Any]:
    """The values of a feature at some places (n,) of the records, and its usual range.

    Of more than POINTS places, only the lowest and the highest value of each stretch are kept, and the worst alert.
    """
    column, rows = spec.features.index(reason["feature"]), recorded.rows
    values, alerts = np.asarray(recorded.values[around, column]), rows["alert"][around, 0]
    if len(around) <= MAX_PICTURE_POINTS:
        kept = np.arange(len(around))
    else:
        edges = np.linspace(0, len(around), MAX_PICTURE_POINTS // 3 + 1).astype(np.int64).tolist()
        found = {int(np.searchsorted(around, worst))}
        for a, b in pairwise(edges):
            part = values[a:b]
            if np.isfinite(part).any():
                found |= {a + int(np.nanargmin(part)), a + int(np.nanargmax(part))}
            found |= {a + int(np.argmax(alerts[a:b]))}
        kept = np.array(sorted(found))
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
    """The usual range of the values of a feature, as far as a reason says it."""
    is_of_values = reason["cause"] in VALUE_CAUSES and reason["feature"] not in spec.counters
    return reason.get("range") if is_of_values else None
