"""What is measured of a replay is exact: as scikit-learn, NumPy and simple loops compute it from all records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocks import OWN, block, explained, made_stream, measured, spec_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as sklearn_metrics

from fomo_stream.errors import FomoError
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, Block
from fomo_stream.replaying.measures.intervals import resamples
from fomo_stream.replaying.measures.quality import class_counts, ranking_metrics
from fomo_stream.replaying.measures.recorder import Recorder
from fomo_stream.replaying.measures.segments import MAX_GAP
from fomo_stream.replaying.measures.summary import summary
from fomo_stream.replaying.measures.top_alerts import MAX_RECORD_CHARACTERS, MAX_TOP_ALERTS, TopAlerts

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
DETECTORS = (OWN, "other")


def column(blocks: list[Block], name: str, detector: str | None = None) -> NDArray[Any]:
    """A column of all records, of a detector if one is named."""
    return np.concatenate([getattr(b.judgements[detector] if detector else b, name) for b in blocks])


# -- rankings --------------------------------------------------------------------------------------------------------


@st.composite
def ranked(draw: st.DrawFn) -> tuple[Float, Bool]:
    score = st.integers(-3, 3).map(float) if draw(st.booleans()) else st.floats(-100, 100)
    pairs = draw(st.lists(st.tuples(score, st.booleans()), min_size=2, max_size=40))
    scores, labels = np.array([score for score, _ in pairs]), np.array([label for _, label in pairs])
    labels[:2] = False, True
    return scores, labels


@given(ranked())
def test_auroc_and_average_precision_are_those_of_scikit_learn(case: tuple[Float, Bool]) -> None:
    scores, labels = case
    values = ranking_metrics(*class_counts(scores, labels))
    assert values["auroc"][0] == pytest.approx(sklearn_metrics.roc_auc_score(labels, scores))
    assert values["average_precision"][0] == pytest.approx(sklearn_metrics.average_precision_score(labels, scores))


# -- a whole replay --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def partitions() -> list[list[Block]]:
    made = [made_stream(p, 2000 + 1000 * p, partition=p, detectors=DETECTORS) for p in range(3)]
    made[1][1].judgements["other"].score[:100] = np.nan
    return made


@pytest.fixture(scope="module")
def report(partitions: list[list[Block]]) -> dict[str, Any]:
    return measured(*partitions)


def test_a_report_is_plain_json_and_the_same_in_any_order_and_blocks_of_any_size(
    partitions: list[list[Block]], report: dict[str, Any]
) -> None:
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert measured(*partitions[::-1]) == report
    assert measured(made_stream(1, 2500, size=77)) == measured(made_stream(1, 2500))


def test_the_metrics_of_a_report_are_those_of_scikit_learn(
    partitions: list[list[Block]], report: dict[str, Any]
) -> None:
    blocks = [part for blocks in partitions for part in blocks]
    labels, times = column(blocks, "labels"), column(blocks, "times")
    scores = {name: column(blocks, "score", name) for name in DETECTORS}
    used = ~np.isnan(scores[OWN]) & ~np.isnan(scores["other"]) & (labels != UNKNOWN)
    known = labels != UNKNOWN
    windows = report["windows"]
    places = np.searchsorted(windows["start"], times, "right") - 1
    is_used = np.array(windows["records"]) > 0
    drawn = np.zeros((len(is_used), 500))
    drawn[is_used] = resamples(is_used.sum())
    for detector in report["detectors"]:
        name = detector["name"]
        score, alert, metrics = scores[name], column(blocks, "alert", name), detector["metrics"]
        exact = {
            "auroc": sklearn_metrics.roc_auc_score(labels[used], score[used]),
            "average_precision": sklearn_metrics.average_precision_score(labels[used], score[used]),
            "alert_precision": sklearn_metrics.precision_score(labels[known], alert[known]),
            "alert_recall": sklearn_metrics.recall_score(labels[known], alert[known]),
            "alert_rate": alert.sum() / (~np.isnan(score)).sum(),
        }
        for metric, value in exact.items():
            assert metrics[metric]["value"] == pytest.approx(value, rel=1e-5)
            assert metrics[metric]["low"] <= metrics[metric]["value"] <= metrics[metric]["high"]
        for r in range(0, 500, 100):  # a replicate is the metric of the windows that were drawn
            weights = drawn[places[used], r]
            auroc = sklearn_metrics.roc_auc_score(labels[used], score[used], sample_weight=weights)
            assert detector["replicates"]["auroc"][r] == pytest.approx(auroc, rel=1e-5)
        assert detector["counts"]["ranked"] == used.sum()
        assert detector["counts"]["outliers"] == (labels == OUTLIER).sum()
        assert detector["counts"]["true_alerts"] == (alert & (labels == OUTLIER)).sum()


def test_the_parts_of_a_report_add_up(partitions: list[list[Block]], report: dict[str, Any]) -> None:
    source, timeline = report["source"], report["timeline"]
    assert (source["scored"], source["warming_up"], source["skipped"]) == (8850, 150, {"not_json": 9})
    assert source["records"] == sum(report["windows"]["records"]) + 9 == 9009
    assert sum(timeline["records"]) == 9000
    highest = max(np.nanmax(b.judgements[OWN].score) for blocks in partitions for b in blocks)
    assert max(peak for peak in timeline["max"] if peak is not None) == pytest.approx(highest, rel=1e-5)
    assert sum(timeline["alerts"]) == report["detectors"][0]["counts"]["alerts"]


# -- single parts ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(3, 5)), min_size=1, max_size=300), st.integers(1, 120))
def test_the_highest_alerts_are_kept_in_order(numbers: list[tuple[int, int]], size: int) -> None:
    """By score, then by logit, then by offset."""
    scores, logits = np.array(numbers, float).T
    kept = TopAlerts()
    for a in range(0, len(scores), size):
        made = block(logits[a : a + size], first=a, alerts=scores[a : a + size] > 2)
        kept.add(replace(made, results=replace(made.results, score=scores[a : a + size])))
    expected = sorted((-s, -logit, i) for i, (s, logit) in enumerate(numbers) if s > 2)[:MAX_TOP_ALERTS]
    assert [(-a["score"], -a["logit"], a["offset"]) for a in kept.alerts] == expected
    assert all(a["record"] == f'{{"n":{a["offset"]}}}' for a in kept.alerts)


def test_alerts_are_listed_as_the_service_writes_them_and_counted_by_their_first_reason() -> None:
    alerts = np.array([True, False, True, True, True])
    odd = [{"f1": value, "more": "ä" * 5000} for value in ("\ud800", 2**80, float("nan"), np.float64(1.5), b"bytes")]
    one, other = (
        block(np.arange(5.0) + 9 * p, rows=np.ones((5, 3)), alerts=alerts, partition=p, fields=odd) for p in range(2)
    )
    report = measured([explained(one, [2, 0, 2, -1])], [explained(other, [1, 1, 1, 2])])
    json.loads(json.dumps(report).encode("ascii"))
    assert all(len(alert["record"]) == MAX_RECORD_CHARACTERS for alert in report["alerts"])
    assert [tuple(one.values()) for one in report["reasons"]] == [("f1", 3), ("f2", 3), ("f0", 1)]
    said = {(alert["partition"], alert["offset"]): alert["explanation"] for alert in report["alerts"]}
    assert (said[0, 4], said[0, 0]) == (None, "f2 is 9, usually 3 (2 to 4)")
    report["source"]["name"] = "sensors"
    assert "The features that are most often the first reason of an alert: f1 (3), f2 (3), f0 (1)." in summary(report)


def test_what_labels_of_one_class_or_of_few_windows_cannot_tell_is_said() -> None:
    for label, said in (
        (-1, "No scored record has a label, so the quality of the scores is not known."),
        (0, "No record is labelled an outlier, so the quality of the scores is not known."),
        (1, "The labels that can be compared are of one class, so AUROC and the like are not known."),
    ):
        report = measured([block(np.arange(9.0), [label] * 9)])
        metrics = report["detectors"][0]["metrics"]
        assert (metrics["auroc"], metrics["alert_precision"]) == (None, None)
        report["source"]["name"] = "sensors"
        assert said in summary(report)
    notes = measured([block(np.arange(2000.0) % 7, [1] * 4 + [0] * 1996)])["notes"]
    assert "Outliers are in fewer than 8 windows of time, too few for intervals." in notes


def test_without_labels_nothing_is_said_about_outliers() -> None:
    report = measured([block(np.arange(9.0), [0, 1] * 4 + [0])], has_labels=False)
    own = report["detectors"][0]
    assert own["counts"]["outliers"] is report["windows"]["outliers"] is report["timeline"]["outliers"] is None
    assert {name for name, value in own["metrics"].items() if value} == {"alert_rate"}
    assert report["segments"] == []


def test_partitions_without_records_have_a_report() -> None:
    nothing = block(np.zeros(0), skipped={"not_json": 3})
    assert measured([nothing])["source"]["skipped"] == {"not_json": 3}
    both = measured([nothing], [block(np.zeros(5), partition=1)])["source"]
    assert (both["records"], both["scored"]) == (8, 5)


def test_notes_that_cannot_be_written_are_an_error_in_one_sentence(tmp_path: Path) -> None:
    made = block(np.zeros(3), fields=[{"v": value} for value in (2**80, "\ud800", b"bytes")])
    with pytest.raises(FomoError, match="no folder: No such file or directory; let TMPDIR name"):
        Recorder(tmp_path / "no folder", spec_of([made]), 0)
    if Path("/dev/full").exists():
        (tmp_path / "0.rows").symlink_to("/dev/full")
        recorder = Recorder(tmp_path, spec_of([made]), 0)
        recorder.add(made)
        with pytest.raises(FomoError, match="No space left on device"):
            recorder.close()


# -- segments ----------------------------------------------------------------------------------------------------------

N = 60_000
Record = tuple[int, bool]  # label and alert


def expected_segments(records: list[Record]) -> list[tuple[int, int, int, int | None]]:
    """First and last record, number of outliers, and delay of each segment."""
    segments: list[list[int]] = []
    for i, (label, _) in enumerate(records):
        if label != OUTLIER:
            continue
        between = [label for label, _ in records[segments[-1][-1] + 1 : i]] if segments else []
        if segments and INLIER not in between and len(between) <= MAX_GAP:
            segments[-1].append(i)
        else:
            segments.append([i])
    result = []
    for members in segments:
        alerts = [i for i in range(members[0], members[-1] + 1) if records[i][1]]
        result.append((members[0], members[-1], len(members), alerts[0] - members[0] if alerts else None))
    return result


LABELS, ALERT_RATES = [INLIER, OUTLIER, OUTLIER, UNKNOWN], [0.0, 0.1, 0.5]
RUNS = st.lists(
    st.tuples(st.sampled_from(LABELS), st.integers(1, 14), st.sampled_from(ALERT_RATES)),
    min_size=1,
    max_size=15,
)


@given(RUNS, st.randoms(use_true_random=False))
def test_segments_and_delays_are_those_of_a_simple_loop(runs: list[tuple[int, int, float]], random: Any) -> None:
    records = [(label, random.random() < rate) for label, n, rate in runs for _ in range(n)]
    alerts = np.array([alert for _, alert in records])
    report = measured([block(np.zeros(len(records)), [label for label, _ in records], alerts=alerts)])
    found = [(s["from"], s["to"], s["records"], s["delay_records"]) for s in report["segments"]]
    expected = expected_segments(records)
    assert found == expected
    delays = [delay for *_, delay in expected if delay is not None]
    counts, metrics = report["detectors"][0]["counts"], report["detectors"][0]["metrics"]
    assert (counts["segments"], counts["segments_detected"]) == (len(expected), len(delays))
    assert [s["delay_s"] for s in report["segments"]] == [delay for *_, delay in expected]  # a record each second
    assert (metrics["delay_records"] or {}).get("value") == (
        np.quantile(delays, 0.5, method="inverted_cdf") if delays else None
    )


@given(RUNS, RUNS, st.randoms(use_true_random=False))
def test_segments_of_a_key_are_those_of_its_records_alone(one: Any, other: Any, random: Any) -> None:
    of_key = [[(label, random.random() < rate) for label, n, rate in runs for _ in range(n)] for runs in (one, other)]
    turns = [1] * len(of_key[0]) + [2] * len(of_key[1])
    random.shuffle(turns)
    rest = [iter(records) for records in of_key]
    labels, alerts = zip(*(next(rest[key - 1]) for key in turns), strict=True)
    made = block(np.zeros(len(turns)), labels, alerts=np.array(alerts))
    series = made.results.series
    series[:] = turns
    listed = measured([replace(made, keys=[f"k{key}" for key in turns])])["segments"]
    assert [s["key"] for s in listed] == [f"k{turns[s['from']]}" for s in listed]
    found = [(s["from"], s["to"], s["records"], s["delay_records"]) for s in listed]
    expected = [
        (int(its[first]), int(its[last]), n, delay)
        for its, alone in zip((np.flatnonzero(series == key) for key in (1, 2)), of_key, strict=True)
        for first, last, n, delay in expected_segments(alone)
    ]
    assert found == sorted(expected, key=lambda one: one[0])


# -- drift -------------------------------------------------------------------------------------------------------------


def drift_of(*partitions: Float) -> dict[str, Any]:
    """The drift of one feature of partitions."""
    parts = [
        [block(np.zeros(len(column)), partition=p, rows=np.asarray(column, float).reshape(-1, 1))]
        for p, column in enumerate(partitions)
    ]
    found = measured(*parts, axis="record")["drift"]
    return {name: value[0] for name, value in found.items() if isinstance(value, list)}


def test_a_known_shift_has_the_known_index_and_medians_and_shares_missing() -> None:
    """Of normal distributions at distance m, the Jeffreys divergence is m**2; bins lose a little of it."""
    column = np.random.default_rng(1).normal(size=N) + np.where(np.arange(N) < 30_000, 0.0, 1.0)
    column[-100:] = np.nan
    found = drift_of(column)
    assert 0.7 < found["psi"] < 1.2
    assert found["first_median"] == pytest.approx(np.median(column[:5000]), rel=1e-5)
    assert found["last_median"] == pytest.approx(np.nanmedian(column[-5000:]), rel=1e-5)
    assert (found["first_missing"], found["last_missing"]) == (0.0, 0.02)
    assert drift_of(column[:30_000])["psi"] < 0.05
    assert set(drift_of(column[:9999]).values()) == {"f0", None}  # too few


@pytest.mark.parametrize(("before", "after"), [(5.0, 5.0001), (0.0, np.nan), (np.nan, 1.0), (1.0, np.inf)])
def test_a_constant_that_changes_has_drifted(before: float, after: float) -> None:
    found = drift_of(np.where(np.arange(12_000) < 7_000, before, after))
    assert found["psi"] > 2
    assert found["last_missing"] == np.isnan(after)
    assert found["first_median"] == (before if np.isfinite(before) else None)


def test_partitions_are_compared_with_their_own_first_records() -> None:
    """Partitions on different levels have not drifted; the mean over them is weighted by records."""
    rng = np.random.default_rng(4)
    parts = [rng.normal(level, size=n) for level, n in ((0.0, 10_000), (50.0, 30_000))]
    alone, together = [drift_of(part) for part in parts], drift_of(*parts)
    assert together["psi"] < 0.2
    for name in ("psi", "first_median", "last_median"):
        assert together[name] == pytest.approx(np.average([one[name] for one in alone], weights=[1, 3]), abs=1e-3)
