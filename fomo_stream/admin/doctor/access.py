"""Checks of this user's permissions, and of the transactions that the service needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka.admin import AclOperation

from fomo_stream.admin.doctor.facts import (
    CONSUMER_OFFSETS,
    Facts,
    Finding,
    Level,
    ok,
    problem,
    topics_of,
    unchecked,
    warning,
)
from fomo_stream.errors import BrokerError, ConfigError, NotPermittedError
from fomo_stream.kafka.broker.permissions import READ, permit, service_needs
from fomo_stream.settings.commands import DoctorSettings


def permissions(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """What this user may do with the topics and the group; what is useful but not required is a warning."""
    missing = [*_missing_on_topics(settings, facts), *_missing_on_group(settings, facts)]
    yield from missing
    unknown = [topic for topic in topics_of(settings) if topic in facts.topics and not facts.topics[topic].operations]
    absent = [topic for topic in topics_of(settings) if topic not in facts.topics and topic not in facts.hidden]
    if unknown:
        yield unchecked(f"the broker does not report permissions on {', '.join(unknown)}")
    elif absent:
        yield unchecked(f"permissions on {', '.join(absent)}: they do not exist yet")
    elif not missing:
        yield ok(f"this user may do what the service needs, on {len(topics_of(settings))} topics and the group")
    yield from _useful(settings, facts)


def _missing_on_topics(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    for topic, needed in service_needs(settings).items():
        found = facts.topics.get(topic)
        if found is not None and found.operations:
            operations = [operation for operation in needed if operation not in found.operations]
        else:
            operations = needed if topic in facts.hidden else []
        for operation in operations:
            what = f"this user may not {operation.name.lower()} topic {topic}, or the topic does not exist"
            exact = f"this user may not {operation.name.lower()} topic {topic}"
            remedy = permit(settings, operation, "topic", topic)
            yield problem(NotPermittedError, what if topic in facts.hidden else exact, remedy)


def _missing_on_group(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    if facts.group_trouble:
        what = f"the coordinator of group {settings.group} does not answer ({facts.group_trouble})"
        yield problem(BrokerError, what, f"check that all brokers run, and the replicas of {CONSUMER_OFFSETS}")
    is_refused = bool(facts.group_operations) and READ not in (facts.group_operations or ())
    if facts.is_group_hidden or is_refused:
        what = f"this user may not read group {settings.group}: it cannot join or commit offsets"
        yield problem(NotPermittedError, what, permit(settings, READ, "group", settings.group))


def _useful(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    growing = [topic for topic in (settings.state_topic, settings.feedback) if topic is not None]
    useful = (
        (AclOperation.DESCRIBE_CONFIGS, topics_of(settings), "records too large for a topic are noticed late"),
        (AclOperation.ALTER, growing, "it cannot grow with the input"),
        (AclOperation.DELETE, [settings.state_topic], "--reset-state cannot delete it"),
    )
    for operation, topics, effect in useful:
        lacking = [
            topic
            for topic in topics
            if topic in facts.topics and facts.topics[topic].operations and operation not in _operations(facts, topic)
        ]
        if lacking:
            name = "".join(part.capitalize() for part in operation.name.split("_"))
            more = ", and so on" if lacking[1:] else ""
            yield warning(
                f"{name} is not permitted on {', '.join(lacking)}: {effect}",
                f"if that matters: {permit(settings, operation, 'topic', lacking[0])}{more}",
            )


def _operations(facts: Facts, topic: str) -> frozenset[AclOperation]:
    return facts.topics[topic].operations or frozenset()


def transactions(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Whether the broker gives transactions, and which partitions have one that does not end."""
    if settings.delivery == "exactly-once":
        error = facts.transactions
        if error is None:
            yield ok("the broker gives transactions to this user")
        else:
            what, _, remedy = str(error).partition("; ")
            if isinstance(error, (NotPermittedError, ConfigError)):
                yield problem(type(error), what, remedy)
            else:
                yield Finding(Level.PROBLEM, what, remedy, error.exit_code)
    for topic, partitions in facts.standing.items():
        shown = ", ".join(map(str, partitions[:10])) + (", ..." if partitions[10:] else "")
        yield warning(
            f"{topic}: in partitions {shown} a transaction has been open for more than {settings.watch_seconds:g} s; "
            "readers of committed records wait for it",
            "if its writer has died, the broker ends it after transaction.timeout.ms; if it stays for longer: "
            "kafka-transactions.sh find-hanging, then abort",
        )
    if not facts.standing:
        yield ok(f"none has been open for more than {settings.watch_seconds:g} s")
