"""Outputs on their way to the broker: every one is delivered, or its record is told that it never can be."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.broker import Headers
from fomo_stream.logs import Throttle, kv

log = logging.getLogger(__name__)

PartitionOf = Callable[
    [str, int, bytes | None], int
]  # (topic, partition of the source, key): where to write; -1: by key

RETRY_AFTER_S = 1.0

# The broker will never take these bytes; anything else that fails may succeed later.
_REFUSALS = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
)


@dataclass(slots=True)
class Output:
    """One record to produce.

    `on_done` is called once, from `Outbox.poll`: with None when the broker has acknowledged it, else with the
    reason why it never will.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    on_done: Callable[[str | None], None]
    partition: int = -1  # -1: chosen by key
    timestamp: int = 0  # milliseconds since 1970; 0: the time of producing
    alone: bool = False  # set when the broker has refused a batch with it: is it this one?

    def size(self) -> int:
        """Bytes that it holds in memory, about."""
        return len(self.value or b"") + len(self.key or b"") + 200


class Outbox:
    """Sends outputs through one idempotent producer and keeps each until it is acknowledged.

    What fails is produced again after a moment, from memory, for as long as it takes: nothing has to be read
    or scored twice, and no offset passes it meanwhile. Such a retry may follow later outputs of its
    partition. `is_full` bounds the memory: whoever sends has to stop reading then.
    """

    def __init__(self, make_producer: Callable[..., Any], max_records: int, max_bytes: int = 64 << 20) -> None:
        self._make_producer = make_producer
        self._producer = self._new_producer()
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._bytes = 0
        self._failed: deque[Output] = deque()
        self._retry_at = float("inf")
        self._throttle = Throttle()
        self._producer_is_dead = False
        self._one_is_alone = False
        self.outstanding = 0  # outputs sent and not yet done
        self.trouble = ""  # why outputs cannot be delivered at the moment

    @property
    def is_full(self) -> bool:
        """Whether too much is waiting for acknowledgement to take on more."""
        return self.outstanding >= self._max_records or self._bytes >= self._max_bytes

    @property
    def has_room(self) -> bool:
        """Whether reading may go on after it was full."""
        return self.outstanding <= self._max_records // 2 and self._bytes <= self._max_bytes // 2

    def send(self, output: Output) -> None:
        """Take charge of one output."""
        self.outstanding += 1
        self._bytes += output.size()
        # Behind what waits already, to keep the order; and never beside one that has to be alone.
        if self._failed or self._one_is_alone:
            self._failed.append(output)
        else:
            self._produce(output)

    def poll(self) -> None:
        """Serve acknowledgements and repeat what failed; never blocks."""
        self._producer.poll(0)
        if self._producer_is_dead:
            self._replace_producer()
        if self._failed and time.monotonic() >= self._retry_at:
            self._retry()

    def flush(self, seconds: float) -> bool:
        """Wait until everything is done, for at most `seconds`; True when it is."""
        deadline = time.monotonic() + seconds
        while self.outstanding and time.monotonic() < deadline:
            self._producer.flush(0.05)
            self.poll()
        return not self.outstanding

    def close(self) -> None:
        """Forget what is not acknowledged."""
        self._producer.purge()
        self._failed.clear()

    def _new_producer(self) -> Any:
        return self._make_producer(error_cb=self._on_client_error)

    def _on_client_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL or error.fatal():
            self._producer_is_dead = True

    def _replace_producer(self) -> None:
        """A fatal error ends an idempotent producer; what it held fails, and goes out through a new one."""
        self._producer_is_dead = False
        log.warning(kv("producer_replaced", outstanding=self.outstanding))
        self._producer.purge()
        self._producer.flush(1.0)
        self._producer = self._new_producer()

    def _retry(self) -> None:
        """Produce what has failed, in order; what has to be alone only while nothing else is under way."""
        self._retry_at = 0.0
        for _ in range(len(self._failed)):
            under_way = self.outstanding - len(self._failed)
            if self._one_is_alone or (self._failed[0].alone and under_way):
                return
            output = self._failed.popleft()
            self._one_is_alone = output.alone
            self._produce(output)

    def _produce(self, output: Output) -> None:
        try:
            self._producer.produce(
                output.topic,
                value=output.value,
                key=output.key,
                headers=output.headers,
                partition=output.partition,
                timestamp=output.timestamp,
                on_delivery=partial(self._delivered, output),
            )
        except BufferError:
            self._one_is_alone = False
            self._wait(output, "the producer's queue is full")
        except KafkaException as error:
            self._delivered(output, error.args[0], None)

    def _delivered(self, output: Output, error: KafkaError | None, _message: object) -> None:
        if output.alone:
            self._one_is_alone = False
        if error is None:
            self.trouble = ""
            self._finish(output, None)
        elif error.code() in _REFUSALS:
            self._refused(output, error)
        elif error.code() == KafkaError._UNKNOWN_PARTITION:  # the topic was created anew, with fewer of them
            output.partition = -1
            self._wait(output, error.str())
        else:
            self._on_client_error(error)
            self._wait(output, error.str())

    def _refused(self, output: Output, error: KafkaError) -> None:
        """The broker refuses a batch with this output: repeat it alone, then without its timestamp, then give it up."""
        if not output.alone:
            output.alone = True
        elif error.code() == KafkaError.INVALID_TIMESTAMP and output.timestamp:
            output.timestamp = 0
        else:
            self._finish(output, error.str())
            return
        self._failed.append(output)
        self._retry_at = 0.0

    def _wait(self, output: Output, reason: str) -> None:
        self._failed.append(output)
        self._retry_at = time.monotonic() + RETRY_AFTER_S
        self.trouble = f"outputs to {output.topic} are not delivered: {reason}"
        if self._throttle.allow(output.topic) is not None:
            log.warning(kv("delivery_failed", topic=output.topic, reason=reason, waiting=len(self._failed)))

    def _finish(self, output: Output, refusal: str | None) -> None:
        self.outstanding -= 1
        self._bytes -= output.size()
        output.on_done(refusal)
