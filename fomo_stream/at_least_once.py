"""Delivery for brokers without transactions: offsets are committed once the broker has everything else."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.delivery import SLICE_S, Call, Commit, Delivery, Outcome

# The group has given this member's partitions to others, or is about to.
_NO_MEMBER = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
)


class AtLeastOnce(Delivery):
    """Offsets are committed when everything sent before is acknowledged; after a crash some of it is sent again."""

    def begin(self) -> None:
        """There is nothing to begin."""

    def _carry_out(self, commit: Commit) -> Callable[[], None]:
        producer = self._producer

        def carry_out() -> None:
            if self._failure is None and producer.flush(SLICE_S) and self._failure is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "outputs wait to be acknowledged"))

        return carry_out

    def _finish(self, commit: Commit) -> None:
        # Not in the call: a thread that commits may have to wait for one that polls, as long as that goes on polling.
        for partition in commit.consumer.commit(offsets=commit.offsets, asynchronous=False) if commit.offsets else ():
            if partition.error is not None:
                self._note(partition.error)

    def _outcome_of(self, error: KafkaError, call: Call) -> Outcome:
        self._note(error)
        return Outcome.FAILED if error.code() in _NO_MEMBER else Outcome.PENDING

    def _abort(self) -> None:
        self._producer.purge()
        self._producer.flush(SLICE_S)
        self._producer = self._new_producer()  # the old one may be at odds with the broker about what came last

    def close(self) -> None:
        """Wait a little for what is under way."""
        self._producer.flush(SLICE_S)
        self._producer.purge()
        self._producer.flush(SLICE_S)
