"""Delivery without transactions: offsets are committed after everything else was acknowledged."""

from __future__ import annotations

from confluent_kafka import KafkaError, TopicPartition
from delivery_setup import LONG_S, Setup
from memory_producer import retriable

from fomo_stream.kafka.delivery.at_least_once import AtLeastOnce
from fomo_stream.kafka.delivery.base import Outcome


def test_offsets_are_committed_once_everything_is_acknowledged() -> None:
    setup = Setup(AtLeastOnce)
    setup.broker.slow = {"slow"}
    setup.send(b"1")
    setup.send(b"2", topic="slow")
    setup.stay_pending()
    assert (setup.out(), setup.broker.offsets) == ([b"1"], {})
    setup.broker.slow = set()
    assert setup.proceed() is Outcome.COMMITTED
    assert setup.broker.offsets == {("t", 0): 1}


def test_offsets_that_are_not_accepted_are_committed_again() -> None:
    setup = Setup(AtLeastOnce)
    setup.member.failures = [KafkaError(KafkaError._TIMED_OUT)] * 3
    setup.send(b"1")
    assert setup.commit(1) is Outcome.COMMITTED
    assert (setup.out(), setup.broker.offsets) == ([b"1"], {("t", 0): 1})


def test_an_offset_commit_without_an_answer_blocks_nothing() -> None:
    setup = Setup(AtLeastOnce)
    setup.member.on_commit = None  # no answer comes
    setup.send(b"1")
    commit = [TopicPartition("t", 0, 1)]
    assert setup.delivery.commit(commit, *setup.as_member) is Outcome.PENDING
    outcome = Outcome.PENDING
    for _ in range(100):
        outcome = setup.delivery.proceed()
    assert outcome is Outcome.PENDING
    assert isinstance(setup.delivery, AtLeastOnce)
    setup.delivery.offsets_committed(None, [TopicPartition("t", 0, 0)])  # of a commit before
    assert setup.delivery.proceed() is Outcome.PENDING
    setup.delivery.offsets_committed(None, commit)
    assert setup.delivery.proceed() is Outcome.COMMITTED


def test_a_call_without_a_time_limit_is_made_only_after_the_broker_has_answered() -> None:
    setup = Setup(AtLeastOnce)
    setup.member.on_commit = None
    setup.broker.answers["committed"] = [retriable()] * 3
    setup.member.failures = [KafkaError(KafkaError._TIMED_OUT)]  # of the call without an answer
    setup.send(b"1")
    commit = [TopicPartition("t", 0, 1)]
    setup.delivery.commit(commit, *setup.as_member)
    pending = 0
    while setup.delivery.proceed(LONG_S) is Outcome.PENDING:
        pending += 1
    assert pending >= 3
    assert setup.broker.offsets == {("t", 0): 1}


def test_offsets_of_partitions_that_other_members_own_are_not_committed() -> None:
    setup = Setup(AtLeastOnce)
    setup.member.failures = [KafkaError(KafkaError.ILLEGAL_GENERATION)]
    setup.send(b"1")
    assert setup.commit(1) is Outcome.REFUSED
    assert setup.delivery.abort()
    assert setup.broker.offsets == {}
