"""Checks of the topics of the service: whether they exist, their partitions and their settings. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka.admin import AclOperation

from fomo_stream.admin.doctor.facts import (
    Facts,
    Finding,
    Level,
    TopicFacts,
    ok,
    problem,
    topics_of,
    unchecked,
    warning,
)
from fomo_stream.errors import TopicError
from fomo_stream.kafka.topics.setup import RESULT_BYTES, STATE_TOPIC_CONFIG
from fomo_stream.settings.commands import DoctorSettings
from fomo_stream.wording import counted, in_bytes, in_time

LARGE_SEGMENT = 128 << 20  # bytes
SLOW_SEGMENT_MS = 3_600_000
FOR_EVER = -1  # of retention.ms
NO_LIMIT = (1 << 63) - 1  # of message.timestamp.before.max.ms


def topics(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Existence, partitions and settings of all topics."""
    findings = [*_existence(settings, facts)]
    if settings.topic in facts.topics:
        findings += [*_partitions(settings, facts), *_state(settings, facts), *_outputs(settings, facts)]
    hidden = [topic for topic in topics_of(settings) if topic in facts.topics and facts.topics[topic].config is None]
    if hidden:
        findings.append(
            unchecked(
                f"the settings of {', '.join(hidden)}, which this user may not read",
                "permit DescribeConfigs on these topics, or run this as an administrator",
            )
        )
    yield from findings
    if all(finding.level is Level.OK for finding in findings):
        yield ok(f"partitions and settings of {len(topics_of(settings))} topics")


def _existence(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    may_create = AclOperation.CREATE in (facts.cluster_operations or ())
    partitions = len(facts.topics[settings.topic].partitions) if settings.topic in facts.topics else 4
    for topic in topics_of(settings):
        compact = " --config cleanup.policy=compact" if topic == settings.state_topic else ""
        create = f"{_command(settings, '--create', topic)} --partitions {partitions}{compact}"
        if topic in facts.topics:
            continue
        if topic in facts.hidden:
            yield unchecked(f"this user may not describe {topic}")
        elif topic == settings.topic:
            yield problem(TopicError, f"there is no topic {topic}", f"check --topic, or create it: {create}")
        elif may_create:
            yield ok(f"{topic} does not exist yet; the first instance creates it")
        else:
            yield warning(
                f"{topic} does not exist yet, and it is not known whether this user may create it",
                f"permit Create on it, or create it: {create}",
            )


def _partitions(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    count = len(facts.topics[settings.topic].partitions)
    for topic in topics_of(settings):
        found = facts.topics.get(topic)
        if found is None or len(found.partitions) == count:
            continue
        what = f"{topic} has {counted(len(found.partitions), 'partition')}, {settings.topic} has {count}"
        grow = f"{_command(settings, '--alter', topic)} --partitions {count}"
        if topic == settings.feedback and len(found.partitions) > count:
            yield problem(TopicError, f"{what}: a label would be in another one than its record", "name another topic")
        elif topic in (settings.state_topic, settings.feedback) and len(found.partitions) < count:
            if found.operations is not None and AclOperation.ALTER in found.operations:
                yield warning(f"{what}", f"instances add them where they run; or add them: {grow}")
            else:
                yield problem(TopicError, f"{what}: the others cannot be scored", f"add them: {grow}")
        elif topic in settings.outputs:
            yield warning(
                f"{what}: records are distributed by key, in place of their partition's number",
                f"add them: {grow}" if len(found.partitions) < count else "nothing, if this is wanted",
            )


def _state(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    topic = settings.state_topic
    found = facts.topics.get(topic)
    if found is None or found.config is None:
        return
    policy = found.config.get("cleanup.policy", "compact")
    if policy != "compact":
        yield problem(
            TopicError,
            f"{topic} has cleanup.policy={policy}, which would delete what was learned",
            _alter(settings, topic, "cleanup.policy=compact"),
        )
    segment, roll = found.number("segment.bytes"), found.number("segment.ms")
    if (segment or 0) > LARGE_SEGMENT or (roll or 0) > SLOW_SEGMENT_MS:
        wanted = ",".join(f"{name}={value}" for name, value in STATE_TOPIC_CONFIG.items() if name != "cleanup.policy")
        yield warning(
            f"{topic} has segments of {in_bytes(segment or 0)} or {in_time((roll or 0) / 1000)}: they are compacted "
            "late, so restores read much more than the state",
            _alter(settings, topic, wanted),
        )


def _outputs(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    source = facts.topics[settings.topic]
    for topic in settings.outputs:
        found = facts.topics.get(topic)
        if found is not None and found.config is not None:
            yield from _output(settings, topic, found, source)


def _output(settings: DoctorSettings, topic: str, found: TopicFacts, source: TopicFacts) -> Iterator[Finding]:
    config = found.config or {}
    largest, largest_input = found.number("max.message.bytes"), source.number("max.message.bytes")
    if largest is not None and largest_input is not None and largest < largest_input + RESULT_BYTES:
        yield warning(
            f"{topic} takes records of {in_bytes(largest)}, {settings.topic} of {in_bytes(largest_input)}: the largest "
            "do not fit with their result",
            _alter(settings, topic, f"max.message.bytes={largest_input + RESULT_BYTES}"),
        )
    kept, kept_input = found.number("retention.ms"), source.number("retention.ms")
    deletes = "delete" in config.get("cleanup.policy", "delete")
    if deletes and kept is not None and kept_input is not None and _is_shorter(kept, kept_input):
        yield warning(
            f"{topic} keeps records for {in_time(kept / 1000)}, less than {settings.topic}: its records have the "
            "input's timestamps, so old ones are deleted as soon as they are written",
            _alter(settings, topic, f"retention.ms={kept_input}"),
        )
    if "compact" in config.get("cleanup.policy", ""):
        yield warning(
            f"{topic} is compacted: only the last record of each key stays",
            _alter(settings, topic, "cleanup.policy=delete"),
        )
    if config.get("message.timestamp.type") == "LogAppendTime":
        yield warning(
            f"{topic} has message.timestamp.type=LogAppendTime: its records lose the input's timestamps",
            _alter(settings, topic, "message.timestamp.type=CreateTime"),
        )
    oldest = found.number("message.timestamp.before.max.ms")
    if oldest is not None and kept_input is not None and oldest < NO_LIMIT and _is_shorter(oldest, kept_input):
        yield warning(
            f"{topic} refuses timestamps older than {in_time(oldest / 1000)}, and {settings.topic} keeps older records",
            _alter(settings, topic, f"message.timestamp.before.max.ms={NO_LIMIT}"),
        )


def _is_shorter(kept: int, than: int) -> bool:
    return kept != FOR_EVER and (than == FOR_EVER or kept < than)


def _command(settings: DoctorSettings, action: str, topic: str) -> str:
    return f"kafka-topics.sh --bootstrap-server {settings.bootstrap} {action} --topic {topic}"


def _alter(settings: DoctorSettings, topic: str, config: str) -> str:
    return f"kafka-configs.sh --bootstrap-server {settings.bootstrap} --alter --topic {topic} --add-config {config}"
