"""Which topics of the broker are written by groups: a pattern must not select the state or the results of another."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from confluent_kafka import KafkaException

from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader
from fomo_stream.kafka.group.group_log import KINDS, PARTITION
from fomo_stream.logs import Throttle, kv
from fomo_stream.settings.flags import BrokerFlags
from fomo_stream.settings.topic_flags import STATE_ENDING

log = logging.getLogger(__name__)

PATIENCE_S = 3.0  # for a record of one topic
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
        """Return the other topics. A topic that may be a state, but cannot be read now, is left out."""
        names = list(listed)
        self._found = {topic: self._found[topic] for topic in names if topic in self._found}
        candidates = [topic for topic in names if topic.endswith(STATE_ENDING) and topic not in self._found]
        unread = {*candidates}
        with TopicReader(self._settings, isolation="read_uncommitted") as reader:
            for topic in candidates:
                try:
                    self._read(reader, topic)
                    unread.remove(topic)
                except (KafkaException, NoProgressError) as error:
                    if self._throttle.allow(topic) is not None:
                        reason = f"whether it is the state of a group cannot be read ({error})"
                        log.warning(kv("topic_left_out", topic=topic, reason=reason))
                    if isinstance(error, NoProgressError):  # the broker hangs: do not wait for each topic
                        break
        left_out = unread.union(*self._found.values())
        return [topic for topic in names if topic not in left_out]

    def _read(self, reader: TopicReader, topic: str) -> None:
        """Read the records of the group log with which a state topic begins."""
        written = set[str]()
        for message in reader.read(topic, {PARTITION: (0, None)}, PATIENCE_S):
            try:
                content = json.loads(message.value() or b"") if (message.key() or b"").startswith(KINDS) else None
            except ValueError:
                content = None
            if not isinstance(content, dict):
                self._found[topic] = written
                return
            settings = content.get("settings")
            agreed = settings if isinstance(settings, dict) else {}
            written |= {topic, *(name for role in ROLES if isinstance(name := agreed.get(role), str))}
        if written:  # an empty topic may become either
            self._found[topic] = written
