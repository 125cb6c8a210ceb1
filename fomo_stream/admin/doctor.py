"""`fomo-stream doctor`: the checks of a start, all of them, and what works but should be otherwise.

It writes no record, registers no schema, and changes no topic and no group. To learn whether transactions are possible,
it asks for them under an id of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka.admin import ResourceType

from fomo_stream.admin import advice
from fomo_stream.admin.advice import Facts
from fomo_stream.errors import BrokerError, FomoError, RecordError, RegistryError, needs_extra
from fomo_stream.kafka.broker.clients import START_TIMEOUT_S, broker_errors, make_producer
from fomo_stream.kafka.broker.cluster import ANSWER_S, Cluster, describe_topics
from fomo_stream.kafka.broker.permissions import operations_of, operations_of_group
from fomo_stream.kafka.delivery.transactions import Transactions
from fomo_stream.kafka.topics.checks import Finding
from fomo_stream.records.writer_schema import Kind, SchemaText
from fomo_stream.settings.commands import DoctorSettings
from fomo_stream.wording import counted

if TYPE_CHECKING:
    from fomo_stream.kafka.registry.client import RegistryClient

OF_BROKERS = {
    "brokers": advice.brokers,
    "permissions": advice.permissions,
    "topics": advice.topics,
    "replicas": advice.replicas,
    "broker settings": advice.broker_settings,
    "transactions": advice.transactions,
}
Found = Mapping[str, Sequence[Finding]]  # by check
KINDS = {Kind.AVRO: "Avro", Kind.PROTOBUF: "Protobuf", Kind.JSON: "JSON"}


def examine(settings: DoctorSettings) -> tuple[str, int]:
    """The report, and the exit code: 0 without a problem, else that of the first one. Raises ConfigError."""
    try:
        facts = inquire(settings)
        found = {name: list(check(settings, facts)) for name, check in OF_BROKERS.items()}
    except BrokerError as error:
        found = {name: [Finding("the brokers do not answer", is_known=False)] for name in OF_BROKERS}
        found["brokers"] = [Finding.problem(error)]
    if settings.registry:
        found["schema registry"] = list(schema_registry(settings))
    found["settings"] = list(advice.own_settings(settings))
    found = {name: findings or [Finding("nothing has to be changed")] for name, findings in found.items()}
    code = next((one.error.exit_code for each in found.values() for one in each if one.error is not None), 0)
    return as_json(found, code) if settings.json_ else as_text(found), code


def as_text(found: Found) -> str:
    """A line for each finding, its remedy below it, and a summary."""
    width, lines = max(map(len, found)), []
    for name, findings in found.items():
        for i, one in enumerate(findings):
            lines.append(f"{one.level:<11}  {'' if i else name:<{width}}  {one.what}")
            lines += [f"{'':<{width + 15}}-> {one.remedy}"] if one.remedy else []
    counts = Counter(one.level for findings in found.values() for one in findings)
    shown = [counted(counts[level], level) for level in ("problem", "warning")]
    return "\n".join([*lines, "", ", ".join([*shown, f"{counts['not checked']} not checked"])])


def as_json(found: Found, code: int) -> str:
    """One JSON object: the exit code and the findings."""
    findings = [
        {"check": name, "level": one.level, "what": one.what, "remedy": one.remedy}
        | {"code": one.error.exit_code if one.error is not None else 0}
        for name, each in found.items()
        for one in each
    ]
    return json.dumps({"exit_code": code, "findings": findings}, indent=2)


# --- questions


def inquire(settings: DoctorSettings) -> Facts:
    """Raises BrokerError when no broker answers."""
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        if not cluster.has_controller:
            raise BrokerError(
                f"the broker at {settings.bootstrap} knows no controller",
                "if it has just started, try again in a minute (embedded brokers, for tests, have none)",
            )
        coordinator = "check that all brokers run, and the replicas of __consumer_offsets"
        with broker_errors(f"the coordinator of group {settings.group} does not answer", coordinator):
            on_group = operations_of_group(settings)
        transactions = []
        if settings.delivery == "exactly-once":
            given = "the broker gives transactions to this user"
            transactions = [Finding.of(partial(_start_transactions, settings), given)]
        with broker_errors("the brokers stopped answering", "check that all run"):
            asked = cluster.admin.describe_cluster(include_authorized_operations=True, request_timeout=ANSWER_S)
            about = asked.result()
            every = [*advice.topics_of(settings), *advice.internal_topics(settings)]
            described, hidden = describe_topics(cluster.admin, every)
            of_brokers = (cluster.configs([str(node.id)], ResourceType.BROKER) for node in about.nodes)
            return Facts(
                brokers={node.id: f"{node.host}:{node.port}" for node in about.nodes},
                topics=described,
                hidden=hidden,
                configs=cluster.configs(described),
                broker_configs=[config for found in of_brokers for config in found.values()],
                on_cluster=operations_of(about),
                on_group=on_group,
                transactions=transactions,
            )


def _start_transactions(settings: DoctorSettings) -> None:
    """As an instance does. The id is of no instance, so none is fenced off."""
    prefix = f"{settings.group}-{settings.topic}-"
    ids, resource = f"transactional ids that begin with {prefix}", f"{prefix} --resource-pattern-type prefixed"
    Transactions(make_producer(settings, f"{prefix}doctor~")).start_or_explain(START_TIMEOUT_S, ids, resource)


def schema_registry(settings: DoctorSettings) -> Iterator[Finding]:
    """Whether it answers, what it has for the input, and whether it takes the schemas of outputs."""
    try:
        with needs_extra("--registry"):
            from fomo_stream.kafka.registry.client import RegistryClient
        client, source, schema = RegistryClient(settings.registry), f"{settings.topic}-value", None
        newest = client.latest(source)
        if newest is None:
            what = f"{client.url} answers, but has no subject {source}: it is not known whether schemas can be used"
            otherwise = "nothing, if no record was sent yet, or if producers name subjects by the type of their records"
            yield Finding(what, otherwise, is_known=False)
        else:
            found = f"the newest schema of {source} is version {newest.version}, in {KINDS[newest.kind]}"
            yield Finding(f"{client.url} answers; {found}")
            try:
                schema = _schema_of_outputs(settings, client.schema(newest.schema_id))
            except RecordError as error:
                what = f"records by the newest schema of {source} become dead letters ({error.reason})"
                see = "see docs/schemas.md for the schemas that can be used"
                yield Finding(f"{what}: {' '.join(str(error).split())}", see)
        if settings.output_format == "registry" and settings.subject_strategy != "topic":
            how = f"--subject-strategy {settings.subject_strategy} names them by each record"
            yield Finding(f"subjects of outputs: {how}", is_known=False)
        elif settings.output_format == "registry":
            for topic in settings.scored_topics:
                yield _of_outputs(client, f"{topic}-value", schema)
    except FomoError as error:
        yield Finding.problem(error)


def _schema_of_outputs(settings: DoctorSettings, schema: SchemaText) -> SchemaText | None:
    """None if outputs have no schema. Raises RecordError if records by this schema become dead letters."""
    from fomo_stream.kafka.registry.schemas import compile_writer, output_writer

    # Of Protobuf, the first message of the file: only a record says which one it is.
    writer = compile_writer(schema, (0,) if schema.kind is Kind.PROTOBUF else (), settings)
    return output_writer(writer, settings).scored_schema() if settings.output_format == "registry" else None


def _of_outputs(client: RegistryClient, subject: str, schema: SchemaText | None) -> Finding:
    """schema: of outputs by the newest schema of the input; None if that is not known."""
    if schema is None:
        return Finding(f"{subject}: the schema of outputs is not known, as that of the input is not", is_known=False)
    if client.look_up(subject, schema) is not None:
        return Finding(f"{subject} has the schema of outputs")
    if client.takes(subject, schema) is False:
        what = f"{subject} does not take the schema of outputs: they become dead letters (output_schema_refused)"
        remedy = "lower the compatibility of this subject, or name another topic with --out or --alerts"
        return Finding.problem(RegistryError(what, remedy))
    return Finding(f"{subject} gets the schema of outputs with the first record, if this user may register it")
