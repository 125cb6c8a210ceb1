"""Reading from the group's consumer: one record as soon as it is there, and with it those that wait already."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message

MOST_AT_ONCE = 256  # records; the cost of a call is then negligible


class Poller:
    """Takes records from a consumer, as many at once as the caller handles in about `seconds`.

    So the loop goes on however slow the model or however large the records are, and a single record does not wait for
    others. Callbacks of the consumer run inside `poll`, also after some of its records were taken: a partition may be
    given up, and even come back, before its records are returned.
    """

    def __init__(self, consumer: Any, seconds: float) -> None:
        self._consumer = consumer
        self._seconds = seconds
        self._most = 1

    def poll(self, patience: float) -> list[Message]:
        """Wait up to `patience` seconds for a message; returns it and others that are there. Some may be errors."""
        first = self._consumer.poll(patience)
        if first is None:
            return []
        return [first, *self._consumer.consume(self._most - 1, 0)] if self._most > 1 else [first]

    def handled(self, n: int, seconds: float) -> None:
        """The caller has handled the n messages of the last call in `seconds`."""
        if seconds > self._seconds:
            self._most = max(1, self._most // 2)
        elif n >= self._most:
            self._most = min(MOST_AT_ONCE, 2 * self._most)
