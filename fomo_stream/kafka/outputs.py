"""Send scored records to the output topic, alerts to their own topic, and others to the dead-letter topic."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from fomo_stream.errors import RecordError, TopicError
from fomo_stream.kafka.delivery.base import Delivery, Output
from fomo_stream.kafka.guard import unexpected_error
from fomo_stream.kafka.observer import Observer
from fomo_stream.logs import Throttle, kv
from fomo_stream.partition.incidents import Notice, without_reasons
from fomo_stream.partition.record import Headers, Pending, Record
from fomo_stream.records.codec import Codec
from fomo_stream.records.result import Result
from fomo_stream.records.wire_format import without_ids
from fomo_stream.settings.service_settings import ServiceSettings

log = logging.getLogger(__name__)

MAY_BE_TIME = (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD)  # the topic may refuse a record for its time

TRUNCATED_FROM = "fomo-truncated-from"  # header of a cut letter: bytes of the original value
SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_TIMESTAMP = "fomo-source-topic", "fomo-source-partition", "fomo-source-timestamp"
ATTEMPTS = "fomo-attempts"  # header: how often a record was sent back
REASON = "fomo-reason"
ADDED = (REASON, "fomo-error", "fomo-exception", SOURCE_TOPIC, SOURCE_PARTITION, "fomo-source-offset", SOURCE_TIMESTAMP)

NO_FEATURES = "the record has no value of any feature; check the names given by --features"


class DeadLetterCut(NamedTuple):
    """The parts of a dead letter that remain after its topic has refused it."""

    max_bytes: int | None  # of its value; None: all
    has_key: bool  # its own key and headers


DEAD_LETTER_CUTS = (*(DeadLetterCut(size, True) for size in (None, 512 << 10, 0)), DeadLetterCut(0, False))


class DeadLetter(NamedTuple):
    reason: str
    message: str
    cause: BaseException | None = None


class Outputs:
    """Send scored records, alerts, summaries of incidents and dead letters through `delivery`.

    partitions: returns the current partition counts by topic; a record keeps its partition if input and output match.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        delivery: Delivery,
        partitions: Callable[[], Mapping[str, int]],
        codec: Codec,
        observer: Observer,
    ) -> None:
        self._settings, self._topics = settings, settings.scored_topics
        self._codec, self._delivery, self._partitions, self._observer = codec, delivery, partitions, observer
        self._throttle = Throttle()

    def send(self, items: Sequence[Pending], results: Sequence[Result | None], notices: Sequence[Notice] = ()) -> None:
        """Send records of one partition with their results, in order.

        notices: in the order of the records that they precede. A record without a result becomes a dead letter, and so
        does a record with a refused output: it has all its outputs, or only the dead letter.
        """
        ahead = deque(notices if self._settings.alerts is not None else ())
        outputs: list[Output] = []
        for item, result in zip(items, results, strict=True):
            while ahead and ahead[0].offset == item.record.offset:
                notice = ahead.popleft()
                outputs += self._notice(notice, item.record.partition, item.fields, item.record.timestamp_or_now)
            produced = self._outputs(item, result)
            if isinstance(produced, DeadLetter):
                self._delivery.send(*outputs)
                outputs.clear()
                self.dead_letter(item.record, *produced)
            else:
                outputs += produced
        self._delivery.send(*outputs)

    def _outputs(self, item: Pending, result: Result | None) -> list[Output] | DeadLetter:
        """Return the outputs of a record, or its dead letter."""
        if result is None:
            return dead_letter_reason(item.error, "no_features", NO_FEATURES)
        outputs = []
        for topic in self._topics:
            if topic == self._settings.out or result["outlier"]:
                output = self._output(item, result, topic)
                if isinstance(output, DeadLetter):
                    return output
                outputs.append(output)
        return outputs

    def _output(self, item: Pending, result: Result, topic: str) -> Output | DeadLetter:
        """Return the output of a record to one topic, or its dead letter."""
        record = item.record
        headers = record.headers and [header for header in without_ids(record.headers) if header[0] != ATTEMPTS]
        partition = self.partition_of(topic, record.partition, record.key)
        output = Output(topic, record.key, None, headers, partition, record.timestamp_or_now, record)
        try:
            output.value = self._codec.encode(item.fields, result, record.value, topic)
            if refusal := self._delivery.refusal(output):  # without its own bytes, it may be shorter
                output.value = self._codec.encode(item.fields, result, None, topic)
                refusal = self._delivery.refusal(output)
        except RecordError as error:
            return DeadLetter(error.reason, str(error), error)
        except (ValueError, TypeError, RecursionError) as error:
            return DeadLetter("not_encodable", f"the scored record cannot be written: {error}", error)
        except Exception as error:
            return DeadLetter("unexpected", str(unexpected_error(record.where(), error)), error)
        refusals, why = self._delivery.refusals.of(topic, record)
        if refusals == 1 and why is not None and why.code() in MAY_BE_TIME:
            output.timestamp = 0
        elif refusals or refusal:
            text = refusal if why is None else why.str()
            return DeadLetter("output_refused", f"topic {topic} refuses it: {text}")
        return output

    def tell(self, number: int, notices: Sequence[Notice], fields: Mapping[str, Any]) -> None:
        """Send notices of a partition without a record to follow. fields: of its last record."""
        for notice in notices:
            self._delivery.send(*self._notice(notice, number, fields, 0))

    def _notice(self, notice: Notice, number: int, fields: Mapping[str, Any], timestamp: int) -> list[Output]:
        """Return the output of a notice; empty if the topic refuses it even without reasons.

        fields: of the record that came. The source, which identifies a refused output, is the first alert in the topic
        of alerts: it is unique among outputs.
        """
        topic = self._settings.alerts or ""
        source = Record(topic, number, notice.first, None, None, None, [])
        refusals, why = self._delivery.refusals.of(topic, source)
        if why is not None and refusals > 1:
            incident = notice.summary["incident"]
            log.warning(kv("incident_sum_refused", topic=topic, incident=incident, reason=why.str()))
            return []
        value = self._codec.summary(notice.summary, fields, topic)
        output = Output(topic, notice.key, value, [], self.partition_of(topic, number, notice.key), timestamp, source)
        if refusals or self._delivery.refusal(output):
            output.value = self._codec.summary(without_reasons(notice.summary), fields, topic)
            output.timestamp = 0
        return [output]

    def dead_letter(self, record: Record, reason: str, message: str, exception: BaseException | None = None) -> None:
        """Send a record that cannot be used to its own topic, unchanged, with the reason in the headers.

        It is cut as far as that topic requires. exception: the cause, if any.
        """
        if reason == "tombstone" and self._settings.tombstones == "skip":
            self._observer.tombstone()
            return
        self._observer.dead_letter(reason)
        if (suppressed := self._throttle.allow(reason)) is not None:
            log.warning(kv("dead_letter", record=record.where(), reason=reason, error=message, suppressed=suppressed))
        topic = self._settings.dead_letters
        refusals, why = self._delivery.refusals.of(topic, record)
        # After the first refusal that may be due to its time, it is sent uncut with another time.
        cut = refusals - 1 if why is not None and why.code() in MAY_BE_TIME else refusals
        if cut >= len(DEAD_LETTER_CUTS):
            what = f"topic {topic} refuses the dead letter of {record.where()}, even without its value and its key"
            raise TopicError(f"{what} ({why.str() if why else 'unknown'})", "check that topic's configuration")
        # A RecordError often wraps another error; its class is more informative.
        name = "" if exception is None else type(exception.__context__ or exception).__name__
        headers = _dead_letter_headers(record, reason, message, name)
        partition = self.partition_of(topic, record.partition, record.key)
        output = Output(topic, record.key, record.value, headers, partition, record.timestamp_or_now, record)
        if refusals:
            output.timestamp = 0
        for max_bytes, has_key in DEAD_LETTER_CUTS[cut:]:
            if max_bytes is not None and record.value is not None and len(record.value) > max_bytes:
                output.value = record.value[:max_bytes]
                output.headers = [*headers, (TRUNCATED_FROM, str(len(record.value)).encode())]
            if not has_key:
                output.key = _key_hash(record.key or record.where().encode())
                output.headers = output.headers[len(own_headers(record)) :]
            if not self._delivery.refusal(output):
                break
        self._delivery.send(output)

    def partition_of(self, topic: str, partition: int, key: bytes | None) -> int:
        """Return the partition to write to: the source's own if the counts match, else -1: by key.

        Records of one partition without a key go to one partition, and so keep their order.
        """
        counts = self._partitions()
        if (count := counts.get(topic, 0)) == counts.get(self._settings.topic, 0):
            return partition
        return partition % count if count and key is None else -1


def dead_letter_reason(error: RecordError | None, reason: str, message: str) -> DeadLetter:
    """Return a dead letter with the reason of the decoding error, if any, else with `reason` and `message`."""
    return DeadLetter(error.reason, str(error), error) if error is not None else DeadLetter(reason, message)


def own_headers(record: Record) -> Headers:
    """Return the headers of a record without those of a dead letter; the number of attempts stays."""
    return [header for header in record.headers if header[0] not in (*ADDED, TRUNCATED_FROM)]


def _key_hash(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).hexdigest().encode()


def _dead_letter_headers(record: Record, reason: str, message: str, exception: str) -> Headers:
    """Return the record's own headers, then new ones, without those of an earlier dead letter."""
    timestamp = "" if record.timestamp is None else str(record.timestamp)
    source = (record.topic, str(record.partition), str(record.offset), timestamp)
    texts = zip(ADDED, (reason, message, exception, *source), strict=True)
    return [*own_headers(record), *((name, text[:1000].encode(errors="replace")) for name, text in texts)]
