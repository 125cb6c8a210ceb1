"""Intervals hold what they say, and two reports differ by more than chance only if they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocks import OWN, block, measured
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtr

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.assembly import report_settings
from fomo_stream.replaying.comparison import compare_files, is_paired
from fomo_stream.replaying.measures.intervals import MIN_WINDOWS, REPLICATES, difference, interval
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.sources import load

N = 8000
Float = NDArray[np.float64]
DISTANCE = 1.5
AUROC = float(ndtr(DISTANCE / 2**0.5))  # of two normal distributions at this distance


def noise(rng: np.random.Generator) -> Float:
    """Values (N,) of a standard normal distribution that follow each other: the correlation of neighbours is 0.9."""
    return np.asarray(lfilter([np.sqrt(1 - 0.9**2)], [1, -0.9], rng.normal(size=N + 200))[200:])


def labels_of(rng: np.random.Generator) -> NDArray[np.int8]:
    """About 160 outliers in segments of 4."""
    labels = np.zeros(N, np.int8)
    for start in np.flatnonzero(rng.random(N) < 0.005):
        labels[start : start + 4] = 1
    return labels


def detectors(labels: NDArray[np.int8], scores: dict[str, Float]) -> list[dict[str, Any]]:
    """The detectors of a report of these scores."""
    made: list[dict[str, Any]] = measured([block(scores, labels, times=np.arange(N))], axis="record")["detectors"]
    return made


@pytest.mark.slow
def test_intervals_of_streams_with_dependent_scores_hold_the_true_auroc() -> None:
    rng, held, runs = np.random.default_rng(1), 0, 60
    for _ in range(runs):
        labels = labels_of(rng)
        metric = detectors(labels, {OWN: noise(rng) + DISTANCE * labels})[0]["metrics"]["auroc"]
        assert metric["low"] <= metric["value"] <= metric["high"]
        held += metric["low"] <= AUROC <= metric["high"]
    assert held / runs == pytest.approx(0.95, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("is_paired", [True, False])
def test_replays_of_equal_quality_seldom_differ_by_more_than_chance(is_paired: bool) -> None:
    rng, different, runs = np.random.default_rng(2), 0, 40
    for _ in range(runs):
        labels = labels_of(rng)
        if is_paired:  # two detectors that see the same outliers, each with some noise of its own
            shared = noise(rng) + DISTANCE * labels
            before, after = detectors(labels, {OWN: shared + noise(rng) / 2, "other": shared + noise(rng) / 2})
        else:
            before = detectors(labels, {OWN: noise(rng) + DISTANCE * labels})[0]
            labels = labels_of(rng)
            after = detectors(labels, {OWN: noise(rng) + DISTANCE * labels})[0]
        found = difference(before, after, "auroc", is_paired)
        assert found is not None
        different += "more than chance" in found.verdict
    assert different / runs == pytest.approx(0.05, abs=0.05)


def test_few_windows_have_wider_intervals_or_none() -> None:
    replicates = np.random.default_rng(4).normal(size=REPLICATES)
    few, many = interval(replicates, MIN_WINDOWS), interval(replicates, 128)
    assert few
    assert many
    assert few[0] < many[0] < many[1] < few[1]
    assert interval(replicates, MIN_WINDOWS - 1) is None
    assert interval(np.where(np.arange(REPLICATES) % 5 == 0, np.nan, replicates), 128) is None


# -- two reports ----


def made_report(quality: float, seed: int = 1, names: tuple[str, ...] = (OWN, "knn"), **more: Any) -> dict[str, Any]:
    """A report in which outliers of the same stream score higher by `quality`."""
    labels = (np.random.default_rng(7 + seed).random(N) < 0.03).astype(np.int8)
    rng = np.random.default_rng(seed)
    scores = {name: rng.normal(size=N) + quality * labels for name in names}
    report = measured([block(scores, labels)], **more)
    report["source"] |= {"name": "sensors", "is_complete": True}
    settings, timing = {"alert_rate": 0.01, "context_size": 5000}, {"records_per_s": 5000.0 * quality}
    return {"format": 2, **report, "settings": settings, "timing": timing}


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return made_report(1.0)


def compared(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> str:
    paths = folder / "a.json", folder / "b.json"
    for path, report in zip(paths, (before, after), strict=True):
        path.write_text(json.dumps(report))
    return compare_files(*paths)


def row(text: str, metric: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(metric))


def test_a_better_replay_of_the_same_records_is_higher_by_more_than_chance(
    tmp_path: Path, before: dict[str, Any]
) -> None:
    after = made_report(2.0)
    after["settings"] |= {"context_size": 1000, "views": 3}
    text = compared(tmp_path, before, after)
    assert "compared window by window" in text
    assert row(text, "auroc").endswith("higher by more than chance")
    assert "context_size 5000 -> 1000; views (none) -> 3" in text
    assert "Speed: 5,000 records/s before, 10,000 after (+100 %)." in text
    counts = [report["detectors"][0]["counts"]["alerts"] for report in (before, after)]
    assert f"alerts: {counts[0]:,} before, {counts[1]:,} after" in text
    assert row(compared(tmp_path, after, before), "auroc").endswith("lower by more than chance")


def test_replays_of_other_records_are_not_paired(tmp_path: Path, before: dict[str, Any]) -> None:
    after = made_report(1.0, seed=2)
    assert not is_paired(before, after)
    text = compared(tmp_path, before, after)
    assert "as many records, but of other labels" in text  # so the alert rate alone is compared window by window
    assert "Labelled outliers: " in text
    after["windows"]["records"][0] += 1
    after["source"] |= {"name": "\x1b[31mred\n"}
    after["detectors"][1]["name"] = "river"
    other = compared(tmp_path, before, after)
    for said in ("The replays are of different records", "Only before: knn.", "Only after: river.", "\ufffd[31mred "):
        assert said in other
    assert "\x1b" not in other


def test_without_labels_the_alert_rate_is_compared(tmp_path: Path, before: dict[str, Any]) -> None:
    after = made_report(1.0, has_labels=False)
    text = compared(tmp_path, before, after)
    assert "The report after lacks labelled outliers, so ranking, precision and recall cannot be compared." in text
    assert row(text, "auroc").endswith("not in both")
    assert "chance" in row(text, "alert rate")
    same = compared(tmp_path, after, after)
    assert "Both reports lack labelled outliers" in same
    assert "All settings are the same." in same
    assert "+0 to +0" in row(same, "alert rate")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"PK\x03\x04\xff", "is not the report of a replay"),
        (b"[" * 100_000, "is not the report of a replay"),
        (b'{"format": 1, "detectors": [{}]}', "has format 1 and this version reads format 2"),
        (b'{"format": 2, "detectors": [{}]}', "is not a whole report"),
    ],
)
def test_other_files_are_refused_in_one_sentence(
    tmp_path: Path, before: dict[str, Any], content: bytes | None, message: str
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(before))
    if content is not None:
        bad.write_bytes(content)
    for paths in ((good, bad), (bad, good)):
        with pytest.raises(ConfigError, match=rf"^[^\n]*bad\.json[^\n]*{message}[^\n]*$"):
            compare_files(*paths)


def test_where_and_how_a_replay_runs_makes_it_no_other_replay() -> None:
    plain, running, other = (
        report_settings(load(ReplaySettings, {"topic": "t", **more}))
        for more in ({}, {"log_level": "info", "bootstrap": "b:1", "jobs": 2, "suggest": "x.yaml"}, {"alert_rate": 0.2})
    )
    assert plain == running != other
