"""Checks of the brokers: reachable, replicas, and their settings. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fomo_stream.admin.doctor.facts import (
    CONSUMER_OFFSETS,
    Facts,
    Finding,
    Level,
    TopicFacts,
    internal_topics,
    ok,
    problem,
    topics_of,
    unchecked,
    warning,
)
from fomo_stream.errors import BrokerError, ConfigError
from fomo_stream.kafka.broker.clients import session_timeout_ms
from fomo_stream.settings.commands import DoctorSettings

MOST_CLEANUP_MS = 1000
LEAST_RETENTION_MIN = 24 * 60
CLEANUP = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
LONGEST = "transaction.max.timeout.ms"
# The replicas with which brokers create their internal topics.
FACTORS = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")


def reachable(_settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """The brokers that answer."""
    named = ", ".join(f"{number} at {place}" for number, place in sorted(facts.brokers.items()))
    yield ok(f"{len(facts.brokers)} in the cluster: {named}")
    if not facts.has_topic_ids:
        yield warning(
            "the brokers have no topic ids: they are older than Kafka 2.8",
            "upgrade them: a topic that is deleted and created again is recognised by its id",
        )


def replicas(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Replicas of all topics, also of the brokers' own, and whether they are in sync."""
    by_finding: dict[Finding, list[str]] = {}
    for topic in (*topics_of(settings), *internal_topics(settings)):
        finding = _of_topic(topic, facts)
        if finding is not None:
            by_finding.setdefault(finding, []).append(topic)
    for finding, topics in by_finding.items():
        yield Finding(finding.level, f"{', '.join(topics)}: {finding.what}", finding.remedy, finding.code)


def _of_topic(topic: str, facts: Facts) -> Finding | None:
    """The finding without the name, so that topics with the same one share a line; None: the topic does not exist."""
    if topic in facts.topics:
        return _of_replicas(facts.topics[topic], len(facts.brokers))
    if topic in facts.hidden:
        return unchecked("this user may not describe it")
    if not topic.startswith("__"):
        return None  # the check of topics says so
    factors = facts.broker_numbers(FACTORS[0] if topic == CONSUMER_OFFSETS else FACTORS[1])
    if not factors:
        return unchecked("it does not exist yet, or this user may not describe it")
    return _of_count(min(factors), None, len(facts.brokers))


def _of_replicas(topic: TopicFacts, n_brokers: int) -> Finding:
    least = topic.number("min.insync.replicas")
    if not all(partition.has_leader for partition in topic.partitions):
        return problem(BrokerError, "a partition has no leader", "start the brokers that hold its replicas")
    in_sync = min(partition.in_sync for partition in topic.partitions)
    if least is not None and in_sync < least:
        return problem(
            BrokerError,
            f"{in_sync} replicas in sync, but min.insync.replicas={least}: writes are refused",
            "start the brokers that are missing; min.insync.replicas must be at most the number of replicas",
        )
    if any(partition.in_sync < partition.replicas for partition in topic.partitions):
        return warning("not all replicas are in sync", "start the broker that is missing, or wait until it caught up")
    return _of_count(min(partition.replicas for partition in topic.partitions), least, n_brokers)


def _of_count(count: int, least: int | None, n_brokers: int) -> Finding:
    enough = "give it 3 replicas and min.insync.replicas=2 (kafka-reassign-partitions.sh)"
    if count == 1:
        few = "run three brokers, with 3 replicas and min.insync.replicas=2; until then, use --delivery at-least-once"
        remedy = enough if n_brokers >= 3 else few
        return warning("1 replica: when its broker crashes, transactions may stay open for ever", remedy)
    if count == 2:
        return warning("2 replicas: a crash stops writes, or loses what one replica had alone", enough)
    if least is not None and least < 2:
        return warning(
            f"min.insync.replicas={least}: what one replica has alone can be lost",
            "set it to 2: kafka-configs.sh --alter --entity-type topics --add-config min.insync.replicas=2",
        )
    return ok(f"{count} replicas" + ("" if least is None else f", min.insync.replicas={least}"))


def broker_settings(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Settings of the brokers that decide how long instances wait, and whether they may join."""
    if not facts.broker_configs:
        yield unchecked(
            "this user may not read the brokers' configuration",
            "permit DescribeConfigs on the cluster, or run this as an administrator",
        )
        return
    findings = [*_timeouts(settings, facts), *_offsets(facts)]
    yield from findings
    if not any(finding.level is not Level.OK for finding in findings):
        yield ok("timeouts and retention suit the service")


def _timeouts(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    session = session_timeout_ms(settings)
    if settings.delivery == "exactly-once":
        slowest = max(facts.broker_numbers(CLEANUP), default=0)
        if slowest > MOST_CLEANUP_MS:
            yield warning(
                f"{CLEANUP}={slowest}: readers wait so much longer for the transaction of a dead instance",
                f"set it to {MOST_CLEANUP_MS} in the configuration of the brokers",
            )
        wanted, longest = _transaction_timeout_ms(settings, session), facts.broker_numbers(LONGEST)
        if longest and wanted > min(longest):
            yield problem(
                ConfigError,
                f"{LONGEST}={min(longest)} at the brokers, but transactions here may take {wanted} ms",
                "lower --kafka.session.timeout.ms or --kafka.transaction.timeout.ms, or raise it at the brokers",
            )
    if settings.kafka.get("group.protocol") == "consumer":  # then the broker chooses the timeout
        return
    lowest = max(facts.broker_numbers("group.min.session.timeout.ms"), default=0)
    highest = min(facts.broker_numbers("group.max.session.timeout.ms"), default=session)
    if not lowest <= session <= highest:
        yield problem(
            ConfigError,
            f"the brokers allow sessions of {lowest} to {highest} ms, but --kafka.session.timeout.ms is {session}",
            "choose a session timeout that they allow, or change group.min/max.session.timeout.ms at the brokers",
        )


def _offsets(facts: Facts) -> Iterator[Finding]:
    minutes = min(facts.broker_numbers("offsets.retention.minutes"), default=LEAST_RETENTION_MIN)
    if minutes < LEAST_RETENTION_MIN:
        yield warning(
            f"offsets.retention.minutes={minutes}: a group that is stopped for longer loses its offsets",
            "set it to a day or more (10080: 7 days) in the configuration of the brokers",
        )


def _transaction_timeout_ms(settings: DoctorSettings, session: int) -> int:
    text = settings.kafka.get("transaction.timeout.ms", "")
    return int(text) if text.isdigit() else session
