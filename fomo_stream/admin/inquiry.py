"""Asks the brokers and the schema registry all that the checks of `fomo-stream doctor` need to know.

It writes no record, registers no schema, and changes no topic and no group. To learn whether transactions are possible,
it asks for them under an id of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from fomo_stream.errors import BrokerError, FomoError, RecordError, needs_extra
from fomo_stream.kafka.broker.clients import START_TIMEOUT_S, explained, explaining, make_producer
from fomo_stream.kafka.broker.cluster import ANSWER_S, Cluster, describe_topics
from fomo_stream.kafka.broker.permissions import Operations, operations_of, operations_of_group
from fomo_stream.kafka.delivery.transactions import Transactions
from fomo_stream.records.writer import Kind, SchemaText
from fomo_stream.settings.commands import DoctorSettings

if TYPE_CHECKING:
    from fomo_stream.kafka.registry.client import Newest

WATCH_S = 3.0  # between two looks at transactions: one that is open at both is reported
CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"


@dataclass(frozen=True)
class TopicFacts:
    """A topic that exists. config, operations (that this user is permitted): None where the broker does not tell.

    replicas, in_sync: of each partition. has_leaders: whether each partition has one.
    """

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    has_leaders: bool = True
    config: Mapping[str, str] | None = None
    operations: Operations = None

    def number(self, name: str) -> int | None:
        """A number of the configuration; None where it is not known."""
        return _number((self.config or {}).get(name))


@dataclass(frozen=True)
class SubjectFacts:
    """The subject of an output topic. None: it is not known, or the registry does not tell.

    has_outputs: whether it has the schema of outputs by the newest schema of the input. takes_outputs: whether that is
    compatible with its newest schema. level: of compatibility. mode: READONLY, if it takes no schema.
    """

    has_outputs: bool | None = None
    level: str | None = None
    mode: str | None = None
    takes_outputs: bool | None = None


@dataclass(frozen=True)
class RegistryFacts:
    """What the schema registry says, until there was an error.

    newest: schema of the input. unusable: why records by it become dead letters. outputs: by name of the subject.
    """

    url: str = ""
    newest: Newest | None = None
    unusable: RecordError | None = None
    outputs: Mapping[str, SubjectFacts] = field(default_factory=dict)
    error: FomoError | None = None


@dataclass(frozen=True)
class Facts:
    """A deployment as the brokers describe it."""

    brokers: Mapping[int, str] = field(default_factory=dict)  # host:port by id
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()  # topics that this user may not describe
    broker_configs: tuple[Mapping[str, str], ...] = ()  # of those that this user may read
    cluster_operations: Operations = None
    group_operations: Operations = None
    group_error: BrokerError | None = None  # why the group cannot be described, if that is not because of permissions
    transactions: FomoError | None = None  # why the broker does not give transactions
    standing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # partitions with an open transaction
    registry: RegistryFacts | None = None

    def broker_numbers(self, name: str) -> list[int]:
        """The values of a setting at all brokers whose configuration may be read."""
        values = (_number(config.get(name)) for config in self.broker_configs)
        return [value for value in values if value is not None]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def topics_of(settings: DoctorSettings) -> list[str]:
    """The topics of the service, in the order in which they are shown."""
    named = (settings.topic, *settings.outputs, settings.feedback, settings.state_topic)
    return [topic for topic in named if topic is not None]


def internal_topics(settings: DoctorSettings) -> list[str]:
    """The brokers' own topics that the service depends on."""
    return [CONSUMER_OFFSETS, *([TRANSACTION_STATE] if settings.delivery == "exactly-once" else [])]


def subject_of(topic: str) -> str:
    """The subject of a topic's values, unless it is named by the type of each record."""
    return f"{topic}-value"


def inquire_registry(settings: DoctorSettings) -> RegistryFacts | None:
    """None without a registry."""
    if not settings.registry:
        return None
    facts = RegistryFacts()
    try:
        with needs_extra("--registry"):
            from fomo_stream.kafka.registry.client import RegistryClient
        client = RegistryClient(settings.registry)
        facts = RegistryFacts(client.url, client.latest(subject_of(settings.topic)))
        schema = None
        try:
            schema = (
                None if facts.newest is None else _schema_of_outputs(settings, client.schema(facts.newest.schema_id))
            )
        except RecordError as error:
            facts = replace(facts, unusable=error)
        if settings.output_format == "registry" and settings.subject_strategy == "topic":
            for subject in map(subject_of, settings.scored_topics):
                has_it = None if schema is None else client.look_up(subject, schema) is not None
                found = SubjectFacts(has_it, *client.rules(subject, schema))
                facts = replace(facts, outputs={**facts.outputs, subject: found})
    except FomoError as error:
        return replace(facts, error=error)
    return facts


def _schema_of_outputs(settings: DoctorSettings, schema: SchemaText) -> SchemaText | None:
    """None if outputs have no schema. Raises RecordError if records by this schema become dead letters."""
    from fomo_stream.kafka.registry.schemas import compiled, output_writer

    # Of Protobuf, the first message of the file: only a record says which one it is.
    writer = compiled(schema, (0,) if schema.kind is Kind.PROTOBUF else (), settings)
    return output_writer(writer, settings).scored_schema() if settings.output_format == "registry" else None


def inquire(settings: DoctorSettings) -> Facts:
    """Raises BrokerError when no broker answers."""
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        if not cluster.has_controller:
            raise BrokerError(
                f"the broker at {settings.bootstrap} knows no controller",
                "if it has just started, try again in a minute (embedded brokers, for tests, have none)",
            )
        with explaining("the brokers stopped answering", "check that all run"):
            return _inquire(settings, cluster)


def _inquire(settings: DoctorSettings, cluster: Cluster) -> Facts:
    about = cluster.admin.describe_cluster(include_authorized_operations=True, request_timeout=ANSWER_S).result()
    brokers = {node.id: f"{node.host}:{node.port}" for node in about.nodes}
    described, hidden = describe_topics(cluster.admin, [*topics_of(settings), *internal_topics(settings)])
    configs = cluster.configs(described)
    topics = {name: _topic(description, configs.get(name)) for name, description in described.items()}
    group_operations, group_error = _group(settings)
    sizes = {name: len(topics[name].replicas) for name in topics_of(settings) if name in topics}
    return Facts(
        brokers=brokers,
        topics=topics,
        hidden=hidden,
        broker_configs=tuple(_broker_configs(cluster.admin, brokers)),
        cluster_operations=operations_of(about),
        group_operations=group_operations,
        group_error=group_error,
        transactions=_transactions(settings) if settings.delivery == "exactly-once" else None,
        standing=_standing(cluster, sizes, WATCH_S),
    )


def _topic(description: Any, config: Mapping[str, str] | None) -> TopicFacts:
    partitions = description.partitions
    return TopicFacts(
        replicas=tuple(len(partition.replicas) for partition in partitions),
        in_sync=tuple(len(partition.isr) for partition in partitions),
        has_leaders=all(partition.leader is not None and partition.leader.id >= 0 for partition in partitions),
        config=config,
        operations=operations_of(description),
    )


def _group(settings: DoctorSettings) -> tuple[Operations, BrokerError | None]:
    try:
        return operations_of_group(settings), None
    except KafkaException as error:
        what = f"the coordinator of group {settings.group} does not answer"
        remedy = f"check that all brokers run, and the replicas of {CONSUMER_OFFSETS}"
        return None, explained(error, what, remedy)


def _broker_configs(admin: Any, brokers: Iterable[int]) -> Iterable[dict[str, str]]:
    for resource in [ConfigResource(ResourceType.BROKER, str(number)) for number in brokers]:
        try:  # one at a time: each broker answers for itself alone
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


def _standing(cluster: Cluster, sizes: Mapping[str, int], seconds: float) -> dict[str, tuple[int, ...]]:
    """By topic, the partitions with a transaction that is open now and still open `seconds` later."""
    before = {topic: starts for topic, size in sizes.items() if (starts := _open_transactions(cluster, topic, size))}
    if not before:
        return {}
    time.sleep(seconds)
    after = {topic: _open_transactions(cluster, topic, sizes[topic]) for topic in before}
    standing = {topic: tuple(sorted(dict(before[topic].items() & after[topic].items()))) for topic in before}
    return {topic: numbers for topic, numbers in standing.items() if numbers}


def _open_transactions(cluster: Cluster, topic: str, size: int) -> dict[int, int]:
    """The first offset of the open transactions, by partition that has one."""
    ends = cluster.ends([(topic, number) for number in range(size)])
    return {number: one.readable for (_, number), one in ends.items() if one.readable < one.end}
