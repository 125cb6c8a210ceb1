"""Dead letters: what cannot be used goes to a topic of its own, as it came, with the reason in its headers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from fomo_stream.broker import Headers, Record
from fomo_stream.errors import BrokerError
from fomo_stream.logs import Throttle, kv
from fomo_stream.outbox import Outbox, Output, PartitionOf

log = logging.getLogger(__name__)

# A dead letter that is too large for its topic is cut to this, then to nothing but its headers.
TRUNCATED_BYTES = (512 << 10, 0)


class DeadLetters:
    """Sends records to the dead-letter topic. partition_of: which partition to write to."""

    def __init__(self, topic: str, outbox: Outbox, partition_of: PartitionOf) -> None:
        self._topic = topic
        self._outbox = outbox
        self._partition_of = partition_of
        self._throttle = Throttle()

    def send(self, record: Record, reason: str, message: str, done: Callable[[], None]) -> None:
        """Send the original bytes; `done` is called once they are there."""
        left_out = self._throttle.allow(reason)
        if left_out is not None:
            log.warning(kv("dead_letter", record=record.where(), reason=reason, error=message, more_since=left_out))
        self._send(record, _headers(record, reason, message), done, TRUNCATED_BYTES, None)

    def _send(
        self, record: Record, headers: Headers, done: Callable[[], None], cuts: tuple[int, ...], cut: int | None
    ) -> None:
        value, sent_headers = record.value, headers
        if cut is not None and value is not None:
            value = value[:cut]
            sent_headers = [*headers, ("fomo-truncated-from", str(len(record.value or b"")).encode())]
        self._outbox.send(
            Output(
                self._topic,
                record.key,
                value,
                sent_headers,
                partial(self._sent, record, headers, done, cuts),
                self._partition_of(self._topic, record.partition, record.key),
                record.timestamp_or_now,
            )
        )

    def _sent(
        self, record: Record, headers: Headers, done: Callable[[], None], cuts: tuple[int, ...], refusal: str | None
    ) -> None:
        if refusal is None:
            done()
        elif cuts:
            self._send(record, headers, done, cuts[1:], cuts[0])
        else:
            raise BrokerError(
                f"topic {self._topic} refuses the dead letter of {record.where()}, even without its value ({refusal}); "
                "check that topic's configuration"
            )


def _headers(record: Record, reason: str, message: str) -> Headers:
    added = {
        "fomo-reason": reason,
        "fomo-error": message,
        "fomo-source-topic": record.topic,
        "fomo-source-partition": str(record.partition),
        "fomo-source-offset": str(record.offset),
        "fomo-source-timestamp": "" if record.timestamp is None else str(record.timestamp),
    }
    return [*record.headers, *((name, value[:1000].encode(errors="replace")) for name, value in added.items())]
