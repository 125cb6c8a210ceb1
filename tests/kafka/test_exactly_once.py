"""Exactly once: whatever happens in between, everything is as if nothing had.

A machine of two instances of the service over one broker in memory, which are real but for the clients and the clock.
Records and labels come, commits fail or stay open, instances crash,
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
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from confluent_kafka import KafkaError, TopicPartition
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory_broker import MemoryBroker, MemoryConsumer, MemoryReader, Message
from memory_producer import Produced, abortable, retriable
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
from fomo_stream.kafka.position import Position, Restored
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


class Prompt(ExactlyOnce):
    """Waits for each of its calls: whether a commit is pending is up to the broker, not to threads."""

    def proceed(self, seconds: float = 0.0) -> Outcome:
        return super().proceed(LONG_S)


class Restoring:
    """Restores at once, if no transaction is open that may yet change what is restored."""

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
        """If others have its partitions, it is told so, and joins the group again."""
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


def is_refused(produced: Produced) -> int | None:
    """Of what is scored, the output topic does not take everything."""
    refused = produced.place[0] == OUT and b"refuse this" in (produced.value or b"")
    return int(KafkaError.MSG_SIZE_TOO_LARGE) if refused else None


class Moment(NamedTuple):
    """What comes, and what the owner of the partition makes of it."""

    number: int  # of the partition
    kinds: list[str]  # of records that come: `!` far off, `{` no JSON, `0` no feature, `r` refused once it is scored
    labels: list[tuple[int | str, bool]]  # on which record, from the end, or by key, or `bad`; whether it is an outlier
    seed: int
    records_read: int
    again: int  # records that come though they were read before
    labels_read: int
    is_due: bool  # batches are scored, full or not
    is_built: bool  # generations are
    then: str  # a commit is made, or goes on, or what goes wrong with it; nothing: none is


moments = st.builds(
    Moment,
    number=st.sampled_from(NUMBERS),
    kinds=st.lists(st.sampled_from("." * 30 + "!!!{{00r"), max_size=16),
    labels=st.lists(
        st.tuples(st.one_of(st.integers(-40, 5), st.sampled_from(["p", "bad"])), st.booleans()), max_size=4
    ),
    seed=st.integers(0, 99),
    records_read=st.sampled_from([20, 9, 3, 0]),
    again=st.integers(0, 2),
    labels_read=st.sampled_from([9, 1, 0]),
    is_due=st.booleans(),
    is_built=st.booleans(),
    then=st.sampled_from([*["commit"] * 6, "nothing", "nothing", "down", "answer lost", "offsets", "abortable"]),
)
events = st.sampled_from(["handed over", "put out", "hears", "compaction", "crash", "crash for good", "times out"])


class ExactlyOnceMachine(RuleBasedStateMachine):
    """Two partitions, two instances, and all that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = MemoryBroker()
        self.broker.partitions = dict.fromkeys(("t", "f", OUT, DEAD, STATE), len(NUMBERS))
        self.broker.topic_ids = dict(IDS)
        self.broker.refuses = is_refused
        self._stack = ExitStack()
        self._stack.enter_context(
            patch("fomo_stream.kafka.topic_reader.make_reader", lambda *_: MemoryReader(self.broker))
        )
        self._stack.enter_context(patch("fomo_stream.kafka.state_topic.BEHIND_S", -1.0))
        self._stack.enter_context(patch("fomo_stream.kafka.service.RELEASE_S", 0.0))
        self.instances: dict[str, Instance] = {}
        for name in ("a", "b"):
            self._start(name)
        self.owner: dict[int, str] = {}
        self._checked = dict.fromkeys(NUMBERS, 0)  # labels that were found to be heeded

    @initialize()
    def deal(self) -> None:
        for number, name in zip(NUMBERS, ("a", "b"), strict=True):
            self._give(number, name)
            self.it_goes_on(Moment(number, ["."] * 40, [], 0, 30, 0, 0, True, True, "commit"))

    @rule(moment=moments)
    def it_goes_on(self, moment: Moment) -> None:
        self._produce(moment)
        name = self.owner[moment.number]
        instance = self.instances[name]
        instance.read(moment.number, moment.records_read, moment.labels_read, moment.again)
        instance.score(moment.is_due, moment.is_built)
        if moment.then != "nothing":
            self._turn(name, moment.then)

    def _produce(self, moment: Moment) -> None:
        rng = random.Random(moment.seed)
        for kind in moment.kinds:
            shift = 9 if kind == "!" else 0
            fields: dict[str, Any] = {"x": rng.gauss(shift, 1), "y": rng.gauss(5, 2)}
            fields |= {"note": "refuse this"} if kind == "r" else {}
            value = {"{": b"{", "0": b"{}"}.get(kind) or json.dumps(fields).encode()
            self.broker.append(("t", moment.number), rng.choice([b"p", b"q", None]), value)
        for about, outlier in moment.labels:
            label: dict[str, Any] = {"outlier": outlier} if about != "bad" else {}
            if isinstance(about, int):
                label["offset"] = max(0, self.broker.ends["t", moment.number] + about)
            self.broker.append(("f", moment.number), b"p" if about == "p" else None, json.dumps(label).encode())

    @rule(moment=moments, what=events)
    def something_happens(self, moment: Moment, what: str) -> None:
        self.it_goes_on(moment)
        number = moment.number
        name = self.owner[number]
        if what == "handed over":
            self.instances[name].release(number)
            for instance in self.instances.values():
                instance.rebalance(self.broker.generations)
            self._give(number, self._other(number))
        elif what == "compaction":
            self.broker.compact(STATE)
        elif what == "put out":  # of the group; it does not know, and tries to go on
            self.broker.generations[name] += 1
            for one in [one for one in NUMBERS if self.owner[one] == name]:
                self._give(one, self._other(number))
            self._turn(name)
        elif what == "hears":
            self.instances[self._other(number)].hear()
        else:
            if what == "times out":  # whoever is silent for long is fenced, and is started again
                self.broker.expire(name)
            self._start(name)
            for one in [one for one in NUMBERS if self.owner[one] == name]:
                self._give(one, self._other(one) if what == "crash for good" else name)

    def _turn(self, name: str, trouble: str = "") -> None:
        """The instance makes a commit or goes on with one, or with an abort, and these troubles befall it."""
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

    def _start(self, name: str) -> None:
        """A process of that name, in place of any that was."""
        self.instances[name] = Instance(name, self.broker)
        self._stack.callback(self.instances[name]._restorer.stop)

    def _other(self, number: int) -> str:
        return "b" if self.owner[number] == "a" else "a"

    def _give(self, number: int, name: str) -> None:
        self.owner[number] = name
        self.instances[name].hear()
        self.instances[name].take(number)
        self._restore()

    def _restore(self) -> None:
        for instance in self.instances.values():
            instance.restore()

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
                for number in NUMBERS:
                    instance.read(number, 10_000, 10_000)
                instance.score(is_due=True, is_built=True)
                instance.hear()
                self._turn(name)
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
        rows = PastValues(SETTINGS.lags, 2).rows(values, [message.raw_key for message in usable])
        detector = Detector(cheap_model(), rows.shape[1], SETTINGS.detector_config())
        effects: dict[int, list[tuple[int, int, bool]]] = {}  # by the input offset where they take effect, all at once
        for effect in self._effects(number):
            effects.setdefault(effect["input_offset"], []).extend(effect["labels"])
        parts = []
        for start, stop in pairwise([*sorted({0, *effects}), 10**9]):
            labels = effects.get(start, [])
            numbers = np.array([offsets.index(label[1]) for label in labels], dtype=np.int64)
            detector.feedback(numbers, np.array([label[2] for label in labels], dtype=bool))
            parts.append(detector.process(rows[np.searchsorted(offsets, start) : np.searchsorted(offsets, stop)]))
        expected = Results.concatenate(parts)
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


@pytest.mark.parametrize("trouble", ["down", "answer lost"])
@pytest.mark.parametrize("what", ["handed over", "put out"])
def test_what_is_scored_while_a_commit_is_pending_is_undone_if_the_partition_goes_meanwhile(
    what: str, trouble: str
) -> None:
    machine = ExactlyOnceMachine()
    machine.deal()
    moment = Moment(0, ["."] * 16, [], 1, 9, 0, 0, is_due=True, is_built=True, then=trouble)
    machine.it_goes_on(moment)
    machine.something_happens(moment._replace(then="nothing"), what)
    for _ in range(3):
        machine._turn("a")
        machine.every_record_has_one_output_in_order()
    machine.teardown()


TestExactlyOnce = ExactlyOnceMachine.TestCase
TestExactlyOnce.settings = settings(max_examples=10, stateful_step_count=25, deadline=None)
