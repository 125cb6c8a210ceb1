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
    MODEL,
    assert_same_results,
    few_series,
    new,
    process,
    process_until_next,
    recovered,
    state_of,
    stream,
)

from fomo_stream.detector.changelog import PART_BYTES
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.generation import Generation
from fomo_stream.detector.timeline import Build


@pytest.fixture(autouse=True)
def only_few_series(monkeypatch: pytest.MonkeyPatch) -> None:
    few_series(monkeypatch)


def test_a_commit_costs_what_has_changed() -> None:
    one = new()
    process(one, 0, 1000)
    one.changes()
    assert one.changes() == {}
    process_until_next(one)
    one.changes()
    process(one, one.records, one.records + 3)
    few = one.changes()
    kinds = sorted({key.rpartition("/")[0] for key in few})
    assert kinds == ["counters", "follow", "follow/series", "history/rows", "history/scores", "memory"]
    assert sum("series/" in key and value is not None for key, value in few.items()) <= 3


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


def test_a_generation_of_the_history_is_written_once_and_one_of_recent_records_never() -> None:
    one = new()
    written: Counter[str] = Counter()
    for first in range(0, 900, 10):
        process(one, first, first + 10)
        for key in one.changes():
            if key.startswith("generation/"):
                _, view, _, *rest = key.split("/")
                written[f"{view} {'/'.join(rest)}"] += 1
    for timeline in one._panel.timelines:
        name, n = timeline.view.name, timeline.number
        assert n > 3
        if timeline.view.of == "recent":
            assert written[f"{name} 0"] == written[f"{name} encoded/0"] == 0
        else:
            assert written[f"{name} 0"] in (n, n + 1)  # blueprints: perhaps of the next one too
            assert written[f"{name} encoded/0"] == n


def test_what_was_encoded_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, views=("fast",))
    one = new(config)
    process(one, 0, 400)
    log = cast(dict[str, bytes], one.changes())
    without = {key: value for key, value in log.items() if "encoded" not in key}
    expected = process(recovered(without, config=config), 400, 405)  # made of the blueprints
    monkeypatch.setattr(Generation, "build", lambda *_: pytest.fail("it is in the log"))
    assert_same_results(process(recovered(log, config=config), 400, 405), expected)


@pytest.mark.parametrize("make", [Detector.copy, lambda one: one.widened(5)])
def test_a_copy_has_everything_to_write(make: Callable[[Detector], Detector]) -> None:
    one = new()
    process(one, 0, 400)
    one.changes()
    twin = make(one)
    again = Detector(MODEL, twin.n_features, CONFIG)
    again.recover(cast(dict[str, bytes], twin.changes()))
    assert one.changes() == {}  # the log of the original knows nothing of the copy
    rows = np.random.default_rng(0).normal(size=(500, twin.n_features))
    for each in (again, twin):
        each.feedback(np.arange(350, 380), np.arange(30) % 2 == 0)
    assert_same_results(again.process(rows), twin.process(rows))
    assert state_of(again) == state_of(twin)


def test_a_copy_changes_nothing_in_what_the_original_writes_next() -> None:
    one, other = new(), new()
    for each in (one, other):
        process(each, 0, 400)
        each.changes()
        process(each, 400, 450)
    one.copy().changes()
    assert one.changes() == other.changes() != {}


def test_generations_that_are_known_are_not_encoded_again() -> None:
    one = new()
    process(one, 0, 400)
    process_until_next(one)
    log = cast(dict[str, bytes], one.changes())
    builds = builds_of(one)
    assert builds_of(recovered(log, one)) == builds
    other = new()
    other.process(stream(one.records) * (1 + 1e-9))  # generations of the same moments, but of other rows
    again = recovered(log, other)
    moments = [build.blueprint.takes_effect for build in builds_of(other)]
    assert set(moments) & {build.blueprint.takes_effect for build in builds}
    assert not {id(build) for build in builds_of(again)} & {id(build) for build in builds_of(other)}
    one.recover(log, one)  # in its own place
    assert builds_of(one) == builds
    assert one.changes() == {}


def builds_of(one: Detector) -> list[Build]:
    """The current and the next generations."""
    timelines = one._panel.timelines
    return [build for timeline in timelines for build in (timeline.current, timeline.next) if build is not None]


def test_values_stay_small_however_wide_the_rows_are() -> None:
    one = Detector(MODEL, 1000, CONFIG)
    one.process(np.random.default_rng(0).normal(size=(30, 1000)))
    entries = cast(dict[str, bytes], one.changes())
    assert max(map(len, entries.values())) <= max(PART_BYTES, 150_000)
    again = Detector(MODEL, 1000, CONFIG)
    again.recover(entries)
    assert state_of(again) == state_of(one)
