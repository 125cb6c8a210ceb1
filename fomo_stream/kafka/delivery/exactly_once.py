"""Delivery by transactions: whoever reads committed records sees all of a commit or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.errors import BrokerError, ConfigError, FencedError, FomoError, NotPermittedError
from fomo_stream.kafka.delivery.delivery import SLICE_S, Call, Commit, Delivery, Outcome
from fomo_stream.logs import kv

log = logging.getLogger(__name__)

ASLEEP_S = 5.0  # a call that took longer, against its own limit, was stopped together with the process
HUNG_S = 4.0  # of waiting for a call that does not end

# Nobody answers, or not yet: the same call may succeed later.
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
NOT_PERMITTED = (
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)


class ExactlyOnce(Delivery):
    """One transaction from commit to commit."""

    def __init__(self, make_producer: Callable[..., Any], limits: Mapping[str, int], most: int = 10_000) -> None:
        self._is_open = False  # a transaction has begun
        self._outage = False  # the broker has left a commit or an abort unanswered
        self._not_before = 0.0  # is a new producer of use
        super().__init__(make_producer, limits, most)

    def start(self, seconds: float) -> None:
        """Fence off an earlier instance of the same name, and undo what it had not committed.

        Raises BrokerError when there is no answer for `seconds`, or the broker refuses; NotPermittedError where this
        user lacks the permission; ConfigError when the settings let a transaction last longer than the broker does.
        """
        try:
            self._producer.init_transactions(seconds)
        except KafkaException as error:
            ids, resource = "the transactional ids GROUP-TOPIC-*", "GROUP-TOPIC- --resource-pattern-type prefixed"
            raise no_transactions(error.args[0], ids, resource) from None
        self._is_fresh = False

    def begin(self) -> None:
        """Open a transaction, unless one is open."""
        if self._is_open:
            return
        try:
            if self._is_fresh:
                self._producer.init_transactions(SLICE_S)
                self._is_fresh = False
            self._producer.begin_transaction()
        except KafkaException as error:
            self._failure = self._failure or error.args[0]
        self._is_open = True

    def _carry_out(self, commit: Commit) -> Callable[[], None]:
        producer = self._producer

        def carry_out() -> None:
            if commit.offsets and not commit.offsets_sent:
                producer.send_offsets_to_transaction(commit.offsets, commit.member, SLICE_S)
            commit.offsets_sent = True
            producer.commit_transaction(SLICE_S)

        return carry_out

    def _outcome_of(self, error: KafkaError, call: Call) -> Outcome:
        self._note(error)
        if error.fatal():
            self._give_up_or_start_over(error)
            return Outcome.FAILED
        if error.retriable() and not error.txn_requires_abort():
            self._outage |= call.seconds < ASLEEP_S
            return Outcome.PENDING
        return Outcome.FAILED

    def _committed(self) -> None:
        super()._committed()
        self._is_open = self._outage = False

    def _outcome_of_waiting(self, call: Call) -> Outcome:
        """A call that ignores its own time limit is left to itself: what it may yet send is fenced by a new producer.

        https://github.com/confluentinc/librdkafka/issues/5456: where the group's coordinator has gone, it may wait for
        it for ever.
        """
        if call.waited < HUNG_S:
            return Outcome.PENDING
        log.warning(kv("producer_replaced", reason="a commit was not answered", seconds=call.seconds))
        self._producer = self._new_producer()
        return Outcome.FAILED

    def _abort(self) -> None:
        if self._is_suspicious and not self._is_fresh:
            self._producer.purge()
            self._producer = self._new_producer()
        began = monotonic()
        try:
            if self._is_fresh:
                if began < self._not_before:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the broker took no transactions just now"))
                self._producer.init_transactions(SLICE_S)  # also undoes what the one before has left open
                self._is_fresh = False
            elif self._is_open:
                self._producer.abort_transaction(SLICE_S)
        except KafkaException as error:
            self._outage |= error.args[0].retriable() and monotonic() - began < ASLEEP_S
            if error.args[0].fatal():
                if self._is_fresh:  # a client that was refused once does not ask again
                    self._producer, self._not_before = self._new_producer(), began + SLICE_S
                else:
                    self._give_up_or_start_over(error.args[0])
            raise
        self._is_open = False

    def _give_up_or_start_over(self, error: KafkaError) -> None:
        """The broker has ended our transactions for good.

        It does so when another instance of this name has come, or when it has not heard of a transaction for long: then
        this process was asleep, and its partitions are with others. But where it was the broker that did not answer, a
        new producer goes on.
        """
        if not self._outage:
            raise FencedError(
                "fenced: the broker takes no more transactions from this instance, as it was silent for longer than "
                "transaction.timeout.ms or another one has the same --instance-id; nothing is lost: start it again "
                f"({error.str()})"
            )
        log.warning(kv("producer_replaced", reason=error.str()))
        self._producer = self._new_producer()

    def close(self) -> None:
        """Abort what is open, so that nobody has to wait until the broker does."""
        if self._call is not None and not self._call.wait(2 * SLICE_S):
            return  # the client would wait for that call
        if self._is_open:
            try:
                self._producer.abort_transaction(2 * SLICE_S)
            except KafkaException as error:
                log.debug(kv("abort_failed", reason=error.args[0].str()))
        self._producer.purge()


def no_transactions(error: KafkaError, ids: str, resource: str) -> FomoError:
    """What to tell people of an `error` of the first call for transactions.

    ids: the transactional ids that need a permission, in words; resource: the same as kafka-acls.sh takes them.
    """
    reason = error.str()
    if error.retriable() or error.code() in NO_ANSWER:
        return BrokerError(
            f"the broker does not answer when asked for transactions ({reason}); nothing is lost: check that all "
            "brokers run, and start again; if it never answers, check that transaction.state.log.replication.factor is "
            "not more than there are brokers"
        )
    if error.code() in NOT_PERMITTED:
        is_cluster = error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        what = "IdempotentWrite on the cluster" if is_cluster else f"Write on {ids}"
        where = "IdempotentWrite --cluster" if is_cluster else f"Write --transactional-id {resource}"
        return NotPermittedError(
            f"not permitted: {what} ({reason}); permit it with kafka-acls.sh --add --allow-principal User:NAME "
            f"--operation {where}"
        )
    if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return ConfigError(
            f"the broker does not let a transaction last for so long ({reason}): lower --kafka.session.timeout.ms, or "
            "--kafka.transaction.timeout.ms where that is given, or raise transaction.max.timeout.ms at the broker"
        )
    return BrokerError(f"the broker takes no transactions ({reason}): if it has none, add --delivery at-least-once")
