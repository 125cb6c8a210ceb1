from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fomo_stream.detector.admission import GATE, RADIUS, Policy, is_lasting_shift, neighbourhood_median

P = arrays(np.float64, st.integers(0, 60), elements=st.sampled_from([np.nan, 0.0, 0.01, 0.2, 0.5, 0.9, 1.0]))


@given(P, st.integers(0, 20))
def test_median_agrees_with_counting(p: np.ndarray, radius: int) -> None:
    medians = neighbourhood_median(p, radius)
    assert medians.shape == p.shape
    for i, median in enumerate(medians):
        near = p[max(0, i - radius) : i + radius + 1]
        expected = np.median(near[~np.isnan(near)]) if not np.isnan(near).all() else np.nan
        np.testing.assert_equal(median, expected)


@given(st.integers(0, 16), st.integers(17, 80))
def test_a_lone_outlier_does_not_bar_its_neighbours_but_a_burst_does(lone: int, burst: int) -> None:
    quiet = np.full(300, 0.5)
    few, many = quiet.copy(), quiet.copy()
    few[100 : 100 + lone] = 0.001
    many[100 : 100 + burst] = 0.001
    assert (neighbourhood_median(few) > 0.2).all()
    assert (neighbourhood_median(many)[108 : 100 + burst - 8] < 0.2).all()


def test_only_what_is_nearly_all_rejected_is_a_lasting_shift() -> None:
    rejected = np.zeros(1000, dtype=bool)
    assert is_lasting_shift(rejected)
    rejected[:150] = True  # became context
    assert not is_lasting_shift(rejected)
    assert not is_lasting_shift(np.zeros(0, dtype=bool))


@given(P)
def test_policies_admit_by_the_gate_everything_or_nothing(p: np.ndarray) -> None:
    expected = [len(known := near[~np.isnan(near)]) > 0 and np.median(known) > GATE for near in neighbourhoods(p)]
    assert Policy.AUTO.admits(p).tolist() == expected
    assert Policy.ALL.admits(p).tolist() == [True] * len(p)
    assert Policy.FEEDBACK.admits(p).tolist() == [False] * len(p)


def neighbourhoods(p: np.ndarray) -> list[np.ndarray]:
    return [p[max(0, i - RADIUS) : i + RADIUS + 1] for i in range(len(p))]
