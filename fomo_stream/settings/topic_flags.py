"""Settings of the commands that work on a topic and its group: `run`, `doctor`, `group` and `replay`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import ModelWrapValidatorHandler, PrivateAttr, model_validator

from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.settings import flags
from fomo_stream.settings.sources import PLACEHOLDER, flag, option

NO_TOPIC = "none"
STATE_ENDING = "-state"  # of the name of each state topic
DEFAULT_OUT, DEFAULT_DEAD_LETTERS = f"{PLACEHOLDER}-scores", f"{PLACEHOLDER}-dead-letters"
NAMES = ("group", "out", "alerts", "dead_letters", "feedback")  # may hold the placeholder


class TopicFlags(flags.BrokerFlags, flags.RecordFlags):
    """The topic, the group, and the labels that it learns from."""

    topic: str = flag("Topics", ..., metavar="TOPIC", min_length=1, affects="scores")
    """topic to read records from; it must exist. `run`, `doctor`, `group` also take a,b and patterns: '^plant-.*'"""
    feedback: str | None = flag(
        "Topics", None, metavar="TOPIC", min_length=1, affects="group", decides=flags.REMEMBERED
    )
    """topic with labels for scored records; it needs as many partitions as --topic (default: none)"""
    group: str = flag("Broker", "fomo-stream", metavar="GROUP", min_length=1, affects="scores")
    """consumer group; instances of the same group share the work. {topic} in it is the name of the topic"""
    feedback_memory: int = flag(
        "Detector", 5000, metavar="N", ge=0, le=1_000_000, affects="group", decides=flags.REMEMBERED
    )
    """last scored records of a partition that a label can still refer to"""

    @model_validator(mode="before")
    @classmethod
    def _names_hold_the_topic(cls, values: Any) -> Any:
        """Replace {topic} in names, so that one file or line serves several topics."""
        topic = values.get("topic") if isinstance(values, Mapping) else None
        if not isinstance(topic, str):
            return values
        names = [name for name in NAMES if isinstance(values.get(name), str)]
        return {**values, **{name: values[name].replace(PLACEHOLDER, topic) for name in names}}

    @model_validator(mode="after")
    def _topics_have_names(self) -> Self:
        check_topic_names({**self.named_topics, "the state topic": self.state_topic})
        return self

    @property
    def named_topics(self) -> dict[str, str]:
        """All topics except the state topic, by their flags."""
        names = (name for name in ("topic", "out", "alerts", "dead_letters", "feedback") if hasattr(self, name))
        topics = {option(name): getattr(self, name) for name in names}
        return {name: topic for name, topic in topics.items() if topic and (name, topic) != ("--out", NO_TOPIC)}

    @property
    def state_topic(self) -> str:
        """The compacted topic of the group, with the state of its partitions and the schema of all its instances."""
        return f"{self.group}-{self.topic}{STATE_ENDING}"


class InputFlags(TopicFlags, flags.RuleFlags, flags.RegistryFlags):
    """Settings that say how the records of a topic are read and judged."""

    schema_file: flags.ExistingFile | None = flag("Schemas", None, metavar="FILE", affects="scores")
    """Avro schema of all values (.avsc), for values in Avro without a registry"""
    max_record_bytes: int = flag("Records", MAX_RECORD_BYTES, metavar="BYTES", ge=1, affects="scores")
    """larger records become dead letters"""
    seed_context: flags.ExistingFile | None = flag("Detector", None, metavar="FILE", affects="scores")
    """CSV or JSON lines with trusted rows, to fill the context at the start"""

    @model_validator(mode="after")
    def _schemas_have_one_source(self) -> Self:
        if self.schema_file is not None and self.registry:
            raise ValueError("with --registry each value names its own schema: leave --schema-file out")
        return self


class OutputFlags(TopicFlags, flags.DeliveryFlags):
    """Settings that say where results go, and how they are written."""

    out: str = flag("Topics", "", metavar="TOPIC", affects="outputs")
    """topic for scored records; none: write only alerts (default: <topic>-scores)"""
    alerts: str | None = flag("Topics", None, metavar="TOPIC", min_length=1, affects="outputs")
    """topic for outliers only, with a record that sums up each incident (default: none)"""
    dead_letters: str = flag("Topics", "", metavar="TOPIC", affects="outputs")
    """topic for records that cannot be scored (default: <topic>-dead-letters)"""
    output_format: Literal["json", "registry"] = flag("Schemas", "json", affects="outputs")
    """json: scored records are JSON; registry: they have the format of the input record, with a registered schema"""
    subject_strategy: Literal["topic", "record", "topic-record"] = flag("Schemas", "topic", affects="outputs")
    """subject of the schemas of outputs: TOPIC-value, the name of the record's type, or TOPIC-NAME"""

    @model_validator(mode="after")
    def _outputs_have_names(self) -> Self:
        self.out = self.out or DEFAULT_OUT.replace(PLACEHOLDER, self.topic)
        self.dead_letters = self.dead_letters or DEFAULT_DEAD_LETTERS.replace(PLACEHOLDER, self.topic)
        check_topic_names(self.named_topics)
        return self

    @property
    def scored_topics(self) -> tuple[str, ...]:
        """The topics that scored records go to: --out for all records, --alerts for alerts."""
        named = (None if self.out == NO_TOPIC else self.out, self.alerts)
        return tuple(topic for topic in named if topic is not None)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The topics that records of the input go to."""
        return (*self.scored_topics, self.dead_letters)

    def check_topics(self) -> None:
        """Raise ValueError unless scores are written, and every topic has one role."""
        if self.alerts == NO_TOPIC:
            raise ValueError(
                f"--alerts {NO_TOPIC} names no topic; leave --alerts out to write no alerts to a topic of their own"
            )
        if not self.scored_topics:
            raise ValueError(f"--out {NO_TOPIC} needs --alerts: without a topic for outliers, no score is written")
        if self.silence is not None and self.alerts is None:
            raise ValueError("--silence needs --alerts TOPIC, where its alerts are written")
        roles = self.named_topics
        if len({*roles.values(), self.state_topic}) < len(roles) + 1:
            shown = ", ".join(f"{name} {topic}" for name, topic in roles.items())
            raise ValueError(f"{shown} and the state topic {self.state_topic} must be different topics")


class GivenFlags(TopicFlags):
    """Settings that know which of them the user has given: the group may decide about the others."""

    _given: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="wrap")
    @classmethod
    def _note_given(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(values)
        made._given = frozenset(values) if isinstance(values, Mapping) else frozenset()
        return made

    def is_given(self, name: str) -> bool:
        """Return whether a setting, named as its flag, has a value from a flag, the environment or the file."""
        return name.replace("-", "_") in self._given


def check_topic_names(topics: Mapping[str, str | None]) -> None:
    """Raise ValueError, which names the flag, for a text that cannot be the name of a topic."""
    for flag_name, topic in topics.items():
        if topic and flag_name == "--topic" and ("," in topic or topic.startswith("^")):
            raise ValueError(
                f"--topic {topic[:60]!r}: this command takes one topic; run, doctor and group take several"
            )
        if topic == NO_TOPIC and flag_name != "--topic":
            raise ValueError(f"{flag_name} {NO_TOPIC}: only --out takes this word; leave {flag_name} out")
        if topic and (not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic) or topic in (".", "..")):
            raise ValueError(
                f"{flag_name} {topic[:60]!r} cannot be the name of a topic: it has at most 249 letters from a to z, "
                "digits, and the characters . _ -"
            )
