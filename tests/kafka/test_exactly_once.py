"""Exactly once: whatever happens in between, the results are those of an uninterrupted run.

A machine of two instances of the service over one broker in memory. Records and labels come, commits fail or stay open,
instances crash, lose their partitions or hand them over. Then every record has one output, in order, and its score is
the one that an uninterrupted run gives, in which labels took effect where the log says they did.
"""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory_broker import Produced, abortable, retriable
from memory_service import ALERTS, NUMBERS, OUT, SETTINGS, STATE, Instance, Topics, exploding, service_broker

from fomo_stream.partition.position import SavedPosition
from fomo_stream.partition.running import Running


def is_refused(produced: Produced) -> int | None:
    """The output topic refuses some scored records, and the topic of alerts others."""
    words = {OUT: b"refuse this", ALERTS: b"refuse the alert"}.get(produced.place[0])
    refused = words is not None and words in (produced.value or b"")
    return int(KafkaError.MSG_SIZE_TOO_LARGE) if refused else None


class Moment(NamedTuple):
    """New records and labels of a partition, and what its owner does then."""

    number: int  # of the partition
    # Of records that come: `!` far off, `{` no JSON, `0` no feature, `r`, `a` refused when scored, `x` raises an error.
    kinds: list[str]
    labels: list[tuple[int | str, bool]]  # on which record, from the end, or by key, or `bad`; whether it is an outlier
    seed: int
    records_read: int
    again: int  # records that come though they were read before
    labels_read: int
    is_due: bool  # batches are scored, full or not
    is_built: bool  # generations are
    then: str  # `commit`: begin or continue one; `nothing`; or the fault that happens to it


moments = st.builds(
    Moment,
    number=st.sampled_from(NUMBERS),
    kinds=st.lists(st.sampled_from("." * 30 + "!!!{{00rax"), max_size=16),
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
faults = ["put out", "put out, and in again", "crash", "crash for good", "times out"]
events = st.sampled_from(["handed over", "hears", "compaction", *faults])


class ExactlyOnceMachine(RuleBasedStateMachine):
    """Two partitions, two instances, and all that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = service_broker(len(NUMBERS))
        self.broker.refuses = is_refused
        self.topics = Topics(self.broker)
        self._stack = ExitStack()
        self._stack.enter_context(self.broker.stands_in())
        self._stack.enter_context(patch.object(Running, "score", exploding(Running.score)))
        self.instances: dict[str, Instance] = {}
        for name in ("a", "b"):
            self._start(name)
        self.owner: dict[int, str] = {}
        self._checked = dict.fromkeys(NUMBERS, 0)  # labels whose effect was checked

    @initialize()
    def deal(self) -> None:
        for number, name in zip(NUMBERS, ("a", "b"), strict=True):
            self.give(number, name)
            self.it_goes_on(Moment(number, ["."] * 24, [], 0, 20, 0, 0, True, True, "commit"))

    @rule(moment=moments)
    def it_goes_on(self, moment: Moment) -> None:
        self._produce(moment)
        name = self.owner[moment.number]
        instance = self.instances[name]
        instance.read(moment.number, moment.records_read, moment.labels_read, moment.again)
        instance.score(moment.is_due, moment.is_built)
        if moment.then != "nothing":
            self._turn(name, moment.then)
        if moment.then == "offsets":  # refused as of no member
            instance.hear()

    def _produce(self, moment: Moment) -> None:
        rng = random.Random(moment.seed)
        for kind in moment.kinds:
            shift = 9 if kind in "!a" else 0
            fields: dict[str, Any] = {"x": rng.gauss(shift, 1), "y": rng.gauss(5, 2)}
            notes = {"r": "refuse this", "a": "refuse the alert", "x": "explode"}
            fields |= {"note": notes[kind]} if kind in notes else {}
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
            for member, instance in self.instances.items():
                if instance.rebalance(self.broker.generations):
                    self._turn(member)  # before the callback
                    instance.on_assign(None, [])
            self.give(number, self._other(number))
        elif what == "compaction":
            self.broker.compact(STATE)
        elif what.startswith("put out"):  # of the group, without its knowledge
            self.broker.generations[name] += 1
            if what == "put out, and in again":  # the client does not say so
                self.instances[name].consumer.join_again(as_new=True)
            for one in [one for one in NUMBERS if self.owner[one] == name]:
                self.give(one, self._other(number))
            self._turn(name)
        elif what == "hears":
            self.instances[self._other(number)].hear()
        else:
            if what == "times out":  # an instance that is silent for too long is fenced, and restarted
                self.broker.expire(name)
            self._start(name)
            for one in [one for one in NUMBERS if self.owner[one] == name]:
                self.give(one, self._other(one) if what == "crash for good" else name)

    def _turn(self, name: str, trouble: str = "") -> None:
        """The instance begins or continues a commit or an abort, under this fault."""
        broker = self.broker
        broker.is_down = trouble == "down"
        broker.loses_answers = trouble == "answer lost"
        if trouble == "answer lost":
            broker.answers["commit_transaction"] = [retriable()] * 20
        elif trouble in ("offsets", "abortable"):
            call = "send_offsets_to_transaction" if trouble == "offsets" else "commit_transaction"
            broker.answers[call] = [abortable(KafkaError.UNKNOWN_MEMBER_ID) if trouble == "offsets" else abortable()]
        self.instances[name].step()
        broker.is_down = broker.loses_answers = False
        broker.answers.clear()
        self._restore()

    def _start(self, name: str) -> None:
        """Start a process of that name; it replaces an earlier one."""
        self.instances[name] = Instance(name, self.broker)
        self._stack.callback(self.instances[name].restorer.stop)

    def _other(self, number: int) -> str:
        return "b" if self.owner[number] == "a" else "a"

    def give(self, number: int, name: str) -> None:
        self.owner[number] = name
        self.instances[name].hear()
        self.instances[name].take(number)
        self._restore()

    def _restore(self) -> None:
        for name, instance in self.instances.items():
            if instance.consumer.has_left:  # it joins again, and the group gives it partitions
                instance.consumer.has_left = False
                for number in [number for number in NUMBERS if self.owner[number] == name]:
                    instance.take(number)
            instance.restore()

    # --- invariants

    @invariant()
    def every_record_has_one_output_in_order(self) -> None:
        for number in NUMBERS:
            scored = [result["offset"] for result in self.topics.results(number)]
            dead = self.topics.dead_letters("t", number)
            assert (scored, dead) == (sorted(scored), sorted(dead))
            assert sorted(scored + dead) == list(range(self.broker.offsets.get(("t", number), 0)))

    @invariant()
    def every_outlier_is_in_the_topic_of_alerts_too(self) -> None:
        for number in NUMBERS:
            outliers = [result for result in self.topics.results(number) if result["outlier"]]
            assert self.topics.alerts(number) == outliers

    @invariant()
    def the_state_is_of_where_the_group_is(self) -> None:
        for number in NUMBERS:
            values = [m.value() for m in self.broker.logs[STATE, number] if m.key() == b"state/position"]
            position = SavedPosition.decode((values[-1] or b"")[1:]) if values else SavedPosition(0)
            assert position.offset == self.broker.offsets.get(("t", number), 0)

    @invariant()
    def every_label_counts_once(self) -> None:
        for number in NUMBERS:
            heeded = [label[0] for effect in self.topics.effects(number) for label in effect["labels"]]
            done = heeded + self.topics.dead_letters("f", number)
            assert len(done) == len(set(done))
            assert self._due(number) <= set(done)
            for effect in self.topics.effects(number):
                for at, offset, outlier in effect["labels"]:
                    label = json.loads(self.broker.values("f", number)[at] or b"")
                    assert (label.get("offset", offset), label["outlier"]) == (offset, outlier)
                    assert offset < effect["input_offset"]

    def teardown(self) -> None:
        try:
            if self.owner:
                self._drain()
                for number in NUMBERS:
                    self.topics.compare_with_an_uninterrupted_run(number)
        finally:
            self._stack.close()

    def _drain(self) -> None:
        """Everything is read, scored, and committed."""
        refused = sum(
            any(word in (value or b"") for word in (b"refuse", b"explode"))
            for number in NUMBERS
            for value in self.broker.values("t", number)
        )
        for _ in range(20 + 4 * refused):  # each refusal is found alone
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
        behind = [message.offset() for message in self.topics.usable(number) if message.offset() < position]
        given = [json.loads(value or b"").get("offset") for value in self.broker.values("f", number)[:read]]
        first, self._checked[number] = self._checked[number], read
        return {at for at in range(first, read) if given[at] in behind[-SETTINGS.feedback_memory :]}


def test_a_late_generation_pauses_its_own_partition_alone_and_nothing_is_lost() -> None:
    machine = ExactlyOnceMachine()
    instance = machine.instances["a"]
    for number in NUMBERS:
        machine.give(number, "a")
    many = Moment(0, ["."] * 1500, [], 0, 1500, 0, 0, is_due=True, is_built=False, then="commit")
    machine.it_goes_on(many)
    assert instance.assignment.paused == {("t", 0)}
    machine.it_goes_on(many._replace(number=1, kinds=["."] * 9))
    assert machine.broker.offsets["t", 1] == 9
    turns = 0
    while instance.assignment.paused:
        assert (turns := turns + 1) < 200
        machine.it_goes_on(many._replace(kinds=[], is_built=True))
    machine.teardown()


class LongerMachine(ExactlyOnceMachine):
    """The same for longer."""


TestExactlyOnce = ExactlyOnceMachine.TestCase
TestExactlyOnce.settings = settings(stateful_step_count=8, max_examples=8)
TestExactlyOnceForLonger = pytest.mark.slow(LongerMachine.TestCase)
TestExactlyOnceForLonger.settings = settings(stateful_step_count=25, max_examples=20)  # each takes nearly a second
