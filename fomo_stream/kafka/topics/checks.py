"""What keeps an instance from starting, as far as topics and settings show it. Pure.

Each check gives a `Finding`. A start raises the first that is a problem (`require`); `fomo-stream doctor` shows all,
and findings of its own about what works but should be otherwise.
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
RESULT_BYTES = 64 << 10  # room for the result in an output record


@dataclass(frozen=True)
class Finding:
    """What a check has found, and what to do if it is not well.

    error: with which a start ends; None if it does not end because of this. is_known: whether it could be found out.
    """

    what: str
    remedy: str = ""
    error: FomoError | None = None
    is_known: bool = True

    @classmethod
    def problem(cls, error: FomoError) -> Finding:
        """Of a check that fails with this error."""
        return cls(error.what, error.remedy, error)

    @classmethod
    def of(cls, check: Callable[[], object], what: str) -> Finding:
        """Of a check that raises its error. what: if it raises none."""
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
    """Whether the input exists. partitions: of each topic that exists."""
    topic = settings.topic
    if topic in partitions:
        return Finding(f"{topic} exists")
    what = f"there is no topic {topic} on {settings.bootstrap}"
    return Finding.problem(TopicError(what, f"check --topic, or create it: {create(settings, topic, 4)}"))


def state_topic(settings: ServiceSettings, config: Mapping[str, str]) -> Finding:
    """Whether the state topic keeps old entries. config: of that topic, as far as it is known."""
    topic, policy = settings.state_topic, config.get("cleanup.policy", "compact")
    if policy == "compact":
        return Finding(f"{topic} is compacted")
    what = f"topic {topic} has cleanup.policy={policy}, which would delete what was learned"
    return Finding.problem(TopicError(what, f"set it to compact: {alter(settings, topic, 'cleanup.policy=compact')}"))


def feedback_topic(settings: ServiceSettings, partitions: Mapping[str, int]) -> Finding:
    """Whether the feedback topic has as many partitions as the input: a label has to be in its record's partition.

    partitions: of each topic that exists.
    """
    topic, feedback = settings.topic, settings.feedback
    if feedback is None or not {topic, feedback} <= partitions.keys() or partitions[feedback] == partitions[topic]:
        return Finding("labels are in the partitions of their records")
    count, wanted = partitions[feedback], partitions[topic]
    remedy = f"add some: {grow(settings, feedback, wanted)}" if count < wanted else "name another one with --feedback"
    what = (
        f"feedback topic {feedback} has {count} partitions, topic {topic} has {wanted}; they need equally many, "
        "because a label is in the partition of its record"
    )
    return Finding.problem(TopicError(what, remedy))


def without_effect(settings: ServiceSettings) -> Iterator[Finding]:
    """Settings that have no effect in this combination."""
    if settings.admit == "feedback" and settings.feedback is None and settings.seed_context is None:
        what = "--admit feedback without --feedback or --seed-context: nothing is learned after the warm-up"
        yield Finding(what, "name a --feedback topic, or use another --admit")
    if settings.feedback is not None and settings.feedback_memory == 0:
        what = "--feedback-memory 0: every label comes too late"
        yield Finding(what, "leave it out, or leave out --feedback")


def create(settings: ServiceSettings, topic: str, partitions: int) -> str:
    compact = " --config cleanup.policy=compact" if topic == settings.state_topic else ""
    return f"{_topics(settings)} --create --topic {topic} --partitions {partitions}{compact}"


def grow(settings: ServiceSettings, topic: str, partitions: int) -> str:
    return f"{_topics(settings)} --alter --topic {topic} --partitions {partitions}"


def alter(settings: ServiceSettings, topic: str, config: str) -> str:
    return f"kafka-configs.sh --bootstrap-server {settings.bootstrap} --alter --topic {topic} --add-config {config}"


def _topics(settings: ServiceSettings) -> str:
    return f"kafka-topics.sh --bootstrap-server {settings.bootstrap}"
