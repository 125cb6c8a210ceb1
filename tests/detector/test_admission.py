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
    assert is_lasting_shift(1000, 1000)
    assert is_lasting_shift(900, 1000)
    assert not is_lasting_shift(850, 1000)
    assert not is_lasting_shift(0, 0)


LONG = arrays(np.float64, st.integers(34, 90), elements=st.sampled_from([0.0, 0.01, GATE, 0.21, 0.5, 1.0]))


@given(P | LONG, st.data())
def test_policies_admit_by_the_gate_everything_or_nothing(p: np.ndarray, data: st.DataObject) -> None:
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(p)) | st.just(RADIUS)] * 2)))
    stop = min(stop, len(p))
    first = min(first, stop)
    expected = [len(known := near[~np.isnan(near)]) > 0 and np.median(known) > GATE for near in neighbourhoods(p)]
    assert Policy.AUTO.admits(p, first, stop).tolist() == expected[first:stop]
    assert Policy.ALL.admits(p, first, stop).tolist() == [True] * (stop - first)
    assert Policy.FEEDBACK.admits(p, first, stop).tolist() == [False] * (stop - first)


def neighbourhoods(p: np.ndarray) -> list[np.ndarray]:
    return [p[max(0, i - RADIUS) : i + RADIUS + 1] for i in range(len(p))]
