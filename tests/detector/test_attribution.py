"""Reasons of records: which features are guilty, and when records are explained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from guilty import KINDS, all_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from streams import (
    CONFIG,
    FEATURES,
    KEYS,
    MODEL,
    ROWS,
    SMALL,
    assert_same_results,
    detector,
    recovered,
    state_of,
    stream,
)

from fomo_stream.detector.attribution import MIN_RELATIVE_SHARE, BackgroundRows, Column, Comparison, attribute
from fomo_stream.detector.categories import Frequencies
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Cause, Reason, Results
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.scoring import encode_rows, logits_of

# --- attribution


@pytest.mark.slow
def test_reasons_name_the_guilty_feature() -> None:
    first: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    three: list[bool] = []
    for given_, its, case in all_cases((8,), 6, seed=7):
        order = [reason.feature for reason in its.explain(case.rows)[-1]]
        first[given_.kind].append(bool(case.guilty & set(order[:1])))
        three.append(bool(case.guilty & set(order[:3])))
    assert len(three) > 100
    assert np.mean([hit for found in first.values() for hit in found]) >= 0.95
    assert np.mean(three) >= 0.98
    for kind, found in first.items():
        assert len(found) >= 5
        assert np.mean(found) >= 0.9, kind


def lens_of(rows: np.ndarray, categorical: Sequence[int] = ()) -> Comparison:
    """A fixed context."""
    model, frequencies = shared_model(), Frequencies.fit(rows, categorical)
    cache = encode_rows(model, frequencies.encode(rows))
    columns = [Column(at, Cause.VALUE, at in categorical) for at in range(rows.shape[1])]
    return Comparison(BackgroundRows(rows, columns), (lambda q: logits_of(model, cache, frequencies.encode(q)),))


VALUES = st.sampled_from([math.nan, 0.0, 1.0, -1.0, 0.5, 7.0, 1e60, -1e60])


@given(st.data())
def test_any_record_has_reasons_of_different_features_with_shares_of_one_whole(data: st.DataObject) -> None:
    n, d = data.draw(st.integers(4, 12)), data.draw(st.integers(1, 4))
    rows = data.draw(nps.arrays(np.float64, (n, d), elements=VALUES))
    row = data.draw(st.one_of(st.sampled_from(list(rows)), nps.arrays(np.float64, (d,), elements=VALUES)))
    categorical = data.draw(st.sets(st.integers(0, d - 1)))
    comparison = lens_of(rows, tuple(sorted(categorical)))
    before = rows.copy(), row.copy()
    reasons = attribute([comparison], [row], 3)
    np.testing.assert_array_equal(np.vstack([rows, row]), np.vstack([*before]))
    named = [reason.feature for reason in reasons] + [r.partner for r in reasons if r.partner >= 0]
    assert len(set(named)) == len(named) <= 4
    assert sum(reason.share for reason in reasons) <= 1 + 1e-9
    for reason in reasons:
        assert MIN_RELATIVE_SHARE * reasons[0].share <= reason.share <= 1 + 1e-9
        assert not math.isnan(reason.value)
        known = ~np.isnan(rows[:, reason.feature])
        assert known.any()  # a feature without any value in the context does not count
        if reason.cause is Cause.CATEGORY:
            assert reason.frequency == (rows[known, reason.feature] == reason.value).mean()
        elif reason.feature not in categorical:
            assert reason.low <= reason.median <= reason.high
            assert reason.expected in rows[known, reason.feature]
    assert repr(attribute([comparison], [row], 3)) == repr(reasons)


def reasons_of(rows: np.ndarray, row: Sequence[float]) -> tuple[Reason, ...]:
    return attribute([lens_of(rows)], [np.array(row, dtype=np.float64)], 3)


def test_a_value_that_breaks_a_dependency_is_named_and_two_that_do_not_fit_are_a_pair() -> None:
    rng = np.random.default_rng(1)
    cause = rng.normal(size=(600, 1))
    rows = np.hstack([cause + 0.1 * rng.normal(size=(600, 4)), rng.normal(size=(600, 2))])
    broken = reasons_of(rows, [1.2, 1.2, -1.2, 1.2, 0, 0])[0]
    assert (broken.feature, broken.partner) == (2, -1)
    assert broken.expected == pytest.approx(1.2, abs=0.25)  # not the usual 0
    pair = reasons_of(rows[:, [0, 1, 4, 5]], [1.2, -1.2, 0, 0])[0]
    assert {pair.feature, pair.partner} == {0, 1}


def detector_after(rows: np.ndarray, categorical: tuple[int, ...] = (), **settings: Any) -> Detector:
    config = DetectorConfig(context_size=300, min_context=100, lag=8, **settings)
    one = Detector(shared_model(), rows.shape[1], config, categorical=categorical)
    one.process(rows)
    return one


def test_two_usual_categories_that_do_not_go_together_are_an_outlier_and_are_named_as_a_pair() -> None:
    rng = np.random.default_rng(2)
    country = rng.choice(4, 1000, p=[0.4, 0.3, 0.2, 0.1])
    rows = np.column_stack([rng.normal(size=1000), country, country // 2, rng.integers(0, 5, 1000)]).astype(float)
    one = detector_after(rows, categorical=(1, 2, 3))
    odd = np.array([[0.0, 2, 0, 1]])
    first = one.explain(odd)[0][0]
    assert {first.feature, first.partner} == {1, 2}
    new = one.explain(np.array([[0.0, 9, 1, 1]]))[0][0]
    assert (new.feature, new.partner) == (1, -1)
    assert one.process(odd).outlier[0]


def test_movement_and_past_are_named_as_such() -> None:
    rng = np.random.default_rng(3)
    rows = np.cumsum(rng.normal(size=(600, 2)), axis=0) * 0.05
    rows += 5 * np.sin(np.arange(600) / 40)[:, None] * [1, -1]
    low, high = rows.min(0), rows.max(0)
    jump = np.tile((low + high) / 2, (8, 1))
    jump[:, 0] += np.arange(8) * 1e-6  # else it would stand still
    jump[:, 1] = np.where(np.arange(8) % 2, low[1] * 0.8 + high[1] * 0.2, low[1] * 0.2 + high[1] * 0.8)
    moved = detector_after(rows, views=("movement",)).explain(jump)[-1][0]
    assert (moved.feature, moved.cause) == (1, Cause.SPREAD)
    assert moved.value > moved.high > moved.low > 0  # no logarithms
    one = detector_after(rows, views=("past",), lags=2)
    past = one.explain(jump)[-1][0]
    assert (past.feature, past.cause, past.value, past.before) == (1, Cause.PAST, jump[-1, 1], 2)
    known = [found[0].before if found[0].cause is Cause.PAST else 0 for found in one.explain(jump[:3], ["new"] * 3)]
    assert known == [0, 1, 2]  # the first record of a key has no past that it could not follow from


@pytest.mark.parametrize(("n", "views"), [(4, "default"), (5, "fast"), (101, "default")])
def test_records_of_the_warm_up_are_explained_by_the_half_that_does_not_have_them(n: int, views: str) -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(n, 3))
    rows[n // 3, 2] = 40.0
    config = DetectorConfig(min_context=max(n, 4), explain="all", views=(views,))
    one = Detector(shared_model(), 3, config)
    one.process(rows)
    state = state_of(one)
    crossed = one.cross_scored()
    assert len(crossed) == len(crossed.reasons) == n
    (found, *_) = crossed.reasons[n // 3] or ()
    assert (found.feature, found.value) == (2, 40.0)
    half = rows[n // 2 :] if n // 3 < n // 2 else rows[: n // 2]
    assert found.high <= half[:, 2].max() < 40
    assert state_of(one) == state
    plain = Detector(shared_model(), 3, DetectorConfig(min_context=max(n, 4), views=(views,)))
    plain.process(rows)
    np.testing.assert_array_equal(plain.cross_scored().logit, crossed.logit)


# --- explaining

MANY_KEYS = replace(CONFIG, keys=100)  # what is asked before does not know which keys a step forgets
ALL = replace(MANY_KEYS, explain="all")
N = 64


def new(config: DetectorConfig = ALL) -> Detector:
    return Detector(MODEL, FEATURES, config)


def bits(reasons: Sequence[tuple[Reason, ...] | None]) -> str:
    """The reasons with all digits; NaN is equal to NaN."""

    def exact(some: tuple[Reason, ...]) -> list[object]:
        return [(*map(float, (*one[:1], *one[2:-1])), str(one.cause), one.scope) for one in some]

    return repr([None if some is None else exact(some) for some in reasons])


@cache
def at_once() -> Results:
    return new().process(ROWS[:N], KEYS[:N])


@settings(max_examples=2)
@given(st.lists(st.integers(1, N - 1), max_size=3), st.integers(20, N - 10))
def test_reasons_depend_neither_on_calls_nor_on_recoveries_nor_on_learning(cuts: list[int], at: int) -> None:
    whole = at_once()
    assert sum(map(bool, whole.reasons)) > N / 2
    one, parts = new(), []
    for a, b in pairwise([0, *sorted({*cuts, at}), N]):
        if a == at:
            log = {key: value for key, value in one.changes().items() if value is not None}
            rest = slice(at, at + 10)
            for twin in (recovered(log, config=ALL), recovered(log, one, ALL), one.copy()):
                assert bits(twin.process(ROWS[rest], KEYS[rest]).reasons) == bits(whole.reasons[rest])
            now = slice(at, min(at + one.room, N))
            assert bits(one.score_rows(ROWS[now], KEYS[now]).reasons) == bits(whole.reasons[now])
        parts.append(one.process(ROWS[a:b], KEYS[a:b]))
    assert bits(Results.concatenate(parts).reasons) == bits(whole.reasons)


def test_to_explain_changes_nothing_and_no_setting_of_it_changes_results() -> None:
    plain, one = new(MANY_KEYS), new()
    for start in range(0, 48, 24):
        part = slice(start, start + 24)
        before = state_of(one)
        asked = one.explain(ROWS[part], KEYS[part])
        assert state_of(one) == before
        explained, known = one.process(ROWS[part], KEYS[part]), plain.process(ROWS[part], KEYS[part])
        assert not any(known.reasons)
        assert_same_results(replace(explained, reasons=known.reasons), known)
        n = int((explained.generation == explained.generation[0]).sum())  # the next generations are not known before
        assert bits(asked[:n]) == bits([some or () for some in explained.reasons[:n]])


def test_alerts_alone_get_reasons_at_most_so_many() -> None:
    config = replace(SMALL, explain="alerts", reasons=2)
    found = detector(config).process(stream(300))
    assert found.outlier.any()
    for outlier, reasons in zip(found.outlier, found.reasons, strict=True):
        assert bool(outlier) == (reasons is not None)
        assert len(reasons or ()) <= 2
    assert sum(map(bool, found.reasons)) > 0.9 * found.outlier.sum()
