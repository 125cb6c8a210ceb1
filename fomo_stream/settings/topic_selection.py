"""Which topics a process scores: one, several (`a,b`), or all that match a pattern (`^sensors-.*`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fomo_stream.errors import ConfigError
from fomo_stream.settings.config_file import read_config
from fomo_stream.settings.flags import BrokerFlags, HttpFlags
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import PLACEHOLDER, SECTIONS, LogLevel, flag, load, with_default
from fomo_stream.settings.topic_flags import (
    DEFAULT_DEAD_LETTERS,
    DEFAULT_OUT,
    NAMES,
    STATE_ENDING,
    OutputFlags,
    check_topic_names,
)

TopicSettings = TypeVar("TopicSettings", bound=OutputFlags)

MAX_LATENCY_MS = 1000.0  # by default: each topic has transactions of its own, and the broker answers to all of them
INTERNAL = "__"  # begins the names of Kafka's own topics
_COMMA = re.compile(r",(?![^{]*\})")  # not the comma of a repetition: ^a{1,3}


class ProcessSettings(BrokerFlags, HttpFlags):
    """Settings of a process that scores several topics; all others are those of a topic."""

    has_sections = False

    topic: str = flag("Topics", ..., metavar="TOPIC", min_length=1)
    """topic to read records from; it must exist"""
    group: str = ""
    out: str = ""
    alerts: str = ""
    dead_letters: str = ""
    feedback: str = ""
    log_level: LogLevel = with_default(ServiceSettings, "log_level", "info")
    threads: int = with_default(ServiceSettings, "threads", 1)
    processes: int = with_default(ServiceSettings, "processes", 1)
    wait: bool = with_default(ServiceSettings, "wait", False)


@dataclass(frozen=True)
class TopicSelection:
    """Topics by name, and patterns: each matches the beginning of a name, and `$` its end.

    >>> TopicSelection.parse("payments,^sensors-.*").matching(["sensors-a", "orders"])
    ['sensors-a']
    """

    names: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]

    @classmethod
    def parse(cls, text: str) -> TopicSelection:
        """Return the selection that --topic names. Raises ConfigError."""
        words = list(dict.fromkeys(word.strip() for word in _COMMA.split(text) if word.strip()))
        names = [word for word in words if not word.startswith("^")]
        try:
            if not words:
                raise ValueError(f"--topic {text[:60]!r} names no topic")
            for name in names:
                check_topic_names({"--topic": name})
            patterns = [re.compile(word) for word in words if word.startswith("^")]
        except (ValueError, re.error) as error:
            reason = f"--topic {text[:60]!r} has an invalid pattern: {error}" if isinstance(error, re.error) else error
            raise ConfigError(str(reason)) from None
        return cls(tuple(names), tuple(patterns))

    @property
    def is_single(self) -> bool:
        """Return whether it is one topic, by name."""
        return len(self.names) == 1 and not self.patterns

    def matching(self, listed: Iterable[str]) -> list[str]:
        """Return the topics of the broker that match a pattern and are not Kafka's own, in the order of their names."""
        topics = sorted(topic for topic in listed if not topic.startswith(INTERNAL) and topic not in self.names)
        return [topic for topic in topics if any(pattern.match(topic) for pattern in self.patterns)]


class TopicCatalog(Generic[TopicSettings]):
    """The settings of each topic of a command, from its flags, the environment, and sections of the --config file.

    cls: the settings of one topic. member: the number of this process, if it is one of several; it is added to each
    --instance-id.
    """

    def __init__(self, cls: type[TopicSettings], flags: Mapping[str, Any], member: int | None = None) -> None:
        self._cls, self._flags, self._member = cls, dict(flags), member
        self._loaded: dict[str, TopicSettings] = {}
        own = {name: value for name, value in flags.items() if name in ProcessSettings.model_fields}
        self.process = load(ProcessSettings, own)
        self.selection = TopicSelection.parse(self.process.topic)
        process = self.process
        shared = {name: getattr(process, name) for name in NAMES}
        shared |= {"out": process.out or DEFAULT_OUT, "dead_letters": process.dead_letters or DEFAULT_DEAD_LETTERS}
        sections = (read_config(process.config).get(SECTIONS) if process.config else None) or {}
        tables = [shared, *filter(None, sections.values())]
        texts = [(key.replace("-", "_"), str(text)) for table in tables for key, text in table.items() if text]
        self._outputs = [
            _name_pattern(f"{text}-{PLACEHOLDER}{STATE_ENDING}" if name == "group" else text)
            for name, text in dict.fromkeys(texts)
            if name in NAMES
        ]

    def settings(self, topic: str) -> TopicSettings:
        """Return the settings of one topic, as they were when first asked for. Raises ConfigError."""
        flags = {**self._flags, "topic": topic}
        try:
            if topic not in self._loaded:
                defaults = {} if self.selection.is_single else {"max_latency_ms": MAX_LATENCY_MS}
                own = load(self._cls, flags, defaults)
                if self._member is not None and getattr(own, "reset_state", False):
                    raise ConfigError("--reset-state needs a group without members: start once with --processes 1")
                if self._member is not None and (name := getattr(own, "instance_id", None)):
                    own = load(self._cls, flags | {"instance_id": f"{name}-{self._member}"}, defaults)
                self._loaded[topic] = own
            return self._loaded[topic]
        except ConfigError as error:
            raise error if self.selection.is_single else ConfigError(f"topic {topic}: {error}") from None

    def check(self) -> None:
        """Raise ConfigError for mistakes in the settings of the topics that are given by name."""
        if self.selection.patterns and PLACEHOLDER not in self.process.group:
            raise ConfigError(
                f"--topic {self.process.topic} can match several topics, and each needs a group of its own: name them "
                f"by {PLACEHOLDER}, such as --group 'fomo-{PLACEHOLDER}'"
            )
        _, errors = self.topics([])
        for error in errors.values():
            raise error

    def topics(self, listed: Iterable[str]) -> tuple[dict[str, TopicSettings], dict[str, ConfigError]]:
        """Return the settings of each topic that is selected, and the errors of topics whose settings are wrong.

        listed: the topics of the broker. A pattern may match the names of outputs, also of topics that are gone; these
        are not scored. Two topics cannot have one group: each joining, leaving and commit of one would make the other
        wait.
        """
        settings: dict[str, TopicSettings] = {}
        errors: dict[str, ConfigError] = {}
        found = [topic for topic in self.selection.matching(listed) if not self._is_output(topic)]
        for topic in (*self.selection.names, *found):
            try:
                settings[topic] = self.settings(topic)
            except ConfigError as error:
                errors[topic] = error
        written = {name for topic in settings for name in self._written_for(topic)}
        groups: dict[str, str] = {}
        for topic in [topic for topic in (*settings, *errors) if topic in written - {*self.selection.names}]:
            settings.pop(topic, None), errors.pop(topic, None)
        for topic, group in [(topic, own.group) for topic, own in settings.items()]:
            if (other := groups.setdefault(group, topic)) != topic:
                hint = f"give each a group of its own, such as --group '{group}-{PLACEHOLDER}'"
                errors[topic] = ConfigError(f"the topics {other} and {topic} have the same group, {group}: {hint}")
                del settings[topic]
        return settings, errors

    def _is_output(self, name: str) -> bool:
        """Return whether it is the name of an output of a topic that is selected, whether or not this topic exists."""
        matches = filter(None, (pattern.fullmatch(name) for pattern in self._outputs))
        return any(not match.re.groups or name in self._written_for(match["topic"]) for match in matches)

    def _written_for(self, topic: str) -> set[str | None]:
        """Return the topics that belong to a topic, if it is selected."""
        if topic not in self.selection.names and not self.selection.matching([topic]):
            return set()
        try:
            own = self.settings(topic)
        except ConfigError:  # it is not scored
            return set()
        return {*own.outputs, own.state_topic, own.feedback}


def _name_pattern(name: str) -> re.Pattern[str]:
    """Return a pattern of the names that a setting with a placeholder gives, with the topic as its group."""
    first, *others = map(re.escape, name.split(PLACEHOLDER))
    middle = [f"(?P<topic>.+){others[0]}", *(f"(?P=topic){text}" for text in others[1:])] if others else []
    return re.compile("".join((first, *middle)))
