"""Operations on a running group, and their effect on its state."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from confluent_kafka import TopicPartition
from label_effects import effects_in
from services import Running, command, make_settings, readings, results, unique

from fomo_stream.errors import BrokerError, FencedError, FomoError
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


def test_the_state_survives_a_restart_with_lags_categories_and_labels(broker: Broker) -> None:
    settings = sensors(broker, features="temperature", categorical="site", lags=2, feedback=unique("labels"))
    assert settings.feedback is not None
    run_over(broker, settings, readings(200), 200)
    broker.produce(settings.feedback, [{"offset": 150, "outlier": True}], partition=0)
    with Running(settings):
        wait_for(lambda: broker.committed(settings.group, settings.feedback or "") == 1, "the label to be heeded")
    outputs = run_over(broker, settings, readings(400, start=200, seed=1), 600)
    assert len(effects_in((one.key(), one.value()) for one in broker.read(settings.state_topic))) == 1

    again = changed(settings, group=unique("other"), out=unique("again"), feedback=None)
    with Running(again):
        never_stopped = results(broker.read(again.out, at_least=600))
    same = [a["fomo"]["logit"] == b["fomo"]["logit"] for a, b in zip(outputs, never_stopped, strict=True)]
    assert all(same[:200])  # the label came after these
    assert {output["fomo"]["generation"] for output in outputs} > {0, 1}
    assert [output["fomo"]["status"] for output in outputs].count("warming_up") == 50


def test_another_checkpoint_is_refused_until_the_state_is_reset(broker: Broker) -> None:
    """The upgrade of deploy/README.md: refused, then with --reset-state scored from the committed offset on."""
    settings = sensors(broker)
    other = changed(settings, model="fusion")
    run_over(broker, settings, readings(100), 100)
    error = refusal(other)
    assert "--model is fusion-router@" in str(error)
    assert "--reset-state" in str(error)
    outputs = run_over(broker, changed(other, reset_state=True), readings(20, start=100), 120)
    assert [output["fomo"]["status"] for output in outputs].count("warming_up") == 70


def test_the_state_of_a_running_group_is_not_reset(broker: Broker) -> None:
    settings = sensors(broker)
    with Running(settings) as running:
        wait_for(lambda: running.scores(0), "the partition")
        assert "has 1 member" in str(refusal(changed(settings, reset_state=True)))


def test_a_state_topic_that_is_not_compacted_is_refused(broker: Broker) -> None:
    settings = sensors(broker)
    broker.create_topic(settings.state_topic, 1, config={"cleanup.policy": "delete"})
    assert "--add-config cleanup.policy=compact" in str(refusal(settings))


def test_an_offset_that_is_no_longer_retained_ends_the_instance_unless_a_setting_says_otherwise(broker: Broker) -> None:
    settings = sensors(broker)
    run_over(broker, settings, readings(100), 100)
    broker.produce(settings.topic, readings(150, start=100), partition=0)
    deleted = broker.admin.delete_records([TopicPartition(settings.topic, 0, 150)])
    next(iter(deleted.values())).result(20)
    error = refusal(settings)
    assert isinstance(error, BrokerError)
    assert "has offset 100, but the broker keeps 150 to 250" in str(error)
    with Running(changed(settings, on_lost_offset="earliest")):
        outputs = broker.read(settings.out, at_least=200)
    assert [record["n"] for record in results(outputs)] == [*range(100), *range(150, 250)]


def test_a_fenced_instance_ends_and_writes_nothing_more(broker: Broker) -> None:
    settings = sensors(broker, instance_id="one")
    running = Running(settings).__enter__()
    wait_for(lambda: running.scores(0), "the partition")
    broker.produce(settings.topic, readings(100), partition=0)
    broker.read(settings.out, at_least=100)
    usurper = make_producer(settings, settings.transactional_id)
    usurper.init_transactions(20)
    broker.produce(settings.topic, readings(100, start=100), partition=0)
    wait_for(lambda: not running._thread.is_alive(), "the instance to end")
    with pytest.raises(FencedError, match="fenced"):
        running.stop()
    assert len(broker.read(settings.out)) == 100
    run_over(broker, settings, [], 200)


def test_sigterm_scores_and_commits_the_records_read_leaves_the_group_and_exits_with_0(
    broker: Broker, tmp_path: Path
) -> None:
    # The batch does not become due by itself: only the shutdown can score it.
    settings = sensors(broker, partitions=4, instance_id="one", max_latency_ms=4000, batch_size=4096)
    with command(tmp_path / "service.log", settings) as running:
        running.wait_for_log("restored")
        broker.produce(settings.topic, readings(100))
        assert running.terminate() == 0, running.text()
    assert broker.members(settings.group) == {}
    count = broker.committed(settings.group, settings.topic)
    assert len(broker.read(settings.out, at_least=count)) == count
    assert running.text().count("released") == 4


@pytest.mark.slow
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
