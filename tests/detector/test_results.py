from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.detector.calibration import AlertThreshold
from fomo_stream.detector.results import Results, Scores, Status


def expected_severity(p: float, threshold: float) -> int:
    """By the documented limits: a tenth of the threshold, the threshold, and three times the threshold."""
    if p <= 0.1 * threshold:
        return 3
    if p <= threshold:
        return 2
    return 1 if p <= 3 * threshold else 0


# multiples of the threshold, near and at the limits
multiples = st.sampled_from([0.05, 0.099, 0.1, 0.101, 0.5, 0.99, 1.0, 1.01, 2.0, 2.99, 3.0, 3.01, 5.0]) | st.floats(
    0, 9
)


@given(st.lists(multiples, max_size=20), st.sampled_from([0.01, 0.1]), st.integers(0, 1000), st.booleans())
def test_severity_is_the_p_value_in_multiples_of_the_threshold(
    wanted: list[float], rate: float, n_alerts: int, has_enough: bool
) -> None:
    threshold = AlertThreshold(rate, window_size=2000)
    threshold.update(n_alerts, 5000)
    p = np.array([multiple * threshold.value for multiple in wanted])
    n_reference = 2000 if has_enough else 5
    scores = Scores.of(np.zeros((len(p), 2)), np.ones(len(p), np.int64), np.ones(len(p)))
    found = Results.of(scores, np.zeros(len(p)), 1 - p, p, 1, n_reference, threshold)
    expected = [expected_severity(each, threshold.value) if has_enough else 0 for each in p.tolist()]
    assert found.severity.tolist() == expected
    assert found.outlier.tolist() == [severity >= 2 for severity in expected]
    assert set(found.status) <= {Status.OK if has_enough else Status.CALIBRATING}


@given(st.integers(0, 30), st.integers(1, 5))
def test_the_mean_of_the_views_has_the_same_bits_whatever_rows_are_beside(n: int, views: int) -> None:
    by_view = np.random.default_rng(n).normal(size=(n, views)) * 1e3
    mean = Scores.mean(by_view)
    np.testing.assert_allclose(mean, by_view.mean(1) if n else [], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(mean, [Scores.mean(row[None])[0] for row in by_view])
