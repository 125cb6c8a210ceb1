"""Compares what was written under faults with the results of a detector that was never interrupted."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import orjson
from brokers import Broker
from fault_streams import Form, Stream
from label_effects import effects_in, settings_in

from fomo_stream.kafka.broker.topic_reader import to_record
from fomo_stream.kafka.restore import KEY_PREFIX, VERSION
from fomo_stream.loading import first_detector, load_ready
from fomo_stream.partition.labels import Verdict
from fomo_stream.partition.partition import RULES, Waiting
from fomo_stream.partition.position import Restored
from fomo_stream.partition.record import Pending
from fomo_stream.partition.rules import Rules, RulesLog
from fomo_stream.partition.running import Running
from fomo_stream.records.inference import named_schema
from fomo_stream.settings.service_settings import ServiceSettings

LabelBatch = list[tuple[int, int, bool]]  # own offset, offset of the record, outlier


@dataclass
class History:
    """What took effect in a partition, by the offset of the next record; from the state topic."""

    labels: dict[int, list[LabelBatch]] = field(default_factory=lambda: collections.defaultdict(list))
    settings: dict[int, tuple[float, Rules]] = field(default_factory=dict)  # alert rate and rules
    stored: Rules = field(default_factory=Rules)  # in the state


def histories(broker: Broker, settings: ServiceSettings) -> dict[int, History]:
    """The history of each partition."""
    found: dict[int, History] = collections.defaultdict(History)
    for message in broker.read(settings.state_topic):
        own, entry = found[message.partition()], (message.key(), message.value())
        for effect in effects_in([entry]):
            own.labels[effect["input_offset"]].append(effect["labels"])
        own.settings |= settings_in([entry])
        if message.key() == KEY_PREFIX + RULES.encode() and message.value():
            own.stored = RulesLog.decode(message.value().removeprefix(VERSION)).now
    return found


def verdict(broker: Broker, stream: Stream, source: list[Any]) -> dict[str, Any]:
    """Judges a topic: its input `source`, in order within a partition, and all that was written.

    While the output has fewer partitions than the input, records go
    to them by key: so the order of a partition of the input is kept in each partition of the output.
    """
    form, written = stream.feed.form, broker.read(stream.settings.out)
    records = [form.read(message.value()) for message in written]
    places = [(record["fomo"]["partition"], record["fomo"]["offset"]) for record in records]
    wanted = {(message.partition(), message.offset()) for message in source}
    last: dict[tuple[int, int], int] = {}
    disorder = 0
    for message, (number, offset) in zip(written, places, strict=True):
        where = message.partition(), number
        disorder += offset <= last.get(where, -1)
        last[where] = offset
    found = {place: record["fomo"] for place, record in zip(places, records, strict=True)}
    own = histories(broker, stream.settings)
    replays = {number: Replay(stream.settings, number, own[number]) for number in {place[0] for place in wanted}}
    differences: dict[tuple[int, int], list[str]] = {}
    for number, replay in replays.items():
        for offset, result in replay.results([one for one in source if one.partition() == number], form):
            if (number, offset) in found and (names := differing(found[number, offset], result)):
                differences[number, offset] = names
    stalls = [stall for _, stall in stream.stalls()]
    return {
        "records": len(wanted),
        "lost": len(wanted - set(places)),
        "duplicates": len(places) - len(set(places)),
        "repeated": [place for place, times in collections.Counter(places).items() if times > 1][:20],
        "out_of_order": disorder,
        "different": len(differences),
        "different_fields": dict(collections.Counter(itertools.chain(*differences.values()))),
        "different_places": list(differences)[:20],
        "outliers": sum(result["outlier"] for result in found.values()),
        "suppressed": sum(bool(result.get("suppressed")) for result in found.values()),
        "changes_of_settings": sum(len(history.settings) for history in own.values()),
        "own_contexts": sum(replay.partition.detector.summary.own_contexts for replay in replays.values()),
        **judge_labels(broker, stream, replays, own),
        "dead_letters": len(broker.read(stream.settings.dead_letters)),
        "partitions": stream.feed.partitions,
        "offsets_complete": broker.committed(stream.settings.group, stream.settings.topic) == len(source),
        "longest_stall_s": round(max(stalls), 1),
        "longest_wait_of_the_producer_s": round(stream.feed.longest_s, 1),
        "median_latency_s": round(float(np.median(stalls)), 2),
    }


def judge_labels(broker: Broker, stream: Stream, replays: dict[int, Replay], own: dict[int, History]) -> dict[str, Any]:
    """Labels on learned records that had no effect, and labels with more than one effect."""
    heeded = collections.Counter(
        (number, label[0])
        for number, history in own.items()
        for label in itertools.chain(*itertools.chain(*history.labels.values()))
    )
    given = {
        (message.partition(), message.offset()): orjson.loads(message.value())["offset"]
        for message in broker.read(stream.settings.feedback or "")
    }
    wanted = [place for place, offset in given.items() if offset in replays[place[0]].learned]
    return {
        "labels": len(given),
        "labels_lost": len(set(wanted) - heeded.keys()) + abs(len(given) - stream.labels.given),
        "labels_repeated": heeded.total() - len(heeded),
    }


def differing(written: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of fields that differ. Formats with a schema write fields without a value, too, as null."""
    expected = orjson.loads(orjson.dumps(expected))
    return [name for name in expected | written if _plain(written.get(name)) != _plain(expected.get(name))]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return round(1000 * value.timestamp())
    if isinstance(value, dict):
        return {name: _plain(content) for name, content in value.items() if content is not None}
    return list(map(_plain, value)) if isinstance(value, list) else value


class Replay:
    """A partition in a process that nothing disturbs, with the same records, and what took effect between them."""

    def __init__(self, settings: ServiceSettings, number: int, history: History) -> None:
        self._settings, self._number, self._history = settings, number, history
        self._model = load_ready(settings.model, settings.device, settings.backend)
        self._entries: dict[str, bytes] = {}
        self.learned: set[int] = set()  # offsets of records that a label can be about
        self.partition = self._begin(history.settings[0][0] if 0 in history.settings else settings.alert_rate)

    def _begin(self, rate: float) -> Running:
        self._rate = rate
        own = self._settings.model_copy(update={"alert_rate": rate})
        schema = named_schema(own)
        start, rules = (self.partition.position or 0, self.partition.rules.now) if self._entries else (0, Rules())
        waiting = Waiting(self._number, own, topic=own.topic, feedback=own.feedback, rules=rules)
        waiting.restore(Restored(start, dict(self._entries), learned_until=start))
        return Running(waiting, first_detector(own, self._model, schema), schema)

    def results(self, messages: list[Any], form: Form) -> Iterator[tuple[int, dict[str, Any]]]:
        """The offset and the result of each record."""
        items = [Pending(to_record(one), form.read(one.value()), 0.0, None, one.key()) for one in messages]
        history = self._history
        end = items[-1].offset + 1
        places = sorted({0, end, *history.labels, *history.settings})
        for place, following in itertools.pairwise([*places, max(*places, end) + 1]):
            rate, rules = history.settings.get(place, (self._rate, self.partition.rules.now))
            if rate != self._rate:  # an instance joins again for it
                entries: dict[str, bytes | None] = {**self._entries, **self.partition.changes()}
                self._entries = {name: value for name, value in entries.items() if value is not None}
                self.partition = self._begin(rate)
            self.partition.rules.change(rules, place)
            for batch in history.labels.get(place, ()):
                for own_offset, offset, outlier in batch:
                    self.partition.label(own_offset, Verdict(offset, None, outlier), lambda *_: True)
                self.partition.apply_labels()
            part = [item for item in items if place <= item.offset < following]
            for item, result in zip(part, self.partition.score(part).results if part else (), strict=True):
                assert result is not None
                if self.partition.index.find(Verdict(item.offset, None, True)):
                    self.learned.add(item.offset)
                yield item.offset, result
