"""Segments and delays are those of a simple loop, and drift has the known index of known shifts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blocks import OWN, block, made_stream, measured
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN
from fomo_stream.replaying.measures.drift import REFERENCE
from fomo_stream.replaying.measures.segments import GAP

Float = NDArray[np.float64]
N = 60_000
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


def test_each_detector_has_delays_of_its_own() -> None:
    labels = [0, 1, 1, 1, 0]
    alerts = {OWN: np.array([0, 0, 0, 1, 0], bool), "late": np.array([0, 0, 0, 0, 1], bool)}
    scores = np.array([9.0, 1.0, np.nan, 3.0, 9.0])
    report = measured([block(dict.fromkeys(alerts, scores), labels, alerts=alerts)])
    assert [one["peak"] for one in report["segments"]] == [3.0]  # of its outliers
    own, late = report["detectors"]
    assert own["metrics"]["delay_records"]["value"] == 2
    assert own["metrics"]["delay_s"]["value"] == 2
    assert late["metrics"]["delay_records"] is None
    assert late["metrics"]["segments_detected"]["value"] == 0


# -- drift ----


def drift_of(column: Float) -> tuple[Float, Float, Float]:
    """PSI, share missing and median of one feature by window."""
    n, rows = len(column), np.asarray(column, float).reshape(-1, 1)
    drift = measured([block(np.zeros(n), times=np.arange(n), rows=rows)], axis="record")["drift"]
    return tuple(np.array(drift[name][0], float) for name in ("psi", "missing", "median"))  # type: ignore[return-value]


def test_a_known_shift_has_the_known_index_and_median() -> None:
    """Of normal distributions at distance m, the Jeffreys divergence is m**2; bins lose a little of it."""
    psi, _, median = drift_of(np.random.default_rng(1).normal(size=N) + np.where(np.arange(N) < 30_000, 0.0, 1.0))
    late = psi[len(psi) // 2 + 2 :]
    assert np.nanmin(late) > 0.7
    assert np.nanmax(late) < 1.2
    assert median[-1] == pytest.approx(1.0, abs=0.2)
    assert np.nanmax(psi[: len(psi) // 2 - 2]) < 0.05


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (5.0, 5.0001),
        (0.0, np.nan),
        (np.nan, 1.0),
        (1.0, np.inf),
        (1e30, -1e30),
    ],
)
def test_a_constant_that_changes_has_drifted(before: float, after: float) -> None:
    column = np.where(np.arange(12_000) < 8_000, before, after)
    psi, missing, median = drift_of(column)
    assert np.nanmax(psi[:60]) < 0.01
    assert psi[-2] > 2
    assert missing[-2] == np.isnan(after)
    if np.isfinite(before):
        assert median[0] == before


def test_features_are_ranked_by_their_largest_index() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(20_000, 3))
    rows[10_000:, 2] += 2
    rows[10_000:, 0] += 0.5
    drift = measured([block(np.zeros(20_000), rows=rows)])["drift"]
    assert drift["features"] == ["f2", "f0", "f1"]
    assert drift["largest_psi"] == sorted(drift["largest_psi"], reverse=True)
    assert drift["reference_records"] == REFERENCE


def test_partitions_are_compared_with_their_own_first_records() -> None:
    """Partitions on different levels have not drifted; the mean over them is weighted by records."""
    rng = np.random.default_rng(4)
    parts = [
        [block(np.zeros(20_000), partition=p, rows=rng.normal(level, size=(20_000, 1)))]
        for p, level in enumerate((0.0, 50.0))
    ]
    alone = [measured(part)["drift"] for part in parts]
    together = measured(*parts)["drift"]
    assert together["largest_psi"][0] < 0.2
    np.testing.assert_allclose(together["psi"][0], np.mean([d["psi"][0] for d in alone], axis=0), atol=1e-5)
    np.testing.assert_allclose(together["median"][0], np.mean([d["median"][0] for d in alone], axis=0), atol=1e-3)


def test_medians_and_missing_shares_are_exact() -> None:
    made = made_stream(1, 3000)
    report = measured(made)
    rows, times = np.concatenate([b.rows for b in made]), np.concatenate([b.times for b in made])
    drift, windows = report["drift"], report["windows"]
    assert drift["reference_records"] == 3000  # a short stream is its own reference
    for i, name in enumerate(drift["features"]):
        values = rows[:, int(name[1:])]
        for w, (start, end) in enumerate(zip(windows["start"], windows["end"], strict=True)):
            inside = values[(times >= start) & (times < end)]
            if len(inside):
                assert drift["missing"][i][w] == pytest.approx(np.isnan(inside).mean(), rel=1e-5)
                assert drift["median"][i][w] == pytest.approx(np.nanmedian(inside), rel=1e-5, abs=1e-6)
