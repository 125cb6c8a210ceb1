"""The worst incidents of a report: when they were, whether they are labelled, and what their features did then."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from blocks import block, incident, measured
from hypothesis import given
from hypothesis import strategies as st

import fomo_stream
from fomo_stream.replaying.measures.incidents import AROUND, POINTS

N = 2000


def replayed(rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """The report of a replay, as plain data."""
    return cast(dict[str, Any], fomo_stream.replay(rows, **settings).report)


@given(st.integers(0, N - 1), st.integers(1, 600), st.integers(0, 2**32 - 1))
def test_a_picture_has_the_records_around_the_incident_and_their_extremes(first: int, size: int, seed: int) -> None:
    size = min(size, N - first)
    rng = np.random.default_rng(seed)
    rows, alerts = rng.normal(size=(N, 2)), np.zeros(N, bool)
    rows[rng.random(rows.shape) < 0.05] = np.nan
    alerts[first : first + size] = True
    labels = rng.choice([-1, 0, 1], N, p=[0.9, 0.05, 0.05])
    its = incident(size, 0, first, "f1")
    (shown,) = measured([block(np.zeros(N), labels, rows=rows, alerts=alerts, ended_incidents=(its,))])["incidents"][
        "worst"
    ]
    last = first + size - 1
    assert (shown["begin"], shown["end"]) == (first * 1000, last * 1000)
    within = labels[first : last + 1]
    assert shown["outliers"] == ((within == 1).sum() if (within >= 0).any() else None)
    (picture,) = shown["pictures"]
    assert (picture["feature"], picture["range"]) == ("f1", [2.0, 4.0])
    places = np.array(picture["x"]) // 1000
    room = max(AROUND, size)
    low, high = max(0, first - room), min(N, last + 1 + room)
    assert (np.diff(places) > 0).all()
    assert low <= places[0] <= places[-1] < high
    assert len(places) == high - low if high - low <= POINTS else len(places) <= POINTS + 1
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


def test_incidents_of_any_setting_are_counted_as_those_of_the_detector(of_pumps: dict[str, Any]) -> None:
    of_noise = replayed([{"v": v} for v in np.random.default_rng(3).normal(size=3000)], alert_rate=0.05)
    for one in (of_pumps, of_noise):
        assert one["detectors"][0]["counts"]["incidents"] == one["incidents"]["count"] > 0
    assert of_noise["incidents"]["count"] > 10


def test_a_text_that_takes_turns_is_a_key_whatever_it_is_called() -> None:
    rng = np.random.default_rng(1)

    def at(minute: int, second: int = 0) -> str:
        return f"2026-10-01T{minute // 60:02}:{minute % 60:02}:{second:02}"

    rows = [{"at": at(i // 3), "where": f"w{i % 3}", "flow": rng.normal()} for i in range(900)]
    assert "key='where'" in replayed(rows)["suggestions"][0]["command"]
    apart = [{**row, "at": at(i // 3, i % 3)} for i, row in enumerate(rows)]
    assert "categorical='where'" in replayed(apart)["suggestions"][0]["command"]


def test_a_daily_pattern_is_named() -> None:
    rng = np.random.default_rng(2)
    rows = [
        {"at": 1_760_000_000 + i * 1800, "load": 10 * np.sin(i / 24 * np.pi) + rng.normal(), "noise": rng.normal()}
        for i in range(960)
    ]
    why, command = replayed(rows, time="at")["suggestions"][0].values()
    assert ("of load." in why, command) == (True, "replay(data, time='at', time_features='hour,weekday')")


def test_what_could_be_tried_comes_from_the_data() -> None:
    rng = np.random.default_rng(1)
    rows = [
        {"at": f"2026-10-{1 + i // 50:02}T{i % 24:02}:00:00", "pump": f"p{i % 3}", "flow": rng.normal()}
        for i in range(600)
    ]
    (first, *_) = replayed(rows)["suggestions"]
    assert first["command"] == "replay(data, time='at', key='pump')"
    assert "pump has 3 values" in first["why"]
    assert replayed(rows, key="pump", time="at")["suggestions"] == []


def test_rates_that_do_not_suit_the_labels_are_named(of_pumps: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    rows = [{"flow": rng.normal() + 9 * (i in (700, 800)), "fault": i in (700, 800)} for i in range(1000)]
    often, rarely = (replayed(rows, label="fault", alert_rate=rate) for rate in (0.05, 0.002))
    (advice,) = often["suggestions"]
    assert advice["command"] == "replay(data, label='fault', alert_rate=0.01)"
    assert "are no outliers" in advice["why"]
    assert rarely["suggestions"] == []
