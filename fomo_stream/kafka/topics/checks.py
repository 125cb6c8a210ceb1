"""Checks of topics and settings that can prevent a start. Pure.

Each check returns a `Finding`. A start raises the first problem (`require`); `fomo-stream doctor` shows all findings,
and adds those about things that work but should be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fomo_stream.errors import FomoError, TopicError
from fomo_stream.settings.service_settings import ServiceSettings

# Small segments, compacted soon: a restart reads little more than the entries in use.
STATE_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
}
RESULT_BYTES = 64 << 10  # room for the result in an output record, or for the headers of a dead letter


@dataclass(frozen=True)
class Finding:
    """The finding of a check, and the remedy if it is bad.

    error: it ends a start; None: the start goes on. is_known: False if the check was not possible.
    """

    what: str
    remedy: str = ""
    error: FomoError | None = None
    is_known: bool = True

    @classmethod
    def problem(cls, error: FomoError) -> Finding:
        """Make the finding of a check that fails with this error."""
        return cls(error.what, error.remedy, error)

    @classmethod
    def of(cls, check: Callable[[], object], what: str) -> Finding:
        """Make the finding of a check that may raise an error. what: the finding without an error."""
        try:
            check()
        except FomoError as error:
            return cls.problem(error)
        return cls(what)

    @property
    def level(self) -> str:
        """`problem`: the service cannot work so. `warning`: it works, but should be changed."""
        if self.error is not None:
            return "problem"
        return "not checked" if not self.is_known else "warning" if self.remedy else "ok"

    def require(self) -> None:
        if self.error is not None:
            raise self.error


def input_topic(settings: ServiceSettings, partitions: Mapping[str, int]) -> Finding:
    """Check that the input exists. partitions: their number, of each topic that exists."""
    topic = settings.topic
    if topic in partitions:
        return Finding(f"{topic} exists")
    what = f"there is no topic {topic} on {settings.bootstrap}"
    return Finding.problem(TopicError(what, f"check --topic, or create it: {create_command(settings, topic, 4)}"))


def state_topic(settings: ServiceSettings, config: Mapping[str, str]) -> Finding:
    """Check that the state topic keeps old entries. config: of that topic, as far as it is known."""
    topic, policy = settings.state_topic, config.get("cleanup.policy", "compact")
    if policy == "compact":
        return Finding(f"{topic} is compacted")
    what = f"topic {topic} has cleanup.policy={policy}, which would delete what was learned"
    command = alter_command(settings, topic, "cleanup.policy=compact")
    return Finding.problem(TopicError(what, f"set it to compact: {command}"))


def feedback_topic(settings: ServiceSettings, partitions: Mapping[str, int]) -> Finding:
    """Check that the feedback topic has as many partitions as the input: a label is in its record's partition.

    partitions: their number, of each topic that exists.
    """
    topic, feedback = settings.topic, settings.feedback
    if feedback is None or not {topic, feedback} <= partitions.keys() or partitions[feedback] == partitions[topic]:
        return Finding("labels are in the partitions of their records")
    count, needed = partitions[feedback], partitions[topic]
    command = grow_command(settings, feedback, needed)
    remedy = f"add some: {command}" if count < needed else "name another one with --feedback"
    what = (
        f"feedback topic {feedback} has {count} partitions, topic {topic} has {needed}; they need equally many, "
        "because a label is in the partition of its record"
    )
    return Finding.problem(TopicError(what, remedy))


def without_effect(settings: ServiceSettings) -> Iterator[Finding]:
    """Yield the settings that have no effect in this combination."""
    if settings.admit == "feedback" and settings.feedback is None and settings.seed_context is None:
        what = "--admit feedback without --feedback or --seed-context: nothing is learned after the warm-up"
        yield Finding(what, "name a --feedback topic, or use another --admit")
    if settings.feedback is not None and settings.feedback_memory == 0:
        what = "--feedback-memory 0: every label comes too late"
        yield Finding(what, "leave it out, or leave out --feedback")


def create_command(settings: ServiceSettings, topic: str, partitions: int) -> str:
    compact = " --config cleanup.policy=compact" if topic == settings.state_topic else ""
    return f"{_topics_command(settings)} --create --topic {topic} --partitions {partitions}{compact}"


def grow_command(settings: ServiceSettings, topic: str, partitions: int) -> str:
    return f"{_topics_command(settings)} --alter --topic {topic} --partitions {partitions}"


def alter_command(settings: ServiceSettings, topic: str, config: str) -> str:
    return f"kafka-configs.sh --bootstrap-server {settings.bootstrap} --alter --topic {topic} --add-config {config}"


def _topics_command(settings: ServiceSettings) -> str:
    return f"kafka-topics.sh --bootstrap-server {settings.bootstrap}"
