"""Verdicts before the same record mean the same, however they are split over calls and whatever happens in between."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from partitions import MODEL, few_series, state_of

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.detector.series import Key

FEATURES = 2
FIELDS = ("remembered_logit", "logit", "by_view", "p_value", "outlier", "generation", "regime", "severity")
Verdict = tuple[int, bool]  # number of the record, whether it is an outlier


@pytest.fixture(autouse=True)
def only_few_series(monkeypatch: pytest.MonkeyPatch) -> None:
    few_series(monkeypatch)


@dataclass
class Place:
    """Verdicts that are given before the same record, and the rows that follow."""

    verdicts: list[Verdict]  # in the order given; of those on one record the last counts
    rows: np.ndarray = field(repr=False)
    keys: list[Key] = field(repr=False)


def stream(n: int, seed: int) -> np.ndarray:
    """Rows, now and then one far off, values missing, and every 130 records a lasting shift."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, FEATURES)) * np.where(rng.random((n, 1)) < 0.1, 9, 1)
    rows += 40 * (np.arange(n) // 130)[:, None]
    rows[rng.random((n, FEATURES)) < 0.05] = np.nan
    return rows


@st.composite
def configs(draw: st.DrawFn, admit: str) -> DetectorConfig:
    context_size = draw(st.integers(20, 60))
    return DetectorConfig(
        context_size=context_size,
        min_context=draw(st.integers(10, min(30, context_size))),
        admit=admit,
        lags=draw(st.integers(0, 1)),
        adapt_after=64,
        lag=draw(st.integers(4, 40)),
        recent_every=draw(st.integers(32, 96)),
        calibration_size=60,
        feedback_memory=90,
        refresh=0.1,
        alert_rate=0.1,
    )


@st.composite
def streams(draw: st.DrawFn) -> list[Place]:
    n = 500
    number = draw(st.integers(0, 99))
    rows = stream(n, number)
    keys = np.random.default_rng(number).choice(np.array([None, "a", "b", "c", "d", "e"], dtype=object), n).tolist()
    cuts = sorted({0, n, *draw(st.sets(st.integers(1, n - 1), min_size=1, max_size=8))})
    places: list[Place] = []
    judged: list[int] = []
    for first, stop in pairwise(cuts):
        back = draw(st.lists(st.integers(1, min(first, 100)), max_size=15)) if first else []
        again = draw(st.lists(st.sampled_from(judged[-20:]), max_size=8)) if judged else []
        numbers = [*(first - k for k in back), *again]
        places.append(Place([(number, draw(st.booleans())) for number in numbers], rows[first:stop], keys[first:stop]))
        judged += numbers
    return places


def give(one: Detector, verdicts: list[Verdict]) -> int:
    numbers = np.array([number for number, _ in verdicts], dtype=np.int64)
    return one.feedback(numbers, np.array([outlier for _, outlier in verdicts]))


def at_once(config: DetectorConfig, places: list[Place]) -> tuple[Detector, list[Results]]:
    """Every place's verdicts in one call, and its rows in one more."""
    one, results = Detector(MODEL, FEATURES, config), []
    for place in places:
        give(one, list(dict(place.verdicts).items()))
        results.append(one.process(place.rows, place.keys))
    return one, results


def assert_same(found: Results, expected: Results, at: slice, fields: tuple[str, ...] = FIELDS) -> None:
    for name in fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name)[at], err_msg=name)


class Piecemeal:
    """A detector that is given the same in many calls, and to which much happens between them."""

    def __init__(self, config: DetectorConfig, data: st.DataObject) -> None:
        self.config = config
        self.data = data
        self.one = Detector(MODEL, FEATURES, config)
        self.log: dict[str, bytes] = {}
        self.seen: Counter[str] = Counter()

    def take(self, place: Place, expected: Results) -> None:
        """Verdicts and rows of a place, some rows scored before and learned after the verdicts."""
        n = self.data.draw(st.integers(0, min(self.config.lag, len(place.rows))))
        asked = self.one.score_rows(place.rows[:n], place.keys[:n])
        calls = self._calls(place.verdicts)
        for call in calls:
            self._disturb()
            give(self.one, call)
        self._disturb()
        self._look_ahead(place, expected)
        self._count(calls)
        self.one.learn_rows(place.rows[:n], asked, place.keys[:n])
        if n and asked.generation[0]:
            assert_same(asked, expected, slice(0, n), ("logit", "by_view", "generation"))
        while n < len(place.rows):
            size = self.data.draw(st.integers(1, len(place.rows) - n))
            part = slice(n, n + size)
            assert_same(self.one.process(place.rows[part], place.keys[part]), expected, part)
            n += size

    def _calls(self, verdicts: list[Verdict]) -> list[list[Verdict]]:
        """The verdicts that count in any order, others on the same records before them, in several calls."""
        given = self.data.draw(st.permutations(list(dict(verdicts).items())))
        for number, outlier in self.data.draw(st.permutations(given)):
            for _ in range(self.data.draw(st.integers(0, 2))):
                before = self.data.draw(st.integers(0, given.index((number, outlier))))
                given.insert(before, (number, self.data.draw(st.booleans())))
                self.seen["revoked"] += given[before][1] != outlier
        cuts = sorted(self.data.draw(st.sets(st.integers(0, len(given)), max_size=4)))
        return [given[a:b] for a, b in zip([0, *cuts], [*cuts, len(given)], strict=True)]

    def _disturb(self) -> None:
        """What must make no difference between two calls."""
        what = self.data.draw(st.sampled_from(["nothing", "nothing", "nothing", "commit", "recover", "copy", "ask"]))
        fresh = Detector(MODEL, FEATURES, self.config)
        if what == "commit":
            for key, value in self.one.changes().items():
                self.log.pop(key, None)
                if value is not None:
                    self.log[key] = value
            fresh.recover(self.log)
            self.one = fresh
        elif what == "recover":
            self.log = cast(dict[str, bytes], self.one.copy().changes())
            fresh.recover(self.log)
            self.one = fresh
        elif what == "copy":
            self.one, self.log = self.one.copy(), {}
        elif what == "ask":
            nothing = np.zeros((0, FEATURES))
            self.one.process(nothing)
            self.one.learn_rows(nothing, self.one.score_rows(nothing))
            self.one.score_rows(np.zeros((3, FEATURES)), ["a", "x", None])
            self.one.has_verdict(np.arange(self.one.records))
        self.seen[what] += 1

    def _look_ahead(self, place: Place, expected: Results) -> None:
        """The next record's scores are known beforehand, and how many rows the warm-up lacks at least."""
        assert_same(self.one.score_rows(place.rows[:1], place.keys[:1]), expected, slice(0, 1))
        if not self.one.generation:
            assert (expected.generation[: self.one.room] == 0).all()

    def _count(self, calls: list[list[Verdict]]) -> None:
        if len(calls) > 1:
            self.seen["later"] += self.one.generation > 0
            self.seen["generations"] += self.one.generation > 3


@pytest.mark.parametrize(("number", "admit"), [(2, "auto"), (3, "feedback"), (4, "all")])
def test_how_verdicts_are_split_over_calls_makes_no_difference(number: int, admit: str) -> None:
    seen: Counter[str] = Counter()

    @seed(number)
    @settings(max_examples=15, database=None)
    @given(configs(admit), streams(), st.data())
    def check(config: DetectorConfig, places: list[Place], data: st.DataObject) -> None:
        whole, expected = at_once(config, places)
        piecemeal = Piecemeal(config, data)
        for place, results in zip(places, expected, strict=True):
            piecemeal.take(place, results)
        assert state_of(whole) == state_of(piecemeal.one)
        seen.update(piecemeal.seen)

    check()
    assert all(seen[what] for what in ("later", "generations", "revoked", "commit", "recover", "copy", "ask")), seen


def test_a_verdict_taken_back_before_the_next_record_leaves_no_trace() -> None:
    config = DetectorConfig(context_size=40, min_context=20, lag=8, feedback_memory=90, refresh=0.1)
    verdicts = [(number, number % 3 == 0) for number in range(20, 110)]
    one = Detector(MODEL, FEATURES, config)
    one.process(stream(110, 0))
    give(one, verdicts)
    one.process(stream(1, 1))
    before = one.copy()
    assert give(one, [(number, not outlier) for number, outlier in verdicts[10:]]) == 80
    assert state_of(one)["counters/0"] != state_of(before)["counters/0"]
    assert give(one, verdicts[10:]) == 80
    assert state_of(one) == state_of(before)


def test_verdicts_that_wait_count_as_rows_that_the_warm_up_may_have() -> None:
    one = Detector(MODEL, FEATURES, DetectorConfig(context_size=40, min_context=20, feedback_memory=90))
    one.process(stream(12, 0))
    give(one, [(number, True) for number in range(12)])
    one.process(stream(5, 1))
    give(one, [(number, False) for number in range(12)])
    assert one.room == 3  # 5 rows, and 12 that come back
    assert not one.process(stream(3, 2)).generation.any()
    assert one.generation == 1


def test_a_feature_that_comes_between_two_calls_makes_no_difference() -> None:
    config = DetectorConfig(context_size=40, min_context=20, admit="feedback", lag=8, feedback_memory=90, refresh=0.1)
    rows, wide = stream(400, 0), np.random.default_rng(1).normal(size=(300, FEATURES + 1))
    verdicts = [(number, number % 3 == 0) for number in range(399, 310, -1)]
    results = []
    for before in (0, 40, len(verdicts)):
        one = Detector(MODEL, FEATURES, config)
        one.process(rows)
        give(one, [*verdicts[:before], *((number, not outlier) for number, outlier in verdicts[before:])])
        one = one.widened(FEATURES + 1)
        give(one, verdicts[before:])
        results.append(one.process(wide))
    for result in results:
        assert_same(result, results[0], slice(None))
