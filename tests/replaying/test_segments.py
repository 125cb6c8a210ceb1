"""Segments and delays equal those that a simple loop finds, however records are split into blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from blocks import OWN, block, tallied
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, Block
from fomo_stream.replaying.tally.segments import GAP

Record = tuple[int, bool]  # label and alert


def expected_segments(records: list[Record]) -> list[tuple[int, int, int, int | None]]:
    """First and last record, number of outliers, and delay of each segment."""
    segments: list[list[int]] = []
    for i, (label, _) in enumerate(records):
        if label != OUTLIER:
            continue
        between = [label for label, _ in records[segments[-1][-1] + 1 : i]] if segments else []
        if segments and INLIER not in between and len(between) <= GAP:
            segments[-1].append(i)
        else:
            segments.append([i])
    result = []
    for members in segments:
        alerts = [i for i in range(members[0], members[-1] + 1) if records[i][1]]
        result.append((members[0], members[-1], len(members), alerts[0] - members[0] if alerts else None))
    return result


def blocks_of(records: list[Record], cuts: list[int]) -> list[Block]:
    ends = sorted({0, len(records), *(cut % (len(records) + 1) for cut in cuts)})
    result = []
    for a, b in pairwise(ends):
        labels, alerts = [label for label, _ in records[a:b]], np.array([alert for _, alert in records[a:b]])
        result.append(block(np.linspace(a, b, b - a), labels, first=a, alerts=alerts))
    return result


LABELS, ALERT_RATES = [INLIER, OUTLIER, OUTLIER, UNKNOWN], [0.0, 0.1, 0.5]
RUNS = st.lists(
    st.tuples(st.sampled_from(LABELS), st.integers(1, 14), st.sampled_from(ALERT_RATES)),
    min_size=1,
    max_size=15,
)


@settings(max_examples=150)
@given(RUNS, st.lists(st.integers(0, 200), max_size=6), st.randoms(use_true_random=False))
def test_segments_and_delays_are_those_of_a_simple_loop(
    runs: list[tuple[int, int, float]], cuts: list[int], random: Any
) -> None:
    records = [(label, random.random() < rate) for label, n, rate in runs for _ in range(n)]
    report = tallied(blocks_of(records, cuts)).report()
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


def test_each_detector_has_delays_of_its_own() -> None:
    labels = [0, 1, 1, 1, 0]
    alerts = {OWN: np.array([0, 0, 0, 1, 0], bool), "late": np.array([0, 0, 0, 0, 1], bool)}
    report = tallied([block({name: np.zeros(5) for name in alerts}, labels, alerts=alerts)]).report()
    own, late = report["detectors"]
    assert own["metrics"]["delay_records"]["value"] == 2
    assert own["metrics"]["delay_s"]["value"] == 2
    assert late["metrics"]["delay_records"] is None
    assert late["metrics"]["segments_detected"]["value"] == 0


def test_a_segment_has_the_highest_score_of_its_outliers() -> None:
    scores = np.array([9.0, 1.0, np.nan, 3.0, 2.0, 9.0])
    peaks = [s["peak"] for s in tallied([block(scores, [0, 1, 1, 1, 1, 0])]).report()["segments"]]
    assert peaks == [3.0]
