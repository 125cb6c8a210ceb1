"""The worst incidents of a report: when they were, whether they are labelled, and what their features did then."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median_low
from typing import Any, cast

import numpy as np
import pytest
from blocks import block, incident, measured, spec_of
from hypothesis import given
from hypothesis import strategies as st

import fomo_stream
from fomo_stream.kafka.observer import Observation, Outlier
from fomo_stream.kafka.snapshot import Snapshot
from fomo_stream.ops.status import MAX_INCIDENTS, StatusBoard
from fomo_stream.partition.incidents import Incidents
from fomo_stream.replaying.advice import PartitionAlerts, alerts_in
from fomo_stream.replaying.blocks import INLIER, OUTLIER, Block
from fomo_stream.replaying.measures.incident_metrics import MAX_PICTURE_POINTS, MIN_RECORDS_AROUND
from fomo_stream.replaying.measures.recorder import MAX_WORST
from fomo_stream.replaying.measures.top_alerts import MAX_TOP_ALERTS

N = 900


def replayed(rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """The report of a replay, as plain data."""
    return cast(dict[str, Any], fomo_stream.replay(rows, **settings).report)


@given(st.integers(0, N - 1), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_a_picture_has_the_records_around_the_incident_and_their_extremes(first: int, size: int, seed: int) -> None:
    size = min(size, N - first)
    rng = np.random.default_rng(seed)
    rows, alerts = rng.normal(size=(N, 2)), np.zeros(N, bool)
    rows[rng.random(rows.shape) < 0.05] = np.nan
    alerts[first : first + size] = True
    labels = rng.choice([-1, 0, 1], N, p=[0.9, 0.05, 0.05])
    its = incident(size, first, "f1")
    made = block(np.zeros(N), labels, rows=rows, alerts=alerts, ended_incidents=[its])
    (shown,) = measured([made])["incidents"]["worst"]
    last = first + size - 1
    assert (shown["begin"], shown["end"]) == (first * 1000, last * 1000)
    within = labels[first : last + 1]
    assert shown["outliers"] == ((within == 1).sum() if (within >= 0).any() else None)
    (picture,) = shown["pictures"]
    assert (picture["feature"], picture["range"]) == ("f1", [2.0, 4.0])
    places = np.array(picture["x"]) // 1000
    room = max(MIN_RECORDS_AROUND, size)
    low, high = max(0, first - room), min(N, last + 1 + room)
    assert (np.diff(places) > 0).all()
    assert low <= places[0] <= places[-1] < high
    assert len(places) == high - low if high - low <= MAX_PICTURE_POINTS else len(places) <= MAX_PICTURE_POINTS + 1
    np.testing.assert_allclose(np.array(picture["value"], float), rows[places, 1], rtol=1e-4)
    around = rows[low:high, 1]
    if np.isfinite(around).any():
        known = [value for value in picture["value"] if value is not None]
        assert min(known) == pytest.approx(np.nanmin(around), rel=1e-4)
        assert max(known) == pytest.approx(np.nanmax(around), rel=1e-4)
    assert places[picture["worst"]] == first
    np.testing.assert_array_equal(picture["alert"], np.flatnonzero(alerts[places]))


@pytest.fixture(scope="module")
def of_pumps() -> dict[str, Any]:
    """The report of two pumps by turns; the second has a fault of 20 records, which are labelled."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(1500):
        is_fault = i % 2 == 1 and 1200 <= i < 1240
        flow = rng.normal(50 if i % 2 else 10) + 40 * is_fault
        rows.append({"pump": f"p{i % 2}", "flow": flow, "load": rng.normal(), "fault": is_fault, "second": i * 10})
    return replayed(rows, key="pump", label="fault", min_context=100, context_size=500)


def test_a_picture_of_a_key_shows_the_records_of_this_key_alone(of_pumps: dict[str, Any]) -> None:
    worst = of_pumps["incidents"]["worst"][0]
    assert (worst["key"], worst["outliers"] >= 10) == ("p1", True)
    picture = next(one for one in worst["pictures"] if one["feature"] == "flow")
    assert all(x % 2 == 1 for x in picture["x"])
    assert picture["range"][0] > 40
    assert picture["value"][picture["worst"]] > 80


def test_each_incident_has_one_row_among_the_alerts(of_pumps: dict[str, Any]) -> None:
    names = [one["incident"] for one in of_pumps["alerts"]]
    assert len(names) == len(set(names)) == of_pumps["incidents"]["count"]
    assert of_pumps["incidents"]["most_records"] > 1


@st.composite
def streams(draw: st.DrawFn) -> Block:
    """Records of a few series, of which any may end at any time, with alerts near each other and labels."""
    n = draw(st.integers(1, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    alerts = rng.random(n) < draw(st.sampled_from([0.02, 0.1, 0.3]))
    made = block(np.zeros(n), rng.choice([-1, 0, 1], n, p=[0.5, 0.45, 0.05]), alerts=alerts)
    series = rng.integers(0, draw(st.integers(1, 4)), n)
    begins = (rng.random(n) < 0.02) & (series > 0)
    keys = [None if one == 0 else b"k%d" % one for one in series.tolist()]
    scores = np.where(alerts, 0.99, 0.5)
    return replace(made, keys=keys, results=replace(made.results, series=series, begins=begins, score=scores))


@given(streams(), st.sampled_from([(1, 1), (3, 8), (10, 30), (10, 1000)]))
def test_all_that_count_incidents_find_the_same(made: Block, quiet: tuple[int, int]) -> None:
    """The service, the report of a replay, the configuration that it suggests, and the status page."""
    outputs: list[dict[str, Any]] = [
        {"offset": at, "timestamp": at, "score": score, "outlier": outlier, "severity": "warning"}
        | {"remembered_logit": 0.0, "p_value": 0.5, "missing": 0, "status": "ok"}
        for at, score, outlier in zip(
            made.offsets.tolist(), made.results.score.tolist(), made.results.outlier.tolist(), strict=True
        )
    ]
    incidents = Incidents(quiet, None, 0)
    closed = incidents.follow(outputs, made.results, made.keys, made.offsets.tolist(), 0)
    members: dict[str, list[int]] = {}
    for at, output in enumerate(outputs):
        if "incident" in output:
            members.setdefault(output["incident"], []).append(at)
    sums = [one.summary for one in closed], incidents.open
    assert sorted(one["records"] for its in sums for one in its) == sorted(map(len, members.values()))

    made = replace(made, outputs=outputs, ended_incidents=sums[0], open_incidents=sums[1])
    report = measured([made], quiet=quiet)
    counts, found = report["detectors"][0]["counts"], report["incidents"]
    assert counts["incidents"] == found["count"] == len(members)
    assert found["open"] == len(incidents)
    sizes = sorted(map(len, members.values()))
    assert (found["median_records"], found["most_records"]) == (
        (median_low(sizes), sizes[-1]) if sizes else (None, None)
    )
    assert len(found["worst"]) == min(MAX_WORST, len(sizes))
    assert len(report["alerts"]) == min(MAX_TOP_ALERTS, len(members))

    series, labels = made.results.series, made.labels
    spans = [(slice(its[0], its[-1] + 1), its[0]) for its in members.values()]
    within = [set(labels[span][series[span] == series[first]].tolist()) for span, first in spans]
    assert counts["true_incidents"] == sum(OUTLIER in its for its in within)
    assert counts["false_incidents"] == sum(INLIER in its and OUTLIER not in its for its in within)

    rows = np.zeros(len(made), spec_of([made]).row)
    rows["series"], rows["begins"] = series, made.results.begins
    assert PartitionAlerts(rows, alerts_in(made, 0)).count(quiet)["incidents"] == len(members)

    board = StatusBoard()
    outliers = [Outlier({}, output, key) for output, key in zip(outputs, made.keys, strict=True) if output["outlier"]]
    for start in range(0, len(outliers), 100):
        board.scored(Observation("t", 0, outputs, outliers[start : start + 100], 0, 0))
    snapshot = Snapshot("running", (), "t", None, "g", None, "m", "numba", (), 0.01, ())
    shown = json.loads(board.status(snapshot))["incidents"]
    if len(members) <= MAX_INCIDENTS:
        assert sorted(one["alerts"] for one in shown) == sorted(map(len, members.values()))
