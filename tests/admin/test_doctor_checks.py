"""The checks of `fomo-stream doctor`: a good deployment has only good findings, and each defect is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.admin.deployment_checks import Facts, own_settings
from fomo_stream.admin.doctor import BROKER_CHECKS
from fomo_stream.errors import NotPermittedError, TopicError
from fomo_stream.kafka.broker.permissions import service_needs
from fomo_stream.kafka.topics.checks import RESULT_BYTES, STATE_TOPIC_CONFIG, Finding
from fomo_stream.partition.record import Pending, Record
from fomo_stream.settings.commands import DoctorSettings

EVERYTHING = frozenset(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY, AclOperation.ALL}
INPUT = {"max.message.bytes": "1000000", "retention.ms": "604800000", "min.insync.replicas": "2"}
OUTPUT = {**INPUT, "max.message.bytes": str(1_000_000 + RESULT_BYTES)}
BROKER = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
}


def good_settings(**changes: Any) -> DoctorSettings:
    return DoctorSettings(**{"topic": "t", "group": "g", "instance_id": "a", "health_port": 8080, **changes})


SETTINGS = good_settings(feedback="labels", alerts="pages")
CONFIGS: dict[str, Mapping[str, str]] = {
    **dict.fromkeys(("t", "labels"), INPUT),
    **dict.fromkeys(("t-scores", "pages", "t-dead-letters"), OUTPUT),
    "g-t-state": {**INPUT, **STATE_TOPIC_CONFIG},
    "__consumer_offsets": {"min.insync.replicas": "2"},
    "__transaction_state": {"min.insync.replicas": "2"},
}


def described(partitions: int = 4, replicas: int = 3, in_sync: int = 3, operations: Any = EVERYTHING) -> Any:
    """A topic as the client describes it."""
    one = SimpleNamespace(leader=1, replicas=[None] * replicas, isr=[None] * in_sync)
    return SimpleNamespace(partitions=[one] * partitions, authorized_operations=operations)


READ = [
    Pending(Record("t", 0, i, None, b"pump", b"", []), {"temperature": 20.0 + i % 7}, 0.0, None, b"pump")
    for i in range(100)
]
GOOD = Facts(
    brokers={1: "a:9092", 2: "b:9092", 3: "c:9092"},
    topics={name: described() for name in CONFIGS},
    configs=CONFIGS,
    broker_configs=(BROKER, BROKER, BROKER),
    on_cluster=EVERYTHING,
    on_group=EVERYTHING,
    first=READ,
)


def found(settings: DoctorSettings, facts: Facts) -> list[tuple[str, Finding]]:
    """What is not well."""
    every = [(name, one) for name, check in BROKER_CHECKS.items() for one in check(settings, facts)]
    return [(name, one) for name, one in every if one.level != "ok"]


def topic(name: str, **changes: Any) -> Facts:
    """A deployment in which a topic is otherwise."""
    return replace(GOOD, topics={**GOOD.topics, name: described(**changes)})


def config(name: str, **changes: str) -> Facts:
    return replace(GOOD, configs={**GOOD.configs, name: {**GOOD.configs[name], **changes}})


def without(name: str, **changes: Any) -> Facts:
    return replace(GOOD, topics={n: one for n, one in GOOD.topics.items() if n != name}, **changes)


def broker(**changes: str) -> Facts:
    """One of the three brokers has another configuration."""
    return replace(GOOD, broker_configs=(BROKER, {**BROKER, **changes}, BROKER))


BATCHES = {"max.message.bytes": str(10 << 20), "compression.type": "producer"}
LACKS_ALTER = EVERYTHING - {AclOperation.ALTER}
REFUSED = Finding.problem(NotPermittedError("no", "permit it"))
# A deployment, the check that finds its defect, the exit code (0: a warning, None: not checked), and words about it.
DEFECTS: list[tuple[Facts, str, int | None, str]] = [
    (without("t"), "topics", TopicError.exit_code, "there is no topic t"),
    (without("t-scores", on_cluster=frozenset()), "topics", 0, "t-scores does not exist yet"),
    (without("pages", hidden=frozenset({"pages"})), "permissions", 9, "Write on topic pages"),
    (config("pages", **{"cleanup.policy": "compact"}), "topics", 0, "pages is compacted"),
    (config("t", **BATCHES), "topics", 0, "t takes compressed batches of 10.0 MiB: one can fill 20.2 GiB"),
    (topic("t-scores", partitions=2), "topics", 0, "t-scores has 2 partitions, t has 4"),
    (topic("g-t-state", partitions=2), "topics", 0, "g-t-state has 2 partitions"),
    (topic("g-t-state", partitions=2, operations=LACKS_ALTER), "topics", 8, "the others cannot be scored"),
    (topic("labels", partitions=5), "topics", 8, "labels has 5 partitions, topic t has 4"),
    (config("g-t-state", **{"cleanup.policy": "delete"}), "topics", 8, "cleanup.policy=delete"),
    (config("g-t-state", **{"segment.bytes": "1073741824"}), "topics", 0, "segments of 1.0 GiB"),
    (config("t-scores", **{"max.message.bytes": "1000000"}), "topics", 0, "the largest do not fit"),
    (config("t-scores", **{"retention.ms": "1000"}), "topics", 0, "t-scores keeps records for 1 s"),
    (config("t", **{"retention.ms": "-1"}), "topics", 0, "t-dead-letters keeps records for 7 d"),
    (topic("t", replicas=1, in_sync=1, partitions=4), "replicas", 7, "t: 1 replicas in sync, but min.insync"),
    (topic("t", replicas=2, in_sync=2), "replicas", 0, "t: 2 replicas"),
    (config("t", **{"min.insync.replicas": "1"}), "replicas", 0, "t: 3 replicas, min.insync.replicas=1"),
    (without("__consumer_offsets"), "replicas", None, "__consumer_offsets: it does not exist yet"),
    (broker(**{next(iter(BROKER)): "10000"}), "broker settings", 0, "interval.ms=10000"),
    (broker(**{"group.min.session.timeout.ms": "60000"}), "broker settings", 2, "sessions of 60000 to 1800000 ms"),
    (replace(GOOD, broker_configs=()), "broker settings", None, "may not read the brokers' configuration"),
    (replace(GOOD, on_group={AclOperation.DESCRIBE}), "permissions", 9, "not permitted: Read on group g"),
    (topic("t", operations=None), "permissions", None, "the broker does not tell"),
    (replace(GOOD, first=(), unread="t could not be read"), "records", None, "t could not be read"),
    (replace(GOOD, transactions=[REFUSED]), "transactions", 9, "no"),
]


@pytest.mark.parametrize(("facts", "check", "code", "words"), DEFECTS, ids=[words for *_, words in DEFECTS])
def test_each_defect_is_found(facts: Facts, check: str, code: int | None, words: str) -> None:
    level = {0: "warning", None: "not checked"}.get(code, "problem")
    bad = found(SETTINGS, facts)
    assert [(name, one.level) for name, one in bad if words in one.what] == [(check, level)]
    assert [one.error.exit_code for _, one in bad if one.error is not None][:1] == [code or 0][: bool(code)]
    assert all(one.remedy for _, one in bad if one.level in ("problem", "warning"))


def test_a_good_deployment_has_only_good_findings() -> None:
    assert found(SETTINGS, GOOD) == []
    assert list(own_settings(SETTINGS)) == []
    without_transactions = broker(**{next(iter(BROKER)): "10000"})  # of no importance there
    assert found(good_settings(delivery="at-least-once"), without_transactions) == []


def test_settings_are_advised_about() -> None:
    for name, value, words in (
        ("instance_id", None, "no --instance-id"),
        ("health_port", None, "no --health-port"),
        ("reset_state", True, "--reset-state is set"),
        ("admit", "feedback", "nothing is learned"),
    ):
        (finding,) = own_settings(good_settings(**{name: value}))
        assert finding.level == "warning"
        assert words in finding.what


@given(st.data())
def test_every_operation_that_the_service_needs_is_looked_for(data: st.DataObject) -> None:
    needs = [(name, operation) for name, needed in service_needs(SETTINGS).items() for operation in needed]
    name, operation = data.draw(st.sampled_from(needs))
    ((_, missing),) = found(SETTINGS, topic(name, operations=EVERYTHING - {operation}))
    assert isinstance(missing.error, NotPermittedError)
    assert f"{operation.name.capitalize()} on topic {name}" in missing.what
    assert f"--operation {operation.name.capitalize()} --topic {name}" in missing.remedy


@given(st.sets(st.sampled_from(sorted(CONFIGS))), st.booleans())
def test_what_may_not_be_seen_is_no_problem_and_no_warning(names: set[str], has_brokers: bool) -> None:
    """This user may describe the topics, but read no configuration and no permissions."""
    facts = replace(
        GOOD,
        topics={name: described(operations=None) if name in names else one for name, one in GOOD.topics.items()},
        configs={name: one for name, one in CONFIGS.items() if name not in names},
        broker_configs=GOOD.broker_configs if has_brokers else (),
    )
    bad = found(SETTINGS, facts)
    assert {one.level for _, one in bad} <= {"not checked"}
    assert bool(bad) == (not has_brokers or bool(names - {"__consumer_offsets", "__transaction_state"}))
