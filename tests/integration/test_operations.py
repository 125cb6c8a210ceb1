"""Operations on a running group, and their effect on its state."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from confluent_kafka import TopicPartition
from services import Running, command, make_settings, readings, results, unique

from fomo_stream.detector.fingerprint import FORMAT
from fomo_stream.errors import BrokerError, FomoError
from fomo_stream.kafka.broker.clients import make_producer
from fomo_stream.settings.service import ServiceSettings


@pytest.fixture(autouse=True)
def _needs_transactions(broker: Broker) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker has no transactions")


def run_over(broker: Broker, settings: ServiceSettings, records: list[Any], total: int) -> list[Any]:
    """Produce records to partition 0, and run a service until there are `total` outputs, which are returned."""
    broker.produce(settings.topic, records, partition=0)
    with Running(settings):
        outputs = broker.read(settings.out, at_least=total)
    assert [record["n"] for record in results(outputs)] == list(range(total))
    return results(outputs)


def refusal(settings: ServiceSettings) -> FomoError:
    """The error of a service that cannot continue."""
    with pytest.raises(FomoError) as caught, Running(settings) as running:
        wait_for(lambda: not running._thread.is_alive(), "the service to refuse", 60)
    return caught.value


def changed(settings: ServiceSettings, **changes: Any) -> ServiceSettings:
    values = {name: getattr(settings, name) for name in settings.model_fields_set}
    return ServiceSettings(**{**values, **changes})


def sensors(broker: Broker, partitions: int = 1, **changes: Any) -> ServiceSettings:
    topic = unique("sensors")
    broker.create_topic(topic, partitions)
    return make_settings(broker, topic, **changes)


# --- state


def test_the_state_survives_a_restart_with_lags_categories_and_labels(broker: Broker) -> None:
    settings = sensors(broker, features="temperature", categorical="site", lags=2, feedback=unique("labels"))
    assert settings.feedback is not None
    run_over(broker, settings, readings(200), 200)
    broker.produce(settings.feedback, [{"offset": 150, "outlier": True}], partition=0)
    with Running(settings):
        wait_for(lambda: broker.committed(settings.group, settings.feedback or "") == 1, "the label to be heeded")
    outputs = run_over(broker, settings, readings(400, start=200, seed=1), 600)
    effects = [m for m in broker.read(settings.state_topic) if (m.key() or b"").startswith(b"feedback/")]
    assert len(effects) == 1

    again = changed(settings, group=unique("other"), out=unique("again"), feedback=None)
    with Running(again):
        never_stopped = results(broker.read(again.out, at_least=600))
    same = [a["fomo"]["logit"] == b["fomo"]["logit"] for a, b in zip(outputs, never_stopped, strict=True)]
    assert all(same[:200])  # the label came after these
    assert {output["fomo"]["generation"] for output in outputs} > {0, 1}
    assert [output["fomo"]["status"] for output in outputs].count("warming_up") == 50


def test_another_checkpoint_or_format_is_refused_until_the_state_is_reset(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upgrade of deploy/README.md: refused, then with --reset-state scored from the committed offset on."""
    settings = sensors(broker)
    other = changed(settings, model="fusion")
    with monkeypatch.context() as older:
        older.setattr("fomo_stream.detector.fingerprint.FORMAT", FORMAT - 1)
        run_over(broker, settings, readings(100), 100)
        error = refusal(other)
        assert "--model is fusion-router@" in str(error)
        assert "--reset-state" in str(error)
    broker.produce(settings.topic, readings(100, start=100), partition=0)
    error = refusal(settings)
    assert f"another version of fomo-stream wrote the state: it has format {FORMAT - 1}, " in str(error)
    assert all(remedy in str(error) for remedy in ("--group", "--reset-state"))
    assert error.exit_code == 6
    assert len(broker.read(settings.out)) == 100
    outputs = run_over(broker, changed(other, reset_state=True), readings(20, start=200), 220)
    assert [output["fomo"]["status"] for output in outputs].count("warming_up") == 100
    outputs = run_over(broker, other, readings(20, start=220), 240)  # without the flag it goes on with the new state
    assert [output["fomo"]["status"] for output in outputs].count("warming_up") == 100


def test_settings_that_do_not_concern_the_state_may_change(broker: Broker) -> None:
    settings = sensors(broker)
    run_over(broker, settings, readings(100), 100)
    outputs = run_over(broker, changed(settings, alert_rate=0.02, batch_size=7), readings(100, start=100), 200)
    assert [output["fomo"]["status"] for output in outputs].count("warming_up") == 50


def test_the_state_of_a_running_group_is_not_reset(broker: Broker) -> None:
    settings = sensors(broker)
    with Running(settings) as running:
        wait_for(lambda: running.scores(0), "the partition")
        assert "has 1 member" in str(refusal(changed(settings, reset_state=True)))


def test_a_state_topic_that_is_not_compacted_is_refused(broker: Broker) -> None:
    settings = sensors(broker)
    broker.create_topic(settings.state_topic, 1, config={"cleanup.policy": "delete"})
    assert "--add-config cleanup.policy=compact" in str(refusal(settings))


def test_a_topic_recreated_while_no_instance_runs_is_not_mistaken_for_the_old_one(broker: Broker) -> None:
    settings = sensors(broker)
    run_over(broker, settings, readings(100), 100)
    broker.delete_topic(settings.topic)
    broker.create_topic(settings.topic, 1)
    broker.produce(settings.topic, readings(120, start=100), partition=0)
    with Running(settings):
        outputs = results(broker.read(settings.out, at_least=220))
    assert [output["n"] for output in outputs] == list(range(220))
    assert [output["fomo"]["status"] for output in outputs[100:]].count("warming_up") == 50


def test_records_after_a_reset_offset_are_scored_again_but_not_learned_again(broker: Broker) -> None:
    settings = sensors(broker)
    first = run_over(broker, settings, readings(300), 300)
    answer = broker.admin.alter_consumer_group_offsets([_group_offsets(settings, 100)])
    next(iter(answer.values())).result(20)
    broker.produce(settings.topic, readings(100, start=300, seed=1), partition=0)
    with Running(settings):
        outputs = results(broker.read(settings.out, at_least=600))
    assert [output["n"] for output in outputs] == [*range(300), *range(100, 400)]
    again = changed(settings, group=unique("other"), out=unique("again"))
    with Running(again):
        straight = results(broker.read(again.out, at_least=400))
    assert straight[:300] == first
    assert [o["fomo"]["logit"] for o in outputs[500:]] == [o["fomo"]["logit"] for o in straight[300:]]


def _group_offsets(settings: ServiceSettings, offset: int) -> Any:
    from confluent_kafka import ConsumerGroupTopicPartitions

    return ConsumerGroupTopicPartitions(settings.group, [TopicPartition(settings.topic, 0, offset)])


# --- offsets that are no longer retained


@pytest.mark.parametrize(("choice", "expected"), [("fail", None), ("earliest", range(150, 250)), ("latest", range(0))])
def test_an_offset_that_is_no_longer_retained(broker: Broker, choice: str, expected: range | None) -> None:
    settings = sensors(broker, on_lost_offset=choice)
    run_over(broker, settings, readings(100), 100)
    broker.produce(settings.topic, readings(150, start=100), partition=0)
    deleted = broker.admin.delete_records([TopicPartition(settings.topic, 0, 150)])
    next(iter(deleted.values())).result(20)
    if expected is None:
        error = refusal(settings)
        assert isinstance(error, BrokerError)
        assert "has offset 100, but the broker keeps 150 to 250" in str(error)
        return
    with Running(settings) as running:
        wait_for(lambda: running.scores(0), "the partition")
        broker.produce(settings.topic, readings(10, start=250), partition=0)
        outputs = broker.read(settings.out, at_least=100 + len(expected) + 10)
    assert [r["n"] for r in results(outputs)] == [*range(100), *expected, *range(250, 260)]


# --- members


def test_a_fenced_instance_ends_and_writes_nothing_more(broker: Broker, tmp_path: Path) -> None:
    settings = sensors(broker, instance_id="one")
    with command(tmp_path / "log", settings) as running:
        running.wait_for_log("restored")
        broker.produce(settings.topic, readings(100), partition=0)
        broker.read(settings.out, at_least=100)
        usurper = make_producer(settings, settings.transactional_id)
        usurper.init_transactions(20)
        broker.produce(settings.topic, readings(100, start=100), partition=0)
        assert running.process.wait(60) == 3, running.text()
        assert "fenced" in running.text()
        assert "Traceback" not in running.text()
    assert len(broker.read(settings.out)) == 100
    run_over(broker, settings, [], 200)


@pytest.mark.parametrize("instance_id", [None, "one"])
def test_sigterm_ends_the_membership(broker: Broker, tmp_path: Path, instance_id: str | None) -> None:
    settings = sensors(broker, instance_id=instance_id)
    with command(tmp_path / "log", settings) as running:
        running.wait_for_log("restored")
        assert running.terminate() == 0
    assert broker.members(settings.group) == {}


def test_a_frozen_instance_loses_its_partitions_and_repeats_nothing(broker: Broker, tmp_path: Path) -> None:
    settings = sensors(broker, partitions=2)
    with command(tmp_path / "frozen.log", settings) as frozen:
        frozen.wait_for_log("restored")
        broker.produce(settings.topic, readings(200))
        broker.read(settings.out, at_least=100)
        frozen.process.send_signal(signal.SIGSTOP)
        with command(tmp_path / "other.log", settings) as other:
            broker.produce(settings.topic, readings(300, start=200))
            assert len(broker.read(settings.out, at_least=500, seconds=90)) == 500
            frozen.process.send_signal(signal.SIGCONT)
            broker.produce(settings.topic, readings(300, start=500))
            wait_for(lambda: broker.committed(settings.group, settings.topic) == 800, "all to be committed", 60)
            assert other.process.poll() is None
    outputs = results(broker.read(settings.out, at_least=800))
    assert sorted(record["n"] for record in outputs) == list(range(800))


def test_added_partitions_have_a_state_too(broker: Broker) -> None:
    settings = sensors(broker, partitions=1)
    with Running(settings) as running:
        wait_for(lambda: running.service.ready, "the service to be ready")
        broker.grow_topic(settings.topic, 3)
        broker.produce(settings.topic, readings(60), partition=2)
        broker.read(settings.out, at_least=60)
        wait_for(lambda: broker.partitions(settings.state_topic) == 3, "the state topic to grow")
    broker.produce(settings.topic, readings(10, start=60), partition=2)
    with Running(settings):
        outputs = results(broker.read(settings.out, at_least=70))
    assert [output["fomo"]["status"] for output in outputs].count("warming_up") == 50
