"""Intervals hold the true value about as often as they say, and equal replays rarely differ by more than chance."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import OWN, block, spec_of
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtr

from fomo_stream.replaying.tally.intervals import FEWEST_WINDOWS, REPLICATES, difference, interval, resamples
from fomo_stream.replaying.tally.quality import Quality
from fomo_stream.replaying.tally.spec import Columns
from fomo_stream.replaying.tally.windows import Windows

Float = NDArray[np.float64]
DISTANCE = 1.5
AUROC = float(ndtr(DISTANCE / 2**0.5))  # of two normal distributions at this distance
N = 8000


def noise(rng: np.random.Generator) -> Float:
    """Values (N,) of a standard normal distribution that follow each other: the correlation of neighbours is 0.9."""
    return np.asarray(lfilter([np.sqrt(1 - 0.9**2)], [1, -0.9], rng.normal(size=N + 200))[200:])


def labels_of(rng: np.random.Generator) -> NDArray[np.int8]:
    """About 160 outliers in segments of 4."""
    labels = np.zeros(N, np.int8)
    for start in np.flatnonzero(rng.random(N) < 0.005):
        labels[start : start + 4] = 1
    return labels


def detectors(labels: NDArray[np.int8], scores: dict[str, Float]) -> list[dict[str, object]]:
    """Metrics and replicates of each detector, as in a report."""
    made = block(scores, labels, times=np.arange(N))
    spec = spec_of([made], axis="record")
    windows = Windows(spec)
    windows.add(Columns(spec, made))
    windows.flush()
    measured = [Quality(spec, windows, d).metrics() for d in range(len(scores))]
    return [{"metrics": metrics, "replicates": replicates} for metrics, replicates in measured]


def test_intervals_of_streams_with_dependent_scores_hold_the_true_auroc() -> None:
    rng, held, runs = np.random.default_rng(1), 0, 100
    for _ in range(runs):
        labels = labels_of(rng)
        metric = detectors(labels, {OWN: noise(rng) + DISTANCE * labels})[0]["metrics"]["auroc"]  # type: ignore[index]
        assert metric["low"] <= metric["value"] <= metric["high"]
        held += metric["low"] <= AUROC <= metric["high"]
    assert held / runs == pytest.approx(0.95, abs=0.04)


@pytest.mark.parametrize("is_paired", [True, False])
def test_replays_of_equal_quality_seldom_differ_by_more_than_chance(is_paired: bool) -> None:
    rng, different, runs = np.random.default_rng(2), 0, 60
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


def test_a_better_detector_is_found_and_pairs_tell_more() -> None:
    rng = np.random.default_rng(3)
    labels = labels_of(rng)
    shared = noise(rng) + DISTANCE * labels
    before, after = detectors(labels, {OWN: shared + noise(rng), "better": shared})
    paired, unpaired = (difference(before, after, "auroc", is_paired) for is_paired in (True, False))
    assert paired is not None
    assert unpaired is not None
    assert paired.ends is not None
    assert unpaired.ends is not None
    assert paired.verdict == "higher by more than chance"
    assert paired.ends[1] - paired.ends[0] < unpaired.ends[1] - unpaired.ends[0]
    back = difference(after, before, "auroc", True)
    assert back is not None
    assert back.verdict == "lower by more than chance"
    same = difference(after, after, "auroc", True)
    assert same is not None
    assert same.ends == (0.0, 0.0)
    assert same.verdict == "no difference beyond chance"


def test_every_call_draws_the_same_windows_with_replacement() -> None:
    drawn = resamples(30)
    assert drawn.shape == (30, REPLICATES)
    assert (drawn.sum(axis=0) == 30).all()
    np.testing.assert_array_equal(drawn, resamples(30))
    assert drawn.var() == pytest.approx(29 / 30, rel=0.05)  # binomial


def test_few_windows_have_wider_intervals_or_none() -> None:
    replicates = np.random.default_rng(4).normal(size=REPLICATES)
    few, many = interval(replicates, FEWEST_WINDOWS), interval(replicates, 128)
    assert few is not None
    assert many is not None
    assert few[0] < many[0] < many[1] < few[1]
    assert interval(replicates, FEWEST_WINDOWS - 1) is None
    assert interval(np.where(np.arange(REPLICATES) % 5 == 0, np.nan, replicates), 128) is None
