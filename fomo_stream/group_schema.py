"""One schema for the whole group, agreed through its state topic.

Every instance that has inferred a schema proposes it under a key of its own, reads the topic back, and uses
the earliest proposal in the log. The log has one order for everybody, so all agree without talking to one
another, and compaction cannot remove the winner because no other record has its key.
"""

from __future__ import annotations

import json
import logging
import time
import uuid

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from fomo_stream.broker import make_producer, make_reader
from fomo_stream.errors import BrokerError, ConfigError
from fomo_stream.logs import kv
from fomo_stream.records import decode
from fomo_stream.schema import Schema
from fomo_stream.settings import ServiceSettings

log = logging.getLogger(__name__)

KEY_PREFIX = b"schema/"
PARTITION = 0
TIMEOUT_S = 8.0


class GroupSchema:
    """Reads and proposes the schema of a group; calls raise BrokerError when the broker is slow or gone."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._topic = settings.state_topic

    def stored(self) -> Schema | None:
        """The group's schema: the earliest proposal in the state topic, or None when there is none."""
        reader = make_reader(self._settings)
        try:
            reader.assign([TopicPartition(self._topic, PARTITION, OFFSET_BEGINNING)])
            deadline = time.monotonic() + TIMEOUT_S
            while time.monotonic() < deadline:
                message = reader.poll(0.2)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return None
                    log.debug(kv("schema_not_read", topic=self._topic, reason=error.str()))
                elif (message.key() or b"").startswith(KEY_PREFIX) and message.value() is not None:
                    return self._parse(message.value())
        finally:
            reader.close()
        raise BrokerError(f"the group's schema could not be read from topic {self._topic} within {TIMEOUT_S:g} s")

    def agree(self, proposal: Schema) -> Schema:
        """The group's schema, which is `proposal` unless somebody was earlier."""
        schema = self.stored()
        if schema is None:
            self._propose(proposal)
            schema = self.stored()
        if schema is None:
            raise BrokerError(
                f"topic {self._topic} does not keep what is written to it; "
                "it must be compacted (cleanup.policy=compact)"
            )
        return schema

    def agree_on_flags(self, names: tuple[str, ...]) -> Schema:
        """The group's schema when --features names it; a ConfigError when the group uses another one."""
        proposal = Schema.of(names, self._settings.categorical)
        schema = self.agree(proposal)
        if set(schema.features) != set(proposal.features):
            raise ConfigError(
                f"--features {','.join(proposal.features)} differs from the features of group {self._settings.group}, "
                f"{','.join(schema.features)}; leave the flag out to use those, or choose another --group"
            )
        return schema

    def _propose(self, schema: Schema) -> None:
        failures: list[str] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error.str())

        producer = make_producer(self._settings, None, **{"message.timeout.ms": int(TIMEOUT_S * 1000)})
        content = {"features": list(schema.features), "categorical": sorted(schema.categorical)}
        value = json.dumps(content).encode()
        try:
            producer.produce(
                self._topic,
                key=KEY_PREFIX + uuid.uuid4().hex.encode(),
                value=value,
                partition=PARTITION,
                on_delivery=delivered,
            )
        except KafkaException as error:
            failures.append(error.args[0].str())
        if producer.flush(TIMEOUT_S + 1) or failures:
            reason = failures[0] if failures else "no answer"
            raise BrokerError(f"the group's schema could not be written to topic {self._topic} ({reason})")

    def _parse(self, value: bytes) -> Schema:
        try:
            content = decode(value)
            features, categorical = content["features"], content.get("categorical", [])  # older ones have none
            for names in (features, categorical):
                if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                    raise TypeError("features must be a list of names")
            return Schema(tuple(features), frozenset(categorical))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BrokerError(
                f"the schema in topic {self._topic} is not readable ({error}); "
                "choose another --group, or delete that topic to have the features inferred anew"
            ) from None
