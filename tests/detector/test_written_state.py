"""What a detector writes to its log: only the changes, in small entries, and each generation once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from partitions import (
    CONFIG,
    FEATURES,
    KEYS,
    LAGS,
    MODEL,
    ROWS,
    SERIES,
    Partition,
    assert_same_results,
    small_sketches_of,
    state_of,
    under,
)

from fomo_stream.detector.changelog import PART_BYTES
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.generation import Generation
from fomo_stream.detector.past_values import PastValues
from fomo_stream.detector.timeline import Build


@pytest.fixture(autouse=True)
def small_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    small_sketches_of(monkeypatch)


def test_a_commit_costs_what_has_changed() -> None:
    partition = Partition()
    partition.process(0, 1000)
    partition.changes()
    assert partition.changes() == {}
    partition.process_until_next()
    partition.changes()
    first = partition.detector.records
    partition.process(first, first + 3)
    few = partition.changes()
    assert sorted(key.rpartition("/")[0] for key in few if "series" not in key) == [
        "detector/counters",
        "detector/history/rows",
        "detector/history/scores",
    ]
    assert sum("series" in key and value is not None for key, value in few.items()) <= 3


def test_many_verdicts_that_wait_for_a_record_are_kept() -> None:
    n = 10_000  # as many labels as may wait at once
    config = replace(CONFIG, feedback_memory=n, adapt_after=0)
    one, other = (Detector(MODEL, 1, config) for _ in range(2))
    one.process(np.random.default_rng(0).normal(size=(n, 1)))
    one.changes()
    log = one.copy().changes()  # of everything
    assert one.feedback(np.arange(n), np.arange(n) % 2 == 0) == n
    entries = one.changes()
    assert max(len(value or b"") for value in entries.values()) <= PART_BYTES
    other.recover(cast(dict[str, bytes], {**log, **entries}))
    rows = np.random.default_rng(1).normal(size=(100, 1))
    assert_same_results(one.process(rows), other.process(rows))
    assert len(one.changes()["counters/0"] or b"") < 1000  # the verdicts are heeded


def test_a_generation_is_written_once() -> None:
    partition = Partition()
    written: Counter[str] = Counter()
    for first in range(0, 900, 10):
        partition.process(first, first + 10)
        written.update(key.partition("generation/")[2][1:] for key in partition.changes() if "/generation/" in key)
    n = partition.detector.generation
    assert n > 5
    assert written["/0"] in (n, n + 1)  # blueprints: perhaps of the next one too
    assert written["/encoded/0"] == n


def test_what_was_encoded_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition()
    partition.process(0, 400)
    log = cast(dict[str, bytes], partition.changes())
    without = {key: value for key, value in log.items() if "encoded" not in key}
    expected = Partition().recover(without).process(400, 405)  # made of the blueprint
    monkeypatch.setattr(Generation, "build", lambda *_: pytest.fail("it is in the log"))
    assert_same_results(Partition().recover(log).process(400, 405), expected)


@pytest.mark.parametrize("make", [Detector.copy, lambda one: one.widened(5)])
def test_a_copy_has_everything_to_write(make: Callable[[Detector], Detector]) -> None:
    partition = Partition()
    partition.process(0, 400)
    partition.detector.changes()
    twin = make(partition.detector)
    again = Detector(MODEL, twin.n_features, CONFIG)
    again.recover(cast(dict[str, bytes], twin.changes()))
    assert partition.detector.changes() == {}  # the log of the original knows nothing of the copy
    rows = np.random.default_rng(0).normal(size=(500, twin.n_features))
    for one in (again, twin):
        one.feedback(np.arange(350, 380), np.arange(30) % 2 == 0)
    assert_same_results(again.process(rows), twin.process(rows))
    assert state_of(again) == state_of(twin)


def test_a_copy_changes_nothing_in_what_the_original_writes_next() -> None:
    one, other = Partition(), Partition()
    for partition in (one, other):
        partition.process(0, 400)
        partition.changes()
        partition.process(400, 450)
    one.detector.copy().changes()
    assert one.changes() == other.changes() != {}


def test_generations_that_are_known_are_not_encoded_again() -> None:
    partition = Partition()
    partition.process(0, 400)
    partition.process_until_next()
    log = cast(dict[str, bytes], partition.changes())
    live = partition.detector
    builds = builds_of(live)
    assert builds_of(Partition().recover(log, partition).detector) == builds
    other = Detector(MODEL, live.n_features, CONFIG)
    other.process(PastValues(LAGS, FEATURES, SERIES).rows(ROWS[: live.records] * (1 + 1e-9), KEYS[: live.records]))
    (same_moment, _), (current, _) = builds_of(other), builds
    assert same_moment is not None
    assert current is not None
    assert same_moment.blueprint.takes_effect == current.blueprint.takes_effect  # but of other rows
    again = Detector(MODEL, live.n_features, CONFIG)
    again.recover(under(log, "detector/"), other)
    assert builds_of(again)[0] is not same_moment
    partition.recover(log, partition)  # in its own place
    assert builds_of(live) == builds
    assert live.changes() == {}


def builds_of(one: Detector) -> tuple[Build | None, Build | None]:
    """The current and the next generation."""
    return one._state.timeline.current, one._state.timeline.next


def test_values_stay_small_however_wide_the_rows_are() -> None:
    one = Detector(MODEL, 1000, CONFIG)
    one.process(np.random.default_rng(0).normal(size=(30, 1000)))
    entries = cast(dict[str, bytes], one.changes())
    assert max(map(len, entries.values())) <= max(PART_BYTES, 150_000)
    again = Detector(MODEL, 1000, CONFIG)
    again.recover(entries)
    assert state_of(again) == state_of(one)
