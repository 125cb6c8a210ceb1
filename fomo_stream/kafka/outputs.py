"""Where records go: scored ones to the output topic, others to the dead-letter topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError

from fomo_stream.errors import RecordError
from fomo_stream.kafka.dead_letters import DeadLetters, without_attempts
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.delivery.output import Output
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.partition import Pending
from fomo_stream.kafka.record import Record
from fomo_stream.records.json_codec import append_result, encode
from fomo_stream.records.result import Result
from fomo_stream.settings.service import ServiceSettings

NO_FEATURES = "the record has no value of any feature; check the names given by --features"


class Letter(NamedTuple):
    """Why a record becomes a dead letter."""

    reason: str
    message: str
    cause: BaseException | None = None


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

    def send(self, items: Sequence[Pending], results: Sequence[Result | None]) -> None:
        """Send records of one partition with their results, in order.

        A record without a result becomes a dead letter, and so does one whose output is refused.
        """
        number = items[0].record.partition
        with_key, without_key = (self.partition_of(self._settings.out, number, key) for key in (b"", None))
        outputs: list[Output] = []
        for item, result in zip(items, results, strict=True):
            output = self._output(item, result, without_key if item.record.key is None else with_key)
            if isinstance(output, Output):
                outputs.append(output)
            else:
                self._delivery.send(*outputs)
                outputs.clear()
                self.dead_letter(item.record, *output)
        self._delivery.send(*outputs)

    def _output(self, item: Pending, result: Result | None, partition: int) -> Output | Letter:
        """The output of a record, or why it becomes a dead letter."""
        if result is None:
            return dead_letter_reason(item.error, "no_features", NO_FEATURES)
        record, topic = item.record, self._settings.out
        written = self._settings.result_field, self._settings.scores_only
        headers = without_attempts(record.headers)
        output = Output(topic, record.key, None, headers, partition, record.timestamp_or_now, record)
        fits = False
        try:
            if item.is_strict and record.value is not None:
                output.value = append_result(record.value, item.fields, result, *written)
                fits = self._delivery.fits(output)
            if not fits:  # without white space it may fit
                output.value = encode(item.fields, result, *written)
                fits = self._delivery.fits(output)
        except (ValueError, TypeError, RecursionError) as error:
            return Letter("not_encodable", f"the scored record is no JSON: {error}", error)
        refusals, why = self._delivery.refused(topic, record)
        if refusals == 1 and why is not None and why.code() == KafkaError.INVALID_TIMESTAMP:
            output.timestamp = 0
        elif refusals or not fits:
            text = why.str() if why is not None else f"it takes no records of {output.size()} bytes"
            return Letter("output_refused", f"topic {topic} refuses it: {text}")
        return output

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


def dead_letter_reason(error: RecordError | None, reason: str, message: str) -> Letter:
    """Reason, message and error of a dead letter: those of its decoding error, if any, else `reason` and `message`."""
    return Letter(error.reason, str(error), error) if error is not None else Letter(reason, message)
