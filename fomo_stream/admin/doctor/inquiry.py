"""Asks the brokers all that the checks need to know.

It writes no record, and changes no topic and no group. To learn whether transactions are possible, it asks for them
under an id of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AclOperation, ConfigResource, OffsetSpec, ResourceType

from fomo_stream.admin.doctor.facts import Facts, PartitionFacts, TopicFacts, internal_topics, topics_of
from fomo_stream.errors import BrokerError, FomoError
from fomo_stream.kafka.broker.clients import START_TIMEOUT_S, make_producer
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.broker.failures import NOT_PERMITTED
from fomo_stream.kafka.broker.members import ask_about_group
from fomo_stream.kafka.delivery.transactions import Transactions
from fomo_stream.settings.commands import DoctorSettings

ANSWER_S = 5.0
NO_ID = str(Uuid(0, 0))


def inquire(settings: DoctorSettings) -> Facts:
    """Raises BrokerError when no broker answers."""
    cluster = Cluster(settings)
    cluster.connect()
    if not cluster.has_controller:
        raise BrokerError(
            f"the broker at {settings.bootstrap} knows no controller; if it has just started, try again in a minute "
            "(embedded brokers, for tests, have none)"
        )
    try:
        return _inquire(settings, cluster)
    except KafkaException as error:
        raise BrokerError(f"the brokers stopped answering ({error.args[0].str()}); check that all run") from None
    finally:
        cluster.close()


def _inquire(settings: DoctorSettings, cluster: Cluster) -> Facts:
    admin = cluster.admin
    about = admin.describe_cluster(include_authorized_operations=True, request_timeout=ANSWER_S).result()
    brokers = {node.id: f"{node.host}:{node.port}" for node in about.nodes}
    described, hidden = _describe(admin, [*topics_of(settings), *internal_topics(settings)])
    configs = cluster.configs(described)
    topics = {
        name: TopicFacts(
            tuple(
                PartitionFacts(len(one.replicas), len(one.isr), one.leader is not None and one.leader.id >= 0)
                for one in description.partitions
            ),
            configs.get(name),
            _operations(description),
        )
        for name, description in described.items()
    }
    group_operations, is_group_hidden, group_trouble = _group(settings)
    sizes = {name: len(topics[name].partitions) for name in topics_of(settings) if name in topics}
    return Facts(
        brokers=brokers,
        topics=topics,
        hidden=hidden,
        has_topic_ids=all(str(description.topic_id) != NO_ID for description in described.values()),
        broker_configs=tuple(_broker_configs(admin, brokers)),
        cluster_operations=_operations(about),
        group_operations=group_operations,
        is_group_hidden=is_group_hidden,
        group_trouble=group_trouble,
        transactions=_transactions(settings) if settings.delivery == "exactly-once" else None,
        standing=_standing(cluster, sizes, settings.watch_seconds),
        newest=_newest(
            cluster, {name: n for name, n in sizes.items() if name in (settings.topic, settings.state_topic)}
        ),
        now=time.time(),
    )


def _describe(admin: Any, topics: list[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """The topics that exist, and the names of those that this user may not describe."""
    found, hidden = {}, set()
    answers = admin.describe_topics(
        TopicCollection(topics), include_authorized_operations=True, request_timeout=ANSWER_S
    )
    for topic, answer in answers.items():
        try:
            found[topic] = answer.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                hidden.add(topic)
            elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found, frozenset(hidden)


def _operations(description: Any) -> frozenset[AclOperation] | None:
    return frozenset(description.authorized_operations) if description.authorized_operations else None


def _group(settings: DoctorSettings) -> tuple[frozenset[AclOperation] | None, bool, str]:
    """The fields of Facts about the group."""
    try:
        return _operations(ask_about_group(settings, include_authorized_operations=True)), False, ""
    except KafkaException as error:
        code = error.args[0].code()
        is_unknown, is_hidden = code == KafkaError.GROUP_ID_NOT_FOUND, code in NOT_PERMITTED
        return None, is_hidden, "" if is_unknown or is_hidden else f"{error.args[0].name()} {error.args[0].str()}"


def _broker_configs(admin: Any, brokers: Iterable[int]) -> Iterable[dict[str, str]]:
    resources = [ConfigResource(ResourceType.BROKER, str(number)) for number in brokers]
    for resource in resources:  # one at a time: each broker answers for itself alone
        try:
            (answer,) = admin.describe_configs([resource], request_timeout=ANSWER_S).values()
            yield {name: entry.value for name, entry in answer.result().items()}
        except KafkaException:
            continue


def _transactions(settings: DoctorSettings) -> FomoError | None:
    """Why the broker gives no transactions. The id is no instance's, so no instance is fenced off."""
    prefix = f"{settings.group}-{settings.topic}-"
    try:
        producer = make_producer(settings, f"{prefix}doctor~")
        ids = f"transactional ids that begin with {prefix}"
        resource = f"{prefix} --resource-pattern-type prefixed"
        Transactions(producer).start_or_explain(START_TIMEOUT_S, ids, resource)
    except FomoError as error:
        return error
    return None


def _standing(cluster: Cluster, sizes: dict[str, int], seconds: float) -> dict[str, tuple[int, ...]]:
    """By topic, the partitions with a transaction that is open now and still open `seconds` later."""
    before = {topic: _open_transactions(cluster, topic, size) for topic, size in sizes.items()}
    before = {topic: found for topic, found in before.items() if found}
    if not before:
        return {}
    time.sleep(seconds)
    after = {topic: _open_transactions(cluster, topic, sizes[topic]) for topic in before}
    standing = {topic: tuple(sorted(dict(before[topic].items() & after[topic].items()))) for topic in before}
    return {topic: numbers for topic, numbers in standing.items() if numbers}


def _open_transactions(cluster: Cluster, topic: str, size: int) -> dict[int, int]:
    """The first offset of the open transactions, by partition that has one."""
    ends = cluster.offsets(topic, size, OffsetSpec.latest())
    stable = cluster.offsets(topic, size, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
    return {number: stable[number].offset for number in stable if number in ends and _is_open(stable, ends, number)}


def _is_open(stable: dict[int, Any], ends: dict[int, Any], number: int) -> bool:
    return bool(stable[number].offset < ends[number].offset)


def _newest(cluster: Cluster, sizes: dict[str, int]) -> dict[str, float]:
    """The newest timestamp of each topic, seconds since 1970."""
    newest = {}
    for topic, size in sizes.items():
        stamps = [found.timestamp for found in cluster.offsets(topic, size, OffsetSpec.max_timestamp()).values()]
        if (latest := max(stamps, default=-1)) >= 0:
            newest[topic] = latest / 1000
    return newest
