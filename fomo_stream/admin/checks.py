"""The checks of `fomo-stream doctor`. Pure: they make findings of settings and facts.

What keeps an instance from starting, they ask of the same functions as the start does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from confluent_kafka.admin import AclOperation

from fomo_stream.admin.inquiry import (
    CONSUMER_OFFSETS,
    WATCH_S,
    Facts,
    SubjectFacts,
    TopicFacts,
    internal_topics,
    subject_of,
    topics_of,
)
from fomo_stream.errors import BrokerError, ConfigError, FomoError, RegistryError, TopicError
from fomo_stream.kafka.broker.clients import session_timeout_ms
from fomo_stream.kafka.broker.permissions import (
    READ,
    missing_permissions,
    operation_name,
    permit,
    service_needs,
)
from fomo_stream.kafka.topics.checks import (
    RESULT_BYTES,
    STATE_TOPIC_CONFIG,
    alter,
    create,
    grow,
    no_input,
    without_effect,
    wrong_feedback,
    wrong_policy,
)
from fomo_stream.records.writer import Kind
from fomo_stream.settings.commands import DoctorSettings
from fomo_stream.wording import counted, in_bytes, in_time

LARGE_SEGMENT = 128 << 20  # bytes
SLOW_SEGMENT_MS = 3_600_000
FOR_EVER = -1  # of retention.ms
NO_LIMIT = (1 << 63) - 1  # of message.timestamp.before.max.ms
MOST_CLEANUP_MS = 1000
DEFAULT_BATCH = 1_048_588  # bytes, max.message.bytes of a topic
MOST_EXPANSION = 1032  # of gzip; of zstd, the client has a limit
LEAST_RETENTION_MIN = 24 * 60
CLEANUP = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
LONGEST = "transaction.max.timeout.ms"
# The replicas with which brokers create their internal topics.
FACTORS = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")

KINDS = {Kind.AVRO: "Avro", Kind.PROTOBUF: "Protobuf", Kind.JSON: "JSON"}


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


def problem(error: FomoError) -> Finding:
    """The service cannot work so; it would end with this error."""
    return Finding(Level.PROBLEM, error.what, error.remedy, error.exit_code)


# --- brokers and replicas


def brokers(_settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """The brokers that answer."""
    named = ", ".join(f"{number} at {place}" for number, place in sorted(facts.brokers.items()))
    yield ok(f"{len(facts.brokers)} in the cluster: {named}")


def replicas(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Replicas of all topics, also of the brokers' own, and whether they are in sync."""
    by_finding: dict[Finding, list[str]] = {}
    for topic in (*topics_of(settings), *internal_topics(settings)):
        finding = _of_topic(topic, facts)
        if finding is not None:
            by_finding.setdefault(finding, []).append(topic)
    for finding, names in by_finding.items():
        yield Finding(finding.level, f"{', '.join(names)}: {finding.what}", finding.remedy, finding.code)


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
    least, in_sync = topic.number("min.insync.replicas"), min(topic.in_sync)
    if not topic.has_leaders:
        return problem(BrokerError("a partition has no leader", "start the brokers that hold its replicas"))
    if least is not None and in_sync < least:
        what = f"{in_sync} replicas in sync, but min.insync.replicas={least}: writes are refused"
        remedy = "start the brokers that are missing; min.insync.replicas must be at most the number of replicas"
        return problem(BrokerError(what, remedy))
    if topic.in_sync != topic.replicas:
        return warning("not all replicas are in sync", "start the broker that is missing, or wait until it caught up")
    return _of_count(min(topic.replicas), least, n_brokers)


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
    yield from [*_timeouts(settings, facts)] or [ok("timeouts and retention suit the service")]


def _timeouts(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    session = session_timeout_ms(settings)
    slowest = max(facts.broker_numbers(CLEANUP), default=0)
    longest = min(facts.broker_numbers(LONGEST), default=1 << 31)
    text = settings.kafka.get("transaction.timeout.ms", "")
    wanted = int(text) if text.isdigit() else session
    if settings.delivery == "exactly-once" and slowest > MOST_CLEANUP_MS:
        yield warning(
            f"{CLEANUP}={slowest}: readers wait so much longer for the transaction of a dead instance",
            f"set it to {MOST_CLEANUP_MS} in the configuration of the brokers",
        )
    if settings.delivery == "exactly-once" and wanted > longest:
        what = f"{LONGEST}={longest} at the brokers, but transactions here may take {wanted} ms"
        remedy = "lower --kafka.session.timeout.ms or --kafka.transaction.timeout.ms, or raise it at the brokers"
        yield problem(ConfigError(what, remedy))
    lowest = max(facts.broker_numbers("group.min.session.timeout.ms"), default=0)
    highest = min(facts.broker_numbers("group.max.session.timeout.ms"), default=session)
    is_chosen_here = settings.kafka.get("group.protocol") != "consumer"  # else the broker chooses the timeout
    if is_chosen_here and not lowest <= session <= highest:
        what = f"the brokers allow sessions of {lowest} to {highest} ms, but --kafka.session.timeout.ms is {session}"
        remedy = "choose a session timeout that they allow, or change group.min/max.session.timeout.ms at the brokers"
        yield problem(ConfigError(what, remedy))
    kept = min(facts.broker_numbers("offsets.retention.minutes"), default=LEAST_RETENTION_MIN)
    if kept < LEAST_RETENTION_MIN:
        yield warning(
            f"offsets.retention.minutes={kept}: a group that is stopped for longer loses its offsets",
            "set it to a day or more (10080: 7 days) in the configuration of the brokers",
        )


# --- permissions and transactions


def permissions(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """What this user may do with the topics and the group; what is useful but not required is a warning."""
    permitted = {name: topic.operations for name, topic in facts.topics.items()}
    permitted |= dict.fromkeys(facts.hidden, ())
    needs = service_needs(settings)
    missing: list[FomoError] = [*missing_permissions(settings, needs, permitted, READ, facts.group_operations)]
    if facts.group_error is not None:
        missing.append(facts.group_error)
    for error in missing:
        what = error.what if error is facts.group_error else f"not permitted: {error.what}"
        yield Finding(Level.PROBLEM, what, error.remedy, error.exit_code)
    silent = [topic for topic in topics_of(settings) if topic in facts.topics and permitted[topic] is None]
    absent = [topic for topic in topics_of(settings) if topic not in permitted]
    if silent:
        yield unchecked(f"the broker does not report permissions on {', '.join(silent)}")
    elif absent:
        yield unchecked(f"permissions on {', '.join(absent)}: they do not exist yet")
    elif not missing:
        yield ok(f"this user may do what the service needs, on {len(topics_of(settings))} topics and the group")
    yield from _useful(settings, facts)


def _useful(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    growing = [topic for topic in (settings.state_topic, settings.feedback) if topic is not None]
    useful = (
        (AclOperation.DESCRIBE_CONFIGS, topics_of(settings), "records too large for a topic are noticed late"),
        (AclOperation.ALTER, growing, "it cannot grow with the input"),
        (AclOperation.DELETE, [settings.state_topic], "--reset-state cannot delete it"),
    )
    for operation, topics, effect in useful:
        lacking = [topic for topic in topics if _may(facts, operation, topic) is False]
        if lacking:
            more = ", and so on" if lacking[1:] else ""
            yield warning(
                f"{operation_name(operation)} is not permitted on {', '.join(lacking)}: {effect}",
                f"if that matters: {permit(settings, operation, 'topic', lacking[0])}{more}",
            )


def _may(facts: Facts, operation: AclOperation, topic: str) -> bool | None:
    """Whether this user may do it; None if that is not known."""
    operations = facts.topics[topic].operations if topic in facts.topics else None
    return None if operations is None else operation in operations


def transactions(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Whether the broker gives transactions, and which partitions have one that does not end."""
    if settings.delivery == "exactly-once":
        error = facts.transactions
        yield ok("the broker gives transactions to this user") if error is None else problem(error)
    for topic, partitions in facts.standing.items():
        shown = ", ".join(map(str, partitions[:10])) + (", ..." if partitions[10:] else "")
        yield warning(
            f"{topic}: in partitions {shown} a transaction has been open for more than {WATCH_S:g} s; "
            "readers of committed records wait for it",
            "if its writer has died, the broker ends it after transaction.timeout.ms; if it stays for longer: "
            "kafka-transactions.sh find-hanging, then abort",
        )
    if not facts.standing:
        yield ok(f"none has been open for more than {WATCH_S:g} s")


# --- topics


def topics(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Existence, partitions and settings of all topics."""
    findings = [*_existence(settings, facts)]
    if settings.topic in facts.topics:
        findings += [*_input(settings, facts), *_partitions(settings, facts), *_state(settings, facts)]
        for topic in settings.outputs:
            findings += [*_output(settings, facts, topic)]
    hidden = [topic for topic in topics_of(settings) if topic in facts.topics and facts.topics[topic].config is None]
    if hidden:
        remedy = "permit DescribeConfigs on these topics, or run this as an administrator"
        findings.append(unchecked(f"the settings of {', '.join(hidden)}, which this user may not read", remedy))
    yield from findings
    if all(finding.level is Level.OK for finding in findings):
        yield ok(f"partitions and settings of {len(topics_of(settings))} topics")


def _existence(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    may_create = AclOperation.CREATE in (facts.cluster_operations or ())
    count = len(facts.topics[settings.topic].replicas) if settings.topic in facts.topics else 4
    for topic in topics_of(settings):
        if topic in facts.topics:
            continue
        if topic in facts.hidden:
            yield unchecked(f"this user may not describe {topic}")
        elif topic == settings.topic:
            yield problem(no_input(settings))
        elif may_create:
            yield ok(f"{topic} does not exist yet; the first instance creates it")
        else:
            what = f"{topic} does not exist yet, and it is not known whether this user may create it"
            yield warning(what, f"permit Create on it, or create it: {create(settings, topic, count)}")


def _input(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    topic = facts.topics[settings.topic]
    largest = topic.number("max.message.bytes") or 0
    if largest > DEFAULT_BATCH and (topic.config or {}).get("compression.type") != "uncompressed":
        what = f"{settings.topic} takes compressed batches of {in_bytes(largest)}"
        remedy = (
            f"if you do not trust producers: {alter(settings, settings.topic, f'max.message.bytes={DEFAULT_BATCH}')}"
        )
        yield warning(f"{what}: one can fill {in_bytes(2 * MOST_EXPANSION * largest)} of an instance's memory", remedy)


def _partitions(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    sizes = {topic: len(about.replicas) for topic, about in facts.topics.items()}
    count = sizes[settings.topic]
    for topic in topics_of(settings):
        size = sizes.get(topic, count)
        if size == count:
            continue
        what = f"{topic} has {counted(size, 'partition')}, {settings.topic} has {count}"
        if topic in settings.outputs:
            yield warning(
                f"{what}: records are distributed by key, in place of their partition's number",
                f"add them: {grow(settings, topic, count)}" if size < count else "nothing, if this is wanted",
            )
        elif size < count and _may(facts, AclOperation.ALTER, topic):
            yield warning(what, f"instances add them where they run; or add them: {grow(settings, topic, count)}")
        elif topic == settings.feedback and (error := wrong_feedback(settings, sizes)) is not None:
            yield problem(error)
        elif size < count:
            remedy = f"add them: {grow(settings, topic, count)}"
            yield problem(TopicError(f"{what}: the others cannot be scored", remedy))


def _state(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    name = settings.state_topic
    topic = facts.topics.get(name)
    if topic is None or topic.config is None:
        return
    if error := wrong_policy(settings, topic.config):
        yield problem(error)
    segment, roll = topic.number("segment.bytes") or 0, topic.number("segment.ms") or 0
    if segment > LARGE_SEGMENT or roll > SLOW_SEGMENT_MS:
        wanted = ",".join(f"{key}={value}" for key, value in STATE_TOPIC_CONFIG.items() if key != "cleanup.policy")
        yield warning(
            f"{name} has segments of {in_bytes(segment)} or {in_time(roll / 1000)}: they are compacted late, so "
            "restores read much more than the state",
            alter(settings, name, wanted),
        )


def _output(settings: DoctorSettings, facts: Facts, name: str) -> Iterator[Finding]:
    topic, source = facts.topics.get(name), facts.topics[settings.topic]
    if topic is None or topic.config is None:
        return
    policy = topic.config.get("cleanup.policy", "delete")
    largest, largest_input = topic.number("max.message.bytes"), source.number("max.message.bytes")
    if largest is not None and largest_input is not None and largest < largest_input + RESULT_BYTES:
        yield warning(
            f"{name} takes records of {in_bytes(largest)}, {settings.topic} of {in_bytes(largest_input)}: the largest "
            "do not fit with their result",
            alter(settings, name, f"max.message.bytes={largest_input + RESULT_BYTES}"),
        )
    kept, kept_input = topic.number("retention.ms"), source.number("retention.ms")
    if "delete" in policy and _is_shorter(kept, kept_input):
        yield warning(
            f"{name} keeps records for {in_time((kept or 0) / 1000)}, less than {settings.topic}: its records have the "
            "input's timestamps, so old ones are deleted as soon as they are written",
            alter(settings, name, f"retention.ms={kept_input}"),
        )
    if "compact" in policy:
        what = f"{name} is compacted: only the last record of each key stays"
        yield warning(what, alter(settings, name, "cleanup.policy=delete"))
    if topic.config.get("message.timestamp.type") == "LogAppendTime":
        what = f"{name} has message.timestamp.type=LogAppendTime: its records lose the input's timestamps"
        yield warning(what, alter(settings, name, "message.timestamp.type=CreateTime"))
    oldest = topic.number("message.timestamp.before.max.ms")
    if oldest is not None and oldest < NO_LIMIT and _is_shorter(oldest, kept_input):
        what = f"{name} refuses timestamps older than {in_time(oldest / 1000)}; {settings.topic} keeps older records"
        yield warning(what, alter(settings, name, f"message.timestamp.before.max.ms={NO_LIMIT}"))


def _is_shorter(kept: int | None, than: int | None) -> bool:
    if kept is None or than is None or kept == FOR_EVER:
        return False
    return than == FOR_EVER or kept < than


# --- schema registry


def schema_registry(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Whether it answers, what it has for the input, and whether it takes the schemas of outputs."""
    registry, source = facts.registry, subject_of(settings.topic)
    if registry is None:
        return
    if registry.newest is not None:
        version, kind = registry.newest.version, KINDS[registry.newest.kind]
        yield ok(f"{registry.url} answers; the newest schema of {source} is version {version}, in {kind}")
    elif registry.error is None:
        yield unchecked(
            f"{registry.url} answers, but has no subject {source}: it is not known whether schemas can be used",
            "nothing, if no record was sent yet, or if producers name subjects by the type of their records",
        )
    if registry.unusable is not None:
        what = f"records by the newest schema of {source} become dead letters ({registry.unusable.reason})"
        yield warning(
            f"{what}: {' '.join(str(registry.unusable).split())}",
            "see docs/schemas.md for the schemas that can be used",
        )
    if settings.output_format == "registry" and settings.subject_strategy != "topic":
        yield unchecked(
            f"subjects of outputs: --subject-strategy {settings.subject_strategy} names them by each record"
        )
    for name, subject in registry.outputs.items():
        yield _of_outputs(name, subject)
    if registry.error is not None:
        yield problem(registry.error)


def _of_outputs(name: str, subject: SubjectFacts) -> Finding:
    level = "" if subject.level is None else f" (compatibility {subject.level})"
    if subject.has_outputs:
        return ok(f"{name} has the schema of outputs{level}")
    if subject.mode is not None and subject.mode.startswith("READONLY"):
        what, remedy = f"{name} is {subject.mode}: it takes no schema of outputs", "set its mode to READWRITE"
        return warning(what, remedy) if subject.has_outputs is None else problem(RegistryError(what, remedy))
    if subject.takes_outputs is False:
        what = f"{name} does not take the schema of outputs{level}: they become dead letters (output_schema_refused)"
        remedy = "lower the compatibility of this subject, or name another topic with --out or --alerts"
        return problem(RegistryError(what, remedy))
    if subject.has_outputs is None:
        return unchecked(f"{name}{level}: the schema of outputs is not known, because that of the input is not")
    return ok(f"{name} gets the schema of outputs with the first record, if this user may register it{level}")


# --- settings of this instance


def own_settings(settings: DoctorSettings, _facts: Facts) -> Iterator[Finding]:
    """Settings without which a deployment works less well."""
    yield from [*_advice(settings)] or [ok("the instance has a name and serves probes")]


def _advice(settings: DoctorSettings) -> Iterator[Finding]:
    if settings.instance_id is None:
        yield warning(
            "no --instance-id: after a crash, partitions wait for the session timeout and then move",
            "give each instance a name that it keeps, for example that of its pod",
        )
    if settings.health_port is None:
        yield warning(
            "no --health-port: an instance that hangs is not noticed, and there are no metrics",
            "--health-port 8080, and probes on /livez and /readyz",
        )
    if settings.reset_state:
        yield warning(
            "--reset-state is set: every start deletes what was learned",
            "take it out of the configuration after the one start that needs it",
        )
    for what, remedy in without_effect(settings):
        yield warning(what, remedy)
