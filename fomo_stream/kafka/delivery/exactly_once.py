"""Delivery in transactions: a consumer that reads committed records sees all of a commit or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.errors import FencedError
from fomo_stream.kafka.broker.cluster import TopicLimits
from fomo_stream.kafka.delivery.base import CommitOutcome, Delivery
from fomo_stream.kafka.delivery.transactions import NOT_A_MEMBER, SLICE_S, BlockingCall, Commit, Transactions
from fomo_stream.logs import kv

log = logging.getLogger(__name__)

ASLEEP_S = 5.0  # a call that lasted longer means that this process was suspended, not that the broker failed
HUNG_S = 4.0  # the wait for a call that does not end
MARKERS = 0.25  # time for the markers of a commit after its answer, in times of the commit


class ExactlyOnce(Delivery):
    """Put everything between two commits into one transaction.

    The producer is new, then ready (`is_started`), then open (`_is_open`) from the first output to the end of a commit
    or an abort. A new producer replaces it when a commit hangs, when an output is refused, and when the broker has
    ended its transaction in an outage. The abort that follows starts the new one. With the same transactional id, that
    also aborts the transaction that the old one left open.
    """

    _transactions: Transactions  # of the producer in use

    def __init__(self, make_producer: Callable[..., Any], limits: Mapping[str, TopicLimits], **options: Any) -> None:
        self._is_open = False  # a transaction was opened, even if that failed
        self._outage = False  # the broker has left a commit or an abort unanswered
        self._not_before = 0.0  # time at which a new producer may start
        super().__init__(make_producer, limits, **options)

    def start(self, seconds: float) -> None:
        """Fence off an earlier instance of the same transactional id, and abort its open transaction.

        Raises the errors of `Transactions.start_or_explain`.
        """
        ids, resource = "the transactional ids GROUP-TOPIC-*", "GROUP-TOPIC- --resource-pattern-type prefixed"
        self._transactions.start_or_explain(seconds, ids, resource)

    def begin(self) -> None:
        """Open a transaction, unless one is open."""
        if self._is_open:
            return
        try:
            self._transactions.begin(SLICE_S)
        except KafkaException as error:
            self._failure = self._failure or error.args[0]
        self._is_open = True

    def _step(self, commit: Commit, seconds: float) -> CommitOutcome:
        call = self._call = self._call or BlockingCall(partial(self._transactions.commit, commit, SLICE_S, SLICE_S))
        if not call.wait(seconds):
            if call.waited < HUNG_S:
                return CommitOutcome.PENDING
            # If the group's coordinator is gone, the call in librdkafka may never end:
            # https://github.com/confluentinc/librdkafka/issues/5456. Therefore a new producer takes over. It fences off
            # the old one, which then cannot commit any more.
            log.warning(kv("producer_replaced", reason="a commit was not answered", seconds=call.seconds))
            self._use_new_producer()
            return CommitOutcome.FAILED
        try:
            call.result()
        except KafkaException as error:
            self._call = None
            return self._outcome_of(error.args[0], call)
        # The broker now writes markers, which let readers go on. It would refuse a transaction that begins before they
        # are written, and librdkafka repeats that request only after 20 ms.
        if (early := call.ended_at + MARKERS * call.took - monotonic()) > 0:
            sleep(min(early, seconds))
            if seconds < early:
                return CommitOutcome.PENDING
        self._call = None
        if self._failure is not None:
            return CommitOutcome.FAILED
        self._is_open = self._outage = False
        return CommitOutcome.COMMITTED

    def _outcome_of(self, error: KafkaError, call: BlockingCall) -> CommitOutcome:
        """Return the outcome of a commit with this error. Raises FencedError when the instance has to end."""
        if error.code() in NOT_A_MEMBER and not error.fatal():
            return self._not_a_member(error)
        self._report(error)
        if error.fatal():
            self._give_up_or_start_over(error)
        elif error.retriable() and not error.txn_requires_abort():
            self._outage |= call.seconds < ASLEEP_S
            return CommitOutcome.PENDING
        return CommitOutcome.FAILED

    def _undo(self) -> None:
        if (self.refusals.is_searching or self.refusals.has_found) and self._transactions.is_started:
            self._producer.purge()
            self._use_new_producer()
        began = monotonic()
        is_new = not self._transactions.is_started
        try:
            if is_new and began < self._not_before:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the broker took no transactions just now"))
            if is_new or self._is_open:
                self._transactions.abort(SLICE_S)
        except KafkaException as error:
            self._outage |= error.args[0].retriable() and monotonic() - began < ASLEEP_S
            if error.args[0].fatal():
                if is_new:  # a client that was refused does not try again by itself
                    self._use_new_producer()
                    self._not_before = began + SLICE_S
                else:
                    self._give_up_or_start_over(error.args[0])
            raise
        self._is_open = False

    def _use_new_producer(self) -> None:
        super()._use_new_producer()
        self._transactions = Transactions(self._producer)

    def _give_up_or_start_over(self, error: KafkaError) -> None:
        """Handle a fatal error: the broker refuses further transactions of this producer.

        Either another instance has the same --instance-id, or a transaction was open for too long: then this process
        was suspended, and other instances have its partitions. But if the broker did not answer before, a new producer
        continues. Raises FencedError.
        """
        if not self._outage:
            raise FencedError(
                "fenced: the broker accepts no more transactions from this instance. It was silent longer than "
                "transaction.timeout.ms, or another instance has the same --instance-id. Nothing is lost; restart this "
                f"instance ({error.str()})"
            )
        log.warning(kv("producer_replaced", reason=error.str()))
        self._use_new_producer()

    def close(self) -> None:
        """Abort the open transaction, so that no reader has to wait until the broker does it."""
        if self._call is not None and not self._call.wait(2 * SLICE_S):
            return  # closing would block until that call ends
        if self._is_open:
            try:
                self._producer.abort_transaction(2 * SLICE_S)
            except KafkaException as error:
                log.debug(kv("abort_failed", reason=error.args[0].str()))
        self._producer.purge()
