"""The state of a partition outlives the process: another instance continues from the entries that one has written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import Instance, as_record, cheap_model, detector_of, restored

from fomo_stream.errors import StateError
from fomo_stream.kafka.topics.watch import InputEnd
from fomo_stream.partition.position import POSITION, Restored, SavedPosition
from fomo_stream.partition.running import Running
from fomo_stream.records.schema import Schema

labels = st.lists(st.tuples(st.integers(-40, 30), st.booleans(), st.booleans()), max_size=6)
spans = st.lists(st.tuples(st.integers(1, 40), labels, st.booleans()), min_size=1, max_size=4)


@settings(max_examples=5)
@given(spans)
def test_what_one_writes_another_becomes(what: Any) -> None:
    """However often a partition moves, it scores as if it never had, heeds each label once, and so it goes on."""
    steady, moving = Instance(), Instance()
    entries: dict[str, bytes] = {}
    nothing: dict[str, bytes] = {}
    committed: dict[tuple[str, int], int] = {}
    offset = 0
    feedback: list[tuple[bool, int | None]] = []
    for n, wanted, moves in [*what, (40, [], True), (40, [], False)]:
        for each in (steady, moving):
            each.score(offset, offset + n)
        offset += n
        feedback += [(outlier, None if bad else max(0, offset + delta)) for delta, outlier, bad in wanted]
        for at in range(len(feedback) - len(wanted), len(feedback)):
            for each in (steady, moving):
                each.label(at, *feedback[at])
        for each in (steady, moving):
            each.pipeline.score_due(0.0)
        steady.commit(nothing)
        committed |= moving.commit(entries)
        assert SavedPosition.decode(entries[POSITION]) == SavedPosition(offset, "T1", "F1")
        assert committed["t", 0] == offset
        assert moving.results() == steady.results()
        if moves:
            moving = Instance()
            moving.restore(restored(entries, committed))
            news: dict[str, bytes] = {}
            assert (moving.commit(news), news) == ({}, {})
            for at in range(committed.get(("f", 0), 0), len(feedback)):
                moving.label(at, *feedback[at])
            assert moving.results() == []  # what was no label is a dead letter once
    assert committed.get(("f", 0), 0) == len(feedback) or any(about and about >= offset for _, about in feedback)
    one, other = (detector_of(each.pipeline) for each in (steady, moving))
    assert one.changes().keys() == other.changes().keys() == set()
    states = [
        {key: value for key, value in each.copy().changes().items() if "/encoded/" not in key} for each in (one, other)
    ]
    assert states[0] == states[1]


# --- what does not fit


def test_replayed_offset_is_not_learned_twice() -> None:
    """The group's offset was set back: records are scored again, and those after them as if nothing had been."""
    entries: dict[str, bytes] = {}
    start = 33
    one = Instance()
    one.score(0, 60)
    one.commit(entries)
    one.results()
    other = Instance()
    other.restore(restored(entries, {("t", 0): start}))
    one.score(60, 130)
    other.score(start, 59)
    assert len(other.results()) == 59 - start
    other.commit(entries)
    assert SavedPosition.decode(entries[POSITION]).offset == 60  # what is known, not what was read
    other.score(59, 130)
    assert other.results()[1:] == one.results()
    assert detector_of(other.pipeline).records == sum(
        1 for offset in range(130) if len(as_record(offset).value or b"") > 2
    )


def written() -> tuple[dict[str, bytes], dict[tuple[str, int], int]]:
    """What an instance has written that has scored 30 records, and has read two labels that are none."""
    entries: dict[str, bytes] = {}
    one = Instance()
    one.score(0, 30)
    one.label(0, True, 1000)
    one.label(1, True, None)
    return entries, one.commit(entries)


OTHERS = [
    ({"schema": Schema(("y", "x"))}, "the state has features x,y, now they are y,x"),
    ({"schema": Schema(("x", "y"), frozenset({"y"}))}, "the state has categorical fields none, now they are y"),
    ({"lags": 1}, "the state was written with lags=2, now it is 1"),
    ({"model": cheap_model("another")}, "model is cheap in the state, another now"),
    ({"seed": 7}, "seed is 0 in the state, 7 now"),
]


@pytest.mark.parametrize(("changes", "words"), OTHERS)
def test_a_state_of_something_else_is_refused_with_what_differs(changes: dict[str, Any], words: str) -> None:
    """Also without transactions, where a damaged state would be replaced."""
    entries, committed = written()
    with pytest.raises(StateError) as error:
        Instance(**changes, delivery="at-least-once").restore(restored(entries, committed))
    assert error.value.exit_code == 6
    message = str(error.value)
    assert message.startswith("fomo-stream-t-state[0]: ")
    assert words in message
    assert "; go back to that, choose another --group" in message
    assert "--reset-state" in message


# --- what is damaged

DAMAGES: dict[str, tuple[str, bytes | None]] = {
    "context": ("detector/generation/trimmed/1/0", b"x" * 50),
    "index": ("index/30/1", None),
    "schema": ("schema", b"{"),
}


def damaged(kind: str) -> tuple[dict[str, bytes], dict[tuple[str, int], int]]:
    (entries, committed), (name, value) = written(), DAMAGES[kind]
    assert name in entries
    del entries[name]
    return entries | ({name: value} if value is not None else {}), committed


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_state_is_refused_and_without_transactions_replaced(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    entries, committed = damaged(kind)
    with pytest.raises(StateError, match=r"fomo-stream-t-state\[0\]: .* --reset-state") as error:
        Instance().restore(restored(entries, committed))
    assert error.value.exit_code == 6
    # of those that are done with nothing is guessed
    with pytest.raises(StateError, match=r"fomo-stream-t-state\[0\]: labels .* --reset-state"):
        Instance(delivery="at-least-once").restore(restored({**entries, "labels": b"{"}, committed))
    before = dict(entries)
    other, fresh = Instance(delivery="at-least-once"), Instance(delivery="at-least-once")
    other.restore(restored(entries, {**committed, ("t", 0): 20}))
    assert "state_damaged topic=fomo-stream-t-state partition=0" in caplog.text
    fresh.restore(Restored(start=20))
    for each in (other, fresh):
        each.score(20, 60)
    assert other.results() == fresh.results()  # what was learned before is forgotten, and learned again
    other.label(0, True, 1000)
    other.label(1, True, None)
    assert not other.results()  # but not which labels are done with
    wanted: dict[str, bytes] = {}
    fresh.commit(wanted)
    other.commit(entries)
    assert entries == wanted | {"labels": before["labels"]}


def test_a_silence_is_told_again_only_where_its_commit_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: dict[str, bytes] = {}
    seconds, offset = 1_700_000_000, 0
    monkeypatch.setattr("time.time", lambda: float(seconds))
    flags: dict[str, Any] = {"alerts": "t-alerts", "silence": 5.0, "silence_min": "10s", "silence_of": ("partition",)}

    def follow(instance: Instance, n: int, sends: bool) -> list[str]:
        """For n times two seconds. Returns what was told."""
        nonlocal seconds, offset
        for _ in range(n):
            seconds += 2
            if sends:
                instance.pipeline.receive(as_record(offset)._replace(timestamp=1000 * seconds), 0.0)
                instance.pipeline.finish([0])
                offset += 1
            partition = instance.pipeline.partitions[0]
            assert isinstance(partition, Running)
            instance.pipeline.follow_silence(partition, InputEnd(1000 * seconds, {0: offset}, 1, offset), is_read=True)
        told = [json.loads(output.value or b"")["fomo"] for output in instance.delivery.to("t-alerts")]
        instance.delivery.outputs.clear()
        return [one["status"] for one in told if "of" in one]

    one, other, third = (Instance(**flags) for _ in range(3))
    assert follow(one, 60, sends=True) == []
    committed = one.commit(entries)
    assert follow(one, 60, sends=False) == ["silent"]
    other.restore(restored(entries, committed))
    assert follow(other, 60, sends=False) == ["silent"]
    committed |= other.commit(entries)
    third.restore(restored(entries, committed))
    assert follow(third, 60, sends=False) == []
    assert follow(third, 1, sends=True) == ["closed"]


def test_what_was_known_of_a_topic_of_that_name_before_is_deleted_with_the_next_commit() -> None:
    entries: dict[str, bytes] = {}
    one = Instance()
    one.score(0, 70)
    one.commit(entries)
    other, fresh = Instance(), Instance()
    other.restore(Restored(start=0, stale=frozenset(entries)))
    for each in (other, fresh):
        each.score(0, 12)
    wanted: dict[str, bytes] = {}
    other.commit(entries)
    fresh.commit(wanted)
    assert entries == wanted
