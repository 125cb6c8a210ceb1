"""Exactly once: whatever happens in between, everything is as if nothing had.

A machine of two instances over one broker in memory: what they are made of - pipeline, delivery, restorer - is real,
and each does in one thread what the service does. Records and labels come, commits fail or stay open, instances crash,
lose their partitions or hand them over. Then every record has one output, in order, and its score is the one that an
uninterrupted run gives, in which labels took effect where the log says they did.
"""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
from confluent_kafka import KafkaError, TopicPartition
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory_broker import Member, MemoryBroker, MemoryReader, Message, Produced, abortable, retriable
from test_pipeline import Patient, QuickSettings, cheap_model

from fomo_stream.broker import Record
from fomo_stream.delivery import ExactlyOnce, Outcome
from fomo_stream.detector import Detector
from fomo_stream.lags import Shingler
from fomo_stream.partition import PartitionTask
from fomo_stream.pipeline import Pipeline
from fomo_stream.schema import Schema
from fomo_stream.scored import Scored
from fomo_stream.store import Position, Restored, Restorer

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
    """Does what was submitted when it is told to; nobody may wait for it before."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._waiting.append((Patient(), partial(fn, *args, **kwargs)))
        return self._waiting[-1][0]

    def work(self) -> None:
        while self._waiting:
            future, call = self._waiting.popleft()
            future.set_result(call())


class Instance:
    """An instance of the service less its consumer, clock and threads: in the same order it does the same."""

    def __init__(self, name: str, broker: MemoryBroker) -> None:
        self.name = name
        self.member = Member(broker, name, broker.generations.setdefault(name, 0))
        self.executor = Lazy()
        self._broker = broker
        self._delivery = ExactlyOnce(partial(broker.producer, name), {})
        self._delivery.start(LONG_S)
        self.pipeline = Pipeline(SETTINGS, cheap_model(), self._delivery, self.executor, lambda: broker.partitions)
        self.pipeline.begin(SCHEMA)
        self._next: dict[tuple[str, int], int] = {}  # offset to read next
        self._staged: list[TopicPartition] = []
        self._must_abort = False

    @property
    def numbers(self) -> list[int]:
        return list(self.pipeline.tasks)

    def take(self, number: int) -> None:
        self.pipeline.add(number, IDS)

    def unrestored(self) -> list[PartitionTask]:
        return [task for task in self.pipeline.tasks.values() if not task.is_active]

    def activate(self, task: PartitionTask, restored: Restored) -> None:
        self.pipeline.activate(task, restored)
        self._next["t", task.number] = restored.start
        self._next["f", task.number] = max(0, restored.feedback_start)

    def read(self, topic: str, number: int, most: int, again: int = 0) -> None:
        """Read so many records, before them some that were read already."""
        task = self.pipeline.tasks.get(number)
        if task is None or not task.is_active:
            return
        start = self._next[topic, number]
        messages = self._broker.logs[topic, number][max(0, start - again) : start + most]
        self._next[topic, number] = min(start + most, self._broker.ends[topic, number])
        for message in messages:
            if topic == "f":
                self.pipeline.receive_label(to_record(message), lambda n, at: at < self._broker.ends["t", n])
            else:
                self.pipeline.receive(to_record(message), 0.0)

    def turn(self) -> None:
        """Go on with a commit or an abort, or begin a commit."""
        if self._delivery.is_committing:
            self._conclude(self._delivery.proceed(LONG_S))
        elif self._must_abort:
            self._abort()
        else:
            self._commit()

    def release(self, number: int) -> None:
        """Finish and commit, if that can be known now, and give the partition up."""
        self._await_commit()
        if self._delivery.is_committing:
            self._must_abort = True
        elif not self._must_abort:
            self.pipeline.finish([number])
            self._commit()
            self._await_commit()
        self.pipeline.drop(number)

    def lose_all(self) -> None:
        """Others have the partitions."""
        self._must_abort = True
        for number in self.numbers:
            self.pipeline.drop(number)

    def _commit(self) -> None:
        self._staged = self.pipeline.stage(self._broker.partitions)
        if self._staged or self._delivery.sent:
            self._conclude(self._delivery.commit(self._staged, self.member))
            self._await_commit()

    def _await_commit(self) -> None:
        """As long as the broker answers."""
        for _ in range(4):
            if self._delivery.is_committing:
                self._conclude(self._delivery.proceed(LONG_S))

    def _conclude(self, outcome: Outcome) -> None:
        if outcome is Outcome.COMMITTED:
            self.pipeline.committed(self._staged, 0.0)
        elif outcome is Outcome.FAILED:
            self._must_abort = True
            self._abort()

    def _abort(self) -> None:
        if self._delivery.abort():
            self._must_abort = False
            self.pipeline.aborted(IDS)


def to_record(message: Message) -> Record:
    return Record(*message.place, message.at, None, message.raw_key, message.raw_value, [])


def is_refused(produced: Produced) -> int | None:
    """Of what is scored, the output topic does not take everything."""
    refused = produced.place[0] == OUT and b"refuse this" in (produced.value or b"")
    return int(KafkaError.MSG_SIZE_TOO_LARGE) if refused else None


records = st.lists(st.sampled_from("......!.{0r"), max_size=24)
labels = st.lists(st.tuples(st.one_of(st.integers(-40, 5), st.sampled_from(["p", "bad"])), st.booleans()), max_size=5)
which = st.sampled_from(NUMBERS)
troubles = st.sampled_from([None, None, None, "offsets", "abortable", "abortable", "down", "down", "answer lost"])
events = st.sampled_from(["handed over", "put out", "put out", "hears", "crash", "crash for good", "times out"])


class ExactlyOnceMachine(RuleBasedStateMachine):
    """Two partitions, two instances, and all that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = MemoryBroker()
        self.broker.partitions = dict.fromkeys(("t", "f", OUT, DEAD, STATE), len(NUMBERS))
        self.broker.topic_ids = dict(IDS)
        self.broker.refuses = is_refused
        self._stack = ExitStack()
        self._stack.enter_context(patch("fomo_stream.store.make_reader", lambda _: MemoryReader(self.broker)))
        self._restorer = Restorer(SETTINGS, self.broker, lambda _: True)  # type: ignore[arg-type]
        self._stack.callback(self._restorer.stop)
        self.instances = {name: Instance(name, self.broker) for name in ("a", "b")}
        self.owner: dict[int, str] = {}
        self._checked = dict.fromkeys(NUMBERS, 0)  # labels that were found to be heeded

    @initialize(seed=st.integers(0, 99))
    def deal(self, seed: int) -> None:
        for number, name in zip(NUMBERS, ("a", "b"), strict=True):
            self._give(number, name)
            self.something_comes(number, list("." * 30), [], seed)

    @rule(number=which, kinds=records, about=labels, seed=st.integers(0, 99))
    def something_comes(self, number: int, kinds: list[str], about: list[tuple[int | str, bool]], seed: int) -> None:
        """Records, and labels on them, on earlier ones, and on some that are yet to come."""
        rng = random.Random(seed)
        for kind in kinds:
            shift = 9 if kind == "!" else 0
            fields: dict[str, Any] = {"x": rng.gauss(shift, 1), "y": rng.gauss(5, 2)}
            fields |= {"note": "refuse this"} if kind == "r" else {}
            value = {"{": b"{", "0": b"{}"}.get(kind) or json.dumps(fields).encode()
            self.broker.append(("t", number), rng.choice([b"p", b"q", None]), value)
        for what, outlier in about:
            label: dict[str, Any] = {"outlier": outlier} if what != "bad" else {}
            if isinstance(what, int):
                label["offset"] = max(0, self.broker.ends["t", number] + what)
            self.broker.append(("f", number), b"p" if what == "p" else None, json.dumps(label).encode())

    @rule(
        number=which,
        most=st.tuples(st.integers(0, 30), st.integers(0, 5)),
        again=st.integers(0, 3),
        due=st.booleans(),
        built=st.booleans(),
    )
    def some_is_read(self, number: int, most: tuple[int, int], again: int, due: bool, built: bool) -> None:
        """again: so many records come that came before; due: batches are, full or not; built: so are generations."""
        instance = self.instances[self.owner[number]]
        if built:
            instance.executor.work()
        instance.read("t", number, most[0], again)
        instance.read("f", number, most[1])
        if due:
            instance.pipeline.score_due(1e9)

    @rule(number=which, trouble=troubles)
    def a_commit_is_made_or_goes_on(self, number: int, trouble: str | None) -> None:
        """Or an abort, where one is due; of the partition's owner, or of the one that was."""
        self._turn(self.owner[number], trouble)

    @rule(number=which, what=events)
    def something_happens(self, number: int, what: str) -> None:
        name = self.owner[number]
        instance = self.instances[name]
        if what == "handed over":
            instance.release(number)
            self._give(number, self._other(number))
        elif what == "put out":  # of the group; it does not know, and tries to go on
            self.broker.generations[name] += 1
            for one in [one for one in NUMBERS if self.owner[one] == name]:
                self._give(one, self._other(number))
            self._turn(name, None)
        elif what == "hears":
            self._hear(self._other(number))
        else:
            if what == "times out":  # whoever is silent for long is fenced, and is started again
                self.broker.expire(name)
            self.instances[name] = Instance(name, self.broker)
            for one in [one for one in NUMBERS if self.owner[one] == name]:
                self._give(one, self._other(one) if what == "crash for good" else name)

    @rule()
    def the_state_is_compacted(self) -> None:
        self.broker.compact(STATE)

    def _turn(self, name: str, trouble: str | None) -> None:
        broker = self.broker
        broker.is_down = trouble == "down"
        broker.loses_answers = trouble == "answer lost"
        if trouble == "answer lost":
            broker.answers["commit_transaction"] = [retriable()] * 20
        elif trouble in ("offsets", "abortable"):
            call = "send_offsets_to_transaction" if trouble == "offsets" else "commit_transaction"
            broker.answers[call] = [abortable()]
        self.instances[name].turn()
        broker.is_down = broker.loses_answers = False
        broker.answers.clear()
        self._restore()

    def _hear(self, name: str) -> None:
        """A member that was put out of the group is told, and joins it again."""
        instance = self.instances[name]
        if instance.member.is_stale:
            instance.member.generation = self.broker.generations[name]
            instance.lose_all()

    def _other(self, number: int) -> str:
        return "b" if self.owner[number] == "a" else "a"

    def _give(self, number: int, name: str) -> None:
        self.owner[number] = name
        self._hear(name)
        self.instances[name].take(number)
        self._restore()

    def _restore(self) -> None:
        """Restore what can be: not what an open transaction may yet change."""
        unstable = set().union(*(producer.unstable for producer in self.broker.producers))
        for instance in self.instances.values():
            for task in instance.unrestored():
                if not unstable & {("t", task.number), ("f", task.number)}:
                    self._restorer.request(task)
                    while not (found := self._restorer.take()):
                        time.sleep(0.0001)
                    instance.activate(*found[0])

    # --- what is true whatever happens

    @invariant()
    def every_record_has_one_output_in_order(self) -> None:
        for number in NUMBERS:
            scored = [result["offset"] for result in self._results(number)]
            dead = self._dead_letters("t", number)
            assert (scored, dead) == (sorted(scored), sorted(dead))
            assert sorted(scored + dead) == list(range(self.broker.offsets.get(("t", number), 0)))

    @invariant()
    def the_state_is_of_where_the_group_is(self) -> None:
        for number in NUMBERS:
            values = [m.raw_value for m in self.broker.logs[STATE, number] if m.raw_key == b"state/position"]
            position = Position.decode((values[-1] or b"")[1:]) if values else Position(0)
            assert position.offset == self.broker.offsets.get(("t", number), 0)

    @invariant()
    def every_label_counts_once(self) -> None:
        for number in NUMBERS:
            heeded = [label[0] for effect in self._effects(number) for label in effect["labels"]]
            done = heeded + self._dead_letters("f", number)
            assert len(done) == len(set(done))
            assert self._due(number) <= set(done)
            for effect in self._effects(number):
                for at, offset, outlier in effect["labels"]:
                    label = json.loads(self.broker.values("f", number)[at] or b"")
                    assert (label.get("offset", offset), label["outlier"]) == (offset, outlier)
                    assert offset < effect["input_offset"]

    def teardown(self) -> None:
        try:
            if self.owner:
                self._drain()
                for number in NUMBERS:
                    self._compare_with_an_uninterrupted_run(number)
        finally:
            self._stack.close()

    def _drain(self) -> None:
        """Everything is read, scored, and committed."""
        refused = sum(b"refuse" in (value or b"") for number in NUMBERS for value in self.broker.values("t", number))
        for _ in range(20 + 4 * refused):  # each is found out alone
            for name, instance in self.instances.items():
                for number in instance.numbers:
                    instance.read("t", number, 10_000)
                    instance.read("f", number, 10_000)
                instance.pipeline.score_due(1e9)
                instance.executor.work()
                self._hear(name)
                self._turn(name, None)
            if all(self.broker.offsets.get(("t", n), 0) == self.broker.ends["t", n] for n in NUMBERS) and all(
                self.broker.offsets.get(("f", n), 0) == self.broker.ends["f", n] for n in NUMBERS
            ):
                break
        else:
            raise AssertionError(f"{self.broker.offsets} of {self.broker.ends}")
        self.every_record_has_one_output_in_order()
        self.every_label_counts_once()

    def _due(self, number: int) -> set[int]:
        """Labels that were committed since the last look, on records that were remembered then."""
        position, read = (self.broker.offsets.get((topic, number), 0) for topic in ("t", "f"))
        behind = [message.at for message in self._usable(number) if message.at < position]
        given = [json.loads(value or b"").get("offset") for value in self.broker.values("f", number)[:read]]
        first, self._checked[number] = self._checked[number], read
        return {at for at in range(first, read) if given[at] in behind[-SETTINGS.feedback_memory :]}

    def _usable(self, number: int) -> list[Message]:
        return [message for message in self.broker.logs["t", number] if len(message.raw_value or b"") > 2]

    def _compare_with_an_uninterrupted_run(self, number: int) -> None:
        usable = self._usable(number)
        offsets = [message.at for message in usable]
        values = SCHEMA.rows([json.loads(message.raw_value or b"") for message in usable])
        rows = Shingler(SETTINGS.lags, 2).rows(values, [message.raw_key for message in usable])
        detector = Detector(cheap_model(), rows.shape[1], SETTINGS.detector_config())
        effects: dict[int, list[list[tuple[int, int, bool]]]] = {}  # by the input offset where they take effect
        for effect in self._effects(number):
            effects.setdefault(effect["input_offset"], []).append(effect["labels"])
        parts = []
        for start, stop in pairwise([*sorted({0, *effects}), 10**9]):
            for labels in effects.get(start, []):
                numbers = np.array([offsets.index(label[1]) for label in labels])
                detector.feedback(numbers, np.array([label[2] for label in labels]))
            parts.append(detector.process(rows[np.searchsorted(offsets, start) : np.searchsorted(offsets, stop)]))
        expected = Scored.concatenate(parts)
        for result in self._results(number):
            at = offsets.index(result["offset"])
            found = [result["logit"], result["p_value"], result["generation"], result["regime"], result["outlier"]]
            wanted = [expected.logit[at], expected.p_value[at], expected.generation[at], expected.regime[at]]
            wanted = [None if np.isnan(value) else value for value in wanted]
            assert found == [*wanted, expected.outlier[at]], result

    # --- what is in the topics

    def _results(self, number: int) -> list[dict[str, Any]]:
        return [json.loads(value or b"")["fomo"] for value in self.broker.values(OUT, number)]

    def _dead_letters(self, topic: str, number: int) -> list[int]:
        headers = [dict(message.headers()) for message in self.broker.logs[DEAD, number]]
        ours = [found for found in headers if found["fomo-source-topic"] == topic.encode()]
        return [int(found["fomo-source-offset"] or b"") for found in ours]

    def _effects(self, number: int) -> list[dict[str, Any]]:
        log = self.broker.logs[STATE, number]
        return [json.loads(m.raw_value or b"") for m in log if (m.raw_key or b"").startswith(b"feedback/")]


TestExactlyOnce = ExactlyOnceMachine.TestCase
TestExactlyOnce.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
