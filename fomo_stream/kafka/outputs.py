"""Where records go: scored ones to the output topic, others to the dead-letter topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError

from fomo_stream.kafka.dead_letters import DeadLetters
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.delivery.output import Output
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.record import Record
from fomo_stream.records.json_codec import encode
from fomo_stream.settings.service import ServiceSettings


class Outputs:
    """Sends scored records and dead letters through `delivery`.

    partitions: returns the current partition counts by topic; a record keeps its partition if input and output match.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        delivery: Delivery,
        partitions: Callable[[], Mapping[str, int]],
        observer: Observer,
    ) -> None:
        self._settings = settings
        self._delivery = delivery
        self._partitions = partitions
        self._observer = observer
        self._dead_letters = DeadLetters(settings.dead_letters, delivery, self.partition_of)

    def scored(self, record: Record, fields: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Send a record with its result; if that is not possible, send a dead letter instead."""
        out = self._settings.out
        try:
            value = encode(fields, result, self._settings.result_field, self._settings.scores_only)
        except (ValueError, TypeError, RecursionError) as error:
            self.dead_letter(record, "not_encodable", f"the scored record is no JSON: {error}", error)
            return
        partition = self.partition_of(out, record.partition, record.key)
        output = Output(out, record.key, value, record.headers, partition, record.timestamp_or_now, record)
        refusals, why = self._delivery.refused(out, record)
        if refusals == 1 and why is not None and why.code() == KafkaError.INVALID_TIMESTAMP:
            output.timestamp = 0
        elif refusals or not self._delivery.fits(output):
            reason = why.str() if why is not None else f"it takes no records of {output.size()} bytes"
            self.dead_letter(record, "output_refused", f"topic {out} refuses it: {reason}")
            return
        self._delivery.send(output)

    def dead_letter(self, record: Record, reason: str, message: str, exception: BaseException | None = None) -> None:
        """Send a record that cannot be used, unchanged, with the reason."""
        self._observer.dead_letter(reason)
        self._dead_letters.send(record, reason, message, exception)

    def partition_of(self, topic: str, partition: int, key: bytes | None) -> int:
        """The partition to write to: the source's own if the counts match, else -1: by key.

        Records without a key of one partition go to one partition, and so keep their order.
        """
        counts = self._partitions()
        count = counts.get(topic, 0)
        if count == counts.get(self._settings.topic, 0):
            return partition
        return partition % count if count and key is None else -1
