"""`fomo-stream doctor`: runs all checks of a start, and finds what works but should be changed.

It reads the first records, but writes none, registers no schema, and changes no topic and no group. To find out whether
transactions are possible, it initialises a producer with its own transactional id.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec, ResourceType

from fomo_stream.admin import deployment_checks, record_checks
from fomo_stream.admin.deployment_checks import Facts
from fomo_stream.errors import BrokerError, FomoError, RecordError, RegistryError, needs_extra
from fomo_stream.kafka.broker.clients import START_TIMEOUT_S, broker_errors, make_producer
from fomo_stream.kafka.broker.cluster import ANSWER_S, Cluster, describe_topics
from fomo_stream.kafka.broker.permissions import operations_of, operations_of_group
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader, to_record
from fomo_stream.kafka.decoding import Decoder
from fomo_stream.kafka.delivery.transactions import Transactions
from fomo_stream.kafka.registry import codec_for
from fomo_stream.kafka.topics.checks import Finding
from fomo_stream.loading import read_reference
from fomo_stream.partition.record import Pending
from fomo_stream.records.writer_schema import Kind, SchemaText
from fomo_stream.settings.commands import DoctorSettings
from fomo_stream.wording import clean, counted, in_time

if TYPE_CHECKING:
    from fomo_stream.kafka.registry.client import RegistryClient

BROKER_CHECKS = {
    "brokers": deployment_checks.brokers,
    "permissions": deployment_checks.permissions,
    "topics": deployment_checks.topics,
    "replicas": deployment_checks.replicas,
    "broker settings": deployment_checks.broker_settings,
    "transactions": deployment_checks.transactions,
    "records": record_checks.records,
}
FIRST_RECORDS = 1000  # records that are looked at, of all partitions together
MAX_FIRST_BYTES = 32 << 20  # of these records
MIN_OF_PARTITION = 10  # records of a partition that is looked at
PATIENCE_S = 5.0  # the wait for the next record
FindingsByCheck = Mapping[str, Sequence[Finding]]  # by check
KINDS = {Kind.AVRO: "Avro", Kind.PROTOBUF: "Protobuf", Kind.JSON: "JSON"}


def run_checks(settings: DoctorSettings, heading: str = "") -> tuple[str, int]:
    """Return the report and the exit code: 0 without a problem, else that of the first one. Raises ConfigError.

    heading: begins a text, where there are several topics. JSON then names its topic, in a single line.
    """
    checks = BROKER_CHECKS | ({} if settings.reference is None else {"reference": reference})
    try:
        facts = collect_facts(settings)
        by_check = {name: list(check(settings, facts)) for name, check in checks.items()}
    except BrokerError as error:
        by_check = {name: [Finding("the brokers do not answer", is_known=False)] for name in checks}
        by_check["brokers"] = [Finding.problem(error)]
    if settings.registry:
        by_check["schema registry"] = list(schema_registry(settings))
    by_check["settings"] = list(deployment_checks.own_settings(settings))
    by_check = {name: findings or [Finding("nothing has to be changed")] for name, findings in by_check.items()}
    errors = [finding.error for findings in by_check.values() for finding in findings if finding.error is not None]
    code = errors[0].exit_code if errors else 0
    topic = settings.topic if heading else ""
    return as_json(by_check, code, topic) if settings.json_ else heading + as_text(by_check), code


def as_text(by_check: FindingsByCheck) -> str:
    """Return a line for each finding, its remedy below it, and a summary."""
    width, lines = max(map(len, by_check)), []
    for name, findings in by_check.items():
        for i, finding in enumerate(findings):
            lines.append(f"{finding.level:<11}  {'' if i else name:<{width}}  {clean(finding.what)}")
            lines += [f"{'':<{width + 15}}-> {clean(finding.remedy)}"] if finding.remedy else []
    counts = Counter(finding.level for findings in by_check.values() for finding in findings)
    shown = [counted(counts[level], level) for level in ("problem", "warning")]
    return "\n".join([*lines, "", ", ".join([*shown, f"{counts['not checked']} not checked"])])


def as_json(by_check: FindingsByCheck, code: int, topic: str) -> str:
    """Return one JSON object: the exit code and the findings; with a topic, in a single line."""
    findings = [
        {"check": name, "level": finding.level, "what": finding.what, "remedy": finding.remedy}
        | {"code": finding.error.exit_code if finding.error is not None else 0}
        for name, findings_of_check in by_check.items()
        for finding in findings_of_check
    ]
    head = {"topic": topic} if topic else {}
    return json.dumps({**head, "exit_code": code, "findings": findings}, indent=None if topic else 2)


# --- questions


def collect_facts(settings: DoctorSettings) -> Facts:
    """Ask the brokers for the facts. Raises BrokerError when no broker answers."""
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
            success = "the broker gives transactions to this user"
            transactions = [Finding.of(partial(_start_transactions, settings), success)]
        with broker_errors("the brokers stopped answering", "check that all run"):
            future = cluster.admin.describe_cluster(include_authorized_operations=True, request_timeout=ANSWER_S)
            description = future.result()
            topics = [*deployment_checks.topics_of(settings), *deployment_checks.internal_topics(settings)]
            described, hidden = describe_topics(cluster.admin, topics)
            of_brokers = (cluster.configs([str(node.id)], ResourceType.BROKER) for node in description.nodes)
            first, unread = _read_first(
                settings, cluster, len(getattr(described.get(settings.topic), "partitions", ()))
            )
            return Facts(
                brokers={node.id: f"{node.host}:{node.port}" for node in description.nodes},
                topics=described,
                hidden=hidden,
                configs=cluster.configs(described),
                broker_configs=[config for broker in of_brokers for config in broker.values()],
                on_cluster=operations_of(description),
                on_group=on_group,
                transactions=transactions,
                first=first,
                unread=unread,
            )


def _read_first(settings: DoctorSettings, cluster: Cluster, count: int) -> tuple[list[Pending], str]:
    """Return the records that a new group reads first, decoded; else why they are not known. count: of partitions.

    With --start latest, these are the newest ones. They are read outside of the group.
    """
    first, size = list[Pending](), 0
    share = max(MIN_OF_PARTITION, -(-FIRST_RECORDS // max(1, count)))
    places = [(settings.topic, number) for number in range(count)]
    try:
        decoder = Decoder(codec_for(settings, of_service=False)[0], settings.key)
        begins, ends = cluster.offsets(places, OffsetSpec.earliest()), cluster.ends(places)
        with TopicReader(settings) as reader:
            for place in places[: FIRST_RECORDS // MIN_OF_PARTITION]:
                if place not in begins or place not in ends:
                    return [], f"the broker does not tell the offsets of {settings.topic}"
                begin, end = begins[place], ends[place].readable
                begin = max(begin, end - share) if settings.start == "latest" else begin
                for message in islice(reader.read(settings.topic, {place[1]: (begin, end)}, PATIENCE_S), share):
                    item = decoder.receive(to_record(message), 0.0)
                    first += [item] if item is not None else []
                    if (size := size + len(message)) > MAX_FIRST_BYTES:
                        return first, ""
    except (FomoError, NoProgressError) as error:
        return [], f"{settings.topic} could not be read: {error}"
    except KafkaException as error:
        return [], f"{settings.topic} could not be read: {error.args[0].str()}"
    return first, "" if count else f"{settings.topic} does not exist, or this user may not describe it"


def _start_transactions(settings: DoctorSettings) -> None:
    """Initialise transactions as an instance does. No instance has this id, so none is fenced off."""
    prefix = f"{settings.group}-{settings.topic}-"
    ids, resource = f"transactional ids that begin with {prefix}", f"{prefix} --resource-pattern-type prefixed"
    Transactions(make_producer(settings, f"{prefix}doctor~")).start_or_explain(START_TIMEOUT_S, ids, resource)


def reference(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Read the good records as a start does, for the features that the first records have."""
    from fomo_stream.kafka.references import References  # imports PyTorch, which other checks do not need
    from fomo_stream.model.checkpoint import load_model

    try:
        schema, _ = record_checks.schema_of(settings, [item for item in facts.first if item.error is None])
    except FomoError as error:
        yield Finding(f"the features are not known: {error.what}", is_known=False)
        return
    references = References(settings)
    references.has_state = settings.state_topic in facts.topics
    try:
        model = load_model(settings.model, settings.device, settings.backend)
        good = read_reference(settings, model, schema, references.check)
        if good is None:
            yield Finding(references.waits_for, is_known=False)
            config = facts.configs.get(settings.topic, {})
            kept_ms = deployment_checks.config_value(config, "retention.ms")
            if config.get("cleanup.policy") != "compact" and kept_ms <= len(settings.reference_span or ()):
                kept = f"{settings.topic} keeps records for {in_time(kept_ms / 1000)}"
                yield Finding(f"{kept}: the first ones are never complete", "raise its retention.ms")
        else:
            keys = f"{counted(good.keys, 'key')} with enough of their own"
            yield Finding(f"{counted(good.records, 'good record')}, {keys}")
    except FomoError as error:
        yield Finding.problem(error)


def schema_registry(settings: DoctorSettings) -> Iterator[Finding]:
    """Check whether the registry answers, what it has for the input, and whether it takes the schemas of outputs."""
    try:
        with needs_extra("--registry"):
            from fomo_stream.kafka.registry.client import RegistryClient
        client, source, schema = RegistryClient(settings.registry), f"{settings.topic}-value", None
        newest = client.latest(source)
        if newest is None:
            what = f"{client.url} answers, but has no subject {source}: it is not known whether schemas can be used"
            remedy = "nothing, if no record was sent yet, or if producers name subjects by the type of their records"
            yield Finding(what, remedy, is_known=False)
        else:
            version = f"the newest schema of {source} is version {newest.version}, in {KINDS[newest.kind]}"
            yield Finding(f"{client.url} answers; {version}")
            try:
                schema = _output_schema(settings, client.schema(newest.schema_id))
            except RecordError as error:
                what = f"records by the newest schema of {source} become dead letters ({error.reason})"
                see = "see docs/schemas.md for the schemas that can be used"
                yield Finding(f"{what}: {' '.join(str(error).split())}", see)
        if settings.output_format == "registry" and settings.subject_strategy != "topic":
            how = f"--subject-strategy {settings.subject_strategy} names them by each record"
            yield Finding(f"subjects of outputs: {how}", is_known=False)
        elif settings.output_format == "registry":
            for topic in settings.scored_topics:
                yield _check_output_subject(client, f"{topic}-value", schema)
    except FomoError as error:
        yield Finding.problem(error)


def _output_schema(settings: DoctorSettings, schema: SchemaText) -> SchemaText | None:
    """Return the schema of outputs; None if they have none. Raises RecordError if such records become dead letters."""
    from fomo_stream.kafka.registry.schemas import compile_writer, output_writer

    # For Protobuf, take the first message of the file: only a record tells which one it uses.
    writer = compile_writer(schema, (0,) if schema.kind is Kind.PROTOBUF else (), settings)
    return output_writer(writer, settings).scored_schema() if settings.output_format == "registry" else None


def _check_output_subject(client: RegistryClient, subject: str, schema: SchemaText | None) -> Finding:
    """Check a subject of outputs. schema: of outputs by the newest schema of the input; None if that is not known."""
    if schema is None:
        return Finding(f"{subject}: the schema of outputs is not known, as that of the input is not", is_known=False)
    if client.look_up(subject, schema) is not None:
        return Finding(f"{subject} has the schema of outputs")
    if client.takes(subject, schema) is False:
        what = f"{subject} does not take the schema of outputs: they become dead letters (output_schema_refused)"
        remedy = "lower the compatibility of this subject, or name another topic with --out or --alerts"
        return Finding.problem(RegistryError(what, remedy))
    return Finding(f"{subject} gets the schema of outputs with the first record, if this user may register it")
