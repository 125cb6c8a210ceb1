"""A tally counts the same however its records come, and its report is JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from statistics import median_low
from typing import Any

import numpy as np
import pytest
from blocks import OWN, block, made_stream, results, spec_of, tallied
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.detector.results import Cause, Reason
from fomo_stream.replaying.blocks import Block, ContextNote
from fomo_stream.replaying.tally.contexts import LISTED
from fomo_stream.replaying.tally.incident_sizes import MOST, IncidentSizes
from fomo_stream.replaying.tally.summary import summary
from fomo_stream.replaying.tally.tally import Tally
from fomo_stream.replaying.tally.top_alerts import TEXT_LENGTH, TOP, record_text
from fomo_stream.replaying.tally.windows import RANKED_SCORES, WINDOW_SCORES

DETECTORS = (OWN, "other")


def stored(tally: Tally) -> Tally:
    """The tally after a way through a file without pickled objects."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **tally.arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return Tally.from_arrays(tally.spec, dict(arrays))


def cut(blocks: list[Block], size: int) -> list[Block]:
    """The same records in smaller blocks."""
    parts = []
    for whole in blocks:
        for a in range(0, len(whole), size):
            s = slice(a, a + size)
            judgements = {
                name: replace(j, score=j.score[s], p_value=j.p_value[s], alert=j.alert[s])
                for name, j in whole.judgements.items()
            }
            own = judgements[OWN]
            notes = [n for n in whole.contexts if a <= n.record < a + size]
            parts.append(
                replace(
                    whole,
                    offsets=whole.offsets[s],
                    times=whole.times[s],
                    labels=whole.labels[s],
                    rows=whole.rows[s],
                    results=results(own.score, own.alert, own.p_value),
                    judgements=judgements,
                    fields=whole.fields[s],
                    skipped=whole.skipped if a == 0 else {},
                    ended_incidents=whole.ended_incidents if a == 0 else (),
                    contexts=tuple(replace(n, record=n.record - a) for n in notes),
                )
            )
    return parts


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    return list(made_stream(1, 12_000, detectors=DETECTORS))


@pytest.fixture(scope="module")
def report(blocks: list[Block]) -> dict[str, Any]:
    return tallied(blocks).report()


@pytest.mark.parametrize("every", [1, 5])
def test_storing_and_loading_in_between_changes_nothing(
    blocks: list[Block], report: dict[str, Any], every: int
) -> None:
    tally = Tally(spec_of(blocks))
    for i, part in enumerate(blocks):
        tally.add(part)
        if i % every == 0:
            tally = stored(tally)
    assert json.dumps(tally.report()) == json.dumps(report)
    assert tally.batch_ms() == tallied(blocks).batch_ms()


def test_making_a_report_in_between_changes_nothing(blocks: list[Block], report: dict[str, Any]) -> None:
    tally = Tally(spec_of(blocks))
    for i, part in enumerate(blocks):
        tally.add(part)
        if i % 4 == 0:
            tally.report()
    assert json.dumps(tally.report()) == json.dumps(report)


ended = st.lists(st.lists(st.integers(1, MOST), max_size=5), min_size=1, max_size=4)


@given(st.lists(st.tuples(ended, st.lists(st.integers(1, 2 * MOST), max_size=3)), min_size=1, max_size=3))
def test_every_incident_counts_once_also_the_open_ones(partitions: list[tuple[list[list[int]], list[int]]]) -> None:
    whole, sizes = IncidentSizes(), []
    for blocks_ended, still_open in partitions:
        counted = IncidentSizes()
        for number, ended in enumerate(blocks_ended, 1):
            left = still_open if number == len(blocks_ended) else [1, 2, 3]
            counted.add(block(np.zeros(1), ended_incidents=tuple(ended), open_incidents=tuple(left)))
            counted = IncidentSizes.from_arrays(counted.arrays())
            counted.report()  # changes nothing
            sizes += ended
        sizes += still_open
        whole.merge(counted)
    counts = {"count": len(sizes), "open": sum(len(still_open) for _, still_open in partitions)}
    exact = {
        "median_records": min(median_low(sizes), MOST) if sizes else None,
        "most_records": max(sizes) if sizes else None,
    }
    assert whole.report() == {**counts, **exact}


@pytest.mark.parametrize("size", [1000, 77])
def test_the_size_of_blocks_changes_nothing(blocks: list[Block], report: dict[str, Any], size: int) -> None:
    cut_report = tallied(cut(blocks, size)).report()
    for mean in (cut_report["timeline"].pop("mean"), report["timeline"]["mean"]):
        assert mean is not None  # a sum of floats, whose last digits depend on the order
    np.testing.assert_allclose(
        np.array(tallied(cut(blocks, size)).report()["timeline"]["mean"], float),
        np.array(report["timeline"]["mean"], float),
        rtol=1e-4,
        atol=1e-6,
    )
    without_mean = {**report, "timeline": {k: v for k, v in report["timeline"].items() if k != "mean"}}
    assert json.dumps(cut_report) == json.dumps(without_mean)


def test_partitions_can_be_merged_in_any_order() -> None:
    tallies = [tallied(list(made_stream(p, 3000 + 2000 * p, partition=p))) for p in range(3)]
    reports = []
    for a, b, c in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        reports.append(tallies[a].merge(tallies[b]).merge(tallies[c]).report())
        reports.append(stored(tallies[a].merge(tallies[b])).merge(tallies[c]).report())
    for merged in reports:
        merged["timeline"].pop("mean")
        assert json.dumps(merged) == json.dumps(reports[0])
    merged = reports[0]
    assert (merged["source"]["scored"], merged["source"]["warming_up"]) == (15_000 - 150, 150)
    assert [p["partition"] for p in merged["partitions"]] == [0, 1, 2]
    assert [p["scored"] for p in merged["partitions"]] == [2950, 4950, 6950]
    assert merged["detectors"][0]["counts"]["records"] == merged["source"]["scored"]
    alone = tallies[1].report()
    assert merged["partitions"][1]["auroc"] == alone["detectors"][0]["metrics"]["auroc"]["value"]
    assert sum(merged["timeline"]["records"]) == sum(merged["windows"]["records"]) == 15_000
    with pytest.raises(ValueError, match="partition 0"):
        tallies[0].merge(tallies[0])
    with pytest.raises(ValueError, match="one partition"):
        tallies[0].add(block(np.zeros(3), partition=7))


def test_a_report_is_plain_json(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_the_state_stays_small_for_any_number_of_records() -> None:
    tally, n, rng = Tally(spec_of([block(np.zeros(1))])), 0, np.random.default_rng(3)
    for _ in range(30):
        tally.add(block(rng.normal(size=30_000), rng.integers(0, 2, 30_000), first=n))
        n += 30_000
        detector = tally.windows.detectors[0]
        assert len(detector.ranked.keys) <= RANKED_SCORES
        assert len(detector.scores.keys) <= WINDOW_SCORES
    assert sum(array.nbytes for array in tally.arrays().values()) < 7_500_000


def test_peaks_stay_in_the_timeline() -> None:
    scores = np.zeros(200_000)
    scores[[5, 77_777, 199_999]] = 50, 60, 70
    timeline = tallied([block(scores[a : a + 10_000], first=a) for a in range(0, 200_000, 10_000)]).report()["timeline"]
    assert 2048 <= len(timeline["start"]) <= 4096
    peaks = {timeline["start"][i]: peak for i, peak in enumerate(timeline["max"]) if peak}
    assert sorted(peaks.values()) == [50, 60, 70]
    assert [start <= 1000 * n < start + timeline["width"] for start, n in zip(peaks, (5, 77_777, 199_999), strict=True)]
    assert sum(timeline["alerts"]) == 3


@given(st.lists(st.integers(0, 5), max_size=300), st.integers(1, 120))
def test_the_highest_alerts_are_kept_in_order(logits: list[int], size: int) -> None:
    scores = np.array(logits, float)
    parts = [block(scores[a : a + size], first=a) for a in range(0, len(scores), size)]
    alerts = tallied(parts).report()["alerts"] if parts else []
    expected = sorted(((-s, i) for i, s in enumerate(logits) if s > 2))[:TOP]
    assert [(-a["logit"], a["offset"]) for a in alerts] == expected
    assert all(a["record"] == f'{{"n":{a["offset"]}}}' for a in alerts)


def test_any_record_can_be_written() -> None:
    for value in (2**80, "\ud800", float("nan"), np.float64(1.5), b"bytes", "</script><script>alert(1)</script>"):
        json.loads(record_text({"v": value})).keys()
    assert len(record_text({"v": "ä" * 5000})) == TEXT_LENGTH


def test_calibration_counts_p_values_at_most_as_large() -> None:
    p = np.array([0.0001, 0.001, 0.02, 0.4, 0.9, np.nan])
    judged = block(np.zeros(6), [1, 0, 0, 0, 0, 0], p_values={OWN: p})
    calibration = tallied([judged]).report()["detectors"][0]["calibration"]
    for level, realised, of_inliers in zip(*calibration.values(), strict=True):
        assert realised == pytest.approx(np.mean(p[:5] <= level * (1 + 1e-6)))
        assert of_inliers == pytest.approx(np.mean(p[1:5] <= level * (1 + 1e-6)))
    assert calibration["requested"][0] == 0.0001


def test_generations_are_thinned_evenly_and_counted_in_full() -> None:
    notes = tuple(ContextNote(i, i + 1, 500 + i, 0.25 if i else np.nan) for i in range(5000))
    report = tallied([block(np.zeros(5000), contexts=notes)]).report()
    listed = report["generations"]
    assert listed["count"] == 5000
    assert LISTED / 2 < len(listed["generation"]) <= LISTED
    assert set(np.diff(listed["generation"])) == {4}
    assert report["context"]["renewed_mean"] == 0.25
    assert report["context"]["rows"] == 5499


def test_changes_of_regime_are_found_across_blocks() -> None:
    parts = [block(np.zeros(4), first=4 * i) for i in range(3)]
    for part, regimes in zip(parts, ([0, 0, 1, 1], [1, 1, 1, 1], [2, 2, 3, 3]), strict=True):
        part.results.regime[:] = regimes
    context = tallied(parts).report()["context"]
    assert [change["offset"] for change in context["regime_changes"]] == [8, 10]
    assert context["regimes"] == 3


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        ([-1] * 9, "No scored record has a label"),
        ([0] * 9, "No record is labelled an outlier"),
        ([1] * 9, "are of one class"),
    ],
)
def test_labels_of_one_class_are_explained(labels: list[int], note: str) -> None:
    report = tallied([block(np.arange(9.0), labels)]).report()
    assert report["detectors"][0]["metrics"]["auroc"] is None
    assert report["detectors"][0]["metrics"]["alert_precision"] is None
    assert not report["notes"]
    report["source"]["name"] = "sensors"
    assert any(note in sentence for sentence in summary(report))


def test_without_labels_nothing_is_said_about_outliers() -> None:
    report = tallied([block(np.arange(9.0), [0, 1] * 4 + [0])], has_labels=False).report()
    own = report["detectors"][0]
    assert own["counts"]["outliers"] is report["windows"]["outliers"] is report["timeline"]["outliers"] is None
    assert {name for name, value in own["metrics"].items() if value} == {"alert_rate"}
    assert report["segments"] == []


def test_a_tally_without_records_has_a_report() -> None:
    empty = Tally(spec_of([block(np.zeros(1))]))
    assert empty.report()["source"]["records"] == 0
    only_skipped = tallied([block(np.zeros(0), skipped={"not_json": 3})])
    assert only_skipped.report()["source"]["skipped"] == {"not_json": 3}
    both = only_skipped.merge(tallied([block(np.zeros(5), partition=1)])).report()
    assert (both["source"]["records"], both["source"]["scored"]) == (8, 5)


def explained(one: Block, features: list[int], cause: Cause = Cause.VALUE) -> Block:
    """The same, where the first reasons of its alerts are about these columns; -1: it has none."""
    alerts = np.flatnonzero(one.results.outlier).tolist()
    reasons: list[tuple[Reason, ...] | None] = [None] * len(one)
    for place, feature in zip(alerts, features, strict=True):
        if feature >= 0:
            reasons[place] = (Reason(feature, cause, 0.9, 9.0, 3.0, 2.0, 4.0, np.nan, before=4),)
    return replace(one, results=one.results.explained(reasons))


def test_alerts_are_listed_with_their_reasons_and_counted_by_the_first() -> None:
    alerts = np.array([True, False, True, True, True])
    first = block(np.arange(5.0), rows=np.ones((5, 3)), alerts=alerts, partition=0)
    second = block(np.arange(5.0) + 9, rows=np.ones((5, 3)), alerts=alerts, partition=1, fields=[{"f1": "\ud800"}] * 5)
    spec = {"categorical": frozenset({"f1"})}
    tallies = [
        tallied([explained(first, [2, 0, 2, -1])], **spec),
        tallied([explained(second, [1, 1, 1, 2], Cause.PAST)], **spec),
    ]
    tally = stored(tallies[0].merge(tallies[1]))
    report = tally.report()
    json.loads(json.dumps(report).encode("ascii"))
    assert report["reasons"] == [
        {"feature": "f1", "alerts": 3},
        {"feature": "f2", "alerts": 3},
        {"feature": "f0", "alerts": 1},
    ]
    found = {(alert["partition"], alert["offset"]): alert["explanation"] for alert in report["alerts"]}
    assert found[0, 4] is None
    assert found[0, 0] == "f2 is 9, usually 3 (2 to 4)"
    assert found[1, 4] == "f2 is 9, usually 3 (2 to 4), and does not follow from the 4 values before it"
    assert found[1, 0].startswith('f1 is "\N{REPLACEMENT CHARACTER}"')
    report |= {"source": {**report["source"], "name": "sensors"}}
    assert "The features that are most often the first reason of an alert: f1 (3), f2 (3), f0 (1)." in summary(report)
