"""Metrics: what is exposed is what was reported, for any course of reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from test_status import EMPTY

from fomo_stream.detector.results import DetectorSummary
from fomo_stream.kafka.observer import Observation, Observer, Outlier
from fomo_stream.kafka.snapshot import PartitionSnapshot, Snapshot
from fomo_stream.ops.metric import PREFIX
from fomo_stream.ops.metrics import METRICS, MIN_REALISED_RATE_RECORDS, Metrics
from fomo_stream.partition.incidents import Notice
from fomo_stream.partition.labels import DueLabels

BUSY = PartitionSnapshot(
    number=3,
    position=90,
    committed=80,
    end=100,
    lag=20,
    oldest_unscored_s=1.5,
    open_transactions=(("sensors", 2.5), ("state", 0.0)),
    generation_age_s=7.0,
    context_late_s=0.5,
    detector=DetectorSummary(90, 60, 12, 4, 31, 0.25, 17, 5, 3),
    silent={"key": 4, "partition": 0, "topic": 1},
)
WAITING = PartitionSnapshot(number=4, waits="waiting for its turn")


def snapshot(*partitions: PartitionSnapshot, not_ready: tuple[str, ...] = ()) -> Snapshot:
    return replace(EMPTY, not_ready=not_ready, partitions=partitions, restore_retries=5)


def exposed(metrics: Metrics, now: Snapshot) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample: (name, values of its labels in the order of their names) and its value."""
    families = text_string_to_metric_families(metrics.exposition(now).decode())
    samples = [sample for family in families for sample in family.samples]
    return {(s.name, tuple(s.labels[name] for name in sorted(s.labels))): s.value for s in samples}


def result(score: float | None, severity: str | None, status: str = "ok", missing: int = 0) -> dict[str, Any]:
    outlier = severity in ("warning", "critical")
    return {"score": score, "severity": severity, "status": status, "missing": missing, "outlier": outlier}


SILENT = 0, Notice(None, None, 0, {"of": "key", "status": "silent"})


def batch(*results: dict[str, Any], **more: Any) -> Observation:
    outliers = [Outlier({}, one) for one in results if one["outlier"]]
    values: dict[str, Any] = {"partition": 0, "context_rows": 60, "generation": 1, **more}
    return Observation("sensors", results=results, outliers=outliers, **values)


def test_every_metric_has_its_type_its_description_and_a_value() -> None:
    metrics = Metrics()
    metrics.scored(batch(*[result(0.5, None) | {"suppressed": "a rule"}] * MIN_REALISED_RATE_RECORDS))
    metrics.silence(*SILENT)
    families = {f.name: f for f in text_string_to_metric_families(metrics.exposition(snapshot(BUSY)).decode())}
    for metric in METRICS:
        family = families.pop(PREFIX + metric.name)
        assert (family.type, family.documentation) == (metric.kind, metric.text)
        assert family.samples, metric.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    assert all(name.startswith("process_") for name in families), "metrics that are in no table"


def test_windows_that_labels_tell_of_share_one_series() -> None:
    metrics = Metrics(["night", "--min-severity"])
    names = ["night", "--min-severity", *(f"told {number}" for number in range(100))]
    metrics.scored(batch(*[result(0.5, None) | {"suppressed": name} for name in names]))
    found = {labels: value for (name, labels), value in exposed(metrics, snapshot()).items() if "suppressed" in name}
    assert found == {("night",): 1, ("--min-severity",): 1, ("feedback",): 100}


def test_the_state_of_partitions_is_that_of_the_snapshot() -> None:
    found = exposed(Metrics(), snapshot(BUSY, WAITING, not_ready=("sensors[4] waits",)))
    assert found["fomo_ready", ()] == 0
    assert (found["fomo_partitions_assigned", ()], found["fomo_partitions_restoring", ()]) == (2, 1)
    of_three = {name: value for (name, labels), value in found.items() if labels == ("3",)}
    assert of_three == {
        "fomo_position": 90,
        "fomo_stalled_seconds": 0,
        "fomo_lag_records": 20,
        "fomo_oldest_unscored_seconds": 1.5,
        "fomo_context_rows": 60,
        "fomo_keys": 17,
        "fomo_keys_forgotten_total": 5,
        "fomo_own_contexts": 3,
        "fomo_context_late_seconds": 0.5,
        "fomo_generation_age_seconds": 7,
        "fomo_drift": 0.25,
    }
    assert found["fomo_open_transaction_seconds", ("3", "sensors")] == 2.5
    assert ("fomo_lag_records", ("4",)) not in found  # not known
    assert [found["fomo_silent", (level,)] for level in ("key", "partition", "topic")] == [4, 0, 1]
    assert found["fomo_restore_retries_total", ()] == 5
    assert found["fomo_alert_rate_requested_ratio", ()] == 0.01
    assert ("fomo_alert_rate_realised_ratio", ()) not in found


SEVERITIES = st.sampled_from([None, "info", "warning", "critical"])
RESULTS = st.builds(
    result,
    st.one_of(st.none(), st.floats(0, 1)),
    SEVERITIES,
    st.sampled_from(["ok", "calibrating", "warming_up"]),
    st.integers(0, 3),
)


@given(st.lists(st.lists(RESULTS, max_size=20), max_size=20))
def test_counters_are_the_sums_of_what_was_reported(batches: list[list[dict[str, Any]]]) -> None:
    metrics = Metrics()
    for results in batches:
        metrics.scored(batch(*results, opened=2, closed=["0-7"]))
    every = [one for results in batches for one in results]
    found = exposed(metrics, snapshot())
    assert found["fomo_records_total", ()] == len(every)
    assert found["fomo_records_calibrated_total", ()] == sum(one["status"] == "ok" for one in every)
    assert found["fomo_missing_values_total", ()] == sum(one["missing"] for one in every)
    counts = Counter(one["severity"] for one in every)
    for severity in ("info", "warning", "critical"):
        assert found["fomo_alerts_total", (severity,)] == counts[severity]
    assert found["fomo_incidents_total", ("opened",)] == 2 * len(batches)
    assert found["fomo_incidents_total", ("closed",)] == len(batches)
    scores = [one["score"] for one in every if one["score"] is not None]
    assert found["fomo_score_count", ()] == len(scores)
    assert found["fomo_score_sum", ()] == pytest.approx(sum(scores))


@given(st.lists(st.tuples(st.integers(0, 7), st.floats(0, 1)), max_size=40))
def test_the_realised_rate_is_that_of_the_last_records(batches: list[tuple[int, float]]) -> None:
    flags: list[bool] = []
    least, over = 10, 100
    with patch.multiple("fomo_stream.ops.metrics", MIN_REALISED_RATE_RECORDS=least, REALISED_RATE_RECORDS=over):
        metrics = Metrics()
        for n, share in batches:
            results = [result(0.5, "warning" if i < share * n else None) for i in range(n)]
            flags += [one["outlier"] for one in results]
            metrics.scored(batch(*results))
        if len(flags) < least:
            assert metrics.realised_rate is None
            return
        # whole micro-batches are forgotten
        possible = [sum(flags[-n:]) / n for n in range(min(len(flags), over), over + 8)]
        assert any(metrics.realised_rate == pytest.approx(rate) for rate in possible)


def test_the_time_of_a_poll_without_scoring_is_decoding() -> None:
    metrics = Metrics()
    metrics.scored(batch(result(0.5, None), score_s=0.2, produce_s=0.05))
    metrics.received(10, 0.35)
    metrics.received(10, 0.01)
    found = exposed(metrics, snapshot())
    assert found["fomo_decode_seconds_sum", ()] == pytest.approx(0.11)
    assert found["fomo_score_seconds_sum", ()] == pytest.approx(0.2)
    assert found["fomo_produce_seconds_sum", ()] == pytest.approx(0.05)


def test_every_report_is_counted() -> None:
    """Each method of the observer, but for that of the clock, changes what is exposed."""
    arguments: dict[str, tuple[Any, ...]] = {
        "received": (1, 0.1),
        "scored": (batch(result(0.5, None)),),
        "dead_letter": ("not_json",),
        "tombstone": (),
        "labelled": (0, DueLabels(9, [7], [(0, 7, True)], 0)),
        "regime_changed": (),
        "schema_seen": (2,),
        "silence": SILENT,
        "committed": ([0.1], [0.2], 0.3),
        "aborted": (),
        "rebalanced": ("lost", 1),
        "restored": (0.1,),
        "built": (0.1,),
    }
    names = {name for name in vars(Observer) if not name.startswith("_")}
    assert set(arguments) == names - {"turned"}
    for name, given_ in arguments.items():
        metrics = Metrics()
        before = exposed(metrics, snapshot())
        getattr(metrics, name)(*given_)
        after = exposed(metrics, snapshot())
        assert {key for key in after if before.get(key) != after[key] and key[0].startswith("fomo_")}, name
