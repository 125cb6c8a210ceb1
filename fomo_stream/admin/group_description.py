"""What the broker knows about a group: members, offsets and state of its partitions. Asks only; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from fomo_stream.admin.state_size import StateSize, state_sizes
from fomo_stream.errors import BrokerError, NotPermittedError
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.broker.failures import NOT_PERMITTED
from fomo_stream.kafka.broker.members import ask_about_group
from fomo_stream.kafka.broker.permissions import DESCRIBE, READ, WRITE, check_permissions
from fomo_stream.kafka.group.log import check_has_run
from fomo_stream.settings.commands import GroupSettings
from fomo_stream.settings.service import ServiceSettings

ANSWER_S = 10.0  # about 1,000 partitions


@dataclass(frozen=True)
class MemberDescription:
    """One member of the group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[int, ...]  # of the input

    @property
    def name(self) -> str:
        """Its --instance-id, or else the end of its member id, which the broker makes."""
        return self.instance_id or self.member_id[-8:]


@dataclass(frozen=True)
class PartitionDescription:
    """One partition of the input; None where the broker does not say."""

    number: int
    committed: int | None = None  # the group's next offset to read
    end: int | None = None
    state: StateSize | None = None
    state_written: float | None = None  # seconds since 1970, by the clock of the instance that wrote it

    @property
    def lag(self) -> int | None:
        """Records that the group has not scored yet."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)


@dataclass(frozen=True)
class GroupDescription:
    """A group, its members and its partitions."""

    status: str  # as Kafka names it: stable, empty, ...
    members: tuple[MemberDescription, ...]
    partitions: tuple[PartitionDescription, ...]
    notes: tuple[str, ...] = field(default=())  # what could not be found out


def check_group_exists(settings: ServiceSettings, is_changing: bool) -> dict[str, int]:
    """Numbers of partitions of the input and the state topic.

    is_changing: whether the state topic has to be writable. Raises BrokerError, TopicError or NotPermittedError.
    """
    cluster = Cluster(settings)
    cluster.connect()
    try:
        if not cluster.has_controller:
            raise BrokerError(f"the broker at {settings.bootstrap} does not describe groups; the embedded one does not")
        topics = {settings.topic: [DESCRIBE], settings.state_topic: [READ, *([WRITE] if is_changing else [])]}
        check_permissions(settings, cluster.admin, topics, of_group=DESCRIBE)
        partitions, _ = cluster.partitions(topics)
    except KafkaException as error:
        raise _explained(error, settings, "the topics cannot be described") from None
    finally:
        cluster.close()
    check_has_run(settings, partitions, "start an instance")
    return partitions


def describe_group(settings: GroupSettings, partitions: Mapping[str, int]) -> GroupDescription:
    """partitions: as `check_group_exists` returns them. Raises BrokerError."""
    cluster = Cluster(settings)
    cluster.connect()
    try:
        about = ask_about_group(settings)
        offsets = _committed(cluster.admin, settings, partitions[settings.topic])
        ends = cluster.offsets(settings.topic, partitions[settings.topic], OffsetSpec.latest())
        state = (settings.state_topic, partitions[settings.state_topic])
        firsts, written = cluster.first_offsets(*state), cluster.offsets(*state, OffsetSpec.max_timestamp())
        stable = cluster.offsets(*state, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
    except KafkaException as error:
        raise _explained(error, settings, f"group {settings.group} cannot be described") from None
    finally:
        cluster.close()
    spans = {number: (firsts[number], stable[number].offset) for number in firsts if number in stable}
    sizes, reason = state_sizes(settings, spans, settings.state_seconds) if settings.state_seconds else ({}, "")
    described = [
        PartitionDescription(
            number,
            committed=offsets.get(number),
            end=ends[number].offset if number in ends else None,
            state=sizes.get(number),
            state_written=_seconds(written[number].timestamp) if number in written else None,
        )
        for number in range(partitions[settings.topic])
    ]
    missing = len(spans) - len(sizes)
    notes = (f"state sizes of {missing} partitions are missing: {reason}",) if reason else ()
    return GroupDescription(_status(about), _members(about, settings.topic), tuple(described), notes)


def _status(about: Any) -> str:
    name = about.state.name.lower().replace("_", " ")
    return "empty" if name == "dead" else name  # the broker does not know the group: its offsets have expired


def _members(about: Any, topic: str) -> tuple[MemberDescription, ...]:
    members = [
        MemberDescription(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.host.lstrip("/"),
            tuple(sorted(one.partition for one in _assigned(member) if one.topic == topic)),
        )
        for member in about.members
    ]
    return tuple(sorted(members, key=lambda member: (member.partitions[:1] or (1 << 31,), member.name)))


def _assigned(member: Any) -> Iterable[TopicPartition]:
    return member.assignment.topic_partitions if member.assignment is not None else ()


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
    return {one.partition: one.offset for one in answer.topic_partitions if one.error is None and one.offset >= 0}


def _seconds(timestamp_ms: int) -> float | None:
    return timestamp_ms / 1000 if timestamp_ms >= 0 else None


def _explained(error: KafkaException, settings: ServiceSettings, what: str) -> BrokerError:
    reason = error.args[0].str()
    if error.args[0].code() in NOT_PERMITTED:
        return NotPermittedError(
            f"not permitted: {what} ({reason}); permit Describe on group {settings.group} and topic {settings.topic}, "
            f"and Read on topic {settings.state_topic}, with kafka-acls.sh"
        )
    return BrokerError(f"{what} ({reason}); check that all brokers run, and try again")
