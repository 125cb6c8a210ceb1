from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fomo_stream.calibration import ScoreWindow, is_calibrated, p_values

scores = st.integers(0, 50).flatmap(lambda n: arrays(np.float64, n, elements=st.floats(-10, 10)))


@given(scores, scores)
def test_p_values_agree_with_counting(logits: np.ndarray, reference: np.ndarray) -> None:
    counted = [(1 + sum(r >= s for r in reference)) / (len(reference) + 1) for s in logits]
    np.testing.assert_allclose(p_values(logits, np.sort(reference)), counted)


@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_exchangeable_records_alert_at_the_asked_rate(rate: float) -> None:
    rng = np.random.default_rng(0)
    realised = np.mean(
        [(p_values(rng.normal(size=50), np.sort(rng.normal(size=999))) <= rate).mean() for _ in range(400)]
    )
    assert realised == pytest.approx(rate, rel=0.1)


@given(st.integers(0, 2000), st.floats(1e-4, 0.5))
def test_calibrated_means_that_the_rate_is_reachable(n: int, rate: float) -> None:
    smallest = p_values(np.array([1.0]), np.zeros(n))[0]
    assert is_calibrated(n, rate) == (smallest <= rate * (1 + 1e-9))


@given(st.integers(1, 20), st.integers(1, 20), st.lists(st.floats(-5, 5), max_size=60))
def test_window_keeps_the_last_scores_and_rows_and_survives_a_snapshot(a: int, b: int, given: list[float]) -> None:
    size, kept = max(a, b), min(a, b)
    window, restored = ScoreWindow(size, kept), ScoreWindow(size, kept)
    for score in given:
        window.update(np.array([score]), np.array([[score, 1.0]]))
    restored.restore(window.snapshot())
    for one in (window, restored):
        assert len(one) == min(size, len(given))
        assert one.recent[:, :1].ravel().tolist() == given[-kept:]
        assert one.older.tolist() == given[-size:][: -kept or None][: max(0, len(given[-size:]) - kept)]
