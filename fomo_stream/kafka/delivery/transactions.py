"""Kafka transactions of one producer (start, begin, commit with offsets, abort), and calls that may block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.kafka.broker.clients import NOT_PERMITTED, broker_error, wait_until_connected
from fomo_stream.logs import make_thread

# The broker did not answer, or not yet: the same call may succeed later.
NO_ANSWER = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.CONCURRENT_TRANSACTIONS,
)
# The broker does not accept the membership of a commit: the group rebalances, or has removed this member.
NOT_A_MEMBER = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
)

SLICE_S = 1.0  # the longest time that a call may block, as the main loop must go on
# A start waits longer than the brokers need to exclude one that hangs (broker.session.timeout.ms, by default 9 s).
# Until then, a hanging broker with a copy of the transaction log delays every write to that log.
START_S = 15.0


class BlockingCall:
    """Run a function that may block in its own thread, so that the caller does not hang if it never ends."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._done = threading.Event()
        self._error: Exception | None = None
        self._began = self._checked_at = self.ended_at = monotonic()
        self.waited = 0.0  # seconds, without the time during which this process was suspended
        make_thread(self._run, "fomo-commit", function).start()

    def _run(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            self._error = error
        self.ended_at = monotonic()
        self._done.set()

    @property
    def seconds(self) -> float:
        return monotonic() - self._began

    @property
    def took(self) -> float:
        """Return the seconds that the call has taken; it has ended."""
        return self.ended_at - self._began

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`, and return whether the call has ended."""
        done, now = self._done.wait(seconds), monotonic()
        self.waited, self._checked_at = self.waited + min(now - self._checked_at, 2 * SLICE_S), now
        return done

    def result(self) -> None:
        """Raise the error of the function, if it raised one."""
        if self._error is not None:
            raise self._error


@dataclass
class Commit:
    """Offsets to commit for the group of `consumer`, which is a member."""

    offsets: list[TopicPartition]
    consumer: Any
    member: Any  # the membership that owns the partitions: after a rebalance the broker refuses it
    offsets_sent: bool = False  # as part of the transaction; without transactions: and not answered yet


class Transactions:
    """The transactions of one producer, one after another. Calls raise KafkaException."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.is_started = False

    def start(self, seconds: float) -> None:
        """Fence off earlier producers of the same transactional id, and abort the transaction that they left open."""
        self._producer.init_transactions(seconds)
        self.is_started = True

    def start_or_explain(self, seconds: float, ids: str, resource: str) -> None:
        """Like `start`, but raises errors that tell the user what to do.

        ids: the transactional ids, for the message; resource: the same ids as arguments of kafka-acls.sh.
        Raises BrokerError if there is no answer for `seconds`, or the broker refuses; NotPermittedError if this user
        lacks the permission; ConfigError if a transaction may last longer than the broker allows.
        """
        try:
            wait_until_connected(self._producer, seconds)
            self.start(seconds)
        except KafkaException as error:
            raise _no_transactions(error.args[0], ids, resource) from None

    def begin(self, seconds: float) -> None:
        """Open a transaction; first start, if that has not been done."""
        if not self.is_started:
            self.start(seconds)
        self._producer.begin_transaction()

    def commit(self, commit: Commit, offsets_s: float, commit_s: float) -> None:
        """Commit the produced records together with the offsets.

        offsets_s, commit_s: the longest wait for each answer. After a retriable error, call it again with the same
        `commit`: it continues where it stopped.
        """
        if commit.offsets and not commit.offsets_sent:
            self._producer.send_offsets_to_transaction(commit.offsets, commit.member, offsets_s)
        commit.offsets_sent = True
        self._producer.commit_transaction(commit_s)

    def abort(self, seconds: float) -> None:
        """Abort the open transaction of this producer or, if it has not started, of the one before."""
        if self.is_started:
            self._producer.abort_transaction(seconds)
        else:
            self.start(seconds)


def _no_transactions(error: KafkaError, ids: str, resource: str) -> FomoError:
    if error.retriable() or error.code() in NO_ANSWER:
        return broker_error(
            error,
            "the broker does not answer when asked for transactions",
            "nothing is lost; check that all brokers run, and restart the instance; if the broker never answers, check "
            "that transaction.state.log.replication.factor is not more than there are brokers",
        )
    if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return ConfigError(
            f"the broker does not allow a transaction to last that long ({error.str()})",
            "lower --kafka.session.timeout.ms, or --kafka.transaction.timeout.ms where that is given, or raise "
            "transaction.max.timeout.ms at the broker",
        )
    if error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
        ids, operation, where = "the cluster", "IdempotentWrite", "--cluster"
    else:
        operation, where = "Write", f"--transactional-id {resource}"
    permit = f"permit it with kafka-acls.sh --add --allow-principal User:NAME --operation {operation} {where}"
    if error.code() in NOT_PERMITTED:
        return broker_error(error, f"{operation} on {ids}", permit=permit)
    remedy = "if the broker does not support transactions, use --delivery at-least-once"
    return broker_error(error, "the broker takes no transactions", remedy)
