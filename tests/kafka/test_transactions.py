"""An instance and its transactions: starting, being fenced, outages, and ending."""

from __future__ import annotations

import time
from functools import partial
from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError
from delivery_setup import Setup, output
from memory_broker import MemoryBroker
from memory_producer import abortable, fatal, retriable

from fomo_stream.errors import BrokerError, ConfigError, FencedError, FomoError, NotPermittedError
from fomo_stream.kafka.delivery.base import Outcome
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce


def test_a_fenced_instance_ends_and_says_what_to_do() -> None:
    setup = Setup()
    setup.send(b"1")
    other = ExactlyOnce(partial(setup.broker.producer, "instance"), {})
    other.start(1.0)
    with pytest.raises(FencedError, match=r"fenced: .* --instance-id\. Nothing is lost; restart this instance"):
        setup.commit()
    assert (setup.out(), setup.broker.offsets) == ([], {})
    other.send(output(b"2"))
    assert other.commit([], *setup.as_member) is Outcome.COMMITTED
    assert setup.out() == [b"2"]


@pytest.mark.parametrize("at", ["commit", "abort"])
def test_after_an_outage_that_ended_its_transactions_an_instance_continues(at: str) -> None:
    setup = Setup()
    setup.send(b"1")
    setup.broker.is_down = True
    setup.stay_pending()
    setup.broker.expire("instance")
    setup.broker.is_down = False
    assert setup.proceed() is Outcome.FAILED
    if at == "abort":
        setup.broker.answers["init_transactions"] = [retriable()]
        assert not setup.delivery.abort()
    assert setup.delivery.abort()
    setup.send(b"2")
    assert setup.commit(2) is Outcome.COMMITTED
    assert (setup.out(), setup.broker.offsets) == ([b"2"], {("t", 0): 2})
    setup.send(b"3")
    setup.broker.expire("instance")  # and there was no outage since
    with pytest.raises(FencedError, match="fenced"):
        setup.commit(3)


def test_a_member_that_has_lost_its_partitions_commits_nothing() -> None:
    setup = Setup()
    setup.broker.generations[setup.member.name] = setup.member.generation + 1
    setup.send(b"1")
    assert setup.commit() is Outcome.REFUSED
    assert setup.delivery.abort()
    assert (setup.out(), setup.broker.offsets) == ([], {})


def refusal_of_start(error: KafkaError) -> FomoError:
    broker = MemoryBroker()
    broker.answers["init_transactions"] = [error]
    delivery = ExactlyOnce(partial(broker.producer, "instance"), {})
    with pytest.raises(FomoError) as caught:
        delivery.start(1.0)
    return caught.value


@pytest.mark.parametrize("code", [KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION])
def test_a_broker_without_transactions_is_named_at_the_start(code: int) -> None:
    refusal = refusal_of_start(KafkaError(code, "needs 0.11", fatal=True))
    assert isinstance(refusal, BrokerError)
    assert (
        "takes no transactions (needs 0.11); if the broker does not support transactions, use --delivery at-least-once"
        in str(refusal)
    )


@pytest.mark.parametrize(
    "error",
    [
        retriable(),
        retriable(KafkaError._STATE),  # whatever it is, the client says that it may pass
        KafkaError(KafkaError._TRANSPORT),
        KafkaError(KafkaError._ALL_BROKERS_DOWN),
        KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE),
        KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        KafkaError(KafkaError.NOT_COORDINATOR),
        KafkaError(KafkaError.REQUEST_TIMED_OUT),
    ],
    ids=KafkaError.name,
)
def test_a_start_without_an_answer_says_that_nothing_is_lost(error: KafkaError) -> None:
    refusal = refusal_of_start(error)
    assert type(refusal) is BrokerError
    assert "the broker does not answer" in str(refusal)
    assert "nothing is lost" in str(refusal)
    assert "restart the instance" in str(refusal)
    assert "at-least-once" not in str(refusal)


@pytest.mark.parametrize(
    ("code", "permission"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Write on the transactional ids"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "IdempotentWrite on the cluster"),
    ],
)
def test_a_start_without_permission_names_it(code: int, permission: str) -> None:
    refusal = refusal_of_start(KafkaError(code, fatal=True))
    assert isinstance(refusal, NotPermittedError)
    assert f"not permitted: {permission}" in str(refusal)
    assert "at-least-once" not in str(refusal)


def test_a_transaction_timeout_above_the_brokers_limit_is_named() -> None:
    refusal = refusal_of_start(KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT, fatal=True))
    assert isinstance(refusal, ConfigError)
    assert "lower --kafka.session.timeout.ms" in str(refusal)
    assert "at-least-once" not in str(refusal)


def test_closing_undoes_uncommitted_outputs() -> None:
    setup = Setup()
    setup.send(b"1")
    assert setup.commit() is Outcome.COMMITTED
    setup.send(b"2")
    setup.delivery.close()
    assert setup.out() == [b"1"]
    setup.broker.producers[-1].begin_transaction()  # it has no other


def test_a_broker_that_was_away_during_an_abort_does_not_end_the_instance() -> None:
    setup = Setup()
    setup.send(b"1")
    setup.broker.answers["send_offsets_to_transaction"] = [abortable()]
    assert setup.commit() is Outcome.FAILED
    setup.broker.answers["abort_transaction"] = [retriable(), retriable(), fatal()]
    assert [setup.delivery.abort() for _ in range(2)] == [False, False]
    while not setup.delivery.abort():
        pass
    setup.send(b"2")
    assert setup.commit() is Outcome.COMMITTED
    assert setup.out() == [b"2"]


def test_a_new_producer_with_a_fatal_error_is_replaced() -> None:
    setup = Setup()
    setup.send(b"1")
    setup.broker.answers["commit_transaction"] = [retriable(), fatal()]
    assert setup.commit() is Outcome.FAILED
    setup.broker.answers["init_transactions"] = [fatal()]
    before = len(setup.broker.producers)
    assert not setup.delivery.abort()
    assert not setup.delivery.abort()  # not at once
    assert len(setup.broker.producers) == before + 1
    with patch("fomo_stream.kafka.delivery.exactly_once.monotonic", lambda: time.monotonic() + 2):
        assert setup.delivery.abort()
    setup.send(b"2")
    assert setup.commit() is Outcome.COMMITTED
