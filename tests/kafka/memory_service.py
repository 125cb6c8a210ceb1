"""Instances of the service over the broker in memory: all is real except the clients and the clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from confluent_kafka import Message, TopicPartition
from label_effects import EffectRecorder, effects_in
from memory_broker import MemoryBroker, MemoryConsumer, Place
from pipelines import IDS, Lazy, QuickSettings, cheap_model

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results, Severity
from fomo_stream.kafka.broker.cluster import Ends
from fomo_stream.kafka.broker.topic_reader import to_record
from fomo_stream.kafka.delivery.base import CommitOutcome
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce
from fomo_stream.kafka.member import MEMBERSHIP_S, ConsumerErrors, GroupMember
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.kafka.restore import Restorer
from fomo_stream.kafka.settings_file import SettingsFile
from fomo_stream.kafka.topics.watch import EndsAnswer, TopicReport
from fomo_stream.kafka.warm_start import NO_WARM_START, WarmStart
from fomo_stream.partition.incidents import Incidents
from fomo_stream.partition.partition import Waiting
from fomo_stream.partition.position import Restored
from fomo_stream.partition.running import Running
from fomo_stream.records.schema import Schema


class AtOnceSettings(QuickSettings):
    """A commit is due in each turn."""

    @property
    def commit_interval_ms(self) -> float:
        return 0.0


SCHEMA = Schema(("x", "y"))
SETTINGS = AtOnceSettings(
    topic="t",
    alerts="a",
    feedback="f",
    feedback_memory=30,
    lags=1,
    batch_size=8,
    min_context=10,
    context_size=20,
    adapt_after=60,
    alert_rate=0.1,
    views=("trimmed", "recent"),
    explain="none",  # half of the time of the tests
)
OUT, ALERTS, DEAD, STATE = SETTINGS.out, "a", SETTINGS.dead_letters, SETTINGS.state_topic
NUMBERS = (0, 1)
LONG_S = 10.0


def service_broker(count: int) -> MemoryBroker:
    """With the topics of the service, of `count` partitions each."""
    broker = MemoryBroker()
    broker.partitions = dict.fromkeys(("t", "f", OUT, ALERTS, DEAD, STATE), count)
    broker.topic_ids = dict(IDS)
    return broker


class Prompt(ExactlyOnce):
    """Waits for each of its calls: whether a commit is pending is up to the broker, not to threads."""

    def proceed(self, seconds: float = 0.0) -> CommitOutcome:
        return super().proceed(LONG_S)


class Restoring(Restorer):
    """Waits for what it has begun, and repeats what has to wait in the next turn."""

    def request(self, task: Waiting, delay: float = 0.0) -> None:
        super().request(task)

    def take_results(self, may_begin: Callable[[], bool] = lambda: True) -> list[tuple[Waiting, Restored]]:
        results = super().take_results(may_begin)
        wait([attempt for _, attempt in self._begun])
        return results + super().take_results(lambda: False)


class Watch:
    """As a TopicWatch; it knows the ends of the input as of `look_at_ends`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.ends: dict[Place, EndsAnswer] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def look_at_ends(self) -> None:
        ends = {place: end for place, end in self._broker.ends.items() if place[0] == "t"}
        self.ends = {place: EndsAnswer(Ends(end, end), None) for place, end in ends.items()}


class Instance(GroupMember):
    """The service over clients in memory; a test makes it turn."""

    def __init__(
        self, name: str, broker: MemoryBroker, warm: WarmStart = NO_WARM_START, consumer: MemoryConsumer | None = None
    ) -> None:
        self.executor = Lazy()
        self.consumer = consumer or MemoryConsumer(broker, name, broker.generations.setdefault(name, 0))
        delivery = Prompt(partial(broker.producer, name), {})
        delivery.start(LONG_S)
        recorder = EffectRecorder(SETTINGS, lambda: delivery)
        pipeline = Pipeline(SETTINGS, cheap_model(), delivery, self.executor, lambda: broker.partitions, recorder)
        pipeline.begin(SCHEMA)
        watch: Any = Watch(broker)  # it answers what a TopicWatch does
        restorer = Restoring(SETTINGS, watch, lambda task: pipeline.partitions.get(task.number) is task, warm=warm)
        topics = TopicReport(SETTINGS)
        topics.begin(broker.answer)
        clients: dict[str, Any] = {
            "consumer": self.consumer,
            "restorer": restorer,
            "watch": watch,
            "search": SimpleNamespace(trouble=""),
            "settings_file": SettingsFile(SETTINGS),
        }
        super().__init__(
            SETTINGS, errors=ConsumerErrors(), pipeline=pipeline, delivery=delivery, topics=topics, **clients
        )
        self.turned_at = 0.0

    def take(self, number: int) -> None:
        while not self.consumer.is_subscribed:  # it leaves, and then joins as a new member
            self.step()
        self.on_assign(None, [TopicPartition("t", number)])

    def release(self, number: int) -> None:
        self.on_revoke(None, [TopicPartition("t", number)])

    def rebalance(self, generations: dict[str, int]) -> bool:
        """The group has another generation, of which this instance is a member if it was one before.

        Returns whether it is. Its callback comes later.
        """
        is_member = not self.consumer.is_stale
        generations[self.consumer.name] += 1
        if is_member:
            self.consumer.join_again()
        return is_member

    def hear(self) -> None:
        """A rebalance: if it has lost its membership, it loses its partitions and joins the group again."""
        if self.consumer.is_stale:
            self.on_lost(None, [TopicPartition("t", number) for number in self.pipeline.partitions])
            self.consumer.join_again(as_new=True)
        else:
            self.on_assign(None, [])

    def read(self, number: int, records: int, labels: int, again: int = 0) -> None:
        for message in self.consumer.read("t", number, records, again):
            self.pipeline.receive(to_record(message), 0.0)
        for message in self.consumer.read("f", number, labels, again):
            self.pipeline.receive_label(to_record(message), self.assignment.exists)

    def score(self, is_due: bool, is_built: bool) -> None:
        for _ in range(3 if is_built else 1):
            if is_due:
                self.pipeline.score_due(1e9)
            if is_built:
                self.executor.work()

    def step(self) -> None:
        """A turn of the loop, as soon after the last one as its membership is checked again."""
        self.turn(self.turned_at + MEMBERSHIP_S)

    def restore(self) -> None:
        self.activate()
        self.control_flow()


def exploding(method: Callable[..., Any]) -> Callable[..., Any]:
    """`Running.score`, or another that takes items, with a fault: some records raise an error when all is done."""

    def score(self: Running, items: Sequence[Any], *given: Any, **named: Any) -> Any:
        result = method(self, items, *given, **named)
        if any("explode" in item.fields.get("note", "") for item in items):
            raise ZeroDivisionError("a fault")
        return result

    return score


class Topics:
    """The contents of the topics, and a comparison with a run that was never interrupted."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def usable(self, number: int) -> list[Message]:
        values = ((message, message.value() or b"") for message in self._broker.logs["t", number])
        return [message for message, value in values if len(value) > 2 and b"explode" not in value]

    def compare_with_an_uninterrupted_run(self, number: int) -> None:
        usable = self.usable(number)
        offsets = [message.offset() for message in usable]
        values = SCHEMA.rows([json.loads(message.value() or b"") for message in usable])
        keys = [message.key() for message in usable]
        detector = Detector(cheap_model(), 2, SETTINGS.detector_config()).staggered(number)
        effects: dict[int, list[tuple[int, int, bool]]] = {}  # by the input offset where they take effect, all at once
        for effect in self.effects(number):
            effects.setdefault(effect["input_offset"], []).extend(effect["labels"])
        parts = []
        for start, stop in pairwise([*sorted({0, *effects}), 10**9]):
            labels = effects.get(start, [])
            numbers = np.array([offsets.index(label[1]) for label in labels], dtype=np.int64)
            detector.feedback(numbers, np.array([label[2] for label in labels], dtype=bool))
            part = slice(*np.searchsorted(offsets, [start, stop]).tolist())
            parts.append(detector.process(values[part], keys[part]))
        expected = Results.concatenate(parts)
        expected.p_value[:] = [float(f"{p:.3g}") for p in expected.p_value.tolist()]  # as results have them
        for result in self.results(number):
            at = offsets.index(result["offset"])
            found = [result["logit"], result["p_value"], result["generation"], result["outlier"]]
            wanted = [expected.logit[at], expected.p_value[at], expected.generation[at]]
            wanted = [None if np.isnan(value) else value for value in wanted]
            assert found == [*wanted, expected.outlier[at]], result
        self._compare_incidents(number, expected, keys, offsets)

    def _compare_incidents(self, number: int, expected: Results, keys: list[bytes | None], offsets: list[int]) -> None:
        made: list[dict[str, Any]] = [
            {name: getattr(expected, name)[i] for name in ("score", "remembered_logit", "p_value", "outlier")}
            | {"timestamp": None, "severity": Severity(expected.severity[i]).name.lower()}
            for i in range(len(expected))
        ]
        closed = Incidents((10, 1000), "t", number).follow(made, expected, keys, offsets, 0)
        names = {offset: result["incident"] for offset, result in zip(offsets, made, strict=True) if result["outlier"]}
        for result in self.results(number) + self.alerts(number):
            assert result.get("incident") == names.get(result["offset"])
        fields = ("incident", "from", "to", "records", "span", "worst")
        found = [(one.key(), [summary[name] for name in fields]) for one, summary in self.sums(number)]
        assert found == [(one.key, [one.summary[name] for name in fields]) for one in closed]

    def results(self, number: int) -> list[dict[str, Any]]:
        return [json.loads(value or b"")["fomo"] for value in self._broker.values(OUT, number)]

    def alerts(self, number: int) -> list[dict[str, Any]]:
        found = [json.loads(value or b"")["fomo"] for value in self._broker.values(ALERTS, number)]
        return [alert for alert in found if "outlier" in alert]

    def sums(self, number: int) -> list[tuple[Message, dict[str, Any]]]:
        """The records that sum up incidents, and their content."""
        found = [(one, json.loads(one.value() or b"")["fomo"]) for one in self._broker.logs[ALERTS, number]]
        return [(one, summary) for one, summary in found if summary["status"] == "closed" and "of" not in summary]

    def dead_letters(self, topic: str, number: int) -> list[int]:
        headers = [dict(message.headers()) for message in self._broker.logs[DEAD, number]]
        ours = [found for found in headers if found["fomo-source-topic"] == topic.encode()]
        return [int(found["fomo-source-offset"] or b"") for found in ours]

    def effects(self, number: int) -> list[dict[str, Any]]:
        return effects_in((message.key(), message.value()) for message in self._broker.logs[STATE, number])
