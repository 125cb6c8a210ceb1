"""Dead letters: records that cannot be used go to a topic of their own, unchanged, with the reason in the headers."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError

from fomo_stream.errors import TopicError
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.delivery.output import Output, PartitionOf
from fomo_stream.logs import Throttle, kv
from fomo_stream.partition.record import Headers, Record

log = logging.getLogger(__name__)

# Bytes of the value that remain in a dead letter too large for its topic; None: all.
CUTS = (None, 512 << 10, 0)

TRUNCATED_FROM = "fomo-truncated-from"  # header of a cut letter: bytes of the original value
SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_TIMESTAMP = "fomo-source-topic", "fomo-source-partition", "fomo-source-timestamp"
ATTEMPTS = "fomo-attempts"  # header of a record that was sent back, and of its next dead letter: how often
REASON = "fomo-reason"
ADDED = (REASON, "fomo-error", "fomo-exception", SOURCE_TOPIC, SOURCE_PARTITION, "fomo-source-offset", SOURCE_TIMESTAMP)


class DeadLetters:
    """Sends records to the dead-letter topic. partition_of: chooses the partition."""

    def __init__(self, topic: str, delivery: Delivery, partition_of: PartitionOf) -> None:
        self._topic = topic
        self._delivery = delivery
        self._partition_of = partition_of
        self._throttle = Throttle()

    def send(self, record: Record, reason: str, message: str, exception: BaseException | None = None) -> None:
        """Send the original bytes, cut if the topic does not accept so many. exception: the cause, if any."""
        suppressed = self._throttle.allow(reason)
        if suppressed is not None:
            log.warning(kv("dead_letter", record=record.where(), reason=reason, error=message, suppressed=suppressed))
        refusals, why = self._delivery.refused(self._topic, record)
        if refusals >= len(CUTS):
            raise TopicError(
                f"topic {self._topic} refuses the dead letter of {record.where()}, even without its value "
                f"({why.str() if why else 'unknown'}); check that topic's configuration"
            )
        # A RecordError often wraps another error; its class is more informative.
        name = "" if exception is None else type(exception.__context__ or exception).__name__
        headers = _headers(record, reason, message, name)
        output = self._output(record, headers)
        for cut in CUTS[refusals:]:
            if cut is not None and record.value is not None and len(record.value) > cut:
                output.value = record.value[:cut]
                truncated_from = (TRUNCATED_FROM, str(len(record.value)).encode())
                output.headers = [*(h for h in output.headers if h[0] != truncated_from[0]), truncated_from]
            if self._delivery.fits(output):
                break
        if why is not None and why.code() == KafkaError.INVALID_TIMESTAMP:
            output.timestamp = 0
        self._delivery.send(output)

    def _output(self, record: Record, headers: Headers) -> Output:
        partition = self._partition_of(self._topic, record.partition, record.key)
        return Output(self._topic, record.key, record.value, headers, partition, record.timestamp_or_now, record)


def without_attempts(headers: Headers) -> Headers:
    """The headers of a record that was scored: how often it was sent back no longer matters."""
    return [header for header in headers if header[0] != ATTEMPTS] if headers else headers


def own_headers(record: Record) -> Headers:
    """The headers of a record without those that are added to a dead letter; the number of attempts stays."""
    return [header for header in record.headers if header[0] not in (*ADDED, TRUNCATED_FROM)]


def _headers(record: Record, reason: str, message: str, exception: str = "") -> Headers:
    """The record's own headers, then new ones; headers of an earlier dead letter are removed."""
    timestamp = "" if record.timestamp is None else str(record.timestamp)
    source = (record.topic, str(record.partition), str(record.offset), timestamp)
    texts = zip(ADDED, (reason, message, exception, *source), strict=True)
    return [*own_headers(record), *((name, text[:1000].encode(errors="replace")) for name, text in texts)]
