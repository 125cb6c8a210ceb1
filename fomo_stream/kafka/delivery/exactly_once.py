"""Delivery by transactions: a consumer that reads committed records sees all of a commit or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.errors import FencedError
from fomo_stream.kafka.delivery.base import Delivery, Outcome
from fomo_stream.kafka.delivery.call import SLICE_S, Call
from fomo_stream.kafka.delivery.transactions import Commit, Transactions
from fomo_stream.logs import kv

log = logging.getLogger(__name__)

ASLEEP_S = 5.0  # a call that took longer than its own limit: the whole process was stopped meanwhile
HUNG_S = 4.0  # to wait for a call that does not end


class ExactlyOnce(Delivery):
    """One transaction from commit to commit."""

    _transactions: Transactions  # of the producer in use

    def __init__(self, make_producer: Callable[..., Any], limits: Mapping[str, int], most: int = 10_000) -> None:
        self._is_open = False  # a transaction was opened, even if that failed
        self._outage = False  # the broker has left a commit or an abort unanswered
        self._not_before = 0.0  # time at which a new producer may start
        super().__init__(make_producer, limits, most)

    def start(self, seconds: float) -> None:
        """Fence off an earlier instance of the same name, and undo its open transaction.

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

    def _carry_out(self, commit: Commit) -> Callable[[], None]:
        return partial(self._transactions.commit, commit, SLICE_S, SLICE_S)

    def _outcome_of(self, error: KafkaError, call: Call) -> Outcome:
        self._report(error)
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
        """A call that ignores its own time limit is left behind: a new producer fences off anything it may still send.

        https://github.com/confluentinc/librdkafka/issues/5456: when the group's coordinator is gone, the call may wait
        for ever.
        """
        if call.waited < HUNG_S:
            return Outcome.PENDING
        log.warning(kv("producer_replaced", reason="a commit was not answered", seconds=call.seconds))
        self._producer = self._new_producer()
        return Outcome.FAILED

    def _abort(self) -> None:
        if self._refusals.is_searching and self._transactions.is_started:
            self._producer.purge()
            self._producer = self._new_producer()
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
                if is_new:  # a client that was refused once does not ask again
                    self._producer, self._not_before = self._new_producer(), began + SLICE_S
                else:
                    self._give_up_or_start_over(error.args[0])
            raise
        self._is_open = False

    def _new_producer(self) -> Any:
        producer = super()._new_producer()
        self._transactions = Transactions(producer)
        return producer

    def _give_up_or_start_over(self, error: KafkaError) -> None:
        """The broker accepts no more transactions from this producer.

        That happens when another instance has the same name, or when a transaction was open for too long: then this
        process was stopped, and other instances have its partitions. But if the broker was the one that did not answer,
        a new producer continues.
        """
        if not self._outage:
            raise FencedError(
                "fenced: the broker takes no more transactions from this instance, as it was silent for longer than "
                "transaction.timeout.ms or another one has the same --instance-id; nothing is lost: restart it "
                f"({error.str()})"
            )
        log.warning(kv("producer_replaced", reason=error.str()))
        self._producer = self._new_producer()

    def close(self) -> None:
        """Abort the open transaction, so that no reader has to wait until the broker does it."""
        if self._call is not None and not self._call.wait(2 * SLICE_S):
            return  # the client would wait for that call
        if self._is_open:
            try:
                self._producer.abort_transaction(2 * SLICE_S)
            except KafkaException as error:
                log.debug(kv("abort_failed", reason=error.args[0].str()))
        self._producer.purge()
