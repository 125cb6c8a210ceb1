"""The data of the status page, from the reports of a service and a snapshot; and the line of progress in the log."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fomo_stream.kafka.observer import Observation, Outlier
from fomo_stream.kafka.snapshot import PartitionSnapshot, Snapshot
from fomo_stream.ops.monitor import PROGRESS_S, ProgressLog
from fomo_stream.ops.status import MAX_INCIDENTS, STEP_S, STEPS, StatusBoard
from fomo_stream.partition.incidents import Notice
from fomo_stream.partition.labels import DueLabels
from fomo_stream.records.result import Result

EMPTY = Snapshot(
    state="running",
    not_ready=(),
    topic="sensors",
    out="sensors-scores",
    group="g",
    instance_id=None,
    model="fusion@1",
    kernel="numba",
    features=("flow",),
    alert_rate=0.01,
    partitions=(),
)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def board_and_clock() -> tuple[StatusBoard, Clock]:
    clock = Clock()
    return StatusBoard(clock), clock


def batch(n: int, *outliers: Outlier, partition: int = 0, missing: int = 0) -> Observation:
    results: list[Result] = [{"status": "ok", "missing": 0 if i else missing} for i in range(n)]
    return Observation("sensors", partition, results, outliers, 100, 1)


def outlier(
    offset: int, fields: Any = None, key: bytes | None = None, timestamp: int | None = 5000, **more: Any
) -> Outlier:
    result = {"offset": offset, "timestamp": timestamp, "score": 0.9, "severity": "critical"}
    return Outlier({"flow": 1.5} if fields is None else fields, result | more, key)


def status(board: StatusBoard, snapshot: Snapshot = EMPTY) -> Any:
    return json.loads(board.status(snapshot))


# --- rates


def test_the_rate_is_over_the_last_complete_seconds_and_says_how_long_the_lag_takes() -> None:
    board, clock = board_and_clock()
    assert status(board)["rate"]["per_second"] == 0
    for second in range(30):
        clock.now = 1000.25 + second
        board.scored(batch(20))
        board.scored(batch(second))
        rate = status(board)["rate"]
        assert rate["over_s"] == min(10, max(1, second))
        before = range(max(0, second - 10), second)
        assert rate["per_second"] == pytest.approx(sum(20 + n for n in before) / rate["over_s"])
    clock.now += 10
    late = replace(EMPTY, partitions=tuple(PartitionSnapshot(number, lag=lag) for number, lag in enumerate((49, None))))
    shown = status(board, late)
    assert shown["rate"]["per_second"] == pytest.approx((20 + 29) / 10)
    assert shown["catch_up_s"] == pytest.approx(10)
    clock.now += 1
    shown = status(board, late)
    assert (shown["rate"]["per_second"], shown["catch_up_s"]) == (0, None)


@given(st.lists(st.tuples(st.floats(0.01, 90), st.integers(0, 50)), max_size=60), st.floats(0, 700))
def test_the_series_has_every_record_of_its_time_once(reports: list[tuple[float, int]], wait: float) -> None:
    board, clock = board_and_clock()
    seen = []
    for gap, n in reports:
        clock.now += gap
        board.scored(batch(n))
        seen.append((clock.now, n))
    clock.now += wait
    rate = status(board)["rate"]
    end = clock.now // STEP_S * STEP_S
    begin = max(1000, end - STEP_S * STEPS)
    assert len(rate["series"]) == STEPS
    known = [value for value in rate["series"] if value is not None]
    assert rate["series"] == [None] * (STEPS - len(known)) + known
    assert len(known) == (end - begin) / STEP_S
    assert sum(known) * STEP_S == pytest.approx(sum(n for at, n in seen if begin <= at < end))


# --- latencies


@given(st.lists(st.lists(st.floats(1e-5, 1e6), min_size=1, max_size=300), min_size=1, max_size=3))
@example([[float(n) for n in range(1, 100_000)]])
def test_latencies_are_of_the_last_minute(commits: list[list[float]]) -> None:
    board, clock = board_and_clock()
    none = {"p50_s": None, "p99_s": None}
    assert status(board)["latency"] == {"over_s": 60, "end_to_end": none, "poll_to_commit": none}
    for seconds in commits:
        clock.now += 60
        half = len(seconds) // 2
        board.committed(seconds[half:], [-7.0], 0.01)  # the producer's clock is ahead
        board.committed(seconds[:half], [], 0.01)
        shown = status(board)["latency"]
        p50, p99 = np.quantile(seconds, (0.5, 0.99)).tolist()
        assert shown["poll_to_commit"] == pytest.approx({"p50_s": p50, "p99_s": p99}, rel=0.001)
        assert shown["end_to_end"] == {"p50_s": 0, "p99_s": 0}
    clock.now += 60
    assert status(board)["latency"]["poll_to_commit"] == none


# --- alerts


def test_alerts_of_an_incident_are_one_entry_and_count_once() -> None:
    board, clock = board_and_clock()
    one: dict[str, Any] = {"incident": "3-1", "surprise": 4.5}
    board.scored(batch(9, outlier(1, **one), outlier(2, timestamp=9000, **one), partition=3))
    board.scored(batch(9, outlier(1, incident="0-1")))
    board.scored(batch(9, outlier(2, timestamp=9000, **one), partition=3))  # scored again after a commit that failed
    first, second = status(board)["incidents"]
    shown = {"incident": "3-1", "partition": 3, "offset": 1, "last": 2, "since": 5.0, "until": 9.0, "alerts": 2}
    shown |= {"about": "outlier", "open": True, "score": 0.9, "severity": "critical", "surprise": 4.5}
    assert first == shown | {"key": None, "features": []}
    assert (second["incident"], second["alerts"]) == ("0-1", 1)
    board.scored(replace(batch(9, partition=3), closed=["3-1"]))
    assert [(one["incident"], one["open"]) for one in status(board)["incidents"]] == [("0-1", True), ("3-1", False)]
    board.scored(batch(400, *(outlier(offset) for offset in range(10, 300))))
    found = json.loads(board.status(EMPTY, 0.25))
    newest = range(299, 299 - MAX_INCIDENTS, -1)
    assert [one["offset"] for one in found["incidents"]] == list(newest)
    alerts = found["alerts"]
    assert (alerts["outliers"], alerts["realised_rate"], alerts["requested_rate"]) == (294, 0.25, 0.01)
    clock.now += STEP_S * STEPS
    assert status(board)["alerts"]["outliers"] == 0


def test_a_silence_is_an_incident_until_it_ends() -> None:
    board = StatusBoard()
    its = {"incident": "1-7-key-silent", "status": "silent", "of": "key", "quiet_s": 90.0}
    its |= {"from": {"offset": 7, "timestamp": 4000}}
    board.silence(1, Notice(None, b"marker", 7, its))
    (shown,) = status(board)["incidents"]
    assert b"marker" not in board.status(EMPTY)
    named = ("about", "of", "open", "since", "quiet_s", "alerts", "severity")
    assert [shown[name] for name in named] == ["silent", "key", True, 4.0, 90.0, 0, "warning"]
    board.silence(1, Notice(9, b"marker", 7, its | {"status": "closed"}))
    assert [one["open"] for one in status(board)["incidents"]] == [False]


def test_of_a_record_only_the_names_of_features_are_kept() -> None:
    reasons = [
        {"feature": "flow", "cause": "value", "share": 0.7, "value": "marker", "usual": "marker", "with": "gas"},
        {"feature": "d\ud800" + "e" * 999, "cause": "category", "share": 0.2, "value": "marker", "frequency": "marker"},
    ]
    because: dict[str, Any] = {"reasons": reasons, "explanation": "flow is marker", "incident": "0-1", "surprise": 4.2}
    board = StatusBoard()
    board.scored(batch(2, outlier(1, {"marker": "marker", "inner": {"marker": ["marker"]}}, b"marker", **because)))
    assert b"marker" not in board.status(EMPTY)
    (shown,) = status(board)["incidents"]
    assert (shown["features"][:2], shown["incident"], shown["surprise"]) == (["flow", "gas"], "0-1", 4.2)
    assert shown["features"][2].startswith("d\\ud800eee")
    assert len(shown["features"][2]) < 110


def test_keys_are_shown_only_where_that_is_wanted() -> None:
    board = StatusBoard(show_keys=True)
    board.scored(batch(2, outlier(1, {}, b"p7"), outlier(2, {}, b"p8"), outlier(3, {}, b"p7"), outlier(4, {}, None)))
    found = status(board)
    assert [one["key"] for one in found["incidents"]] == [None, "p7", "p8", "p7"]


def test_the_snapshot_is_shown_whatever_its_texts_are() -> None:
    partition = PartitionSnapshot(7, "wait <b>", open_transactions=(("sensors", 3.0),))
    snapshot = replace(EMPTY, features=("a\ud800", "<script>"), not_ready=("no\udfff",), partitions=(partition,))
    found = status(StatusBoard(), snapshot)
    assert found["instance"]["features"] == ["a\\ud800", "<script>"]
    assert found["instance"]["not_ready"] == ["no\\udfff"]
    assert found["instance"]["topic"] == "sensors"
    (shown,) = found["partitions"]
    assert (shown["number"], shown["waits"], shown["lag"], shown["generation"]) == (7, "wait <b>", None, 0)
    assert shown["open_transactions"] == [["sensors", 3.0]]


# --- the present


# --- the line of the log


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.message.startswith("progress ")]


def test_a_line_counts_what_was_done_since_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    progress = ProgressLog()
    progress.turned(1000.0)
    for _ in range(3):
        progress.scored(batch(40, outlier(1), missing=2))
    progress.dead_letter("not_json")
    progress.labelled(0, DueLabels(9, [7] * 4, [(0, 7, True)] * 4, 0))
    progress.regime_changed()
    progress.committed([0.01] * 98 + [0.2, 0.3], [], 0.01)
    progress.aborted()
    progress.turned(1000.0 + PROGRESS_S - 0.1)
    assert lines(caplog) == []
    progress.turned(1000.0 + 2 * PROGRESS_S)  # late: the rate is over the whole time
    assert lines(caplog) == [
        "progress records=120 per_second=6 outliers=3 missing=6 dead_letters=1 labels=4 regimes=1 commits=1 aborts=1 "
        "poll_to_commit_p99_ms=300"
    ]
    progress.scored(batch(5))
    progress.turned(1000.0 + 3 * PROGRESS_S)
    assert lines(caplog)[1].startswith("progress records=5 per_second=0.5 outliers=0 missing=0 dead_letters=0")
    progress.turned(1000.0 + 4 * PROGRESS_S)
    assert len(lines(caplog)) == 2  # no line about nothing
