"""The members of a group agree: an instance with other settings is refused before it joins, and no member notices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from brokers import Broker, wait_for
from services import Running, make_settings, readings, results, unique
from test_operations import changed, refusal

from fomo_stream.errors import AgreementError
from fomo_stream.kafka.group.agreement import CHANGEABLE_SETTINGS, STATE_SETTINGS, Agreement
from fomo_stream.kafka.group.log import GroupLog
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.settings.service import ServiceSettings

MODEL, KERNEL = shared_model().name, shared_model().kernel
OTHER_KERNEL = "torch" if KERNEL == "numba" else "numba"

# For every agreed setting: another value, and the message about it.
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": "fusion"}, rf"--model is {MODEL} in the group, fusion@\w+ here"),
    "kernel": ({"kernel": OTHER_KERNEL}, f"--kernel is {KERNEL} in the group, {OTHER_KERNEL} here"),
    "features": ({"features": "temperature"}, "--features temperature,site differs .* temperature,motor.rpm,site"),
    "categorical": ({"categorical": "kind"}, "--categorical is site in the group, kind here"),
    "lags": ({"lags": 2}, "--lags is 1 in the group, 2 here"),
    "views": ({"views": ("fast",)}, "--views is trimmed,all,recent,movement,past in the group, trimmed,all,past here"),
    "context-size": ({"context_size": 200}, "--context-size is 100 in the group, 200 here"),
    "seed": ({"seed": 7}, "--seed is 0 in the group, 7 here"),
    "remembered-rows": ({"feedback_memory": 50_000}, r"remembered rows \(.*\) is 5000 in the group, 50000 here"),
    "remembered-scores": ({"alert_rate": 1e-4}, r"remembered scores \(.*\) is 5000 in the group, 20032 here"),
    "feedback-memory": ({"feedback_memory": 100}, "--feedback-memory is 5000 in the group, 100 here"),
    "out": ({"out": "elsewhere"}, "--out is .*-scores in the group, elsewhere here"),
    "alerts": ({"alerts": "elsewhere"}, "--alerts is none in the group, elsewhere here"),
    "dead-letters": ({"dead_letters": "elsewhere"}, "--dead-letters is .*-dead-letters in the group, elsewhere here"),
    "feedback": ({"feedback": None}, "--feedback is labels-.* in the group, none here"),
    "result-field": ({"result_field": "verdict"}, "--result-field is fomo in the group, verdict here"),
    "scores-only": ({"scores_only": True}, "--scores-only is false in the group, true here"),
    "incident-quiet": ({"incident_quiet": 5}, "--incident-quiet is 10 in the group, 5 here"),
    "threads": ({"threads": 2}, r"--threads \(.*\) is 1 in the group, 2 here"),
    "delivery": ({"delivery": "at-least-once"}, "--delivery is exactly-once in the group, at-least-once here"),
}


@pytest.fixture(autouse=True)
def _needs_transactions(broker: Broker) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker does not say which members a group has")


@pytest.fixture(scope="module")
def member(broker: Broker) -> Iterator[Running]:
    """An instance that is a member already."""
    if not broker.is_kafka:
        pytest.skip("the embedded broker does not say which members a group has")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=3)
    with Running(make_settings(broker, topic, feedback=unique("labels"), categorical="site", lags=1)) as running:
        wait_for(lambda: running.service.ready and running.member.pipeline.tasks, "the first member to be at work")
        yield running


def test_every_agreed_setting_has_a_test() -> None:
    assert OTHERS.keys() == {*STATE_SETTINGS, *CHANGEABLE_SETTINGS, "features"}


@pytest.mark.parametrize("name", OTHERS)
def test_a_second_member_with_another_setting_is_refused_and_the_first_loses_nothing(
    member: Running, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fomo_stream.kafka.group.agreement.usable_processors", lambda: 8)
    changes, words = OTHERS[name]
    before = dict(member.member.pipeline.tasks)
    error = refusal(changed(member.settings, **changes))
    assert isinstance(error, AgreementError)
    assert error.exit_code == 10
    with pytest.raises(AgreementError, match=words):
        raise error
    assert "--group" in str(error)
    assert ("--reset-state" in str(error)) == (name in (*STATE_SETTINGS, "features"))
    assert member.member.pipeline.tasks == before  # the very same tasks: none was revoked and assigned again
    assert member.service.ready


def test_settings_outside_the_agreement_may_differ(member: Running) -> None:
    free = {
        "alert_rate": 0.02,
        "adapt_after": 50,
        "min_context": 20,
        "admit": "feedback",
        "batch_size": 7,
        "max_latency_ms": 50,
    }
    other = changed(member.settings, **free, features=None, categorical=())
    with Running(other) as running:
        wait_for(lambda: running.service.ready and running.member.pipeline.tasks, "the second member to be ready")
        assert running.member.pipeline.schema == member.member.pipeline.schema
    wait_for(lambda: len(member.member.pipeline.tasks) == 3, "the partitions to come back")


def test_outputs_can_be_changed_while_a_group_has_no_members(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger="fomo_stream")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=1)
    settings = make_settings(broker, topic)
    broker.produce(topic, readings(60))
    with Running(settings):
        broker.read(settings.out, at_least=60)
    moved = changed(settings, out=unique("elsewhere"), result_field="verdict")
    broker.produce(topic, readings(60, start=60))
    with Running(moved):
        outputs = results(broker.read(moved.out, at_least=60))
    assert [output["n"] for output in outputs] == list(range(60, 120))
    assert all(output["verdict"]["score"] is not None for output in outputs)  # the state is kept
    lines = [line for line in caplog.text.splitlines() if "group_settings_changed" in line]
    assert len(lines) == 1
    assert f'out="{settings.out} -> {moved.out}"' in lines[0]
    assert 'result_field="fomo -> verdict"' in lines[0]
    assert len(broker.read(settings.out)) == 60


@pytest.mark.parametrize("changes", [{"features": "temperature"}, {"out": "elsewhere"}, {"lags": 1}])
def test_a_refused_instance_does_not_fence_the_one_with_its_name(broker: Broker, changes: dict[str, Any]) -> None:
    topic = unique("sensors")
    broker.create_topic(topic, partitions=1)
    settings = make_settings(broker, topic, instance_id="one")
    with Running(settings) as running:
        wait_for(lambda: running.service.ready and running.member.pipeline.tasks, "the first one to be at work")
        assert isinstance(refusal(changed(settings, **changes)), AgreementError)
        broker.produce(topic, readings(60))
        assert len(broker.read(settings.out, at_least=60)) == 60
    assert not broker.partitions("elsewhere")


def agreement(settings: ServiceSettings) -> Agreement:
    return Agreement(settings, MODEL, KERNEL, GroupLog(settings))


def test_of_two_instances_that_change_the_same_settings_one_is_refused(broker: Broker) -> None:
    """Neither is a member yet, so each may change them: the second change is valid, and the first instance ends."""
    topic = unique("sensors")
    settings = make_settings(broker, topic)
    broker.create_topic(settings.state_topic, config={"cleanup.policy": "compact"})
    agreement(settings).join()
    first = agreement(changed(settings, out="first"))
    second = agreement(changed(settings, out="second"))
    first.join()
    first.check()
    second.join()
    second.check()
    with pytest.raises(AgreementError, match=r"--out is second in the group, first here; they were changed while"):
        first.check()


def test_a_late_proposal_is_ignored(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = unique("sensors")
    settings = make_settings(broker, topic)
    broker.create_topic(settings.state_topic, config={"cleanup.policy": "compact"})
    agreement(settings).join()
    first, second = (agreement(changed(settings, out=name)) for name in ("first", "second"))
    append = GroupLog.append

    def late(log: GroupLog, kind: bytes, value: bytes) -> None:
        """Another instance writes between its read and its write."""
        monkeypatch.setattr(GroupLog, "append", append)
        first.join()
        append(log, kind, value)

    monkeypatch.setattr(GroupLog, "append", late)
    with pytest.raises(AgreementError, match="--out is first in the group, second here; another instance was faster"):
        second.join()
    first.check()
