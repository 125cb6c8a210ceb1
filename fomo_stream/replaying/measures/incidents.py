"""The incidents of a replay: how many, and the worst ones, with when, why, and pictures of the features around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.results import Cause
from fomo_stream.replaying.blocks import Incident

if TYPE_CHECKING:
    from fomo_stream.replaying.measures.recorder import Recorded, Spec

WORST = 20  # incidents that are listed
PICTURES = 2  # of an incident: of its first reasons
AROUND = 30  # records of its series before and after an incident that a picture shows, at least
POINTS = 120  # of a picture, at most
ABOUT_VALUES = (Cause.VALUE, Cause.PAST, Cause.MISSING, Cause.LEVEL, Cause.STILL)  # whose range is one of values


def worst(incidents: Iterable[Incident]) -> list[Incident]:
    """The WORST of these incidents, those of most surprise first."""
    return sorted(incidents, key=lambda one: (-one.surprise, one.partition, one.first))[:WORST]


def incidents_report(recorded: Sequence[Recorded], spec: Spec) -> dict[str, Any]:
    """How many incidents the alerts of the detector itself make, how many alerts each has, and the worst ones."""
    still_open = [incident for one in recorded for incident in one.open_incidents]
    sizes = sorted([*(one.records for one in still_open), *(size for one in recorded for size in one.ended_incidents)])
    listed = worst([*still_open, *(incident for one in recorded for incident in one.worst_incidents)])
    parts = {one.partition: one for one in recorded}
    return {
        "count": len(sizes),
        "open": len(still_open),
        "median_records": sizes[(len(sizes) - 1) // 2] if sizes else None,
        "most_records": sizes[-1] if sizes else None,
        "worst": [_shown(one, parts[one.partition], spec) for one in listed],
    }


def count_incidents(rows: NDArray[Any], is_alert: NDArray[np.bool_], quiet: tuple[int, int]) -> NDArray[np.int64]:
    """The places where incidents of one partition begin, if these records (n,) alert: as `Incidents` counts them.

    rows: (n,), as `Spec.row`; quiet: records of a series without an alert, or of the partition without one of the
    series, that end an incident.
    """
    order = np.argsort(rows["series"], kind="stable")
    series, alerts = rows["series"][order], np.flatnonzero(is_alert[order])
    is_apart = np.diff(order, prepend=0) > quiet[1]  # so long nothing of the series came
    since = np.cumsum(is_apart)[alerts]
    is_first = np.diff(series[alerts], prepend=-1) != 0
    is_first |= (np.diff(alerts, prepend=0) > quiet[0]) | (np.diff(since, prepend=0) > 0)
    return np.sort(order[alerts[is_first]])


def _shown(incident: Incident, recorded: Recorded, spec: Spec) -> dict[str, Any]:
    """An incident, and of the records of its series: from when to when it was, and what its features did around it."""
    rows = recorded.rows
    its = {name: value for name, value in incident._asdict().items() if name != "reasons"}
    begin, end, worst = np.searchsorted(rows["offset"], (incident.first, incident.last, incident.worst)).tolist()
    if end >= len(rows):
        return {**its, "begin": None, "end": None, "outliers": None, "pictures": []}
    series = np.flatnonzero(rows["series"] == rows["series"][begin])  # places of the records of its series
    within = series[(series >= begin) & (series <= end)]
    labels = rows["label"][within]
    first, last = np.searchsorted(series, (begin, end)).tolist()
    room = max(AROUND, last - first + 1)
    around = series[max(0, first - room) : last + 1 + room]
    named: dict[str, Mapping[str, Any]] = {}  # of a feature the first reason that has a range of values, or the first
    for reason in sorted(incident.reasons, key=lambda one: _range(one, spec) is None):
        if reason["feature"] not in spec.categorical:
            named.setdefault(reason["feature"], reason)
    order = [name for name in dict.fromkeys(one["feature"] for one in incident.reasons) if name in named]
    return {
        **its,
        "begin": int(rows["time"][begin]),
        "end": int(rows["time"][end]),
        # None: no record of it has a label
        "outliers": int((labels == 1).sum()) if (labels >= 0).any() else None,
        "pictures": [_picture(named[name], recorded, around, worst, spec) for name in order[:PICTURES]],
    }


def _picture(
    reason: Mapping[str, Any], recorded: Recorded, around: NDArray[np.int64], worst: int, spec: Spec
) -> dict[str, Any]:
    """The values of a feature at some places (n,) of the records, and its usual range.

    Of more than POINTS places, only the lowest and the highest value of each stretch are kept, and the worst alert.
    """
    column, rows = spec.features.index(reason["feature"]), recorded.rows
    values, alerts = np.asarray(recorded.values[around, column]), rows["alert"][around, 0]
    if len(around) <= POINTS:
        kept = np.arange(len(around))
    else:
        edges = np.linspace(0, len(around), POINTS // 3 + 1).astype(np.int64).tolist()
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
        "range": _range(reason, spec),
        "expected": reason.get("expected") if _range(reason, spec) else None,
    }


def _range(reason: Mapping[str, Any], spec: Spec) -> list[float] | None:
    """The usual range of the values of a feature, as far as a reason says it."""
    is_of_values = reason["cause"] in ABOUT_VALUES and reason["feature"] not in spec.counters
    return reason.get("range") if is_of_values else None
