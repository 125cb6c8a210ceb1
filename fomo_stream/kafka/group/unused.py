"""Whether a group can be prepared by a replay: it must not have been used before. Writes no records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, cast

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition

from fomo_stream.errors import AgreementError, BrokerError, ConfigError, FencedError, NotPermittedError, TopicError
from fomo_stream.kafka.broker.clients import START_TIMEOUT_S, make_producer
from fomo_stream.kafka.broker.cluster import Cluster, Ends, Place
from fomo_stream.kafka.broker.failures import NOT_PERMITTED
from fomo_stream.kafka.broker.members import count_members
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader
from fomo_stream.kafka.delivery.transactions import Transactions
from fomo_stream.kafka.group.agreement import DERIVED, Agreement
from fomo_stream.kafka.group.log import GroupLog
from fomo_stream.kafka.group.schema import GroupSchema
from fomo_stream.kafka.restore import KEY_PREFIX
from fomo_stream.partition.effects import PREFIX
from fomo_stream.records.schema import Schema, shown
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.wording import counted

TRANSACTION_MS = 600_000  # for all of a preparation; brokers allow 15 minutes unless they are set otherwise
ANSWER_S = 10.0
POLL_S = 0.2
STALLED_S = 5.0
COORDINATOR_S = 30.0  # a replay of hours must not be lost because the coordinator is just moving
OTHER = "choose another group for --prepare"
AGAIN = "nothing was written; try again"


def check_unused(settings: ServiceSettings, schema: Schema | None = None) -> None:
    """Check, before a replay, that the group `settings.group` can be prepared. Writes no records.

    It must have no members, no offsets on the topic and no state. It may have agreed on these settings already. A
    transaction that an earlier replay left open, because it was killed while it prepared the group, is aborted. Raises
    ConfigError, AgreementError, TopicError, NotPermittedError or BrokerError, in one sentence.
    """
    with closing(Cluster(settings)) as cluster, explained(settings):
        cluster.connect()
        if not cluster.has_controller:
            raise ConfigError("--prepare needs a broker with transactions; the embedded one has none")
        partitions, _ = cluster.partitions([settings.topic, settings.state_topic])
        if settings.topic not in partitions:
            raise TopicError(f"there is no topic {settings.topic} on {settings.bootstrap}; check --topic")
        if members := members_of(settings):
            raise ConfigError(
                f"--prepare: group {settings.group} has {counted(members, 'member')}; stop them, or {OTHER}"
            )
        check_offsets(cluster, settings, partitions[settings.topic])
        if settings.state_topic in partitions:
            _check_state(cluster, settings, partitions[settings.state_topic])
            check_agreement(settings, own_agreement(settings), schema)


def members_of(settings: ServiceSettings) -> int:
    """Number of members of the group; a coordinator that does not answer yet is asked again."""
    deadline = time.monotonic() + COORDINATOR_S
    while True:
        try:
            return count_members(settings)
        except BrokerError as error:
            if time.monotonic() > deadline:
                raise BrokerError(f"--prepare: {error}") from None


def check_offsets(cluster: Cluster, settings: ServiceSettings, count: int) -> None:
    """Raise ConfigError if the group has committed offsets of the topic, which has `count` partitions."""
    topics = [settings.topic, *([settings.feedback] if settings.feedback is not None else [])]
    every = [TopicPartition(topic, number) for topic in topics for number in range(count)]
    wanted = ConsumerGroupTopicPartitions(settings.group, every)
    asked = cluster.admin.list_consumer_group_offsets([wanted], request_timeout=ANSWER_S)
    try:
        answer = asked[settings.group].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return
        raise
    if any(one.error is None and one.offset >= 0 for one in answer.topic_partitions):
        raise ConfigError(f"--prepare: group {settings.group} has read topic {settings.topic} already; {OTHER}")


def _check_state(cluster: Cluster, settings: ServiceSettings, count: int) -> None:
    topic = settings.state_topic
    ends = cluster.ends([(topic, number) for number in range(count)])
    if _has_open(ends):
        start_producer(settings)
        deadline = time.monotonic() + ANSWER_S
        while _has_open(ends := cluster.ends(ends)):
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"--prepare: topic {topic} has an open transaction that is of no replay; wait until it has ended"
                )
            time.sleep(POLL_S)
    firsts = cluster.first_offsets(topic, count)
    spans = {n: (firsts[n], one.end) for (_, n), one in ends.items() if n in firsts}
    with TopicReader(settings) as reader:
        try:
            messages = reader.read(topic, spans, STALLED_S)
            with closing(cast(Any, messages)):
                used = any((message.key() or b"").startswith((KEY_PREFIX, PREFIX)) for message in messages)
        except NoProgressError as error:
            raise BrokerError(f"topic {topic} cannot be read ({error}); {AGAIN}") from None
    if used:
        raise ConfigError(
            f"--prepare: group {settings.group} has a state in topic {topic}; {OTHER}, or delete that topic"
        )


def _has_open(ends: Mapping[Place, Ends]) -> bool:
    return any(one.readable < one.end for one in ends.values())


def start_producer(settings: ServiceSettings) -> tuple[Producer, Transactions]:
    """The producer that prepares the group. A transaction that an earlier one left open is aborted."""
    name = f"{settings.group}-{settings.topic}-prepare"
    timeout = settings.kafka.get("transaction.timeout.ms", str(TRANSACTION_MS))
    producer = make_producer(settings, name, **{"transaction.timeout.ms": timeout, "delivery.report.only.error": True})
    transactions = Transactions(producer)
    transactions.start_or_explain(START_TIMEOUT_S, f"transactional id {name}", name)
    return producer, transactions


def own_agreement(settings: ServiceSettings) -> Agreement:
    from fomo_stream.model.checkpoint import shared_model  # imports torch

    model = shared_model(settings.model, settings.device, settings.kernel)
    return Agreement(settings, model.name, model.kernel, GroupLog(settings))


def check_agreement(settings: ServiceSettings, agreement: Agreement, schema: Schema | None) -> bool:
    """Whether the group has agreed on all of this already. Raises AgreementError if it has agreed on anything else."""
    stored = GroupSchema(settings).stored()
    named = [
        f"{DERIVED.get(one.name, '--' + one.name)} is {one.agreed} in the group, {one.own} here"
        for one in agreement.compare()
    ]
    if stored is not None and schema is not None and stored != schema:
        named.append(f"--features is {shown(stored.features)} in the group, {shown(schema.features)} here")
    if named:
        raise AgreementError(
            f"--prepare: group {settings.group} has agreed on other settings: {'; '.join(named)}; use the group's, or "
            f"{OTHER}"
        )
    return bool(agreement.agreed())


@contextmanager
def explained(settings: ServiceSettings) -> Iterator[None]:
    """Errors of the client as errors that say what to do."""
    try:
        yield
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED):
            raise FencedError(
                f"--prepare: another replay prepares group {settings.group}, and goes on; this one has written nothing"
            ) from None
        text = f"--prepare: group {settings.group} cannot be prepared ({reason.str()}); {AGAIN}"
        raise (NotPermittedError(text) if reason.code() in NOT_PERMITTED else BrokerError(text)) from None
