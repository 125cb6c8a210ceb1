"""The checks of `fomo-stream doctor` on a deployment as the brokers describe it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from confluent_kafka.admin import AclOperation

from fomo_stream.errors import BrokerError, ConfigError, TopicError
from fomo_stream.kafka.broker.clients import session_timeout_ms
from fomo_stream.kafka.broker.permissions import READ, Operations, missing_permissions, operations_of, service_needs
from fomo_stream.kafka.topics.checks import (
    RESULT_BYTES,
    STATE_TOPIC_CONFIG,
    Finding,
    alter_command,
    create_command,
    feedback_topic,
    grow_command,
    input_topic,
    state_topic,
    without_effect,
)
from fomo_stream.partition.record import Pending
from fomo_stream.settings.commands import DoctorSettings
from fomo_stream.wording import counted, in_bytes, in_time

LARGE_SEGMENT_BYTES = 128 << 20  # bytes
SLOW_SEGMENT_MS = 3_600_000
MAX_CLEANUP_MS = 1000
DEFAULT_BATCH_BYTES = 1_048_588  # bytes, max.message.bytes of a topic
MAX_EXPANSION = 1032  # of gzip; for zstd, the client has a limit
CLEANUP_SETTING = "transaction.abort.timed.out.transaction.cleanup.interval.ms"


@dataclass(frozen=True)
class Facts:
    """A deployment as the brokers describe it to this user.

    topics: descriptions (`TopicDescription`) of the existing topics. hidden: topics that this user may not describe.
    configs, broker_configs: settings of the topics and brokers whose settings this user may read.
    """

    brokers: Mapping[int, str] = field(default_factory=dict)  # host:port by id
    topics: Mapping[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Sequence[Mapping[str, str]] = ()
    on_cluster: Operations = None
    on_group: Operations = None
    transactions: Sequence[Finding] = ()  # whether transactions work, if they are needed
    first: Sequence[Pending] = ()  # the first records of all partitions, those of each in order
    unread: str = ""  # why the first records are not known

    def operations(self) -> dict[str, Operations]:
        """Return what this user may do with each topic that exists."""
        return {name: operations_of(topic) for name, topic in self.topics.items()} | dict.fromkeys(self.hidden, ())


def config_value(config: Mapping[str, str], name: str, default: float = inf) -> float:
    """Return a setting of a topic or a broker; infinite where it is -1, which means no limit."""
    value = float(config.get(name, default))
    return value if value >= 0 else inf


def topics_of(settings: DoctorSettings) -> list[str]:
    """Return the topics of the service, in the order in which they are shown."""
    named = (settings.topic, *settings.outputs, settings.feedback, settings.state_topic)
    return [topic for topic in named if topic is not None]


def internal_topics(settings: DoctorSettings) -> list[str]:
    """Return the internal topics of the brokers that the service depends on."""
    return ["__consumer_offsets", *(["__transaction_state"] if settings.delivery == "exactly-once" else [])]


def brokers(_settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Report the brokers that answer."""
    named = ", ".join(f"{number} at {place}" for number, place in sorted(facts.brokers.items()))
    yield Finding(f"{len(facts.brokers)} in the cluster: {named}")


def permissions(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Check what this user may do with the topics and the group."""
    permitted = facts.operations()
    missing = missing_permissions(settings, service_needs(settings), permitted, READ, facts.on_group)
    for error in missing:
        yield Finding(f"not permitted: {error.what}", error.remedy, error)
    unknown = [topic for topic in topics_of(settings) if permitted.get(topic) is None]
    if unknown:
        what = f"permissions on {', '.join(unknown)}: they do not exist yet, or the broker does not tell"
        yield Finding(what, is_known=False)
    elif not missing:
        count = len(topics_of(settings))
        yield Finding(f"this user may do what the service needs, on {count} topics and the group")


def topics(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Check existence, partitions and settings of all topics."""
    sizes = {name: len(topic.partitions) for name, topic in facts.topics.items()}
    for topic in topics_of(settings):
        if topic in facts.hidden:
            yield Finding(f"this user may not describe {topic}", is_known=False)
        elif topic == settings.topic:
            yield input_topic(settings, sizes)
        elif topic not in sizes and AclOperation.CREATE in (facts.on_cluster or ()):
            yield Finding(f"{topic} does not exist yet; the first instance creates it")
        elif topic not in sizes:
            what = f"{topic} does not exist yet, and it is not known whether this user may create it"
            command = create_command(settings, topic, sizes.get(settings.topic, 4))
            yield Finding(what, f"permit Create on it, or create it: {command}")
        elif settings.topic in sizes:
            may_grow = AclOperation.ALTER in (facts.operations()[topic] or ())
            yield from _check_partitions(settings, sizes, topic, may_grow)
        if topic in facts.configs:
            yield from _check_settings(settings, topic, facts.configs[topic], facts.configs.get(settings.topic, {}))
    if unread := [topic for topic in topics_of(settings) if topic in facts.topics and topic not in facts.configs]:
        remedy = "permit DescribeConfigs on these topics, or run this as an administrator"
        what = f"the settings of {', '.join(unread)}, which this user may not read"
        yield Finding(what, remedy, is_known=False)


def _check_partitions(settings: DoctorSettings, sizes: Mapping[str, int], topic: str, grows: bool) -> Iterator[Finding]:
    """Compare the partitions of a topic with those of the input. sizes: of all topics that exist, including both."""
    size, count = sizes[topic], sizes[settings.topic]
    what = f"{topic} has {counted(size, 'partition')}, {settings.topic} has {count}"
    remedy = f"add them: {grow_command(settings, topic, count)}"
    if topic in settings.outputs and size != count:
        what = f"{what}: records are distributed by key, instead of by the number of their partition"
        yield Finding(what, remedy if size < count else "nothing, if this is wanted")
    elif topic not in settings.outputs and size < count and grows:
        yield Finding(what, f"instances add them where they run; or {remedy}")
    elif topic == settings.feedback:
        yield feedback_topic(settings, sizes)
    elif size < count:
        yield Finding.problem(TopicError(f"{what}: the others cannot be scored", remedy))


def _check_settings(
    settings: DoctorSettings, topic: str, config: Mapping[str, str], source: Mapping[str, str]
) -> Iterator[Finding]:
    """Check the settings of a topic. source: those of the input."""
    max_bytes, kept_ms = config_value(config, "max.message.bytes"), config_value(config, "retention.ms")
    policy, compression = config.get("cleanup.policy", ""), config.get("compression.type")
    segment, roll_ms = config_value(config, "segment.bytes", 0), config_value(config, "segment.ms", 0)
    if topic == settings.topic and DEFAULT_BATCH_BYTES < max_bytes < inf and compression != "uncompressed":
        batch, memory = in_bytes(max_bytes), in_bytes(2 * MAX_EXPANSION * max_bytes)
        what = f"{topic} takes compressed batches of {batch}: one can fill {memory} of an instance's memory"
        change = alter_command(settings, topic, f"max.message.bytes={DEFAULT_BATCH_BYTES}")
        yield Finding(what, f"if you do not trust producers: {change}")
    if topic == settings.state_topic:
        yield state_topic(settings, config)
        if segment > LARGE_SEGMENT_BYTES or roll_ms > SLOW_SEGMENT_MS:
            what = f"{topic} has segments of {in_bytes(segment)} or {in_time(roll_ms / 1000)}: they are compacted late"
            change = ",".join(f"{key}={value}" for key, value in STATE_TOPIC_CONFIG.items() if key != "cleanup.policy")
            yield Finding(f"{what}, so restores read much more than the state", alter_command(settings, topic, change))
    if topic not in settings.outputs:
        return
    needed = config_value(source, "max.message.bytes", 0) + RESULT_BYTES
    if max_bytes < needed:
        what = f"{topic} takes records of {in_bytes(max_bytes)}, {settings.topic} of {in_bytes(needed - RESULT_BYTES)}"
        change = alter_command(settings, topic, f"max.message.bytes={needed:.0f}")
        yield Finding(f"{what}: the largest do not fit with their result", change)
    if "compact" in policy:
        what = f"{topic} is compacted: only the last record of each key stays"
        yield Finding(what, alter_command(settings, topic, "cleanup.policy=delete"))
    if policy != "compact" and kept_ms < config_value(source, "retention.ms", 0):
        what = f"{topic} keeps records for {in_time(kept_ms / 1000)}, less than {settings.topic}: its records have the "
        what += "input's timestamps, so old ones are deleted as soon as they are written"
        yield Finding(what, alter_command(settings, topic, f"retention.ms={source['retention.ms']}"))


def replicas(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Check the replicas of all topics, including internal ones. Topics with the same finding share a line."""
    by_text: dict[str, tuple[Finding, list[str]]] = {}
    for topic in (*topics_of(settings), *internal_topics(settings)):
        if topic in facts.topics:
            min_in_sync = config_value(facts.configs.get(topic, {}), "min.insync.replicas", 0)
            finding = _check_replicas(facts.topics[topic].partitions, int(min_in_sync))
        elif topic in facts.hidden or topic.startswith("__"):
            finding = Finding("it does not exist yet, or this user may not describe it", is_known=False)
        else:
            continue  # the check of topics says so
        by_text.setdefault(finding.what, (finding, []))[1].append(topic)
    for finding, names in by_text.values():
        yield replace(finding, what=f"{', '.join(names)}: {finding.what}")


def _check_replicas(partitions: Sequence[Any], min_in_sync: int) -> Finding:
    """Check the replicas of a topic. least: min.insync.replicas; 0 where it is not known."""
    if any(partition.leader is None for partition in partitions):
        return Finding.problem(BrokerError("a partition has no leader", "start the brokers that hold its replicas"))
    count, in_sync = (min(len(getattr(p, name)) for p in partitions) for name in ("replicas", "isr"))
    if in_sync < min_in_sync:
        what = f"{in_sync} replicas in sync, but min.insync.replicas={min_in_sync}: writes are refused"
        remedy = "start the brokers that are missing; min.insync.replicas must be at most the number of replicas"
        return Finding.problem(BrokerError(what, remedy))
    remedy_three = "have three brokers, and give it 3 replicas and min.insync.replicas=2 (kafka-reassign-partitions.sh)"
    if count == 1:
        what = "1 replica: when its broker crashes, transactions may stay open for ever"
        return Finding(what, f"{remedy_three}; until then, use --delivery at-least-once")
    if count == 2 or min_in_sync == 1:
        what = f"{count} replicas, min.insync.replicas={min_in_sync or 'unknown'}: a crash stops writes"
        return Finding(f"{what}, or loses what one replica had alone", remedy_three)
    return Finding(f"{count} replicas" + (f", min.insync.replicas={min_in_sync}" if min_in_sync else ""))


def broker_settings(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Check settings of the brokers that decide how long instances wait, and whether they may join."""
    if not facts.broker_configs:
        remedy = "permit DescribeConfigs on the cluster, or run this as an administrator"
        yield Finding("this user may not read the brokers' configuration", remedy, is_known=False)
        return

    slowest = max(config_value(config, CLEANUP_SETTING, 0) for config in facts.broker_configs)
    if settings.delivery == "exactly-once" and slowest > MAX_CLEANUP_MS:
        what = f"{CLEANUP_SETTING}={slowest:.0f}: readers wait so much longer for the transaction of a dead instance"
        yield Finding(what, f"set it to {MAX_CLEANUP_MS} in the configuration of the brokers")
    session = session_timeout_ms(settings)
    lowest = max(config_value(config, "group.min.session.timeout.ms", 0) for config in facts.broker_configs)
    highest = min(config_value(config, "group.max.session.timeout.ms") for config in facts.broker_configs)
    is_chosen_here = settings.kafka.get("group.protocol") != "consumer"  # else the broker chooses the timeout
    if is_chosen_here and not lowest <= session <= highest:
        what = f"the brokers allow sessions of {lowest:.0f} to {highest:.0f} ms, but --kafka.session.timeout.ms is"
        remedy = "choose a session timeout that they allow, or change group.min/max.session.timeout.ms at the brokers"
        yield Finding.problem(ConfigError(f"{what} {session}", remedy))


def transactions(_settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Report whether this user can use transactions."""
    yield from facts.transactions


def own_settings(settings: DoctorSettings) -> Iterator[Finding]:
    """Check for settings that make a deployment work less well."""
    if settings.instance_id is None:
        what = "no --instance-id: after a crash, partitions wait for the session timeout and then move"
        yield Finding(what, "give each instance a name that it keeps, for example that of its pod")
    if settings.health_port is None:
        lacks = "" if settings.otlp else ", and there are no metrics"
        what = f"no --health-port: an instance that hangs is not noticed{lacks}"
        yield Finding(what, "--health-port 8080, and probes on /livez and /readyz")
    if settings.reset_state:
        what = "--reset-state is set: every start deletes what was learned"
        yield Finding(what, "remove it from the configuration after the one start that needs it")
    yield from without_effect(settings)
