"""What `inquiry` has found out, and the findings that checks make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from confluent_kafka.admin import AclOperation

from fomo_stream.errors import FomoError
from fomo_stream.settings.commands import DoctorSettings

CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    UNCHECKED = "not checked"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of a check. code: exit code of a problem, as in fomo_stream.errors."""

    level: Level
    what: str
    remedy: str = ""
    code: int = 0


@dataclass(frozen=True)
class PartitionFacts:
    """The replicas of a partition."""

    replicas: int
    in_sync: int
    has_leader: bool = True


@dataclass(frozen=True)
class TopicFacts:
    """A topic that exists. config, operations (that this user is permitted): None where the broker does not tell."""

    partitions: tuple[PartitionFacts, ...]
    config: Mapping[str, str] | None = None
    operations: frozenset[AclOperation] | None = None

    def number(self, name: str) -> int | None:
        """A number of the configuration; None where it is not known."""
        value = (self.config or {}).get(name)
        return int(value) if value is not None and value.lstrip("-").isdigit() else None


@dataclass(frozen=True)
class Facts:
    """A deployment as the brokers describe it."""

    now: float  # seconds since 1970, by the clock of this machine
    brokers: Mapping[int, str] = field(default_factory=dict)  # host:port by id
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()  # topics that this user may not describe
    has_topic_ids: bool = True
    broker_configs: tuple[Mapping[str, str], ...] = ()  # of those that this user may read
    cluster_operations: frozenset[AclOperation] | None = None
    group_operations: frozenset[AclOperation] | None = None
    is_group_hidden: bool = False
    group_trouble: str = ""  # why the group cannot be described, if that is not because of permissions
    transactions: FomoError | None = None  # why the broker does not give transactions
    newest: Mapping[str, float] = field(default_factory=dict)  # by topic, the newest timestamp, seconds since 1970
    standing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # partitions with an open transaction

    def broker_numbers(self, name: str) -> list[int]:
        """The values of a setting at all brokers whose configuration may be read."""
        values = (config.get(name) for config in self.broker_configs)
        return [int(value) for value in values if value is not None and value.lstrip("-").isdigit()]


Check = Callable[[DoctorSettings, Facts], Iterable[Finding]]


def ok(what: str) -> Finding:
    """Nothing has to be done."""
    return Finding(Level.OK, what)


def unchecked(what: str, remedy: str = "") -> Finding:
    """It could not be found out."""
    return Finding(Level.UNCHECKED, what, remedy)


def warning(what: str, remedy: str) -> Finding:
    """It works, but should be changed."""
    return Finding(Level.WARNING, what, remedy)


def problem(kind: type[FomoError], what: str, remedy: str) -> Finding:
    """The service cannot work so; it would end with an error of this kind."""
    return Finding(Level.PROBLEM, what, remedy, kind.exit_code)


def topics_of(settings: DoctorSettings) -> list[str]:
    """The topics of the service, in the order in which they are shown."""
    named = (settings.topic, *settings.outputs, settings.feedback, settings.state_topic)
    return [topic for topic in named if topic is not None]


def internal_topics(settings: DoctorSettings) -> list[str]:
    """The brokers' own topics that the service depends on."""
    return [CONSUMER_OFFSETS, *([TRANSACTION_STATE] if settings.delivery == "exactly-once" else [])]
