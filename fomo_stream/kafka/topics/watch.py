"""Watch the topics of the service: detect and log changes, and report those that prevent scoring."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.kafka.broker.cluster import Cluster, Ends, PartitionId, TopicLimits
from fomo_stream.kafka.topics.checks import grow_command
from fomo_stream.logs import Throttle, kv, make_thread
from fomo_stream.settings.service_settings import ServiceSettings

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 3.0
LIMITS_INTERVAL = 10  # polls


@dataclass(frozen=True)
class TopicsAnswer:
    """The broker's last answer about the topics of the service."""

    partitions: Mapping[str, int]  # number of partitions of each topic that exists
    topic_ids: Mapping[str, str]  # changes when a topic is deleted and created again; empty where unsupported
    trouble: str = ""  # why the broker did not answer; empty if it did

    def is_recreated(self, topic: str, before: TopicsAnswer) -> bool:
        """Return whether `topic` exists and was created again since `before`.

        With topic ids, a new id shows it. Without ids, it is only seen if the topic was missing at the last poll.
        """
        old, new = before.topic_ids.get(topic), self.topic_ids.get(topic)
        is_another = old != new if old and new else topic not in before.partitions
        return topic in self.partitions and is_another

    def missing_partitions(self, topic: str, other: str) -> int:
        """Return by how many partitions `topic` is smaller than `other`, if both exist."""
        return max(0, self.partitions.get(other, 0) - self.partitions.get(topic, 1 << 31))


class EndsAnswer(NamedTuple):
    """The broker's last answer about the end of a partition."""

    ends: Ends
    open_since: float | None  # since then (seconds, monotonic) an open transaction stops readers; None: not any


class InputEnd(NamedTuple):
    """The broker's last answer about the ends of all partitions of the input."""

    asked_ms: int  # time of the request, milliseconds since 1970
    readable: Mapping[int, int]  # by partition: offset of the first record that readers do not get
    partitions: int
    total: int | None  # sum of the ends of all partitions; None if some are not known


class TopicWatch:
    """Ask the broker for the topics of the service and the ends of partitions; after `start` regularly, in a thread.

    The state topic and the feedback topic grow with the input.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self.cluster = Cluster(settings)
        self.is_temporary = False  # the last trouble may end soon
        self._stopped = threading.Event()
        self._thread = make_thread(self._watch, "fomo-topic-watch")
        named = (settings.topic, *settings.outputs, settings.feedback)
        self.topics: tuple[str, ...] = tuple(topic for topic in named if topic is not None)
        self.answer = TopicsAnswer({}, {})
        self._asked_at = float("-inf")  # for this answer, seconds, monotonic
        self.numbers: Callable[[], Iterable[int]] = tuple  # of the partitions that this instance has
        self.ends: Mapping[PartitionId, EndsAnswer] = {}  # of the input and of the state topic
        self.limits: dict[str, TopicLimits] = {}  # of the outputs and the state topic, where the broker reports them
        self.input_end: InputEnd | None = None  # of all partitions of the input; asked only if silence is watched
        self._throttle = Throttle()

    def start(self) -> None:
        """Poll the topics every WATCH_INTERVAL_S seconds from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the clients, unless the thread still waits for an answer."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(1.0)
        if not self._thread.is_alive():
            self.cluster.close()

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds`, or until `stop`; return whether it was called."""
        return self._stopped.wait(seconds)

    def poll(self) -> TopicsAnswer:
        """Ask the broker now. Return its answer, and keep it."""
        asked_at = time.monotonic()
        try:
            partitions, topic_ids = self.cluster.partitions(self.topics)
        except KafkaException as error:
            self.is_temporary = error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
            self.answer = replace(self.answer, trouble=error.args[0].str())
        else:
            self.answer, self._asked_at = TopicsAnswer(partitions, topic_ids), asked_at
        return self.answer

    def recent(self, max_age_s: float) -> TopicsAnswer:
        """Return the last answer if it was asked for within `max_age_s`; otherwise ask now."""
        return self.answer if time.monotonic() - self._asked_at <= max_age_s else self.poll()

    def poll_limits(self) -> None:
        """Ask for the limits of the topics of outputs and state."""
        self.limits.update(self.cluster.limits((*self._settings.outputs, self._settings.state_topic)))

    def _watch(self) -> None:
        n_polls = 0
        while not self._stopped.wait(WATCH_INTERVAL_S):
            try:
                self.poll()
                self.grow()
                self._poll_ends(time.monotonic())
                if (n_polls := n_polls + 1) % LIMITS_INTERVAL == 0:
                    self.poll_limits()
            except Exception as error:  # the service must know it: without this thread it sees no change
                log.exception(kv("topics_not_seen", reason=error))
                self.answer = replace(self.answer, trouble=str(error))

    def _poll_ends(self, now: float) -> None:
        topic, numbers = self._settings.topic, list(self.numbers())
        places = [(name, number) for number in numbers for name in (topic, self._settings.state_topic)]
        if not places or not self.cluster.has_controller:
            return
        count = self.answer.partitions.get(topic, 0) if self._settings.silence is not None else 0
        before, updated, asked_ms = self.ends, {}, round(time.time() * 1000)
        answers = self.cluster.ends({*places, *((topic, number) for number in range(count))})
        if count:
            of_input = {number: ends for (name, number), ends in answers.items() if name == topic}
            total = sum(ends.end for ends in of_input.values()) if len(of_input) == count else None
            self.input_end = InputEnd(
                asked_ms, {number: ends.readable for number, ends in of_input.items()}, count, total
            )
        for place, ends in answers.items():
            last, since = before.get(place), None
            if ends.readable < ends.end:
                since = (last.open_since if last is not None and last.ends.readable == ends.readable else None) or now
            updated[place] = EndsAnswer(ends, since)
        self.ends = updated

    def grow(self) -> None:
        """Try to give the state topic and the feedback topic as many partitions as the input has."""
        topic, answer = self._settings.topic, self.answer
        own = [self._settings.state_topic, self._settings.feedback]
        small = [name for name in own if name is not None and answer.missing_partitions(name, topic)]
        if not small or not self.cluster.has_controller:
            return
        count = answer.partitions[topic]
        failures = self.cluster.grow(small, count)
        self.wait(0.5)
        self.poll()
        for name in small:
            if not self.answer.missing_partitions(name, topic):
                log.info(kv("topic_grown", topic=name, partitions=count))
            elif name in failures and self._throttle.allow(name) is not None:
                log.warning(kv("topic_not_grown", topic=name, partitions=count, reason=failures[name]))


class TopicChanges(NamedTuple):
    created: bool = False  # a topic that is read was created again: the state of the old one is invalid
    missing: bool = False  # the input does not exist any more: nothing may be read before it is restored
    resized: tuple[str, ...] = ()


class TopicReport:
    """Compare the broker's answer about the topics with its last one."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self.answer = TopicsAnswer({}, {})

    def begin(self, answer: TopicsAnswer) -> None:
        """Take the first answer, and warn of outputs that have fewer partitions than the input."""
        self.answer = answer
        for topic in self._settings.outputs:
            self._warn_if_small(topic)

    def compare(self, answer: TopicsAnswer) -> TopicChanges:
        """Compare the broker's new answer with the last one, and log the changes."""
        before = self.answer
        # Keep the ids of missing topics, to notice that one was created again.
        self.answer = answer = replace(answer, topic_ids={**before.topic_ids, **answer.topic_ids})
        if before == answer:
            return TopicChanges()
        if answer.trouble and answer.trouble != before.trouble:
            log.warning(kv("broker_unreachable", reason=answer.trouble, effect="retrying"))
        elif answer.trouble != before.trouble:
            log.info(kv("broker_reachable"))
        gone = before.partitions.keys() - answer.partitions.keys()
        for topic in gone:
            log.warning(kv("topic_missing", topic=topic, effect="waiting until it is created again"))
        read = filter(None, (self._settings.topic, self._settings.feedback))
        created = [topic for topic in read if answer.is_recreated(topic, before)]
        for topic in created:
            log.warning(kv("topic_recreated", topic=topic, effect="reading from its beginning"))
        return TopicChanges(bool(created), self._settings.topic in gone, self._resized(before))

    def reasons(self) -> list[str]:
        """Return the reasons in topics why records are not scored."""
        settings, answer = self._settings, self.answer
        if answer.trouble:
            return [f"the broker does not answer: {answer.trouble}"]
        needed = (settings.topic, *settings.outputs, settings.state_topic)
        reasons = [f"topic {topic} does not exist any more" for topic in needed if topic not in answer.partitions]
        if settings.feedback is not None and (missing := answer.missing_partitions(settings.feedback, settings.topic)):
            reasons.append(
                f"feedback topic {settings.feedback} has {missing} partitions fewer than {settings.topic}, whose "
                f"records cannot be labelled; add them: {self._alter(settings.feedback)}"
            )
        return reasons

    def _resized(self, before: TopicsAnswer) -> tuple[str, ...]:
        input_topic = self._settings.topic
        resized = [name for name, n in self.answer.partitions.items() if before.partitions.get(name, n) != n]
        if input_topic in resized:
            log.info(kv("topic_grown", topic=input_topic, partitions=self.answer.partitions[input_topic]))
            for topic in self._settings.outputs:
                self._warn_if_small(topic)
        return tuple(resized)

    def _warn_if_small(self, topic: str) -> None:
        if self.answer.missing_partitions(topic, self._settings.topic):
            sizes = {"partitions": self.answer.partitions[topic], "input": self.answer.partitions[self._settings.topic]}
            effect = "records go to partitions by key: a key may now be in another partition than before"
            log.warning(kv("topic_smaller_than_input", topic=topic, **sizes, effect=effect, hint=self._alter(topic)))

    def _alter(self, topic: str) -> str:
        return grow_command(self._settings, topic, self.answer.partitions.get(self._settings.topic, 0))
