"""A group that a replay prepares goes on as one that has read everything itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from brokers import Broker, wait_for
from confluent_kafka import Consumer
from live_groups import PARTITIONS, label, live, new_topic, produce, step, wait_for_commits
from services import Running, unique

from fomo_stream.detector.detector import Detector
from fomo_stream.errors import AgreementError, BrokerError, ConfigError, FomoError
from fomo_stream.kafka import prepare
from fomo_stream.kafka.group import log as group_log
from fomo_stream.kafka.group.agreement import Agreement
from fomo_stream.kafka.group.log import GroupLog
from fomo_stream.kafka.group.schema import GroupSchema
from fomo_stream.kafka.group.unused import check_unused, start_producer
from fomo_stream.kafka.prepare import prepare_group
from fomo_stream.kafka.recorded import recorded_group
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.records.schema import Schema
from fomo_stream.replaying.partition import PartitionReplay
from fomo_stream.replaying.plan import Plan, make_plan
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.service import ServiceSettings

SCHEMA = Schema(("temperature", "motor.rpm"))
WHERE = ("topic", "partition", "offset", "timestamp")
OWN: dict[str, Any] = {"min_context": 50, "context_size": 100, "features": ",".join(SCHEMA.features)}


pytestmark = pytest.mark.usefixtures("real_kafka")


def replay_settings(settings: ServiceSettings, **changes: Any) -> ReplaySettings:
    given: dict[str, Any] = {"bootstrap": settings.bootstrap, "topic": settings.topic, "kafka": settings.kafka}
    return ReplaySettings(**given, **changes)


class Kept:
    """A sink that keeps the results by place, without where and when the record was."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int], dict[str, Any]] = {}

    def write(self, _samples: object, results: list[dict[str, Any]]) -> None:
        for result in results:
            others = {name: value for name, value in result.items() if name not in WHERE}
            self.found[result["partition"], result["offset"]] = others


def replayed(plan: Plan) -> tuple[dict[Any, Any], dict[int, Any]]:
    """The results by place, and the state of each partition at the end."""
    settings = plan.settings
    model = shared_model(settings.model, kernel=settings.kernel)
    first = Detector(model, 2, settings.detector_config())
    found: dict[Any, Any] = {}
    tasks: dict[int, Any] = {}
    for number in plan.source.partitions:
        kept = Kept()
        replay = PartitionReplay(plan, number, first, sink=cast("Any", kept))
        for _ in replay.blocks(lambda: False):
            pass
        found |= kept.found
        tasks[number] = (replay.changes(), replay.position)
    return found, tasks


def identity(settings: ServiceSettings) -> tuple[str, str]:
    model = shared_model(settings.model, kernel=settings.kernel)
    return model.name, model.kernel


def labels_of(settings: ServiceSettings) -> list[tuple[int, int, tuple[int, bool]]]:
    """By partition and input offset: the labels in the order in which they took effect."""
    effects = recorded_group(replay_settings(settings, group=settings.group)).effects
    return [(n, one.input_offset, label) for n in sorted(effects) for one in effects[n] for label in one.labels]


def prepared(settings: ServiceSettings, **changes: Any) -> ServiceSettings:
    return settings.model_copy(update={"group": unique("prepared"), "out": unique("out"), **changes})


def test_a_prepared_group_goes_on_as_the_group_that_ran_live(broker: Broker) -> None:
    settings = new_topic(broker, alert_rate=0.02, context_size=150)
    settings = settings.model_copy(update={"feedback": f"{settings.topic}-labels"})
    with Running(settings):
        for at in range(3):
            step(broker, [settings], 120, 120 * at, 8 * (at + 1))
    label(broker, settings, [350, 351, 352])  # nobody has read these yet
    asked = replay_settings(settings, group=settings.group)
    recorded = recorded_group(asked)
    assert recorded.settings.alert_rate == 0.02
    assert recorded.settings.context_size == 150
    assert recorded.schema == SCHEMA
    assert recorded.notes == ()
    assert recorded.learned == {0: (360, 360), 1: (360, 360)}
    plan = make_plan(asked)
    found, tasks = replayed(plan)
    assert found == live(broker, settings, 720)
    assert any(result["outlier"] for result in found.values())
    twin = prepared(settings)
    assert prepare_group(twin, SCHEMA, *identity(settings), tasks, plan.effects) == []
    assert broker.committed(twin.group, settings.topic) == 720
    assert broker.committed(twin.group, settings.feedback or "") == 2 * 24
    with Running(settings), Running(twin):
        wait_for_commits(broker, [settings, twin], settings.feedback or "", 54)
        for at in range(3, 5):
            step(broker, [settings, twin], 120, 120 * at, 27 + 8 * (at - 2))
    outputs, ours = live(broker, settings, 1200), live(broker, twin, 480)
    assert ours == {place: result for place, result in outputs.items() if place[1] >= 360}
    assert labels_of(settings) == labels_of(twin)  # the prepared group, too, can be replayed


def test_a_group_is_prepared_from_an_earlier_end_with_the_labels_of_then(broker: Broker) -> None:
    settings = new_topic(broker)
    settings = settings.model_copy(update={"feedback": f"{settings.topic}-labels"})
    with Running(settings):
        for at in range(3):
            step(broker, [settings], 100, 100 * at, 8 * (at + 1))
    plan = make_plan(replay_settings(settings, group=settings.group, to="200"))
    found, tasks = replayed(plan)
    outputs = live(broker, settings, 600)
    assert found == {place: result for place, result in outputs.items() if place[1] < 200}
    twin = prepared(settings)
    prepare_group(twin, SCHEMA, *identity(settings), tasks, plan.effects)
    assert broker.committed(twin.group, settings.topic) == 400
    assert broker.committed(twin.group, settings.feedback or "") == 32


def test_a_group_without_a_past_counts_all_labels_as_read(broker: Broker) -> None:
    settings = new_topic(broker)
    settings = settings.model_copy(update={"feedback": f"{settings.topic}-labels"})
    broker.create_topic(settings.feedback or "", PARTITIONS)
    produce(broker, settings, 80, 0)
    label(broker, settings, [3, 4])
    _, tasks = replayed(make_plan(replay_settings(settings, **OWN, feedback=settings.feedback)))
    (note,) = prepare_group(settings, SCHEMA, *identity(settings), tasks)
    assert "have no effect in group" in note
    assert broker.committed(settings.group, settings.feedback or "") == 4


def empty_tasks() -> Mapping[int, Any]:
    return {number: ({}, 0) for number in range(PARTITIONS)}


def refused(settings: ServiceSettings, kind: type[FomoError]) -> str:
    with pytest.raises(kind) as caught:
        check_unused(settings, SCHEMA)
    with pytest.raises(kind):
        prepare_group(settings, SCHEMA, *identity(settings), empty_tasks())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_group_that_was_used_is_refused(broker: Broker) -> None:
    settings = new_topic(broker)
    check_unused(settings)
    member = Consumer({**broker.config, "group.id": settings.group})
    member.subscribe([settings.topic])
    wait_for(lambda: (member.poll(0.1), member.assignment())[1], "the member")
    assert "has 1 member; stop them" in refused(settings, ConfigError)
    member.close()
    assert not broker.partitions(settings.state_topic)
    with Running(settings):
        pass
    check_unused(settings)  # an agreement alone that equals ours
    other = settings.model_copy(update={"context_size": 77, "result_field": "other"})
    assert "--context-size is 100 in the group, 77 here; --result-field is fomo" in refused(other, AgreementError)
    with Running(settings):
        produce(broker, settings, 60, 0)
        wait_for_commits(broker, [settings], settings.topic, 120)
    assert "has read topic" in refused(settings, ConfigError)
    broker.admin.delete_consumer_groups([settings.group])[settings.group].result(20)
    assert "has a state in topic" in refused(settings, ConfigError)


def test_a_preparation_that_fails_leaves_nothing_behind(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = new_topic(broker)
    broker.grow_topic(settings.topic, PARTITIONS + 1)  # the last partition stays empty
    produce(broker, settings, 120, 0)
    _, tasks = replayed(make_plan(replay_settings(settings, **OWN, alert_rate=0.05)))
    send_offsets = prepare._Preparation.send_offsets

    def joined(self: Any, *arguments: Any) -> None:
        send_offsets(self, *arguments)  # all of it is at the broker
        with pytest.raises(BrokerError, match=f"open transaction: a replay prepares group {settings.group} now, or it"):
            GroupSchema(settings).stored()
        member = Consumer({**broker.config, "group.id": settings.group})
        member.subscribe([settings.topic])
        wait_for(lambda: (member.poll(0.1), member.assignment())[1], "the member")
        members.append(member)

    members: list[Any] = []
    monkeypatch.setattr(group_log, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(prepare._Preparation, "send_offsets", joined)
    with pytest.raises(ConfigError, match="got 1 member during the replay; nothing was written"):
        prepare_group(settings, SCHEMA, *identity(settings), tasks)
    members[0].close()
    monkeypatch.undo()
    written = broker.read(settings.state_topic)
    assert not [message for message in written if message.value() is not None]
    assert GroupLog(settings).entries(b"settings/") == GroupLog(settings).entries(b"schema/") == []
    assert GroupSchema(settings).stored() is None
    assert broker.committed(settings.group, settings.topic) == 0
    check_unused(settings.model_copy(update={"context_size": 77}))
    prepare_group(settings, SCHEMA, *identity(settings), tasks)
    assert GroupSchema(settings).stored() == SCHEMA
    assert len(GroupLog(settings).entries(b"settings/")) == 1
    with Running(settings) as running:
        wait_for(lambda: running.service.ready, "the service to be ready")
        produce(broker, settings, 10, 120)
        outputs = live(broker, settings, 2 * 10)
    assert {result["status"] for result in outputs.values()} == {"ok"}
    assert {at for _, at in outputs} == set(range(120, 130))


def test_an_instance_that_agrees_while_the_group_is_prepared_wins(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not joined yet, so only the group log shows it."""
    settings = new_topic(broker)
    other = settings.model_copy(update={"context_size": 80})

    def agreed(its: ServiceSettings) -> Any:
        started = start_producer(its)
        Agreement(other, *identity(other), GroupLog(other)).join()
        GroupSchema(other).agree(Schema(("temperature",)))
        return started

    monkeypatch.setattr(prepare, "start_producer", agreed)
    with pytest.raises(AgreementError, match="started during the replay, and agreed on settings or features; nothing"):
        prepare_group(settings, SCHEMA, *identity(settings), empty_tasks())
    assert not [one for one in broker.read(settings.state_topic) if (one.key() or b"").startswith(b"state/")]
    Agreement(other, *identity(other), GroupLog(other)).check()
    assert GroupSchema(other).stored() == Schema(("temperature",))


def test_a_preparation_that_was_killed_is_in_nobodys_way(broker: Broker) -> None:
    settings = new_topic(broker)
    with Running(settings):
        pass  # creates the topics, and agrees
    killed, transactions = start_producer(settings)
    transactions.begin(10.0)
    for number in range(PARTITIONS):
        killed.produce(settings.state_topic, b"x", GroupLog.key_in_transaction(b"settings/"), partition=number)
    assert killed.flush(10.0) == 0
    check_unused(settings, SCHEMA)
    prepare_group(settings, SCHEMA, *identity(settings), empty_tasks())
    assert GroupSchema(settings).stored() == SCHEMA
