"""Delivery: outputs sent between two commits take effect with the second one, or not at all.

The broker is one in memory that fails on demand.
"""

from __future__ import annotations

import threading
from threading import Event

import pytest
from confluent_kafka import KafkaError
from delivery_setup import LONG_S, Kind, Setup, both, output
from memory_producer import abortable, retriable

from fomo_stream.kafka.delivery import exactly_once
from fomo_stream.kafka.delivery.base import MOST_BYTES, Outcome


def test_outputs_are_not_visible_before_their_commit() -> None:
    setup = Setup()
    setup.send(b"1")
    setup.broker.producers[-1].poll(0)
    assert (setup.out(), setup.broker.offsets) == ([], {})
    assert setup.commit(1) is Outcome.COMMITTED
    assert (setup.out(), setup.broker.offsets) == ([b"1"], {("t", 0): 1})


@both
def test_outputs_sent_during_a_commit_belong_to_the_next_one(kind: Kind) -> None:
    setup = Setup(kind)
    setup.send(b"1")
    setup.broker.is_down = True
    setup.stay_pending(1)
    assert setup.delivery.is_committing
    setup.send(b"2")
    setup.broker.is_down = False
    assert setup.proceed() is Outcome.COMMITTED
    assert (setup.out(), setup.broker.offsets) == ([b"1"], {("t", 0): 1})
    assert (setup.delivery.sent, setup.delivery.is_committing, setup.delivery.trouble) == (1, False, "")
    assert setup.commit(2) is Outcome.COMMITTED
    assert (setup.out(), setup.broker.offsets) == ([b"1", b"2"], {("t", 0): 2})


def test_outputs_sent_during_a_commit_that_fails_are_undone_with_it() -> None:
    setup = Setup()
    setup.send(b"1")
    setup.broker.is_down = True
    setup.stay_pending()
    setup.send(b"2")
    setup.broker.is_down = False
    setup.broker.answers["commit_transaction"] = [abortable()]
    assert setup.proceed() is Outcome.FAILED
    assert setup.delivery.abort()
    assert setup.delivery.sent == 0
    assert [setup.commit(position) for position in (5, 6)] == [Outcome.COMMITTED] * 2
    assert (setup.out(), setup.broker.offsets) == ([], {("t", 0): 6})


@both
def test_an_abort_forgets_everything(kind: Kind) -> None:
    setup = Setup(kind)
    setup.broker.is_down = True
    for value in (b"1", b"large"):
        setup.send(value)
    setup.broker.is_down = False
    setup.broker.answers["produce"] = [KafkaError(KafkaError._STATE)]
    setup.send(b"2")
    assert setup.delivery.has_failed
    assert setup.delivery.abort()
    assert (setup.delivery.sent, setup.delivery.has_failed, setup.delivery.is_full) == (0, False, False)
    assert setup.commit(5) is Outcome.COMMITTED
    assert (setup.out(), setup.broker.offsets) == ([], {("t", 0): 5})


def test_an_abort_that_gets_no_answer_is_tried_again() -> None:
    setup = Setup()
    setup.send(b"1")
    setup.broker.answers["abort_transaction"] = [retriable(), retriable()]
    assert [setup.delivery.abort() for _ in range(3)] == [False, False, True]
    assert setup.delivery.trouble == ""
    setup.send(b"2")
    assert setup.commit() is Outcome.COMMITTED
    assert setup.out() == [b"2"]


@pytest.mark.parametrize("call", ["send_offsets_to_transaction", "commit_transaction"])
def test_an_abortable_error_fails_the_commit_and_a_retriable_one_does_not(call: str) -> None:
    setup = Setup()
    setup.broker.answers[call] = [retriable(), retriable(), None, abortable()]
    setup.send(b"1")
    assert setup.commit(1) is Outcome.COMMITTED
    setup.send(b"2")
    assert setup.commit(2) is Outcome.FAILED
    assert setup.delivery.abort()
    assert (setup.out(), setup.broker.offsets) == ([b"1"], {("t", 0): 1})


def test_a_commit_whose_answer_is_lost_is_not_made_twice() -> None:
    setup = Setup()
    setup.broker.loses_answers = True
    setup.broker.answers["commit_transaction"] = [retriable()] * 3
    setup.send(b"1")
    assert setup.commit(1) is Outcome.COMMITTED
    assert setup.out() == [b"1"]


@both
def test_outputs_that_fail_during_a_commit_are_undone(kind: Kind) -> None:
    """The client refuses to abort before the commit that it has begun is asked for again."""
    setup = Setup(kind)
    setup.broker.slow = {"slow"}
    setup.send(b"denied")
    setup.send(b"1", topic="slow")
    assert setup.commit() is Outcome.FAILED
    assert setup.delivery.abort()
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
    assert setup.commit(1) is Outcome.FAILED
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
    assert setup.commit(2) is Outcome.COMMITTED
    assert setup.out() == ([b"1", b"2"] if took_effect else [b"2"])


@both
def test_delivery_reports_from_before_an_abort_are_ignored(kind: Kind) -> None:
    setup = Setup(kind)
    for value in (b"denied", b"large"):
        setup.send(value)
    first = setup.broker.producers[-1]
    assert setup.delivery.abort()
    first.poll(0)
    assert not setup.delivery.has_failed
    setup.send(b"good")
    assert setup.commit() is Outcome.COMMITTED
    assert setup.out() == [b"good"]


@both
@pytest.mark.parametrize(("values", "most"), [([b"x" * (MOST_BYTES // 4)] * 4, 100), ([b""] * 4, 4)])
def test_many_or_large_outputs_make_a_commit_due_early(kind: Kind, values: list[bytes], most: int) -> None:
    setup = Setup(kind, most=most)
    for value in values:
        assert not setup.delivery.is_full
        setup.send(value)
    assert setup.delivery.is_full
    assert setup.commit() is Outcome.COMMITTED
    assert not setup.delivery.is_full


def test_an_output_is_compared_with_the_known_limit_of_its_topic() -> None:
    setup = Setup(limits={"out": 1000})
    assert setup.delivery.fits(output(b"x" * 700))
    assert not setup.delivery.fits(output(b"x" * 1000))
    assert setup.delivery.fits(output(b"x" * 10**6, topic="dead"))


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
    assert setup.commit() is Outcome.FAILED
    setup.broker.answers["produce"] = []
    assert setup.delivery.abort()
    assert not setup.delivery.has_failed
