"""Which topics of the broker are written by groups: a pattern must not select the state or the results of another."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from fomo_stream.kafka.broker.clients import make_reader, range_now
from fomo_stream.kafka.broker.topic_reader import POLL_S
from fomo_stream.kafka.group.group_log import KINDS, PARTITION
from fomo_stream.logs import Throttle, kv
from fomo_stream.settings.flags import BrokerFlags
from fomo_stream.settings.topic_flags import STATE_ENDING

log = logging.getLogger(__name__)

PATIENCE_S = 3.0  # for the next record
ROLES = ("out", "alerts", "dead-letters", "feedback")  # settings of an agreement that name topics


class WrittenTopics:
    """The topics that belong to a group, as the state topics say.

    A state topic begins with what its group has agreed on. Its name alone could be that of an input.
    """

    def __init__(self, settings: BrokerFlags) -> None:
        self._settings = settings.model_copy(update={"group": "fomo-stream"})  # the client needs some name
        self._found: dict[str, set[str]] = {}  # by topic with records: topics of its group; empty: not a state topic
        self._throttle = Throttle()

    def without(self, listed: Iterable[str]) -> list[str]:
        """Return the other topics. A topic that may be a state is left out while it is empty, or cannot be read."""
        names = list(listed)
        self._found = {topic: self._found[topic] for topic in names if topic in self._found}
        unread = {topic for topic in names if topic.endswith(STATE_ENDING) and topic not in self._found}
        if unread:
            with closing(make_reader(self._settings, "read_uncommitted")) as client:
                self._read(client, unread)
        left_out = unread.difference(self._found).union(*self._found.values())
        return [topic for topic in names if topic not in left_out]

    def _read(self, client: Consumer, topics: Iterable[str]) -> None:
        """Read the records of the group log with which state topics begin, of all at once: one after the other would
        take a second each.
        """
        written = {topic: set[str]() for topic in topics}
        client.assign([TopicPartition(topic, PARTITION, 0) for topic in written])
        deadline = time.monotonic() + PATIENCE_S
        while written and time.monotonic() < deadline:
            message = client.poll(POLL_S)
            if message is None or (topic := message.topic()) not in written:  # an error of the client has no topic
                continue
            error = message.error()
            if error is None and (agreed := _agreed(message)) is not None:
                roles = (agreed.get(role) for role in ROLES)
                written[topic] |= {topic, *(name for name in roles if isinstance(name, str))}
            else:
                found = written.pop(topic)
                client.incremental_unassign([TopicPartition(topic, PARTITION)])
                try:
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    if error is None or found or _had_records(client, topic):
                        self._found[topic] = found
                except KafkaException as trouble:
                    self._warn(topic, trouble.args[0].str())
            deadline = time.monotonic() + PATIENCE_S  # the requests of this turn do not count
        for topic in written:
            self._warn(topic, "no answer")

    def _warn(self, topic: str, reason: str) -> None:
        if self._throttle.allow(topic) is not None:
            reason = f"whether it is the state of a group cannot be read ({reason})"
            log.warning(kv("topic_left_out", topic=topic, reason=reason))


def _agreed(message: Message) -> dict[str, Any] | None:
    """Return the settings of a record of the group log, if it has some; None: it is another record."""
    try:
        content = json.loads(message.value() or b"") if (message.key() or b"").startswith(KINDS) else None
    except ValueError:
        return None
    if not isinstance(content, dict):
        return None
    settings = content.get("settings")
    return settings if isinstance(settings, dict) else {}


def _had_records(client: Consumer, topic: str) -> bool:
    """Return whether a partition has, or had, records: a state topic is only empty until its group agrees."""
    numbers = client.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return any(range_now(client, TopicPartition(topic, number), PATIENCE_S)[1] for number in numbers)
