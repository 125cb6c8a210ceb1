"""Instances of the service over the broker in memory: all is real except the clients and the clock."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from confluent_kafka import TopicPartition
from memory_broker import MemoryBroker, MemoryConsumer, Message
from test_pipeline import Patient, QuickSettings, cheap_model

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.past_values import PastValues
from fomo_stream.detector.results import Results
from fomo_stream.kafka.assignment import Assignment
from fomo_stream.kafka.clients import Record
from fomo_stream.kafka.delivery.base import Outcome
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce
from fomo_stream.kafka.partition import PartitionTask
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.kafka.position import Restored
from fomo_stream.kafka.restore import Restorer
from fomo_stream.kafka.service import Service
from fomo_stream.records.schema import Schema

SCHEMA = Schema(("x", "y"))
SETTINGS = QuickSettings(
    topic="t",
    feedback="f",
    feedback_memory=30,
    lags=1,
    batch_size=8,
    min_context=10,
    context_size=20,
    adapt_after=60,
    alert_rate=0.1,
)
OUT, DEAD, STATE = SETTINGS.out, SETTINGS.dead_letters, SETTINGS.state_topic
NUMBERS = (0, 1)
IDS = {"t": "T1", "f": "F1"}
LONG_S = 10.0


class Lazy(Executor):
    """Runs submitted calls in `work`; waiting for a result before that is an error."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._waiting.append((Patient(), partial(fn, *args, **kwargs)))
        return self._waiting[-1][0]

    def work(self) -> None:
        while self._waiting:
            future, call = self._waiting.popleft()
            future.set_result(call())


class Prompt(ExactlyOnce):
    """Waits for each of its calls: whether a commit is pending is up to the broker, not to threads."""

    def proceed(self, seconds: float = 0.0) -> Outcome:
        return super().proceed(LONG_S)


class Restoring:
    """Restores at once, unless an open transaction may still change the state."""

    def __init__(self, broker: MemoryBroker, is_wanted: Callable[[PartitionTask], bool]) -> None:
        self._broker = broker
        self._is_wanted = is_wanted
        self._restorer = Restorer(SETTINGS, broker, is_wanted)  # type: ignore[arg-type]
        self._waiting: list[PartitionTask] = []
        self.stop = self._restorer.stop

    def request(self, task: PartitionTask, delay: float = 0.0) -> None:
        self._waiting.append(task)

    def take_results(self) -> list[tuple[PartitionTask, Restored]]:
        unstable: set[tuple[str, int]] = set().union(*(producer.unstable for producer in self._broker.producers))
        results, waiting = [], self._waiting
        self._waiting = [task for task in waiting if unstable & {("t", task.number), ("f", task.number)}]
        for task in waiting:
            if task not in self._waiting and self._is_wanted(task):
                self._restorer.request(task)
                while not (found := self._restorer.take_results()):
                    time.sleep(0.0001)
                results += found
        return results


class Instance(Service):
    """The service over clients in memory; a test makes it turn."""

    def __init__(self, name: str, broker: MemoryBroker) -> None:
        super().__init__(SETTINGS, cheap_model())
        clients: Any = broker, MemoryConsumer(broker, name, broker.generations.setdefault(name, 0))
        self._watch, self._consumer = clients
        self._topics.begin(broker.seen)
        self.executor = Lazy()
        self._delivery = Prompt(partial(broker.producer, name), {})
        self._delivery.start(LONG_S)
        self._pipeline = Pipeline(SETTINGS, cheap_model(), self._delivery, self.executor, lambda: broker.partitions)
        self._pipeline.begin(SCHEMA)
        restorer: Any = Restoring(broker, lambda task: self._pipeline.tasks.get(task.number) is task)
        self._restorer = restorer
        self._assignment = Assignment(self._consumer, "t", "f")

    def take(self, number: int) -> None:
        self._on_assign(None, [TopicPartition("t", number)])

    def release(self, number: int) -> None:
        self._on_revoke(None, [TopicPartition("t", number)])

    def rebalance(self, generations: dict[str, int]) -> None:
        """The group has another generation, of which this instance is a member if it was one before."""
        is_member = not self._consumer.is_stale
        generations[self._consumer.name] += 1
        if is_member:
            self._consumer.join_again()

    def hear(self) -> None:
        """If it has lost its membership, it loses its partitions and joins the group again."""
        if self._consumer.is_stale:
            self._consumer.join_again()
            self._on_lost(None, [TopicPartition("t", number) for number in self._pipeline.tasks])

    def read(self, number: int, records: int, labels: int, again: int = 0) -> None:
        for message in self._consumer.read("t", number, records, again):
            self._pipeline.receive(to_record(message), 0.0)
        for message in self._consumer.read("f", number, labels, again):
            self._pipeline.receive_label(to_record(message), self._assignment.exists)

    def score(self, is_due: bool, is_built: bool) -> None:
        for _ in range(3 if is_built else 1):
            if is_due:
                self._pipeline.score_due(1e9)
            if is_built:
                self.executor.work()

    def turn(self) -> None:
        self._commit_at = 0.0
        self._turn(0.0)

    def restore(self) -> None:
        self._activate()
        self._control_flow()


def to_record(message: Message) -> Record:
    return Record(*message.place, message.at, None, message.raw_key, message.raw_value, [])


class Topics:
    """The contents of the topics, and a comparison with a run that was never interrupted."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def usable(self, number: int) -> list[Message]:
        return [message for message in self._broker.logs["t", number] if len(message.raw_value or b"") > 2]

    def compare_with_an_uninterrupted_run(self, number: int) -> None:
        usable = self.usable(number)
        offsets = [message.at for message in usable]
        values = SCHEMA.rows([json.loads(message.raw_value or b"") for message in usable])
        rows = PastValues(SETTINGS.lags, 2).rows(values, [message.raw_key for message in usable])
        detector = Detector(cheap_model(), rows.shape[1], SETTINGS.detector_config())
        effects: dict[int, list[tuple[int, int, bool]]] = {}  # by the input offset where they take effect, all at once
        for effect in self.effects(number):
            effects.setdefault(effect["input_offset"], []).extend(effect["labels"])
        parts = []
        for start, stop in pairwise([*sorted({0, *effects}), 10**9]):
            labels = effects.get(start, [])
            numbers = np.array([offsets.index(label[1]) for label in labels], dtype=np.int64)
            detector.feedback(numbers, np.array([label[2] for label in labels], dtype=bool))
            parts.append(detector.process(rows[np.searchsorted(offsets, start) : np.searchsorted(offsets, stop)]))
        expected = Results.concatenate(parts)
        for result in self.results(number):
            at = offsets.index(result["offset"])
            found = [result["logit"], result["p_value"], result["generation"], result["regime"], result["outlier"]]
            wanted = [expected.logit[at], expected.p_value[at], expected.generation[at], expected.regime[at]]
            wanted = [None if np.isnan(value) else value for value in wanted]
            assert found == [*wanted, expected.outlier[at]], result

    def results(self, number: int) -> list[dict[str, Any]]:
        return [json.loads(value or b"")["fomo"] for value in self._broker.values(OUT, number)]

    def dead_letters(self, topic: str, number: int) -> list[int]:
        headers = [dict(message.headers()) for message in self._broker.logs[DEAD, number]]
        ours = [found for found in headers if found["fomo-source-topic"] == topic.encode()]
        return [int(found["fomo-source-offset"] or b"") for found in ours]

    def effects(self, number: int) -> list[dict[str, Any]]:
        log = self._broker.logs[STATE, number]
        return [json.loads(m.raw_value or b"") for m in log if (m.raw_key or b"").startswith(b"feedback/")]
