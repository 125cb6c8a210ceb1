"""What is usual at a time of the day: found where there is a pattern, nowhere else, and however records are split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.relative import Pooled
from fomo_stream.detector.results import Results
from fomo_stream.detector.seasons import Cycle, Seasons
from fomo_stream.model.checkpoint import shared_model

Float = NDArray[np.float64]
DAY = 24 * 4  # records of a day


def days(rng: np.random.Generator, n_days: int, weekly: bool = False) -> tuple[Float, Float, Float]:
    """Scores (n, 3) of a pattern, of one with gaps, and of a value that only wanders; their places; the pattern."""
    n = n_days * DAY
    hour, weekday = np.arange(n) / 4 % 24, np.arange(n) // DAY % 7
    pattern = 1.3 * np.sin(hour / 24 * 2 * np.pi) * np.where(weekly & (weekday >= 5), -0.5, 1.0)
    scores = np.column_stack([pattern, pattern, np.cumsum(rng.normal(0, 0.1, n))]) + rng.normal(0, 0.3, (n, 3))
    scores[rng.random(n) < 0.3, 1] = np.nan
    return scores, np.column_stack([hour, weekday * 24 + hour]), pattern


def followed(one: Seasons, scores: Float, places: Float, cuts: Sequence[int] = ()) -> tuple[Float, ...]:
    edges = [0, *sorted(cuts), len(scores)]
    parts = [one.follow(scores[a:b], places[a:b]) for a, b in pairwise(edges)]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def test_a_pattern_is_learned_and_a_value_that_wanders_or_never_changes_has_none() -> None:
    rng = np.random.default_rng(0)
    scores, places, pattern = days(rng, 14)
    scores = np.column_stack([scores, np.zeros(len(scores))])
    known, level, spread, _ = followed(Seasons(4, [Cycle(24), Cycle(168)]), scores, places)
    late = slice(5 * DAY, None)
    assert not known[: 3 * DAY // 2].any()  # the first cycle teaches, the next one is predicted
    assert known[late, :2].all()
    assert not known[:, 2:].any()
    for feature in (0, 1):
        assert np.sqrt(np.mean((level[late, feature] - pattern[late]) ** 2)) < 0.15
        assert 0.25 < spread[late, feature].mean() < 0.45


def test_the_week_is_used_where_its_errors_are_the_smallest() -> None:
    scores, places, pattern = days(np.random.default_rng(1), 42, weekly=True)
    known, level, *_ = followed(Seasons(3, [Cycle(24), Cycle(168)]), scores, places)
    late = slice(35 * DAY, None)
    assert known[late, 0].all()
    assert np.sqrt(np.mean((level[late, 0] - pattern[late]) ** 2)) < 0.2


def test_for_a_key_features_of_one_pattern_follow_it_alike_and_gradually() -> None:
    # A quarter of the second feature is explained, half of the third. If a season was used fully or not at all, both
    # would be without one at times, and records that are alike would look different.
    rng = np.random.default_rng(2)
    scores, places, pattern = days(rng, 40, weekly=True)
    noise = np.array([0.3, 1.5, 0.8])
    scores = np.column_stack([pattern[:, None] + rng.normal(0, 1, (len(pattern), 3)) * noise, scores[:, 2]])
    *_, of_key = followed(Seasons(4, [Cycle(24), Cycle(168)]), scores, places)
    late, hours = slice(28 * DAY, None), of_key[:: DAY // 24]
    for feature in range(3):
        share = of_key[late, feature] @ pattern[late] / (pattern[late] @ pattern[late])
        assert 0.6 < share < 1.1, feature
    assert np.abs(of_key[: 2 * DAY]).max() == 0.0
    assert np.abs(np.diff(hours[:, :3], axis=0)).max() < 0.8  # of 2.6 between the lowest and the highest hour
    assert np.sqrt(np.mean(of_key[late, 3] ** 2)) < 0.3 * scores[late, 3].std()


def test_nothing_depends_on_how_records_are_split_or_on_a_restart() -> None:
    rng = np.random.default_rng(0)
    scores, places, _ = days(rng, 9)
    places[rng.random(len(places)) < 0.02] = np.nan
    cycles = [Cycle(24), Cycle(24, 12)]
    places[:, 1] = places[:, 0] + 24 * 3
    whole, split = Seasons(3, cycles), Seasons(3, cycles)
    expected = followed(whole, scores, places)
    cuts = rng.integers(0, len(scores), 40).tolist()
    middle = len(scores) // 2 + 2  # within an hour
    first = followed(split, scores[:middle], places[:middle], [cut for cut in cuts if cut < middle])
    entries = {name: value for name, value in split.copy().changes("s").items() if value is not None}
    again = Seasons(3, cycles)
    again.recover(entries, "s")
    rest = followed(again, scores[middle:], places[middle:], [cut - middle for cut in cuts if cut > middle])
    for found, one, other in zip(expected, first, rest, strict=True):
        np.testing.assert_array_equal(found, np.concatenate([one, other]))
    logged = {**entries, **again.changes("s")}
    assert {name: value for name, value in whole.copy().changes("s").items() if value is not None} == {
        name: value for name, value in logged.items() if value is not None
    }


def test_another_scale_says_the_same() -> None:
    scores, places, _ = days(np.random.default_rng(4), 9)
    raw = scores[:, [0, 0, 2]]
    old, new = (Pooled.fit(tuple(np.sort(some, axis=0).T), np.full(3, 0.5)) for some in (raw[:400], raw))
    moved, fresh = Seasons(3, [Cycle(24)]), Seasons(3, [Cycle(24)])
    middle = 6 * DAY
    moved.follow(old.scores(raw[:middle]), places[:middle, :1])
    moved.rescale(old, new)
    fresh.follow(new.scores(raw[:middle]), places[:middle, :1])
    mine, its = (one.follow(new.scores(raw[middle:]), places[middle:, :1]) for one in (moved, fresh))
    np.testing.assert_array_equal(mine.is_known, its.is_known)
    np.testing.assert_allclose(mine.level, its.level, atol=0.1)
    np.testing.assert_allclose(mine.spread, its.spread, rtol=0.3)


# --- in the detector


def run(rows: Float, keys: Sequence[str] | None = None, **settings: Any) -> Results:
    """All results, 256 records at a time."""
    config = DetectorConfig(**settings)
    one = Detector(shared_model(), rows.shape[1] - len(config.cycles), config)
    parts = [slice(a, a + 256) for a in range(0, len(rows), 256)]
    return Results.concatenate([one.process(rows[at], None if keys is None else keys[at]) for at in parts])


@pytest.mark.parametrize("with_keys", [False, True])
def test_a_value_of_noon_is_odd_at_night(with_keys: bool) -> None:
    rng = np.random.default_rng(5)
    n = 21 * DAY
    hour = np.arange(n) / 4 % 24
    rows = rng.normal(0, 0.25, (n, 2))  # the other feature does not tell the time
    rows[:, 0] += 1.5 * np.sin((hour - 3.0) / 24 * 2 * np.pi)
    keys = list(rng.choice(["a", "b"], n)) if with_keys else None
    night = np.flatnonzero((hour >= 20) & (hour < 22) & (np.arange(n) >= 19 * DAY))[:26:13]  # feature 0 is low
    rows[night, 0] = rows[night - DAY // 2, 0]
    if keys is not None:
        rows[:, 0] += [{"a": 0.0, "b": 1.0}[key] for key in keys]
    timed = run(np.column_stack([rows, hour]), keys, cycles=((24, 1),), explain="alerts")
    plain = run(rows, keys)
    others = np.setdiff1d(np.arange(14 * DAY, n), night)
    above, above_plain = (one.logit[night] - np.quantile(one.logit[others], 0.99) for one in (timed, plain))
    assert (above > 0.0).mean() >= 0.9
    assert above.mean() > above_plain.mean() + 0.5
    assert timed.outlier[others].mean() < 0.01
    scopes = [reason.scope for at in night for reason in (timed.reasons[at] or ())[:1] if timed.outlier[at]]
    assert scopes
    assert scopes.count("key" if with_keys else "time") >= 0.8 * len(scopes)


def test_without_a_pattern_nothing_changes() -> None:
    rng = np.random.default_rng(6)
    rows = np.cumsum(rng.normal(size=(1500, 3)), axis=0) * 0.05 + rng.normal(size=(1500, 3))
    timed = run(np.column_stack([rows, np.arange(1500) / 4 % 24]), cycles=((24, 1),))
    plain = run(rows)
    np.testing.assert_array_equal(timed.logit, plain.logit)
    np.testing.assert_array_equal(timed.outlier, plain.outlier)
