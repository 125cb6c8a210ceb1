"""Drift: the index of a window against the first records."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import block, made_stream, tallied
from numpy.typing import NDArray

from fomo_stream.replaying.tally.drift import REFERENCE

Float = NDArray[np.float64]
N = 60_000


def drift_of(column: Float, parts: int = 60) -> tuple[Float, Float, Float]:
    """PSI, share missing and median of one feature by window."""
    rows = np.asarray(column, float).reshape(-1, 1)
    size = len(rows) // parts
    blocks = [
        block(np.zeros(size), first=i * size, times=np.arange(i * size, (i + 1) * size), rows=rows[i * size :][:size])
        for i in range(parts)
    ]
    drift = tallied(blocks, axis="record").report()["drift"]
    return tuple(np.array(drift[name][0], float) for name in ("psi", "missing", "median"))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def noise() -> Float:
    return np.random.default_rng(1).normal(size=N)


def test_without_drift_the_index_is_small(noise: Float) -> None:
    psi, missing, median = drift_of(noise)
    assert np.nanmax(psi) < 0.05
    assert (missing == 0).all()
    assert np.abs(median).max() < 0.25


def test_a_known_shift_has_the_known_index_and_median(noise: Float) -> None:
    """Of normal distributions at distance m, the Jeffreys divergence is m**2; bins lose a little of it."""
    psi, _, median = drift_of(noise + np.where(np.arange(N) < 30_000, 0.0, 1.0))
    late = psi[len(psi) // 2 + 2 :]
    assert np.nanmin(late) > 0.7
    assert np.nanmax(late) < 1.2
    assert median[-1] == pytest.approx(1.0, abs=0.2)
    assert np.nanmax(psi[: len(psi) // 2 - 2]) < 0.05


@pytest.mark.parametrize(
    ("before", "after"),
    [(0.0, 1.0), (5.0, 6.0), (5.0, -5.0), (5.0, 5.0001), (0.0, np.nan), (np.nan, 1.0), (1.0, np.inf), (1e300, -1e300)],
)
def test_a_constant_that_changes_has_drifted(before: float, after: float) -> None:
    column = np.where(np.arange(12_000) < 8_000, before, after)
    psi, missing, median = drift_of(column, 6)
    assert np.nanmax(psi[:60]) < 0.01
    assert psi[-2] > 2
    assert missing[-2] == np.isnan(after)
    if np.isfinite(before):
        assert median[0] == before


def test_a_value_of_few_kinds_drifts_when_their_shares_do() -> None:
    rng = np.random.default_rng(2)
    share = np.where(np.arange(N) < N // 2, 0.2, 0.6)
    psi, _, median = drift_of((rng.random(N) < share).astype(float))
    expected = (0.6 - 0.2) * np.log(0.6 / 0.2) + (0.4 - 0.8) * np.log(0.4 / 0.8)
    assert np.nanmedian(psi[len(psi) // 2 + 1 :]) == pytest.approx(expected, rel=0.1)
    assert np.nanmax(psi[: len(psi) // 2 - 1]) < 0.05
    assert set(median) == {0.0, 1.0}


def test_features_are_ranked_by_their_largest_index() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(20_000, 3))
    rows[10_000:, 2] += 2
    rows[10_000:, 0] += 0.5
    blocks = [block(np.zeros(1000), first=a, rows=rows[a : a + 1000]) for a in range(0, 20_000, 1000)]
    drift = tallied(blocks).report()["drift"]
    assert drift["features"] == ["f2", "f0", "f1"]
    assert drift["largest_psi"] == sorted(drift["largest_psi"], reverse=True)
    assert drift["reference_records"] == REFERENCE


def test_partitions_are_compared_with_their_own_first_records() -> None:
    """Partitions on different levels have not drifted; the mean over them is weighted by records."""
    rng = np.random.default_rng(4)
    tallies = [
        tallied([block(np.zeros(20_000), partition=p, rows=rng.normal(level, size=(20_000, 1)))])
        for p, level in enumerate((0.0, 50.0))
    ]
    alone = [t.report()["drift"] for t in tallies]
    together = tallies[0].merge(tallies[1]).report()["drift"]
    assert together["largest_psi"][0] < 0.2
    np.testing.assert_allclose(together["psi"][0], np.mean([d["psi"][0] for d in alone], axis=0), atol=1e-5)
    np.testing.assert_allclose(together["median"][0], np.mean([d["median"][0] for d in alone], axis=0), atol=1e-3)


def test_a_short_stream_is_its_own_reference() -> None:
    drift = tallied(list(made_stream(1, 1000))).report()["drift"]
    assert drift["reference_records"] == 1000
    assert [len(values) for values in drift["psi"]] == [len(drift["median"][0])] * 3
