"""Delivery for brokers without transactions: offsets are committed after the broker has everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from fomo_stream.kafka.broker.cluster import TopicLimits
from fomo_stream.kafka.delivery.base import CommitOutcome, Delivery
from fomo_stream.kafka.delivery.transactions import NOT_A_MEMBER, SLICE_S, BlockingCall, Commit

RETRY_S = 0.25  # between two tries to commit the same offsets


class AtLeastOnce(Delivery):
    """Commit offsets after all outputs are acknowledged. After a crash or an abort, some outputs are sent again."""

    def __init__(self, make_producer: Callable[..., Any], limits: Mapping[str, TopicLimits], **options: Any) -> None:
        self._answers: list[tuple[KafkaError | None, Sequence[TopicPartition]]] = []  # to offset commits
        self._not_before = 0.0  # time of the next try
        super().__init__(make_producer, limits, **options)

    def begin(self) -> None:
        """Do nothing: there are no transactions to open."""

    def offsets_committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        """Take the client's callback: the broker has answered, or the client has given up."""
        self._answers.append((error, partitions))

    def _step(self, commit: Commit, seconds: float) -> CommitOutcome:
        """Wait until all outputs are acknowledged, then commit the offsets; after an error, begin again."""
        if (early := self._not_before - monotonic()) > 0:
            sleep(min(early, seconds))
            return CommitOutcome.PENDING
        try:
            if not commit.offsets_sent:
                self._call = self._call or BlockingCall(partial(self._flush, self._producer))
                if not self._call.wait(seconds):
                    return CommitOutcome.PENDING
                call, self._call = self._call, None
                call.result()
                if self._failure is not None or not commit.offsets:
                    return CommitOutcome.COMMITTED if self._failure is None else CommitOutcome.FAILED
            return self._commit_offsets(commit, seconds)
        except KafkaException as error:
            commit.offsets_sent = False
            self._not_before = monotonic() + RETRY_S
            reason = error.args[0]
        if reason.code() in NOT_A_MEMBER:
            return self._not_a_member(reason)
        self._report(reason)
        was_deleted = reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        return CommitOutcome.FAILED if was_deleted else CommitOutcome.PENDING

    def _flush(self, producer: Any) -> None:
        if self._failure is None and producer.flush(SLICE_S) and self._failure is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "outputs are not acknowledged yet"))

    def _commit_offsets(self, commit: Commit, seconds: float) -> CommitOutcome:
        """Commit in the thread that owns the consumer: another thread would have to wait while that one polls."""
        if seconds:  # the consumer is not polled during this wait, so no callback is called
            # `commit` has no time limit, `committed` has: so first make sure that the broker answers.
            commit.consumer.committed(commit.offsets, timeout=SLICE_S)
            self._answers = [(None, commit.consumer.commit(offsets=commit.offsets, asynchronous=False))]
        elif not commit.offsets_sent:
            self._answers = []
            commit.offsets_sent = True
            commit.consumer.commit(offsets=commit.offsets, asynchronous=True)
        while self._answers:
            error, partitions = self._answers.pop()
            if error is None and _places(partitions) != _places(commit.offsets):
                continue  # the answer to an earlier commit that was abandoned
            if error is not None:
                raise KafkaException(error)
            for partition in partitions:
                if partition.error is not None:
                    self._report(partition.error)
            return CommitOutcome.COMMITTED
        return CommitOutcome.PENDING

    def _undo(self) -> None:
        self._producer.purge()
        self._producer.flush(SLICE_S)
        self._use_new_producer()  # after a purge, the broker may refuse its sequence numbers

    def close(self) -> None:
        """Wait a moment for outputs that are on their way."""
        self._producer.flush(SLICE_S)
        self._producer.purge()
        self._producer.flush(SLICE_S)


def _places(partitions: Sequence[TopicPartition]) -> set[tuple[str, int, int]]:
    return {(partition.topic, partition.partition, partition.offset) for partition in partitions}
