"""Delivery: outputs sent between two commits take effect with the second one, or not at all.

The broker is one in memory that fails on demand.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from memory_broker import MemoryBroker, MemoryConsumer, Produced, abortable, fatal, retriable

from fomo_stream.errors import BrokerError, ConfigError, FencedError, FomoError, NotPermittedError
from fomo_stream.kafka.broker.cluster import TopicLimits
from fomo_stream.kafka.delivery import exactly_once
from fomo_stream.kafka.delivery.at_least_once import AtLeastOnce
from fomo_stream.kafka.delivery.base import MAX_COMMIT_BYTES, CommitOutcome, Output
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce
from fomo_stream.partition.record import Record

LONG_S = 10.0  # no call takes so long
INVALID = int(KafkaError.INVALID_RECORD)


class Setup:
    """A delivery over a broker in memory, and the member of the group that commits."""

    def __init__(self, kind: type[ExactlyOnce] | type[AtLeastOnce] = ExactlyOnce, **options: Any) -> None:
        self.broker = MemoryBroker()
        self.broker.refuses = refuses_by_name
        name = "instance" if kind is ExactlyOnce else None
        self.delivery = kind(partial(self.broker.producer, name), **{"limits": {}, **options})
        self.member = MemoryConsumer(self.broker)
        if isinstance(self.delivery, ExactlyOnce):
            self.delivery.start(1.0)
        else:
            self.member.on_commit = self.delivery.offsets_committed

    @property
    def as_member(self) -> tuple[MemoryConsumer, Any]:
        """The member and its membership of now, to commit with."""
        return self.member, self.member.consumer_group_metadata()

    def send(self, value: bytes, number: int = 0, topic: str = "out") -> None:
        self.delivery.send(output(value, number, topic))

    def proceed(self) -> CommitOutcome:
        while (outcome := self.delivery.proceed(LONG_S)) is CommitOutcome.PENDING:
            pass
        return outcome

    def fail(self) -> None:
        """A commit fails, and all is undone."""
        assert self.commit() is CommitOutcome.FAILED
        while not self.delivery.abort():
            pass

    def commit(self, position: int = 1) -> CommitOutcome:
        outcome = self.delivery.commit([TopicPartition("t", 0, position)], *self.as_member)
        return self.proceed() if outcome is CommitOutcome.PENDING else outcome

    def stay_pending(self, position: int = 1) -> None:
        """Begin a commit that gets no answer because the broker is down."""
        outcomes = [self.delivery.commit([TopicPartition("t", 0, position)], *self.as_member)]
        outcomes += [self.delivery.proceed(LONG_S) for _ in range(2)]
        assert set(outcomes) == {CommitOutcome.PENDING}
        assert self.delivery.trouble.startswith("nothing can be committed")

    def out(self) -> list[bytes | None]:
        return self.broker.values("out")


def refuses_by_name(produced: Produced) -> int | None:
    """The values of records that the broker never accepts say so."""
    value = produced.value or b""
    if value.startswith(b"large"):
        return int(KafkaError.MSG_SIZE_TOO_LARGE)
    if value.startswith(b"denied"):
        return int(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return int(KafkaError.INVALID_TIMESTAMP) if produced.stamp < 0 else None


def record(number: int, topic: str = "t") -> Record:
    return Record(topic, 0, number, None, None, b"", [])


def output(value: bytes, number: int = 0, topic: str = "out") -> Output:
    return Output(topic, None, value, [], 0, source=record(number))


Kind = type[ExactlyOnce] | type[AtLeastOnce]
both = pytest.mark.parametrize("kind", [ExactlyOnce, AtLeastOnce])


@both
def test_outputs_sent_during_a_commit_belong_to_the_next_one(kind: Kind) -> None:
    setup = Setup(kind)
    setup.send(b"1")
    setup.broker.is_down = True
    setup.stay_pending(1)
    assert setup.delivery.is_committing
    assert (setup.out(), setup.broker.offsets) == ([], {})
    setup.send(b"2")
    setup.broker.is_down = False
    assert setup.proceed() is CommitOutcome.COMMITTED
    assert (setup.out(), setup.broker.offsets) == ([b"1"], {("t", 0): 1})
    assert (setup.delivery.sent, setup.delivery.is_committing, setup.delivery.trouble) == (1, False, "")
    assert setup.commit(2) is CommitOutcome.COMMITTED
    assert (setup.out(), setup.broker.offsets) == ([b"1", b"2"], {("t", 0): 2})


@both
def test_outputs_that_fail_during_a_commit_are_undone(kind: Kind) -> None:
    """The client refuses to abort before the commit that it has begun is asked for again."""
    setup = Setup(kind)
    setup.broker.slow = {"slow"}
    setup.send(b"denied")
    setup.send(b"1", topic="slow")
    setup.fail()
    assert (setup.out(), setup.broker.offsets) == ([], {})


@pytest.mark.parametrize("call", ["commit_transaction", "send_offsets_to_transaction"])
@pytest.mark.parametrize("done_before", ["the abort", "what comes after it"])
def test_a_call_that_hangs_is_abandoned_and_takes_effect_as_a_whole_or_never(
    call: str, done_before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactly_once, "HUNG_S", 0.0)
    setup = Setup()
    setup.send(b"1")
    hangs = setup.broker.hangs[call] = Event()
    assert setup.commit(1) is CommitOutcome.FAILED
    threads = [thread for thread in threading.enumerate() if thread.name == "fomo-commit"]

    def release() -> None:
        hangs.set()
        for thread in threads:
            thread.join()

    if done_before == "the abort":
        release()
    assert setup.delivery.abort()
    took_effect = setup.out() == [b"1"]
    assert took_effect == (done_before == "the abort")
    monkeypatch.setattr(exactly_once, "HUNG_S", LONG_S)
    setup.broker.hangs = {}
    setup.send(b"2")
    release()
    assert setup.commit(2) is CommitOutcome.COMMITTED
    assert setup.out() == ([b"1", b"2"] if took_effect else [b"2"])


@both
def test_delivery_reports_from_before_an_abort_are_ignored_and_what_may_succeed_later_is_never_refused(
    kind: Kind,
) -> None:
    setup = Setup(kind)
    for value in (b"denied", b"large"):
        setup.send(value)
    first = setup.broker.producers[-1]
    assert setup.delivery.abort()
    first.poll(0)
    assert not setup.delivery.has_failed
    for _ in range(3):
        setup.send(b"denied")
        setup.fail()
    assert setup.delivery.refusals.of("out", record(0)) == (0, None)
    assert all("batch.num.messages" not in producer.options for producer in setup.broker.producers)
    setup.send(b"good")
    assert setup.commit() is CommitOutcome.COMMITTED
    assert setup.out() == [b"good"]


@both
def test_many_or_large_outputs_make_a_commit_due_early(kind: Kind) -> None:
    for values, most in (([b"x" * (MAX_COMMIT_BYTES // 4)] * 4, 100), ([b""] * 4, 4)):
        setup = Setup(kind, max_outputs=most)
        for value in values:
            assert not setup.delivery.is_full
            setup.send(value)
        assert setup.delivery.is_full
        assert setup.commit() is CommitOutcome.COMMITTED
        assert not setup.delivery.is_full


def test_an_output_that_its_topic_will_not_take_is_known_before() -> None:
    delivery = Setup(limits={"out": TopicLimits(1000), "compacted": TopicLimits(1000, needs_key=True)}).delivery
    assert delivery.refusal(output(b"x" * 700)) == ""
    assert delivery.refusal(output(b"x" * 1000)) == "it takes no records of 1200 bytes"
    assert delivery.refusal(output(b"x" * 10**6, topic="dead")) == ""  # its limits are not known
    assert "without a key" in delivery.refusal(output(b"1", topic="compacted"))
    assert delivery.refusal(replace(output(b"1", topic="compacted"), key=b"p")) == ""
    assert Setup(limits={"out": TopicLimits(1000)}, compresses=True).delivery.refusal(output(b"x" * 1000)) == ""


def test_an_output_whose_time_its_topic_refuses_has_the_time_of_producing() -> None:
    hour_ms, now_ms = 3_600_000, round(time.time() * 1000)
    size, stamps = {"max.message.bytes": "9"}, []
    setup = Setup(limits={"out": TopicLimits.of({**size, "message.timestamp.after.max.ms": str(hour_ms)})})
    setup.broker.refuses = lambda produced: stamps.append(produced.stamp)
    wanted = [now_ms, now_ms - 10**6 * hour_ms, now_ms + hour_ms // 2]
    for stamp in (now_ms + 5 * hour_ms, *wanted):
        setup.delivery.send(replace(output(b"x"), timestamp=stamp))
    assert setup.commit() is CommitOutcome.COMMITTED
    assert stamps == [0, *wanted]
    by_age = {"message.timestamp.before.max.ms": "5", "message.timestamp.after.max.ms": "7"}
    assert TopicLimits.of(size | by_age | {"cleanup.policy": "compact,delete"}) == TopicLimits(9, True, 5, 7)
    assert TopicLimits.of(size | {"message.timestamp.difference.max.ms": "5"}) == TopicLimits(9, False, 5, 5)
    assert TopicLimits.of(size | by_age | {"message.timestamp.type": "LogAppendTime"}) == TopicLimits(9)


@both
def test_all_invalid_records_of_a_batch_are_found_at_once(kind: Kind) -> None:
    sending = Sending(kind)
    sending.broker.refuses = lambda produced: INVALID if (produced.value or b"").startswith(b"large") else None
    for number in range(20):
        sending.take(b"large %d" % number if number % 3 else b"good %d" % number)
    assert [sending.try_to_commit(), sending.try_to_commit()] == [False, True]
    assert len(sending.broker.values("dead")) == 13


def test_an_output_is_found_though_the_client_only_says_that_it_failed_before() -> None:
    """The report that says why comes after the next call, which fails."""
    setup = Setup()
    setup.broker.refuses = lambda produced: INVALID if produced.value == b"odd" else None
    setup.send(b"odd", number=7)
    setup.broker.producers[-1].send()
    setup.send(b"next", number=8)
    assert setup.delivery.has_failed
    assert setup.delivery.abort()
    assert [setup.delivery.refusals.of("out", record(number))[0] for number in (7, 8)] == [1, 0]


@both
def test_a_full_queue_is_waited_for_and_finally_a_failure(kind: Kind) -> None:
    setup = Setup(kind)
    full = KafkaError(KafkaError._QUEUE_FULL)
    setup.broker.answers["produce"] = [full] * 3
    setup.send(b"first")
    assert not setup.delivery.has_failed
    setup.broker.answers["produce"] = [full] * 1000
    setup.send(b"second")
    assert setup.delivery.has_failed
    setup.fail()
    assert not setup.delivery.has_failed


def test_an_offset_commit_without_an_answer_blocks_nothing() -> None:
    setup = Setup(AtLeastOnce)
    setup.member.on_commit = None  # no answer comes
    setup.send(b"1")
    commit = [TopicPartition("t", 0, 1)]
    outcomes = {setup.delivery.commit(commit, *setup.as_member), *(setup.delivery.proceed() for _ in range(100))}
    assert outcomes == {CommitOutcome.PENDING}
    assert isinstance(setup.delivery, AtLeastOnce)
    setup.delivery.offsets_committed(None, [TopicPartition("t", 0, 0)])  # of a commit before
    assert setup.delivery.proceed() is CommitOutcome.PENDING
    setup.delivery.offsets_committed(None, commit)
    assert setup.delivery.proceed() is CommitOutcome.COMMITTED
    # a call without a time limit is made only after the broker has answered
    setup.broker.answers["committed"] = [retriable()] * 2
    setup.member.failures = [KafkaError(KafkaError._TIMED_OUT)]  # of the call without an answer
    setup.send(b"2")
    setup.delivery.commit([TopicPartition("t", 0, 2)], *setup.as_member)
    assert [setup.delivery.proceed(LONG_S) for _ in range(2)] == [CommitOutcome.PENDING] * 2
    assert setup.proceed() is CommitOutcome.COMMITTED
    assert setup.broker.offsets == {("t", 0): 2}


class Sending(Setup):
    """Sends records as the service does: after a failure again from the last commit on, refused ones to `dead`."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.position = 0  # committed
        self.waiting: list[bytes] = []

    def take(self, value: bytes) -> None:
        number = self.position + len(self.waiting)
        self.waiting.append(value)
        refusals, why = self.delivery.refusals.of("out", record(number))
        assert (why is None) == (refusals == 0)
        self.send(value if not refusals else b"dead " + value, number, "dead" if refusals else "out")

    def try_to_commit(self) -> bool:
        if self.commit(self.position + len(self.waiting)) is CommitOutcome.COMMITTED:
            self.position += len(self.waiting)
            self.waiting.clear()
            return True
        while not self.delivery.abort():
            pass
        again, self.waiting = self.waiting, []
        for value in again:
            self.take(value)
        return False


steps = st.lists(st.sampled_from(["good", "good", "large", "commit"]), max_size=30)
troubles = st.lists(st.sampled_from([None, None, retriable(), abortable()]), max_size=6)


@both
@given(steps, st.fixed_dictionaries(dict.fromkeys(("send_offsets_to_transaction", "commit_transaction"), troubles)))
def test_exactly_the_outputs_that_the_broker_never_accepts_are_refused(
    kind: Kind, what: list[str], answers: dict[str, list[KafkaError | None]]
) -> None:
    sending = Sending(kind)
    sending.broker.answers.update(answers)
    wanted = []
    for number, step in enumerate(what):
        if step == "commit":
            sending.try_to_commit()
        else:
            wanted.append(f"{step} {number}".encode())
            sending.take(wanted[-1])
    attempts = 0
    while not sending.try_to_commit():
        attempts += 1
        assert attempts < 2 * len(what) + 20
    good = [value for value in wanted if value.startswith(b"good")]
    dead = [b"dead " + value for value in wanted if value.startswith(b"large")]
    if kind is ExactlyOnce:
        assert (sending.out(), sending.broker.values("dead")) == (good, dead)
    else:  # what was taken before the commit failed is sent again
        assert (list(dict.fromkeys(sending.out())), list(dict.fromkeys(sending.broker.values("dead")))) == (good, dead)
    assert sending.broker.offsets == {("t", 0): len(wanted)}
    assert "batch.num.messages" not in sending.broker.producers[-1].options  # batches are whole again


def test_a_record_can_be_refused_again_and_for_another_reason() -> None:
    """A refusal is of one topic and one source: other topics have records of the same partition and offset."""
    setup = Setup()
    codes = []
    for value, stamp in ((b"late", -1), (b"late", -1), (b"large", 0)):
        setup.delivery.send(replace(output(value), timestamp=stamp))
        setup.fail()
        refusals, why = setup.delivery.refusals.of("out", record(0))
        codes.append((refusals, why.code() if why is not None else None))
    assert codes == [(0, None), (1, KafkaError.INVALID_TIMESTAMP), (2, KafkaError.MSG_SIZE_TOO_LARGE)]
    of = setup.delivery.refusals.of
    assert of("dead", record(0)) == of("out", record(0, "feedback")) == (0, None)


def test_a_refused_record_without_a_source_ends_the_service_with_an_error() -> None:
    setup = Setup()
    state = Output("state", b"k", b"large", [], 0)
    setup.delivery.send(state)
    setup.fail()
    setup.delivery.send(state)
    with pytest.raises(BrokerError, match=r"topic state refuses a record .* check that topic's configuration"):
        setup.commit()


def test_a_fenced_instance_ends_and_says_what_to_do() -> None:
    setup = Setup()
    setup.send(b"1")
    other = ExactlyOnce(partial(setup.broker.producer, "instance"), {})
    other.start(1.0)
    with pytest.raises(FencedError, match=r"fenced: .* --instance-id\. Nothing is lost; restart this instance"):
        setup.commit()
    assert (setup.out(), setup.broker.offsets) == ([], {})
    other.send(output(b"2"))
    outcome = other.commit([], *setup.as_member)
    while outcome is CommitOutcome.PENDING:
        outcome = other.proceed(LONG_S)
    assert outcome is CommitOutcome.COMMITTED
    assert setup.out() == [b"2"]


@pytest.mark.parametrize("at", ["commit", "abort"])
def test_after_an_outage_that_ended_its_transactions_an_instance_continues(at: str) -> None:
    setup = Setup()
    setup.send(b"1")
    setup.broker.is_down = True
    setup.stay_pending()
    setup.broker.expire("instance")
    setup.broker.is_down = False
    assert setup.proceed() is CommitOutcome.FAILED
    if at == "abort":
        setup.broker.answers["init_transactions"] = [retriable()]
        assert not setup.delivery.abort()
    assert setup.delivery.abort()
    setup.send(b"2")
    assert setup.commit(2) is CommitOutcome.COMMITTED
    assert (setup.out(), setup.broker.offsets) == ([b"2"], {("t", 0): 2})
    setup.send(b"3")
    setup.broker.expire("instance")  # and there was no outage since
    with pytest.raises(FencedError, match="fenced"):
        setup.commit(3)


def test_closing_undoes_uncommitted_outputs() -> None:
    setup = Setup()
    setup.send(b"1")
    assert setup.commit() is CommitOutcome.COMMITTED
    setup.send(b"2")
    setup.delivery.close()
    assert setup.out() == [b"1"]
    setup.broker.producers[-1].begin_transaction()  # it has no other


def test_errors_of_an_abort_and_of_a_new_producer_do_not_end_the_instance() -> None:
    setup = Setup()
    setup.send(b"1")
    setup.broker.answers |= {
        "send_offsets_to_transaction": [abortable()],
        "abort_transaction": [retriable(), fatal()],
    }
    setup.fail()
    setup.send(b"2")
    setup.broker.answers["commit_transaction"] = [retriable(), fatal()]
    assert setup.commit() is CommitOutcome.FAILED
    setup.broker.answers["init_transactions"] = [fatal()]
    before = len(setup.broker.producers)
    assert not setup.delivery.abort()
    assert not setup.delivery.abort()  # not at once
    assert len(setup.broker.producers) == before + 1
    with patch("fomo_stream.kafka.delivery.exactly_once.monotonic", lambda: time.monotonic() + 2):
        assert setup.delivery.abort()
    setup.send(b"3")
    assert setup.commit() is CommitOutcome.COMMITTED
    assert setup.out() == [b"3"]


NONE, SILENT = "takes no transactions", "does not answer .* nothing is lost; .* restart the instance"


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError.UNSUPPORTED_VERSION, BrokerError, rf"{NONE} \(.*\); .* use --delivery at-least-once"),
        (KafkaError._STATE, BrokerError, SILENT),  # the client says that it may pass
        (KafkaError._ALL_BROKERS_DOWN, BrokerError, SILENT),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NotPermittedError, "Write on the transactional ids"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, NotPermittedError, "not permitted: IdempotentWrite on the cluster"),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, ConfigError, "lower --kafka.session.timeout"),
    ],
)
def test_a_start_that_is_refused_says_why(code: int, kind: type[FomoError], words: str) -> None:
    broker = MemoryBroker()
    passes = code == KafkaError._STATE
    broker.answers["init_transactions"] = [KafkaError(code, fatal=words != SILENT, retriable=passes)]
    with pytest.raises(kind, match=words) as caught:
        ExactlyOnce(partial(broker.producer, "instance"), {}).start(1.0)
    assert ("at-least-once" in str(caught.value)) == ("takes no transactions" in words)


@both
def test_a_member_that_has_lost_its_partitions_commits_nothing(kind: Kind) -> None:
    setup = Setup(kind)
    setup.broker.generations[setup.member.name] = setup.member.generation + 1
    setup.member.failures = [KafkaError(KafkaError.ILLEGAL_GENERATION)]
    setup.send(b"1")
    assert setup.commit() is CommitOutcome.REFUSED
    assert setup.delivery.abort()
    assert setup.broker.offsets == {}


def test_a_fatal_error_that_the_client_raises_while_reports_are_served_ends_as_fenced() -> None:
    setup = Setup()
    setup.send(b"1")
    setup.broker.expire("instance")
    polled = patch.object(setup.broker.producers[-1], "poll", side_effect=KafkaException(fatal()))
    with polled, pytest.raises(FencedError, match="fenced"):
        setup.delivery.abort()
