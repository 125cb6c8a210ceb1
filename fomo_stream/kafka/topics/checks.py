"""What keeps an instance from starting, as far as topics and settings show it. Pure.

An instance raises the first of these errors at its start; `fomo-stream doctor` shows all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fomo_stream.errors import TopicError
from fomo_stream.settings.service import ServiceSettings

# Small segments, compacted soon: a restart reads little more than the entries in use.
STATE_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
}
RESULT_BYTES = 64 << 10  # room for the result in an output record


def no_input(settings: ServiceSettings) -> TopicError:
    """The input does not exist."""
    what = f"there is no topic {settings.topic} on {settings.bootstrap}"
    return TopicError(what, f"check --topic, or create it: {create(settings, settings.topic, 4)}")


def wrong_policy(settings: ServiceSettings, config: Mapping[str, str]) -> TopicError | None:
    """A state topic that deletes old entries. config: of that topic, as far as it is known."""
    topic, policy = settings.state_topic, config.get("cleanup.policy", "compact")
    if policy == "compact":
        return None
    what = f"topic {topic} has cleanup.policy={policy}, which would delete what was learned"
    return TopicError(what, f"set it to compact: {alter(settings, topic, 'cleanup.policy=compact')}")


def wrong_feedback(settings: ServiceSettings, partitions: Mapping[str, int]) -> TopicError | None:
    """A feedback topic with more or fewer partitions than the input: a label has to be in its record's partition.

    partitions: of each topic that exists.
    """
    topic, feedback = settings.topic, settings.feedback
    if feedback is None or not {topic, feedback} <= partitions.keys() or partitions[feedback] == partitions[topic]:
        return None
    count, wanted = partitions[feedback], partitions[topic]
    remedy = f"add some: {grow(settings, feedback, wanted)}" if count < wanted else "name another one with --feedback"
    return TopicError(
        f"feedback topic {feedback} has {count} partitions, topic {topic} has {wanted}; they need equally many, "
        "because a label is in the partition of its record",
        remedy,
    )


def without_effect(settings: ServiceSettings) -> Iterator[tuple[str, str]]:
    """Settings that have no effect in this combination, and what to do."""
    if settings.admit == "feedback" and settings.feedback is None and settings.seed_context is None:
        what = "--admit feedback without --feedback or --seed-context: nothing is learned after the warm-up"
        yield what, "name a --feedback topic, or use another --admit"
    if settings.feedback is not None and settings.feedback_memory == 0:
        yield "--feedback-memory 0: every label comes too late", "leave it out, or leave out --feedback"


def create(settings: ServiceSettings, topic: str, partitions: int) -> str:
    """The command that creates a topic."""
    compact = " --config cleanup.policy=compact" if topic == settings.state_topic else ""
    return f"{_topics(settings)} --create --topic {topic} --partitions {partitions}{compact}"


def grow(settings: ServiceSettings, topic: str, partitions: int) -> str:
    """The command that gives a topic more partitions."""
    return f"{_topics(settings)} --alter --topic {topic} --partitions {partitions}"


def alter(settings: ServiceSettings, topic: str, config: str) -> str:
    """The command that changes a topic's configuration."""
    return f"kafka-configs.sh --bootstrap-server {settings.bootstrap} --alter --topic {topic} --add-config {config}"


def _topics(settings: ServiceSettings) -> str:
    return f"kafka-topics.sh --bootstrap-server {settings.bootstrap}"
