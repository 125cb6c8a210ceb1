"""Settings of the Kafka clients: how to reach the broker, and which client settings the service itself controls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import field_validator

from fomo_stream.settings.sources import BaseFlags, flag

# Client settings that users cannot change, because delivery depends on them, and the flag to use instead.
RESERVED_KAFKA_KEYS = {
    "bootstrap.servers": "use --bootstrap",
    "group.id": "use --group",
    "group.instance.id": "use --instance-id",
    "auto.offset.reset": "use --start, and --on-lost-offset",
    "enable.auto.commit": "offsets are committed by the service, together with the outputs",
    "enable.auto.offset.store": "offsets are committed by the service, together with the outputs",
    "enable.idempotence": "the producer is always idempotent",
    "isolation.level": "only committed records are read",
    "partition.assignment.strategy": "partitions move one at a time, with their state",
    "transactional.id": "use --instance-id, from which it is made",
}

SESSION_TIMEOUT_MS = 45_000  # librdkafka's default
COOPERATIVE = "cooperative-sticky"  # the assignment strategy that adds partitions without revoking the others


class BrokerFlags(BaseFlags):
    """How to reach the broker, and as which group; shared by `run` and `redrive`."""

    bootstrap: str = flag(
        "Broker", "localhost:9092", "broker addresses, separated by commas", metavar="HOST:PORT", min_length=1
    )
    kafka: dict[str, str] = flag(
        "Broker",
        {},
        "any librdkafka setting, for all clients: --kafka.security.protocol=SSL; repeatable",
        metavar="VALUE",
        repr=False,
    )
    group: str

    @field_validator("kafka", mode="before")
    @classmethod
    def _kafka_is_flat(cls, value: Any) -> Any:
        return flatten(value) if isinstance(value, Mapping) else value

    @field_validator("kafka")
    @classmethod
    def _kafka_keys_are_free(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if key in RESERVED_KAFKA_KEYS:
                raise ValueError(f"{key} cannot be set: {RESERVED_KAFKA_KEYS[key]}")
        return value


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as dotted keys, with values as librdkafka reads them (`true`, `10`, `text`).

    >>> flatten({"socket": {"keepalive": {"enable": True}}, "linger.ms": 5})
    {'socket.keepalive.enable': 'true', 'linger.ms': '5'}
    """
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat
