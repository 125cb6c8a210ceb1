"""The checks of `fomo-stream doctor`: a good deployment has only good findings, and each defect is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.admin.checks import Finding, Level
from fomo_stream.admin.doctor import CHECKS, exit_code, findings_of, without_answer
from fomo_stream.admin.inquiry import Facts, RegistryFacts, SubjectFacts, TopicFacts
from fomo_stream.errors import BrokerError, NotPermittedError, RecordError, RegistryError, TopicError
from fomo_stream.kafka.broker.permissions import service_needs
from fomo_stream.kafka.registry.client import Newest
from fomo_stream.kafka.topics.checks import RESULT_BYTES, STATE_TOPIC_CONFIG
from fomo_stream.records.writer import Kind
from fomo_stream.settings.commands import DoctorSettings

EVERYTHING = frozenset(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY, AclOperation.ALL}
INPUT = {"max.message.bytes": "1000000", "retention.ms": "604800000", "min.insync.replicas": "2"}
OUTPUT = {**INPUT, "max.message.bytes": str(1_000_000 + RESULT_BYTES), "message.timestamp.type": "CreateTime"}
BROKER = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.max.timeout.ms": "900000",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "offsets.retention.minutes": "10080",
}


def good_settings(**changes: Any) -> DoctorSettings:
    good = {"topic": "t", "group": "g", "instance_id": "a", "health_port": 8080, "registry": "http://r"}
    return DoctorSettings(**{**good, **changes})


SETTINGS = good_settings(feedback="labels", alerts="pages", output_format="registry")
TAKEN = SubjectFacts(False, "BACKWARD", "READWRITE", True)


def topic(partitions: int = 4, replicas: int = 3, config: Mapping[str, str] | None = None) -> TopicFacts:
    count = (replicas,) * partitions
    return TopicFacts(count, count, config=config or {}, operations=EVERYTHING)


def sized(partitions: int, replicas: int = 3) -> dict[str, Any]:
    return dict.fromkeys(("replicas", "in_sync"), (replicas,) * partitions)


def good_facts() -> Facts:
    return Facts(
        brokers={1: "a:9092", 2: "b:9092", 3: "c:9092"},
        topics={
            "t": topic(config=INPUT),
            "t-scores": topic(config=OUTPUT),
            "pages": topic(config=OUTPUT),
            "t-dead-letters": topic(config=OUTPUT),
            "labels": topic(config=INPUT),
            "g-t-state": topic(config={**INPUT, **STATE_TOPIC_CONFIG}),
            "__consumer_offsets": topic(50, config={"min.insync.replicas": "2"}),
            "__transaction_state": topic(50, config={"min.insync.replicas": "2"}),
        },
        broker_configs=(BROKER, BROKER, BROKER),
        cluster_operations=EVERYTHING,
        group_operations=EVERYTHING,
        registry=RegistryFacts(
            "http://r", Newest(3, 17, Kind.AVRO), None, {"t-scores-value": TAKEN, "pages-value": SubjectFacts(True)}
        ),
    )


def found(settings: DoctorSettings, facts: Facts) -> list[tuple[str, Finding]]:
    return [(name, finding) for name, finding in findings_of(settings, facts) if finding.level is not Level.OK]


def with_topic(name: str, **changes: Any) -> Callable[[Facts], Facts]:
    """A deployment in which a topic has other facts; a value with a dot in its name is of its configuration."""

    def change(facts: Facts) -> Facts:
        before = facts.topics[name]
        config = {**(before.config or {}), **{key: value for key, value in changes.items() if "." in key}}
        others = {key: value for key, value in changes.items() if "." not in key}
        return replace(facts, topics={**facts.topics, name: replace(before, config=config, **others)})

    return change


def without(*names: str, **changes: Any) -> Callable[[Facts], Facts]:
    def change(facts: Facts) -> Facts:
        topics = {name: about for name, about in facts.topics.items() if name not in names}
        return replace(facts, topics=topics, **changes)

    return change


def registry(**changes: Any) -> Callable[[Facts], Facts]:
    """The registry says something else."""

    def change(facts: Facts) -> Facts:
        assert facts.registry is not None
        return replace(facts, registry=replace(facts.registry, **changes))

    return change


def subject(*facts: Any) -> Callable[[Facts], Facts]:
    return registry(outputs={"t-scores-value": SubjectFacts(*facts)})


def brokers(**config: str) -> Callable[[Facts], Facts]:
    """One of the three brokers has another configuration."""
    return lambda facts: replace(facts, broker_configs=(BROKER, {**BROKER, **config}, BROKER))


PARTITIONS = with_topic("t-scores", **sized(2))
BATCHES = {"max.message.bytes": str(10 << 20), "compression.type": "producer"}
# A defect, the check that finds it, its exit code (0: a warning, None: not checked), and words of the finding.
DEFECTS: list[tuple[Callable[[Facts], Facts], str, int | None, str]] = [
    (without("t"), "topics", TopicError.exit_code, "there is no topic t"),
    (without("t-scores", cluster_operations=frozenset()), "topics", 0, "t-scores does not exist yet"),
    (without("t-scores", hidden=frozenset({"t-scores"})), "permissions", 9, "Write on topic t-scores"),
    (without("pages", hidden=frozenset({"pages"})), "permissions", 9, "Write on topic pages"),
    (with_topic("pages", **{"cleanup.policy": "compact"}), "topics", 0, "pages is compacted"),
    (with_topic("t", **BATCHES), "topics", 0, "t takes compressed batches of 10.0 MiB: one can fill 20.2 GiB"),
    (PARTITIONS, "topics", 0, "t-scores has 2 partitions, t has 4"),
    (with_topic("g-t-state", **sized(2)), "topics", 0, "g-t-state has 2 partitions"),
    (
        with_topic("g-t-state", **sized(2), operations=EVERYTHING - {AclOperation.ALTER}),
        "topics",
        TopicError.exit_code,
        "the others cannot be scored",
    ),
    (with_topic("labels", **sized(5)), "topics", TopicError.exit_code, "labels has 5 partitions, topic t has 4"),
    (with_topic("g-t-state", **{"cleanup.policy": "delete"}), "topics", TopicError.exit_code, "cleanup.policy=delete"),
    (with_topic("g-t-state", **{"segment.bytes": "1073741824"}), "topics", 0, "segments of 1.0 GiB"),
    (with_topic("g-t-state", **{"segment.ms": "604800000"}), "topics", 0, "compacted late"),
    (with_topic("t-scores", **{"max.message.bytes": "1000000"}), "topics", 0, "the largest do not fit"),
    (with_topic("t-scores", **{"retention.ms": "1000"}), "topics", 0, "t-scores keeps records for 1 s"),
    (with_topic("t", **{"retention.ms": "-1"}), "topics", 0, "t-dead-letters keeps records for 7 d"),
    (with_topic("t-scores", **{"cleanup.policy": "compact,delete"}), "topics", 0, "t-scores is compacted"),
    (with_topic("t-scores", **{"message.timestamp.type": "LogAppendTime"}), "topics", 0, "LogAppendTime"),
    (with_topic("t-scores", **{"message.timestamp.before.max.ms": "3600000"}), "topics", 0, "older than 60 min"),
    (
        with_topic("t", **sized(4, replicas=1), **{"min.insync.replicas": "1"}),
        "replicas",
        0,
        "t: 1 replica:",
    ),
    (with_topic("t", **sized(4, replicas=2)), "replicas", 0, "t: 2 replicas"),
    (with_topic("__transaction_state", **{"min.insync.replicas": "1"}), "replicas", 0, "__transaction_state: min.ins"),
    (with_topic("t", in_sync=(2,) * 4), "replicas", 0, "t: not all replicas are in sync"),
    (with_topic("t", in_sync=(1,) * 4), "replicas", 7, "t: 1 replicas in sync"),
    (with_topic("t", in_sync=(0,) * 4, has_leaders=False), "replicas", 7, "has no leader"),
    (without("__consumer_offsets"), "replicas", None, "__consumer_offsets: it does not exist yet"),
    (
        brokers(**{"transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000"}),
        "broker settings",
        0,
        "interval.ms=10000",
    ),
    (brokers(**{"transaction.max.timeout.ms": "30000"}), "broker settings", 2, "transactions here may take 45000 ms"),
    (brokers(**{"group.min.session.timeout.ms": "60000"}), "broker settings", 2, "sessions of 60000 to 1800000 ms"),
    (brokers(**{"group.max.session.timeout.ms": "30000"}), "broker settings", 2, "sessions of 6000 to 30000 ms"),
    (brokers(**{"offsets.retention.minutes": "60"}), "broker settings", 0, "offsets.retention.minutes=60"),
    (lambda f: replace(f, broker_configs=()), "broker settings", None, "may not read the brokers' configuration"),
    (lambda f: replace(f, group_operations={AclOperation.DESCRIBE}), "permissions", 9, "Read on group g"),
    (lambda f: replace(f, group_operations=()), "permissions", 9, "not permitted: Read on group g"),
    (lambda f: replace(f, group_operations=None, group_error=BrokerError("gone", "x")), "permissions", 7, "gone"),
    (with_topic("t", operations=None), "permissions", None, "does not report permissions on t"),
    (with_topic("t", operations=EVERYTHING - {AclOperation.DESCRIBE_CONFIGS}), "permissions", 0, "DescribeConfigs"),
    (with_topic("g-t-state", operations=EVERYTHING - {AclOperation.DELETE}), "permissions", 0, "Delete is not"),
    (lambda f: replace(f, transactions=NotPermittedError("no", "permit it")), "transactions", 9, "no"),
    (lambda f: replace(f, transactions=BrokerError("gone", "check")), "transactions", 7, "gone"),
    (lambda f: replace(f, standing={"t": (1, 3)}), "transactions", 0, "in partitions 1, 3 a transaction"),
    (registry(error=RegistryError("no registry answers", "start it")), "schema registry", 14, "no registry answers"),
    (registry(newest=None), "schema registry", None, "http://r answers, but has no subject t-value"),
    (registry(unusable=RecordError("unsupported_schema", "a\nb")), "schema registry", 0, "(unsupported_schema): a b"),
    (
        subject(False, "FULL", None, False),
        "schema registry",
        14,
        "does not take the schema of outputs (compatibility FULL)",
    ),
    (subject(False, None, "READONLY", True), "schema registry", 14, "t-scores-value is READONLY"),
    (subject(None, None, "READONLY_OVERRIDE"), "schema registry", 0, "t-scores-value is READONLY_OVERRIDE"),
    (
        subject(None, "FULL"),
        "schema registry",
        None,
        "t-scores-value (compatibility FULL): the schema of outputs is not",
    ),
]


def test_a_good_deployment_has_only_good_findings() -> None:
    assert found(SETTINGS, good_facts()) == []
    every = findings_of(SETTINGS, good_facts())
    assert {name for name, _ in every} == set(CHECKS)
    assert exit_code(every) == 0


@pytest.mark.parametrize(("defect", "check", "code", "words"), DEFECTS, ids=[words for *_, words in DEFECTS])
def test_each_defect_is_found(defect: Callable[[Facts], Facts], check: str, code: int | None, words: str) -> None:
    level = {0: Level.WARNING, None: Level.UNCHECKED}.get(code, Level.PROBLEM)
    bad = found(SETTINGS, defect(good_facts()))
    assert [(name, one.level) for name, one in bad if words in one.what] == [(check, level)]
    assert exit_code(bad) == (code or 0)
    assert all(one.remedy for _, one in bad if one.level in (Level.PROBLEM, Level.WARNING))
    assert all("\n" not in one.what + one.remedy for _, one in bad)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"instance_id": None}, "no --instance-id"),
        ({"health_port": None}, "no --health-port"),
        ({"reset_state": True}, "--reset-state is set"),
        ({"admit": "feedback"}, "nothing is learned"),
    ],
)
def test_settings_are_advised_about(changes: dict[str, Any], words: str) -> None:
    ((name, finding),) = found(good_settings(**changes), good_facts())
    assert (name, finding.level) == ("settings", Level.WARNING)
    assert words in finding.what


@given(st.data())
def test_every_operation_that_the_service_needs_is_looked_for(data: st.DataObject) -> None:
    needs = [(name, operation) for name, needed in service_needs(SETTINGS).items() for operation in needed]
    name, operation = data.draw(st.sampled_from(needs))
    facts = with_topic(name, operations=EVERYTHING - {operation})(good_facts())
    (missing,) = [one for _, one in found(SETTINGS, facts) if one.code == NotPermittedError.exit_code]
    assert f"{operation.name.capitalize()} on topic {name}" in missing.what
    assert f"--operation {operation.name.capitalize()} --topic {name}" in missing.remedy


@given(st.sets(st.sampled_from(sorted(good_facts().topics))), st.booleans())
def test_what_may_not_be_seen_is_no_problem_and_no_warning(names: set[str], has_brokers: bool) -> None:
    """This user may describe the topics, but read no configuration and no permissions."""
    facts = good_facts()
    topics = {n: TopicFacts(one.replicas, one.in_sync) if n in names else one for n, one in facts.topics.items()}
    facts = replace(facts, topics=topics, broker_configs=facts.broker_configs if has_brokers else ())
    bad = found(SETTINGS, facts)
    assert {one.level for _, one in bad} <= {Level.UNCHECKED}
    assert bool(bad) == (not has_brokers or bool(names - {"__consumer_offsets", "__transaction_state"}))


def test_without_transactions_nothing_is_said_about_them() -> None:
    settings = good_settings(delivery="at-least-once")
    config = {**BROKER, "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000"}
    facts = without("__transaction_state", broker_configs=(config,), transactions=BrokerError("no"))(good_facts())
    assert found(settings, facts) == []


def test_a_subject_that_is_readonly_but_has_the_schema_is_fine() -> None:
    assert found(SETTINGS, subject(True, "FULL", "READONLY", False)(good_facts())) == []


def test_a_subject_that_a_record_names_is_not_checked() -> None:
    settings = good_settings(output_format="registry", subject_strategy="record")
    ((name, finding),) = found(settings, registry(outputs={})(good_facts()))
    assert (name, finding.level) == ("schema registry", Level.UNCHECKED)
    assert "--subject-strategy record" in finding.what


def test_without_a_registry_nothing_is_said_about_it() -> None:
    every = findings_of(good_settings(registry={}), replace(good_facts(), registry=None))
    assert {name for name, _ in every} == CHECKS.keys() - {"schema registry"}


def test_where_no_broker_answers_only_the_registry_and_the_settings_are_checked() -> None:
    every = without_answer(good_settings(), BrokerError("no broker answers", "start it"), good_facts())
    assert list(dict(every)) == list(CHECKS)
    others = [one.level for name, one in every if name not in ("brokers", "schema registry", "settings")]
    assert others == [Level.UNCHECKED] * (len(CHECKS) - 3)
    assert {one.level for name, one in every if name in ("schema registry", "settings")} == {Level.OK}
    assert exit_code(every) == BrokerError.exit_code
    assert every[0][1].remedy == "start it"
