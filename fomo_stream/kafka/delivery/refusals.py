"""Finds the output that the broker refuses permanently.

A broker accepts or rejects a whole batch. After a refusal each output is sent in its own batch, until a commit
succeeds; the next refusal then identifies the output.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.delivery.output import Output
from fomo_stream.kafka.record import Record

# The broker will never accept these bytes. After any other error the same output may succeed later.
PERMANENT = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
)


class Refusals:
    """The outputs that were refused since the last commit, and how the next producer has to send."""

    def __init__(self) -> None:
        self._by_source: dict[tuple[str, str], tuple[int, KafkaError]] = {}  # by topic and place of the source
        self.is_searching = False  # a batch was refused; searching for the output
        self.sends_singly = False  # the producer in use sends each output in a batch of its own
        self.has_found = False  # a refused output was identified since the last commit or abort

    def producer_options(self) -> dict[str, Any]:
        """Settings for a new producer, which is in use from now on."""
        self.sends_singly = self.is_searching
        return {"batch.num.messages": 1} if self.sends_singly else {}

    def of(self, topic: str, source: Record) -> tuple[int, KafkaError | None]:
        """How often `topic` has refused an output about this record since the last commit, and the last reason."""
        return self._by_source.get((topic, source.where()), (0, None)) if self._by_source else (0, None)

    def add(self, output: Output | None, error: KafkaError) -> None:
        """A batch with this output failed; None: of a batch with several outputs, it is not known which.

        Raises BrokerError if the output is refused permanently and has no source record: only a person can repair that.
        """
        if error.code() not in PERMANENT:
            return
        self.is_searching = True
        if not self.sends_singly or output is None:
            return
        if output.source is None:
            raise BrokerError(
                f"topic {output.topic} refuses a record ({error.str()}); check that topic's configuration"
            )
        self.has_found = True
        self._by_source[output.topic, output.source.where()] = (self.of(output.topic, output.source)[0] + 1, error)

    def committed(self) -> bool:
        """A commit succeeded. Returns whether the search is over, and a producer that sends batches is needed."""
        self._by_source.clear()
        if self.sends_singly:
            self.is_searching = False
        return self.sends_singly
