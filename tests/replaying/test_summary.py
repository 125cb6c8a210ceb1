"""The summary says what the numbers say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blocks import OWN, block, made_stream, tallied

from fomo_stream.replaying.tally.summary import DAY_MS, summary


def summed_up(blocks: list[Any], **more: Any) -> list[str]:
    report = tallied(blocks, **more).report()
    report["source"] |= {"name": "sensors", "is_complete": True}
    return summary({**report, "settings": {"alert_rate": 0.01}})


def test_alerts_are_counted_by_day() -> None:
    times = 1_759_276_800_000 + np.linspace(0, 10 * DAY_MS, 1000).astype(np.int64)
    alerts = np.arange(1000) < 20
    said = summed_up([block(np.zeros(1000), times=times, alerts=alerts)], has_labels=False)
    assert said[0] == (
        "1,000 records of sensors from 2025-10-01 to 2025-10-11 UTC were replayed; 2 % of those with a score were "
        "alerts (20; 1 % was asked for), about 2 a day."
    )
    assert said[1] == "There are no labels, so the quality of the scores is not known."


@pytest.mark.parametrize(
    ("seconds", "expected"), [(10, "about 2 a second"), (100, "about 12 a minute"), (36_000, "about 2 an hour")]
)
def test_shorter_ranges_have_shorter_units(seconds: int, expected: str) -> None:
    times = np.linspace(1, 1000 * seconds, 1000).astype(np.int64)
    said = summed_up([block(np.zeros(1000), times=times, alerts=np.arange(1000) < 20)], has_labels=False)
    assert expected in said[0]


def test_records_without_times_have_no_rate_by_time() -> None:
    said = summed_up([block(np.full(50, 3.0), times=np.arange(50))], has_labels=False, axis="record")
    assert said[0].startswith("50 records of sensors were replayed; 100 % of those with a score were alerts (50;")
    assert "about" not in said[0]


def test_quality_segments_and_other_detectors_are_described() -> None:
    report = tallied(list(made_stream(1, 30_000, detectors=(OWN, "knn")))).report()
    report["source"] |= {"name": "sensors", "is_complete": False}
    said = " ".join(summary(report))
    own = report["detectors"][0]
    auroc, counts = own["metrics"]["auroc"], own["counts"]
    assert f"AUROC {auroc['value']:.2f} ({auroc['low']:.2f} to {auroc['high']:.2f})" in said
    assert f"Of {counts['segments']} labelled anomalous segments {counts['segments_detected']} were detected" in said
    assert f"Labels are known for {counts['labelled']:,} of 30,000 records that could be scored." in said
    assert "knn has AUROC" in said
    assert "before it was stopped" in said
    assert "30 records could not be scored (not_json: 30)." in said
    assert "50 records got no score, because the detector was warming up." in said
    assert "strongly" in said


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0] * 9, "No record is labelled an outlier, so the quality of the scores is not known."),
        ([1] * 9, "The labels that can be compared are of one class, so AUROC and the like are not known."),
        ([-1] * 9, "No scored record has a label, so the quality of the scores is not known."),
    ],
)
def test_what_labels_of_one_class_cannot_tell_is_said(labels: list[int], expected: str) -> None:
    assert expected in summed_up([block(np.arange(9.0), labels)])


def test_nothing_scored_is_said() -> None:
    assert summed_up([block(np.full(3, np.nan))], has_labels=False)[0].endswith("; none of them got a score.")
    assert "1 record of sensors was replayed" in summed_up([block(np.zeros(0), skipped={"not_json": 1})])[0]


def test_a_nearly_perfect_ranking_is_not_rounded_to_a_perfect_one() -> None:
    labels = np.arange(2000) % 100 == 0
    scores = labels * 5.0 + np.random.default_rng(1).normal(size=2000) + np.where(np.arange(2000) == 1, 5.2, 0)
    assert "AUROC 0.999" in " ".join(summed_up([block(scores, labels)]))
