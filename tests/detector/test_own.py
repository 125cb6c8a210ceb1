"""Contexts of their own for the busiest keys."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
from streams import CONFIG, FEATURES, KEYS, ROWS, assert_same_results, new, process

from fomo_stream.detector.changelog import Entries
from fomo_stream.detector.key_scopes import DECISION_RECORDS, HALF_LIFE, MIN_ACTIVITY, MIN_ACTIVITY_RATIO, SERIES_OFFSET
from fomo_stream.detector.keys import Key, digest_of
from fomo_stream.detector.results import Results


def expected_owners(keys: list[Key], limit: int) -> list[set[Key]]:
    """The keys with contexts of their own after each decision, from the documented rule."""
    owners: set[Key] = set()
    after = []
    for stop in range(DECISION_RECORDS, len(keys) + 1, DECISION_RECORDS):
        busy: Counter[Key] = Counter()
        for first in range(0, stop, DECISION_RECORDS):
            for key, n in Counter(keys[first : first + DECISION_RECORDS]).items():
                busy[key] += n * 0.5 ** ((stop - first - DECISION_RECORDS) / HALF_LIFE)
        latest = {key for key in keys[stop - DECISION_RECORDS : stop] if key is not None}
        for key in sorted(latest, key=lambda key: -busy[key]):
            if key in owners or busy[key] < MIN_ACTIVITY:
                continue
            if len(owners) >= limit:
                least = min(owners, key=lambda owner: busy[owner])
                if busy[key] <= MIN_ACTIVITY_RATIO * busy[least]:
                    continue
                owners.remove(least)
            owners.add(key)
        after.append(owners.copy())
    return after


def test_the_busiest_keys_have_contexts_of_their_own_and_lose_them_to_keys_twice_as_busy() -> None:
    one, expected = new(replace(CONFIG, keys=100)), expected_owners(KEYS, CONFIG.own_contexts)
    for first, owners in zip(range(0, len(KEYS), DECISION_RECORDS), expected, strict=False):
        process(one, first, first + DECISION_RECORDS)
        assert one.inspect().own.keys() == {digest_of(key) for key in owners if key is not None}
        assert one.summary.own_contexts == len(owners)
    assert not expected[1] <= expected[-1]


def test_a_key_with_contexts_of_its_own_is_scored_by_its_records_alone() -> None:
    """Whatever the values of all other keys are."""
    rng = np.random.default_rng(0)
    n = 1850
    keys: list[Key] = [("a", "b", f"k{i % 50}")[min(int(which), 2)] for i, which in enumerate(rng.integers(0, 4, n))]
    rows, of_a = rng.normal(size=(n, FEATURES)), np.array([key == "a" for key in keys])
    config = replace(CONFIG, views=("trimmed", "all", "recent"), lags=0, own_contexts=2, keys=100)
    one = new(config).process(rows, keys)
    other = new(config).process(np.where(of_a[:, None], rows, 3.0 * rng.normal(size=rows.shape)), keys)
    is_own = one.series >= SERIES_OFFSET
    np.testing.assert_array_equal(is_own, other.series >= SERIES_OFFSET)
    assert (is_own & of_a).sum() > 300
    for name in ("by_view", "confidence", "generation"):
        its, others = getattr(one, name), getattr(other, name)
        np.testing.assert_array_equal(its[is_own & of_a], others[is_own & of_a], err_msg=name)
        assert not np.array_equal(its[is_own & ~of_a], others[is_own & ~of_a]) or name == "generation"


def test_verdicts_reach_the_contexts_that_have_learned_the_record() -> None:
    """An outlier for feedback leaves the reservoir of its key: as if it had never been there."""
    config = replace(CONFIG, admit="all", views=("all",), lags=0, feedback_memory=600)
    rng = np.random.default_rng(0)
    keys: list[Key] = [str(key) for key in rng.integers(0, 2, 1200)]
    rows = rng.normal(size=(1200, FEATURES))
    rows[700, 0] = np.nan  # it equals itself
    one, digest = new(config), digest_of("0")
    one.process(rows[:1000], keys[:1000])
    assert one.inspect().own[digest]
    for i in (998, 700, 401, 402):
        (found,) = one.numbers_of(rows[[i]])
        assert found.tolist() == [i]
        assert not one.has_verdict(found)[0]
        assert one.feedback(found, np.array([True])) == 1
        assert one.has_verdict(found)[0]
        assert one.feedback(found, np.array([True])) == 0
    (found,) = one.numbers_of(rows[[100]])
    assert not len(found)
    held = {tuple(row) for own in one._key_scopes for row in own.scope.context.reservoir.rows.tolist()}
    one.process(rows[1000:1001], keys[1000:1001])
    one.process(rows[1001:], keys[1001:])
    after = {tuple(row) for own in one._key_scopes for row in own.scope.context.reservoir.rows.tolist()}
    told = {tuple(rows[i].tolist()) for i in (998, 700, 401, 402)}
    assert told & held
    assert not told & after


def test_scoring_first_and_learning_then_is_the_same_as_both_at_once() -> None:
    """However many records come at once, and new contexts take effect among them."""
    one, other = new(), new()
    edges = np.cumsum([0, *([1] * 15 + [50] + [1] * 10 + [200]) * 2])
    for first, stop in pairwise(edges.tolist()):
        call = one.peek(ROWS[first:stop], KEYS[first:stop])
        seen = call.results()
        one.learn(call)
        scored = process(other, first, stop)
        if stop - first == 1:
            np.testing.assert_array_equal(seen.series >= SERIES_OFFSET, scored.series >= SERIES_OFFSET)
            np.testing.assert_array_equal(seen.logit, scored.logit)
    assert_same_results(process(one, one.records, 700), process(other, other.records, 700))
    assert one.inspect().own
    assert one.copy().changes() == other.copy().changes()


def test_the_log_has_at_every_time_what_a_copy_would_write() -> None:
    """A call writes only what has changed: between two steps the compiled step alone writes, else much more does."""
    one, rng, at = new(replace(CONFIG, keys=100)), np.random.default_rng(2), 0
    log: Entries = {}
    while at < 900:
        process(one, at, at := at + int(rng.integers(1, 40)))
        if rng.random() < 0.1:
            one.feedback(rng.integers(max(0, at - 300), at, 3), rng.random(3) < 0.5)
        if rng.random() < 0.1:
            one.score_rows(ROWS[at : at + 3], KEYS[at : at + 3])
        log = {name: value for name, value in (log | one.changes()).items() if value is not None}
        if rng.random() < 0.2:
            whole = one.copy().changes()  # the log may also have generations and keys that are no longer used
            assert {name: log[name] for name in whole} == whole


def test_lasting_shifts_of_all_detectors_are_announced_however_they_are_split() -> None:
    rng = np.random.default_rng(0)
    n = 1400
    keys: list[Key] = ["a" if rng.random() < 0.6 else f"k{rng.integers(3)}" for _ in range(n)]
    rows = rng.normal(size=(n, FEATURES))
    rows[700:] += 6.0
    rows[1050:] -= 14.0
    views = replace(CONFIG, views=("all", "recent"), lags=0, lag=8, recent_every=32, refresh=1.0, adapt_after=32)
    config = replace(views, context_size=200, min_context=40, admit="feedback", own_contexts=1, keys=100)
    at_once, one = new(config), new(config)
    whole = at_once.process(rows, keys)
    parts = [one.process(rows[i : i + 5], keys[i : i + 5]) for i in range(0, n, 5)]
    assert_same_results(whole, Results.concatenate(parts))
    assert at_once.shifts == one.shifts > 1
    assert (whole.series >= SERIES_OFFSET).any()
