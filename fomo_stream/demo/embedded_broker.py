"""An embedded broker, for demos and tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer


class EmbeddedBroker:
    """librdkafka's in-process cluster: a real broker protocol over TCP, in memory, for demos and tests.

    It retains about 5 MiB per partition, creates topics of 4 partitions when they are written to, without transactions.

    >>> with EmbeddedBroker() as broker:
    ...     broker.bootstrap.startswith("127.0.0.1:")
    True
    """

    def __enter__(self) -> EmbeddedBroker:
        self._owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        brokers: Iterable[Any] = self._owner.list_topics(timeout=10).brokers.values()
        self.bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        return self

    def __exit__(self, *_: object) -> None:
        del self._owner
