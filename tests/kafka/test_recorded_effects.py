"""Label entries read back: the same effects as were written, and the labels that were finished at any time."""

from __future__ import annotations

import pickle

import orjson
import pytest
from confluent_kafka import OFFSET_BEGINNING
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import DamagedStateError
from fomo_stream.kafka.feedback.recorded_effects import EffectLog, LabelEffect, LabelsRead, RecordedEffects
from fomo_stream.partition.effects import Effect
from fomo_stream.partition.labels import Label, LabelQueue, RecordIndex

PLACE = b"feedback/labels/0"
verdicts = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 99), st.booleans()), max_size=4)
# (input offset, first label, feedback topic): what the records of the state topic say, or None: deleted
Change = tuple[int, int, str, list[tuple[int, int, bool]] | None]
places = st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from(["labels", "older"]))
changes = st.lists(st.builds(lambda place, labels: (*place, labels), places, st.none() | verdicts))


@given(changes)
def test_of_each_entry_the_last_record_counts(changes: list[Change]) -> None:
    log = EffectLog()
    left: dict[bytes, LabelEffect] = {}
    for at, first, topic, labels in changes:
        effect = Effect.of(topic, 0, at, first)
        log.add(effect, None if labels is None else orjson.dumps({"input_offset": at, "labels": labels}))
        left.pop(effect.key, None)
        if labels is not None:
            left[effect.key] = LabelEffect(at, tuple((offset, outlier) for _, offset, outlier in labels))
    found = log.effects(PLACE, LabelsRead())
    assert list(found) == sorted(left.values(), key=lambda effect: effect.input_offset)
    assert list(pickle.loads(pickle.dumps(found))) == list(found)
    assert list(RecordedEffects.of(found)) == list(found)


def test_a_damaged_entry_is_named() -> None:
    with pytest.raises(DamagedStateError, match="feedback/labels/0/7/1 is not readable"):
        EffectLog().add(Effect.of("labels", 0, 7, 1), b"{")


class Live:
    """The labels of a partition as the service handles them, with the entries that it writes."""

    def __init__(self) -> None:
        self.queue, self.index, self.log = LabelQueue(), RecordIndex(1000), EffectLog()
        self.queue.begin(OFFSET_BEGINNING)
        self.position = 0
        self.written: dict[bytes, bytes] = {}

    def score(self, count: int) -> None:
        for offset in range(self.position, self.position + count):
            self.index.add(offset, offset, None)
        self.position += count

    def apply(self) -> None:
        due = self.queue.take_due(self.index, self.position)
        if due is not None and due.labels:
            effect = Effect.of("labels", 0, due.takes_effect, due.labels[0][0])
            self.written[effect.key] = orjson.dumps({"input_offset": due.takes_effect, "labels": due.labels})
            self.log.add(effect, self.written[effect.key])

    def read(self) -> LabelsRead:
        start = self.queue.committable or 0
        return LabelsRead(start, frozenset(self.queue._tracker.ahead))


# how many records are scored, and then the offsets of the records that labels are read about, some of them ahead
steps = st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 60), max_size=4)), min_size=1, max_size=12)


@given(steps, st.data())
def test_the_labels_finished_at_an_earlier_time_are_found_again(
    steps: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    live, states, n_labels = Live(), {}, 0
    for count, labels in steps:
        live.score(count)
        live.apply()
        for offset in labels:
            live.queue.open(n_labels)
            live.queue.add(n_labels, Label(offset, None, True))
            n_labels += 1
        live.apply()
        states[live.position] = live.read()
    effects = live.log.effects(PLACE, live.read())
    for position, state in states.items():
        found = effects.read_until(position)
        had_effect = {own for at, own in applied(live) if at <= position}
        finished = {at for at in range(n_labels) if at < found.start or at in found.finished}
        assert finished == had_effect
        assert finished == {at for at in range(n_labels) if at < state.start or at in state.finished}
        assert all(at >= found.start for at in found.finished)
    position = data.draw(st.sampled_from(sorted(states)))
    again = dict(effects.entries_until(position, 0))
    assert again == {key: value for key, value in live.written.items() if int(key.split(b"/")[3]) <= position}


def applied(live: Live) -> list[tuple[int, int]]:
    """(input offset, own offset) of the labels that took effect."""
    contents = [orjson.loads(value) for value in live.written.values()]
    return [(content["input_offset"], own) for content in contents for own, _, _ in content["labels"]]
