"""`fomo-stream group`: what a group has agreed on, its members and its partitions, for people or as JSON.

It is no member of the group, and only `update_group` writes anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
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


Report = dict[str, Any]  # JSON-ready


def look_at_group(settings: GroupSettings) -> str:
    """The report. Raises FomoError."""
    partitions = _check_group_exists(settings, is_changing=False)
    place = {"group": settings.group, "topic": settings.topic, "state_topic": settings.state_topic}
    report = {**place, "agreement": _read_agreed(settings), **_describe(settings, partitions)}
    return json.dumps(report, indent=2) if settings.json_ else as_text(report, time.time())


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


def _describe(settings: GroupSettings, partitions: Mapping[str, int]) -> Report:
    """Status, as Kafka names it, members and partitions of the input; None where the broker does not say.

    partitions: as `_check_group_exists` returns them. Raises BrokerError.
    """
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
        # Seconds since 1970, by the clock of the instance that wrote it.
        at = written[number].timestamp / 1000 if number in written and written[number].timestamp >= 0 else None
        described.append({"number": number, "committed": offset, "end": end, "lag": lag, "state_written": at})
    # Where the group's offsets have expired, the broker does not know it: dead.
    status = about.state.name.lower().replace("_", " ").replace("dead", "empty")
    return {"status": status, "members": _members(about, topic), "partitions": described}


def _members(about: Any, topic: str) -> list[Report]:
    """name: the --instance-id, or else the end of the member id, which the broker makes."""
    members = []
    for member in about.members:
        assigned = member.assignment.topic_partitions if member.assignment is not None else ()
        numbers = sorted(place.partition for place in assigned if place.topic == topic)
        name, host = member.group_instance_id or member.member_id[-8:], member.host.lstrip("/")
        members.append({"name": name, "client_id": member.client_id, "host": host, "partitions": numbers})
    return sorted(members, key=lambda member: (member["partitions"][:1] or [1 << 31], member["name"]))


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
    names = [
        name for name in settings_of_scope(ServiceSettings, "scores", "running") if name not in BrokerFlags.model_fields
    ]
    return [option(name) for name in names if name != "topic" and settings.is_given(name)]


def _about_others(flags: Sequence[str]) -> list[str]:
    return [f"the group does not hold {', '.join(flags)}: each instance has its own value"] if flags else []


def _read_agreed(settings: GroupSettings) -> Report:
    """What the group has agreed on, and which settings differ here. features: None if they are not inferred yet."""
    group_log = GroupLog(settings)
    agreement = _agreement(settings, group_log, only_given=False)
    schema = GroupSchema(settings, group_log).stored()
    agreed, differences = agreement.agreed(), agreement.compare()
    if schema is not None:
        own = settings.features
        if own is not None and {*own, *agreed.get("categorical", ()), *settings.counter_names} != {*schema.features}:
            differences.insert(0, Difference("features", shown(list(schema.features)), shown(list(own))))
        agreed = {**agreed, "categorical": sorted(schema.categorical), "counters": sorted(schema.counters) or ["none"]}
    shown_differences = []
    for one in differences:
        given = any(map(settings.is_given, DECIDED_BY.get(one.name, (one.name,))))  # or by default
        shown_differences.append({**one._asdict(), "given": given, "changeable": one.name in CHANGEABLE_SETTINGS})
    return {
        "features": None if schema is None else schema.features,
        "settings": agreed,
        "differences": shown_differences,
        "not_held": _not_held(settings),
    }


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


def as_text(report: Report, now: float) -> str:
    """The report as text. now: seconds since 1970."""
    members, agreement = report["members"], report["agreement"]
    head = f"group {report['group']} on topic {report['topic']}: {report['status']}, {counted(len(members), 'member')}"
    parts = [[head], [*_settings_lines(agreement), *_about_others(agreement["not_held"])]]
    if members:
        parts.append(_member_lines(members, report["partitions"]))
    parts.append(_partition_lines(members, report["partitions"], now))
    return "\n\n".join("\n".join(part) for part in parts)


def _settings_lines(agreement: Report) -> list[str]:
    agreed, features = agreement["settings"], agreement["features"]
    if not agreed and features is None:
        return ["the group has agreed on nothing yet: no instance has started"]
    names = [name for name in (*STATE_SETTINGS, *CHANGEABLE_SETTINGS) if name in agreed]
    names_shown = "not inferred yet" if features is None else shown(list(features))
    rows = [("features", names_shown), *((name, shown(agreed[name])) for name in names)]
    differences = agreement["differences"]
    here = {one["name"]: one["own"] + ("" if one["given"] else " (default)") for one in differences}
    lines = aligned([("agreed setting", "group", "here"), *((*row, here.get(row[0], "")) for row in rows)])
    if not here:
        return [*lines, "the settings given here agree with the group's"]
    differ = f"{counted(len(here), 'setting')} of an instance here would be different"
    lasting = [one["name"] for one in differences if not one["changeable"]]
    when = f"({', '.join(lasting)})" if lasting else "while the group has members, and change them otherwise"
    return [*lines, f"{differ}: it would be refused {when}"]


def _member_lines(members: Sequence[Report], partitions: Sequence[Report]) -> list[str]:
    lags = {partition["number"]: partition["lag"] or 0 for partition in partitions}
    rows = [("member", "client", "host", "lag", "partitions")]
    for member in members:
        lag, numbers = sum(lags.get(number, 0) for number in member["partitions"]), ranges(member["partitions"])
        rows.append((member["name"], member["client_id"], member["host"], str(lag), numbers or "none"))
    return aligned(rows, right=[3])


def _partition_lines(members: Sequence[Report], partitions: Sequence[Report], now: float) -> list[str]:
    owners = {number: member["name"] for member in members for number in member["partitions"]}
    rows = [("partition", "member", "committed", "end", "lag", "state written")]
    for one in partitions:
        number, committed, end, lag, written = one.values()
        age = "-" if written is None else f"{in_time(max(0.0, now - written))} ago"
        counts = ("-" if value is None else str(value) for value in (committed, end, lag))
        rows.append((str(number), owners.get(number, "-"), *counts, age))
    rows.append(("all", "", "", "", str(sum(one["lag"] or 0 for one in partitions)), ""))
    return aligned(rows, right=[0, 2, 3, 4, 5])
