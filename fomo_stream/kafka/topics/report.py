"""Detects changes of the topics, logs them, and reports those that prevent scoring."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from fomo_stream.kafka.broker.clients import REFRESH_MS
from fomo_stream.kafka.topics.checks import grow
from fomo_stream.kafka.topics.watch import TopicsSeen
from fomo_stream.logs import kv
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)

ASSIGN_S = 2 * REFRESH_MS / 1000  # within this time a group assigns new partitions to its members


class Changes(NamedTuple):
    """Changes since the last look."""

    created: bool = False  # a topic that is read was created again: the state of the old one is invalid
    resized: tuple[str, ...] = ()


class TopicReport:
    """Compares the broker's answer about the topics with its last one."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self.seen = TopicsSeen({}, {})
        self._new_partitions = range(0)  # of the input, which the group may not have assigned yet
        self._grown_at = 0.0

    def begin(self, seen: TopicsSeen) -> None:
        """The first look: warns of outputs that have fewer partitions than the input."""
        self.seen = seen
        for topic in self._settings.outputs:
            self._warn_if_small(topic)

    def look(self, seen: TopicsSeen) -> Changes:
        """Compare the broker's new answer with the last one, and log the changes."""
        before, self.seen = self.seen, seen.keeping_ids(self.seen)
        if before == self.seen:
            return Changes()
        if self.seen.trouble != before.trouble:
            if self.seen.trouble:
                log.warning(kv("broker_unreachable", reason=self.seen.trouble, effect="retrying"))
            else:
                log.info(kv("broker_reachable"))
        for gone in before.partitions.keys() - self.seen.partitions.keys():
            log.warning(kv("topic_missing", topic=gone, effect="waiting until it is created again"))
        read = filter(None, (self._settings.topic, self._settings.feedback))
        created = [topic for topic in read if self.seen.is_recreated(topic, before)]
        for topic in created:
            log.warning(kv("topic_recreated", topic=topic, effect="reading from its beginning"))
        return Changes(bool(created), self._resized(before))

    def assigned(self) -> None:
        """The group has assigned the partitions of the input."""
        self._new_partitions = range(0)

    def reasons(self) -> list[str]:
        """Reasons why records are not being scored that concern topics."""
        settings, seen = self._settings, self.seen
        if seen.trouble:
            return [f"the broker does not answer: {seen.trouble}"]
        needed = (settings.topic, *settings.outputs, settings.state_topic)
        reasons = [f"topic {topic} does not exist any more" for topic in needed if topic not in seen.partitions]
        new = self._new_partitions
        if new and time.monotonic() < self._grown_at + ASSIGN_S:
            reasons.append(f"the group has not assigned {_named(new)} of {settings.topic} yet")
        if settings.feedback is not None and (missing := seen.missing_partitions(settings.feedback, settings.topic)):
            reasons.append(
                f"feedback topic {settings.feedback} has {missing} partitions fewer than {settings.topic}, whose "
                f"records cannot be labelled; add them: {self._alter(settings.feedback)}"
            )
        return reasons

    def _resized(self, before: TopicsSeen) -> tuple[str, ...]:
        input_topic = self._settings.topic
        resized = [name for name, n in self.seen.partitions.items() if before.partitions.get(name, n) != n]
        if input_topic in resized:
            self._new_partitions = range(before.partitions[input_topic], self.seen.partitions[input_topic])
            self._grown_at = time.monotonic()
            log.info(kv("topic_grown", topic=input_topic, partitions=self.seen.partitions[input_topic]))
            for topic in self._settings.outputs:
                self._warn_if_small(topic)
        return tuple(resized)

    def _warn_if_small(self, topic: str) -> None:
        if self.seen.missing_partitions(topic, self._settings.topic):
            sizes = {"partitions": self.seen.partitions[topic], "input": self.seen.partitions[self._settings.topic]}
            effect = "records go to partitions by key: a key may now be in another partition than before"
            log.warning(kv("topic_smaller_than_input", topic=topic, **sizes, effect=effect, hint=self._alter(topic)))

    def _alter(self, topic: str) -> str:
        return grow(self._settings, topic, self.seen.partitions.get(self._settings.topic, 0))


def _named(numbers: range) -> str:
    """
    >>> _named(range(2, 3)), _named(range(2, 5))
    ('new partition 2', 'new partitions 2 to 4')
    """
    last = f"s {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f" {numbers[0]}"
    return f"new partition{last}"
