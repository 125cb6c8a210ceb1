from __future__ import annotations

import numpy as np
import pytest
import torch
from exact_quantiles import KINDS, exact_ranks, rank_errors, ranks, weights_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from fomo_stream.detector.quantile_sketch import QuantileSketch
from fomo_stream.model.quantile_map import Knots, fit_knots, to_normal

values = st.floats(-1e6, 1e6, allow_subnormal=False)


def transform(rows: np.ndarray, knots: Knots) -> np.ndarray:
    return to_normal(torch.from_numpy(rows), knots).numpy()


def state_of(sketch: QuantileSketch) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Everything that later knots depend on, bit for bit."""
    return {name: (array.shape, array.tobytes()) for name, array in sketch.to_arrays().items()}


def assert_same_knots(one: QuantileSketch, other: QuantileSketch) -> None:
    for ours, theirs in zip(one.knots(), other.knots(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 100), min_size=1, max_size=6))
def test_sketch_does_not_depend_on_how_rows_are_batched(seed: int, sizes: list[int]) -> None:
    rows = np.random.default_rng(seed).normal(size=(sum(sizes), 3))
    at_once, in_parts = QuantileSketch(3, size=64, chunk=32), QuantileSketch(3, size=64, chunk=32)
    at_once.update(rows)
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        in_parts.update(part)
    assert state_of(at_once) == state_of(in_parts)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(0, 100), st.booleans())
def test_a_copy_and_one_from_arrays_go_on_alike_on_their_own(seed: int, n: int, early: bool) -> None:
    rows = np.random.default_rng(seed).normal(size=(n + 70, 3))
    one, again = QuantileSketch(3, size=64, chunk=32), QuantileSketch(3, size=64, chunk=32)
    one.update(rows[:n])
    if early:
        one.merge(np.array([1]))
    before = state_of(one)
    again.take_arrays(one.to_arrays())
    copied = one.copy()
    one.update(rows[n:])
    assert state_of(copied) == state_of(again) == before
    for other in (copied, again):
        other.update(rows[n:])
        assert state_of(other) == state_of(one)
        assert_same_knots(other, one)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(0, 100))
def test_in_a_wider_copy_the_new_features_were_never_seen(seed: int, n: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(n + 70, 2))
    narrow, wide = QuantileSketch(2, size=64, chunk=32), QuantileSketch(3, size=64, chunk=32)
    narrow.update(rows[:n])
    wide.update(np.column_stack([rows[:n], np.full(n, np.nan)]))
    copied = narrow.copy(1)
    assert_same_knots(copied, wide)
    for sketch in (copied, wide):
        sketch.update(np.column_stack([rows[n:], rows[n:, 0]]))
    assert_same_knots(copied, wide)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 900))
def test_sketch_equals_the_batch_fit_until_it_forgets(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.normal(size=n), rng.integers(0, 3, n)])
    sketch = QuantileSketch(2, half_life=1e12)
    sketch.update(rows)
    queries = np.column_stack([rng.normal(size=40) * 2, rng.integers(-1, 4, 40)])
    batch = transform(queries, fit_knots(torch.from_numpy(rows)))
    np.testing.assert_allclose(transform(queries, sketch.knots()), batch, atol=1e-6)


@pytest.mark.parametrize("half_life", [np.log(2) * 1000, np.log(2) * 5000, np.inf])
def test_sketch_ranks_are_within_half_a_percent_of_exact_decayed_ones(half_life: float) -> None:
    rng = np.random.default_rng(3)
    rows = np.column_stack([kind(rng, 40_100) for kind in KINDS.values()])
    sketch = QuantileSketch(rows.shape[1], half_life)
    sketch.update(rows)
    errors = dict(zip(KINDS, rank_errors(sketch, rows, rng), strict=True))
    assert max(errors.values()) <= 0.005, errors


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 4000)), min_size=1, max_size=5),
    st.floats(500, 1e5),
    st.integers(0, 2**32 - 1),
)
def test_sketch_ranks_stay_within_half_a_percent_from_regime_to_regime(
    regimes: list[tuple[str, int]], half_life: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([KINDS[kind](rng, n) for kind, n in regimes] + [np.zeros(1)])[:, None]
    sketch = QuantileSketch(1, half_life)
    sketch.update(rows)
    total = weights_of(len(rows), half_life)[~np.isnan(rows[:, 0])].sum()
    assert rank_errors(sketch, rows, rng).max() <= 0.005 + 0.5 / total  # between two rows any rank of theirs is right


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 900), st.floats(20, 1e6), st.integers(1, 10_000), st.integers(0, 2**32 - 1))
def test_sketch_forgets_nothing_about_as_many_values_as_it_has_points(
    n_values: int, half_life: float, n: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lattice = np.sort(rng.normal(size=n_values))
    rows = rng.choice(lattice, n)
    sketch = QuantileSketch(1, half_life)
    sketch.update(rows[:, None])
    knots, weights = sketch.knots(), weights_of(n, half_life)
    low, high = (bound.item() for bound in knots.values.aminmax())
    for beyond in (rows < low, rows > high):
        assert weights[beyond].sum() / weights.sum() <= (1 - 0.5 ** (1 / half_life)) / 2  # half a row
    inside = rows[(rows >= low) & (rows <= high)]
    np.testing.assert_allclose(ranks(knots, 0, inside), exact_ranks(rows, weights, inside), rtol=0, atol=1e-9)


@pytest.mark.parametrize("half_life", [np.log(2) * 1000, np.inf])
def test_sketch_keeps_the_mid_rank_of_a_tie_among_other_values(half_life: float) -> None:
    rng = np.random.default_rng(4)
    rows = np.where(rng.random(50_000) < 0.3, 0.25, rng.normal(size=50_000))
    sketch = QuantileSketch(1, half_life)
    sketch.update(rows[:, None])
    tie = np.array([0.25])
    exact = exact_ranks(rows, weights_of(len(rows), half_life), tie)
    np.testing.assert_allclose(ranks(sketch.knots(), 0, tie), exact, atol=1e-9)


@pytest.mark.parametrize("kind", ["normal", "ascending", "Cauchy", "Pareto, no mean"])
def test_sketch_knows_the_tails_better_than_the_middle(kind: str) -> None:
    rng = np.random.default_rng(5)
    rows = KINDS[kind](rng, 50_000)
    sketch = QuantileSketch(1, np.inf)
    sketch.update(rows[:, None])
    knots = sketch.knots()
    assert knots.values.aminmax() == (rows.min(), rows.max())
    ordered = np.sort(rows)
    tails = np.concatenate([ordered[:50], ordered[-50:]])
    exact = exact_ranks(rows, np.ones(len(rows)), tails)
    np.testing.assert_allclose(norm.ppf(ranks(knots, 0, tails)), norm.ppf(exact), atol=0.04)


def test_sketch_is_small_and_right_after_a_million_rows() -> None:
    rng = np.random.default_rng(6)
    rows = KINDS["drifting"](rng, 1_000_000)[:, None]
    sketch = QuantileSketch(1, np.inf)
    sketch.update(rows)
    assert sum(array.nbytes for array in sketch.to_arrays().values()) < 40_000
    assert rank_errors(sketch, rows, rng).max() <= 0.005


@pytest.mark.parametrize("kind", ["alternating", "two far scales"])
def test_sketch_errors_do_not_add_up_over_hundreds_of_merges(kind: str) -> None:
    rng = np.random.default_rng(9)
    rows = KINDS[kind](rng, 200_000)[:, None]
    sketch = QuantileSketch(1, np.inf)
    sketch.update(rows)
    assert rank_errors(sketch, rows, rng).max() <= 0.002


def test_sketch_follows_a_mean_shift_and_forgets_the_time_before() -> None:
    rng = np.random.default_rng(7)
    span = 1000
    rows = np.concatenate([rng.normal(size=5 * span), rng.normal(5, 1, size=9 * span)])[:, None]
    sketch = QuantileSketch(1, half_life=np.log(2) * span)
    sketch.update(rows[: 6 * span])
    assert ranks(sketch.knots(), 0, np.array([4.0]))[0] < 0.5  # the median has gone over within a span
    assert rank_errors(sketch, rows[: 6 * span], rng).max() <= 0.005
    sketch.update(rows[6 * span :])
    assert sketch.knots().values.min() >= rows[5 * span :].min()  # what was ordinary is now out of range


@settings(deadline=None, max_examples=30)
@given(st.floats(20, 1e5), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_sketch_scale_is_the_exact_decayed_deviation(half_life: float, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.append(rng.standard_cauchy(n), [1.0, 2.0])
    sketch = QuantileSketch(1, half_life)
    sketch.update(rows[:, None])
    weights = weights_of(len(rows), half_life)
    mean = np.average(rows, weights=weights)
    np.testing.assert_allclose(sketch.knots().scale, np.average((rows - mean) ** 2, weights=weights) ** 0.5, rtol=1e-9)


def test_a_feature_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(8)
    rows = np.column_stack([kind(rng, 5000) for kind in KINDS.values()])
    together = QuantileSketch(len(KINDS))
    together.update(rows)
    for j in range(len(KINDS)):
        among_others = QuantileSketch(j + 1)  # of which the last is in the same place
        among_others.update(np.column_stack([rng.normal(size=(5000, j)), rows[:, j]]))
        for ours, theirs in zip(together.knots(), among_others.knots(), strict=True):
            np.testing.assert_array_equal(ours[j], theirs[j])


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 100).flatmap(
        lambda n: arrays(
            np.float64, (n, 2), elements=st.sampled_from([np.nan, np.inf, 0.0, 1.0, -1e60, 1e-300]) | values
        )
    ),
    st.floats(0.01, 1e9),
    st.integers(2, 40),
    st.integers(1, 40),
)
@example(np.array([[2.0, 1.0], [0.0, 1.0]] + 6 * [[1.0, 1.0]]), 0.125, 2, 1)  # the outer points are all but forgotten
@example(np.array([[1.0, 1.0]] + 30 * [[np.nan, 1.0]]), 0.01, 8, 40)  # weights below the smallest number
@example(np.repeat(np.arange(9.0)[:, None], 2, axis=1), np.inf, 8, 1)  # points that are equally dispensable
def test_sketch_makes_a_sound_transform_of_whatever_comes(
    rows: np.ndarray, half_life: float, size: int, chunk: int
) -> None:
    sketch = QuantileSketch(2, half_life, size, chunk)
    sketch.update(rows)
    knots = sketch.knots()
    assert (knots.levels > 0).all()
    assert (knots.levels < 1).all()
    assert (knots.values.diff(dim=1) >= 0).all()
    queries = np.sort(np.concatenate([np.where(np.isfinite(rows), rows, 0), knots.values.T.numpy()]), axis=0)
    z = transform(queries, knots)
    assert np.isfinite(z).all()
    assert (np.diff(z, axis=0) >= -1e-9 * (1 + np.abs(z[1:]))).all()


@pytest.mark.parametrize("missing", [np.nan, np.inf])
def test_sketch_ignores_missing_values(missing: float) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(400, 1))
    holes = np.full((800, 1), missing)
    holes[::2] = rows
    full, sparse = QuantileSketch(1, half_life=1e12), QuantileSketch(1, half_life=1e12)
    full.update(rows)
    sparse.update(holes)
    queries = rng.normal(size=(30, 1))
    np.testing.assert_allclose(transform(queries, full.knots()), transform(queries, sparse.knots()), atol=1e-9)


def test_sketch_remembers_a_feature_that_has_not_come_for_thousands_of_half_lives() -> None:
    rows = np.random.default_rng(2).normal(size=(500, 1))
    sketch = QuantileSketch(1, half_life=20)
    sketch.update(rows)
    before = sketch.knots()
    sketch.update(np.full((50_000, 1), np.nan))
    np.testing.assert_array_equal(sketch.knots().values, before.values)
    np.testing.assert_allclose(sketch.knots().levels, before.levels, rtol=1e-9)


def test_feature_never_seen_is_a_constant_zero() -> None:
    sketch = QuantileSketch(1)
    sketch.update(np.full((10, 1), np.nan))
    at, off = transform(np.array([[0.0], [3.0]]), sketch.knots())[:, 0]
    assert at == 0
    assert off > 1


@pytest.mark.parametrize("setting", [{"size": 1}, {"chunk": 0}, {"half_life": 0.0}, {"half_life": np.nan}])
def test_sketch_with_an_impossible_setting_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        QuantileSketch(1, **setting)  # type: ignore[arg-type]
