"""`fomo-stream group`: what a group has agreed on, its members and its partitions, for people or as JSON.

It is no member of the group, and only `update_group` writes anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from fomo_stream.errors import BrokerError, CheckpointError, ConfigError
from fomo_stream.kafka.broker.clients import AGAIN, explaining
from fomo_stream.kafka.broker.cluster import Cluster, ask_about_group
from fomo_stream.kafka.broker.permissions import DESCRIBE, READ, WRITE, check_permissions
from fomo_stream.kafka.group.agreement import (
    CHANGEABLE_SETTINGS,
    DECIDED_BY,
    STATE_SETTINGS,
    Agreement,
    Difference,
    shown,
)
from fomo_stream.kafka.group.log import GroupLog, check_has_run
from fomo_stream.kafka.group.schema import GroupSchema
from fomo_stream.settings.commands import GroupSettings
from fomo_stream.settings.flags import BrokerFlags
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.settings.sources import option, settings_of_scope
from fomo_stream.wording import aligned, counted, in_time, ranges

ANSWER_S = 10.0  # about 1,000 partitions
FEATURES_SHOWN = 20


@dataclass(frozen=True)
class MemberDescription:
    """One member of the group. name: its --instance-id, or else the end of its member id, which the broker makes."""

    name: str
    client_id: str
    host: str
    partitions: tuple[int, ...]  # of the input


@dataclass(frozen=True)
class PartitionDescription:
    """One partition of the input; None where the broker does not say."""

    number: int
    committed: int | None = None  # the group's next offset to read
    end: int | None = None
    lag: int | None = None  # records that the group has not scored yet
    state_written: float | None = None  # seconds since 1970, by the clock of the instance that wrote it


@dataclass(frozen=True)
class GroupDescription:
    """A group, its members and its partitions. status: as Kafka names it: stable, empty, ..."""

    status: str
    members: tuple[MemberDescription, ...]
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True)
class Agreed:
    """What the group has agreed on, and which settings differ here."""

    features: tuple[str, ...] | None  # None: they are not inferred yet
    settings: dict[str, Any]
    differences: tuple[Difference, ...]
    is_given: dict[str, bool]  # by name of a setting that differs: by a flag, a variable or the file, or by default


def look_at_group(settings: GroupSettings) -> str:
    """The report. Raises FomoError."""
    partitions = _check_group_exists(settings, is_changing=False)
    described, agreed = _describe(settings, partitions), _read_agreed(settings)
    return as_json(settings, described, agreed) if settings.json_ else as_text(settings, described, agreed, time.time())


def check_group(settings: GroupSettings) -> str:
    """Whether an instance with these settings could join now. Raises AgreementError if not, and other FomoErrors."""
    _check_group_exists(settings, is_changing=False)
    group_log = GroupLog(settings)
    GroupSchema(settings, group_log).check_flags()
    _agreement(settings, group_log, only_given=False).check_join()
    return f"group {settings.group} takes instances with these settings"


def update_group(settings: GroupSettings) -> str:
    """Change the group's agreement to the settings that are given; returns what has changed. Raises FomoError."""
    _check_group_exists(settings, is_changing=True)
    group_log = GroupLog(settings)
    GroupSchema(settings, group_log).check_flags()
    changes, others = _agreement(settings, group_log, only_given=True).update(), _not_held(settings)
    if settings.json_:
        content = {"group": settings.group, "changes": [change._asdict() for change in changes], "not_held": others}
        return json.dumps(content, indent=2)
    rows = [(f"--{change.name}", f"{change.agreed} -> {change.own}") for change in changes]
    head = f"group {settings.group} has agreed on new settings:" if changes else "nothing was changed"
    return "\n".join([head, *aligned(rows), *_about_others(others)])


# --- what the broker knows


def _check_group_exists(settings: ServiceSettings, is_changing: bool) -> dict[str, int]:
    """Numbers of partitions of the input and the state topic.

    is_changing: whether the state topic has to be writable. Raises BrokerError, TopicError or NotPermittedError.
    """
    topics = {settings.topic: [DESCRIBE], settings.state_topic: [READ, *([WRITE] if is_changing else [])]}
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        if not cluster.has_controller:
            raise BrokerError(f"the broker at {settings.bootstrap} does not describe groups; the embedded one does not")
        with explaining("the topics cannot be described"):
            check_permissions(settings, cluster.admin, topics, of_group=DESCRIBE)
            partitions, _ = cluster.partitions(topics)
    check_has_run(settings, partitions, "start an instance")
    return partitions


def _describe(settings: GroupSettings, partitions: Mapping[str, int]) -> GroupDescription:
    """partitions: as `_check_group_exists` returns them. Raises BrokerError."""
    topic, count = settings.topic, partitions[settings.topic]
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        permit = f"permit Describe on the group and the topic, and Read on {settings.state_topic}, with kafka-acls.sh"
        with explaining(f"group {settings.group} cannot be described", AGAIN, permit):
            about = ask_about_group(settings)
            committed = _committed(cluster.admin, settings, count)
            ends = cluster.offsets(topic, count, OffsetSpec.latest())
            state = (settings.state_topic, partitions[settings.state_topic])
            written = cluster.offsets(*state, OffsetSpec.max_timestamp())
    described = []
    for number in range(count):
        offset, end = committed.get(number), ends[number].offset if number in ends else None
        lag = None if offset is None or end is None else max(0, end - offset)
        at = written[number].timestamp / 1000 if number in written and written[number].timestamp >= 0 else None
        described.append(PartitionDescription(number, offset, end, lag, at))
    status = about.state.name.lower().replace("_", " ")
    status = "empty" if status == "dead" else status  # the broker does not know the group: its offsets have expired
    return GroupDescription(status, _members(about, topic), tuple(described))


def _members(about: Any, topic: str) -> tuple[MemberDescription, ...]:
    members = []
    for member in about.members:
        assigned = member.assignment.topic_partitions if member.assignment is not None else ()
        numbers = tuple(sorted(place.partition for place in assigned if place.topic == topic))
        name = member.group_instance_id or member.member_id[-8:]
        members.append(MemberDescription(name, member.client_id, member.host.lstrip("/"), numbers))
    return tuple(sorted(members, key=lambda member: (member.partitions[:1] or (1 << 31,), member.name)))


def _committed(admin: Any, settings: ServiceSettings, count: int) -> dict[int, int]:
    """The group's committed offsets, by partition of the input. Those that transactions may just change count, too."""
    every = [TopicPartition(settings.topic, number) for number in range(count)]
    wanted = ConsumerGroupTopicPartitions(settings.group, every)
    try:
        answer = admin.list_consumer_group_offsets([wanted], request_timeout=ANSWER_S)[settings.group].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise
    return {place.partition: place.offset for place in answer.topic_partitions if not place.error and place.offset >= 0}


# --- what the group has agreed on


def _not_held(settings: GroupSettings) -> list[str]:
    """The flags given here that are no part of an agreement, and not needed to find the group."""
    names = [name for name in settings_of_scope(ServiceSettings, "local") if name not in BrokerFlags.model_fields]
    return [option(name) for name in names if name != "topic" and settings.is_given(name)]


def _about_others(flags: Sequence[str]) -> list[str]:
    return [f"the group does not hold {', '.join(flags)}: each instance has its own value"] if flags else []


def _read_agreed(settings: GroupSettings) -> Agreed:
    group_log = GroupLog(settings)
    agreement = _agreement(settings, group_log, only_given=False)
    schema = GroupSchema(settings, group_log).stored()
    agreed, differences = agreement.agreed(), agreement.compare()
    if schema is not None:
        own = settings.features
        if own is not None and {*own, *agreed.get("categorical", ())} != {*schema.features}:
            differences.insert(0, Difference("features", shown(list(schema.features)), shown(list(own))))
        agreed = {**agreed, "categorical": sorted(schema.categorical)}
    names = [difference.name for difference in differences]
    given = {name: any(map(settings.is_given, DECIDED_BY.get(name, (name,)))) for name in names}
    return Agreed(None if schema is None else schema.features, agreed, tuple(differences), given)


def _agreement(settings: GroupSettings, log: GroupLog, only_given: bool) -> Agreement:
    """The agreement, compared with the settings given here, or with those that an instance here would have.

    The checkpoint and the kernel count only where this machine can tell them: a kernel that is chosen automatically
    depends on the machine of the instance.
    """
    from fomo_stream.model.checkpoint import shared_model  # imports torch

    unknown = {"kernel"} if settings.kernel == "auto" else set()
    name = kernel = ""
    try:
        model = shared_model(settings.model, "cpu", settings.kernel)
        name, kernel = model.name, model.kernel
    except (CheckpointError, ConfigError):
        if only_given and (settings.is_given("model") or settings.is_given("kernel")):
            raise
        unknown |= {"model", "kernel"}

    def counts(flag: str) -> bool:
        return flag not in unknown and (not only_given or settings.is_given(flag))

    return Agreement(settings, name, kernel, log, counts)


# --- the report


def as_text(settings: GroupSettings, group: GroupDescription, agreed: Agreed, now: float) -> str:
    """The report as text. now: seconds since 1970."""
    head = f"group {settings.group} on topic {settings.topic}: {group.status}, {counted(len(group.members), 'member')}"
    parts = [[head], [*_settings_lines(agreed), *_about_others(_not_held(settings))]]
    if group.members:
        parts.append(_member_lines(group))
    return "\n\n".join("\n".join(part) for part in [*parts, _partition_lines(group, now)])


def _settings_lines(agreed: Agreed) -> list[str]:
    if not agreed.settings and agreed.features is None:
        return ["the group has agreed on nothing yet: no instance has started"]
    names = [name for name in (*STATE_SETTINGS, *CHANGEABLE_SETTINGS) if name in agreed.settings]
    rows = [("features", _features(agreed.features)), *((name, shown(agreed.settings[name])) for name in names)]
    here = {one.name: one.own + ("" if agreed.is_given[one.name] else " (default)") for one in agreed.differences}
    lines = aligned([("agreed setting", "group", "here"), *((*row, here.get(row[0], "")) for row in rows)])
    if not here:
        return [*lines, "the settings given here agree with the group's"]
    differ = f"{counted(len(here), 'setting')} of an instance here would be different"
    lasting = [name for name in here if name not in CHANGEABLE_SETTINGS]
    when = f"({', '.join(lasting)})" if lasting else "while the group has members, and change them otherwise"
    return [*lines, f"{differ}: it would be refused {when}"]


def _features(names: Sequence[str] | None) -> str:
    if names is None:
        return "not inferred yet"
    more = f", and {len(names) - FEATURES_SHOWN} more" if len(names) > FEATURES_SHOWN else ""
    return ", ".join(names[:FEATURES_SHOWN]) + more


def _member_lines(group: GroupDescription) -> list[str]:
    lags = {partition.number: partition.lag or 0 for partition in group.partitions}
    rows = [("member", "client", "host", "lag", "partitions")]
    for member in group.members:
        lag = sum(lags.get(number, 0) for number in member.partitions)
        rows.append((member.name, member.client_id, member.host, str(lag), ranges(member.partitions) or "none"))
    return aligned(rows, right=[3])


def _partition_lines(group: GroupDescription, now: float) -> list[str]:
    owners = {number: member.name for member in group.members for number in member.partitions}
    rows = [("partition", "member", "committed", "end", "lag", "state written")]
    for one in group.partitions:
        committed, end, lag = ("-" if value is None else str(value) for value in (one.committed, one.end, one.lag))
        age = "-" if one.state_written is None else f"{in_time(max(0.0, now - one.state_written))} ago"
        rows.append((str(one.number), owners.get(one.number, "-"), committed, end, lag, age))
    rows.append(("all", "", "", "", str(sum(one.lag or 0 for one in group.partitions)), ""))
    return aligned(rows, right=[0, 2, 3, 4, 5])


def as_json(settings: GroupSettings, group: GroupDescription, agreed: Agreed) -> str:
    """The report as one JSON object."""
    differences = [
        {**one._asdict(), "given": agreed.is_given[one.name], "changeable": one.name in CHANGEABLE_SETTINGS}
        for one in agreed.differences
    ]
    content = {
        "group": settings.group,
        "topic": settings.topic,
        "state_topic": settings.state_topic,
        "agreement": {
            "features": agreed.features,
            "settings": agreed.settings,
            "differences": differences,
            "not_held": _not_held(settings),
        },
        **asdict(group),
    }
    return json.dumps(content, indent=2)
