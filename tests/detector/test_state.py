"""The state as entries of a log: what is written, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitions import (
    CONFIG,
    MODEL,
    Distance,
    assert_same_results,
    few_series,
    new,
    process,
    process_until_next,
    recovered,
    state_of,
    stream,
)

from fomo_stream.detector.changelog import PART_BYTES, Document, Table
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.panel import Build
from fomo_stream.errors import DamagedStateError, StateError
from fomo_stream.model.zero_shot import ZeroShotModel

# --- changelog

puts = st.lists(st.lists(st.integers(0, 10), max_size=4), max_size=12)


@given(st.integers(1, 12), puts)
def test_a_table_is_what_its_blocks_say(block: int, puts: list[list[int]]) -> None:
    def fresh() -> Table:
        return Table(block, number=np.full(11, 5), pair=np.zeros((11, 2)))

    table, number, pair = fresh(), np.full(11, 5), np.zeros((11, 2))
    log = table.changes("t")
    for i, slots in enumerate(puts):
        at = np.array(slots, dtype=np.int64)
        number[at], pair[at, :] = i, [i, -i]
        table.put(at, number=i, pair=[i, -i])
        entries = table.changes("t")
        assert entries.keys() - {"t/blocks"} == {f"t/{slot // block}" for slot in slots}
        assert ("t/blocks" in entries) == bool(entries.keys() - log.keys())
        log |= entries
        recovered = fresh()
        recovered.recover(cast(dict[str, bytes], log), "t")
        assert recovered.changes("t") == {}
        for found in (table, recovered):
            np.testing.assert_array_equal(found["number"], number)
            np.testing.assert_array_equal(found["pair"], pair)


@given(st.lists(st.sampled_from([0, 1, PART_BYTES - 20, PART_BYTES - 19, 2 * PART_BYTES + 5, 10**6]), min_size=1))
def test_a_document_is_found_whole_whatever_it_was_before(sizes: list[int]) -> None:
    document, log = Document(), dict[str, bytes]()
    for i, size in enumerate(sizes):
        data = bytes([i % 256]) * size
        for key, value in document.changes("d", data).items():
            log.pop(key, None)
            if value is not None:
                log[key] = value
        assert len(log) == -(-(size + 20) // PART_BYTES)
        assert max(map(len, log.values())) <= PART_BYTES
        other = Document()
        assert other.recover(log, "d") == data
        assert other.changes("d", data) == document.changes("d", data) == {}
        if i % 3 == 2:
            document = other


# --- written state


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


# --- refused state


@pytest.fixture(scope="module")
def log() -> dict[str, bytes]:
    """The log of a partition of which two views have a second generation, and one has a next one."""
    with pytest.MonkeyPatch.context() as patch:
        few_series(patch)
        one = new()
        while one.generation < 3:
            process(one, one.records, one.records + 1)
        process_until_next(one)
        return cast(dict[str, bytes], one.changes())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"context_size": 30}, "context_size is 24 in the state, 30 now"),
        (
            {"seed": 3, "context_size": 30},
            "context_size is 24 in the state, 30 now; seed is 0 in the state, 3 now",
        ),
        ({"calibration_size": 900, "refresh": 0.3}, "calibration_size is 60 in the state, 900 now"),
        ({"lag": 200}, "lag is 40 in the state, 200 now"),
        ({"recent_every": 128}, "recent_every is 64 in the state, 128 now"),
        ({"alert_rate": 0.001}, "alert_rate is 0.1 in the state, 0.001 now"),
        ({"memory": 0.5}, "memory is 0.3333333333333333 in the state, 0.5 now"),
        (
            {"views": ("fast",)},
            "used_views is ['trimmed', 'all', 'recent', 'movement', 'past'] in the state, "
            "['trimmed', 'all', 'past'] now",
        ),
    ],
)
def test_a_state_of_other_settings_is_refused_by_name(
    log: dict[str, bytes], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(StateError) as caught:
        recovered(log, config=replace(CONFIG, **changed))
    assert str(caught.value) == message


def test_a_state_of_other_features_or_another_model_is_refused(log: dict[str, bytes]) -> None:
    class Other(Distance):
        name = "other"
        kernel = "numba"

    words = r"^model is distance in .*; kernel is torch .*, numba now; n_features is 2 .* 5 now; categorical is \[\] "
    with pytest.raises(StateError, match=words):
        Detector(cast(ZeroShotModel, Other()), 5, CONFIG, categorical=(2,)).recover(log)
    with pytest.raises(StateError, match=r"; lags is 1 in the state, 2 now$"):
        recovered(log, config=replace(CONFIG, lags=2, seed=1))


def test_a_state_of_another_format_is_refused_as_such(log: dict[str, bytes]) -> None:
    """Not as a damaged state, which may be replaced without asking."""
    fingerprint = json.loads(Document().recover(log, "fingerprint"))
    other = Document().changes("fingerprint", json.dumps({**fingerprint, "format": 1}).encode())
    with pytest.raises(StateError, match=r"another version of fomo-stream wrote .* format 1, .* reads 6") as caught:
        recovered({**log, **cast(dict[str, bytes], other)})
    assert not isinstance(caught.value, DamagedStateError)


def test_other_settings_may_change_between_runs(log: dict[str, bytes]) -> None:
    free = {"alert_rate": 0.05, "admit": "feedback", "refresh": 0.5, "min_context": 4, "adapt_after": 200}
    config = replace(CONFIG, **free)  # type: ignore[arg-type]
    one = recovered(log, config=config)
    entries = one.changes()
    assert list(entries) == ["fingerprint/0"]  # so that the log knows what was set last
    again = recovered({**log, **cast(dict[str, bytes], entries)}, config=config)
    assert state_of(one) == state_of(again)
    assert np.isfinite(process(one, 300, 700).logit).all()


def damages(value: bytes) -> st.SearchStrategy[bytes]:
    """Other bytes in place of a value."""
    return st.one_of(
        st.integers(0, len(value) - 1).map(lambda n: value[:n]),
        st.binary(min_size=1, max_size=30).map(lambda more: value + more),
        st.binary(max_size=200),
    ).filter(lambda other: len(other) != len(value))


@given(st.data())
def test_a_log_that_is_incomplete_or_damaged_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    needed = sorted(key for key in log if "series/" not in key and "encoded" not in key)
    key = data.draw(st.sampled_from(needed))
    left = {other: value for other, value in log.items() if other != key}
    with pytest.raises(StateError, match=f"lacks {key.removeprefix('follow/')}"):
        recovered(left)
    key = data.draw(st.sampled_from(sorted(log)))
    with pytest.raises(StateError):
        recovered({**log, key: data.draw(damages(log[key]))})


@given(st.data())
def test_a_document_of_which_a_byte_is_another_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    generations = sorted(key for key in log if key.startswith("generation/") and "encoded" not in key)
    key = data.draw(st.sampled_from(["fingerprint/0", "counters/0", "confirmed/0", "follow/settings/0", *generations]))
    value = bytearray(log[key])
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError, match=r"does not match its digest|lacks"):
        recovered({**log, key: bytes(value)})
