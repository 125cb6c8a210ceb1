from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.generation import Ranges
from fomo_stream.model.checkpoint import shared_model

value = st.sampled_from([np.nan, 0.0, 1.0]) | st.integers(-50, 50).map(float)  # ties, and missing ones
contexts = st.tuples(st.integers(2, 20), st.integers(1, 3)).flatmap(lambda shape: arrays(float, shape, elements=value))


def naive(context: np.ndarray, row: np.ndarray) -> float:
    """The largest distance beyond a feature's range, feature by feature."""
    most = 0.0
    for values, x in zip(context.T, row, strict=True):
        known = values[~np.isnan(values)]
        if not len(known) or known.min() == known.max() or np.isnan(x):
            continue
        low, high = known.min(), known.max()
        most = max(most, (low - x) / (high - low), (x - high) / (high - low))
    return float(np.log1p(most))


@given(contexts, st.data())
def test_beyond_is_the_distance_from_the_range_in_widths_of_it(context: np.ndarray, data: st.DataObject) -> None:
    rows = data.draw(arrays(float, (5, context.shape[1]), elements=value | st.floats(-1e6, 1e6)))
    np.testing.assert_allclose(Ranges.of(context).beyond(rows), [naive(context, row) for row in rows], atol=1e-12)
    assert (Ranges.of(context).beyond(context) == 0).all()


@given(contexts)
def test_rows_of_the_context_are_compared_with_the_others(context: np.ndarray) -> None:
    """As if the ranges were computed again without the row."""
    expected = [naive(np.delete(context, i, axis=0), row) for i, row in enumerate(context)]
    np.testing.assert_allclose(Ranges.of(context).beyond_others(context), expected, atol=1e-12)


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.integers(3, 20), st.floats(50, 1e6), st.booleans())
def test_a_record_far_beyond_everything_ranks_above_one_that_is_odd_in_many_features(
    seed: int, d: int, far: float, above: bool
) -> None:
    rng = np.random.default_rng(seed)
    config = DetectorConfig(context_size=300, min_context=300, memory=0.0, views=("fast",))
    one = Detector(shared_model(), d, config)
    one.process(rng.normal(size=(320, d)))
    extreme, odd = rng.normal(size=d), rng.choice([-10.0, 10.0], d)  # odd in all of them
    extreme[rng.integers(d)] = far if above else -far
    found = one.score_rows(np.array([extreme, odd]))
    assert found.logit[0] > found.logit[1]
    further = extreme * 10
    assert one.score_rows(further[None]).logit[0] > found.logit[0] + 2  # a model alone adds about 1
