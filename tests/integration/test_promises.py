"""The promises about records: they are scored in order, each exactly once, even if instances or brokers stop.

On a broker without transactions: at least once.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, Kafka, kafka_home, wait_for
from confluent_kafka import Consumer, TopicPartition
from services import CLIENT, Running, check_alerts, command, content_of, make_settings, readings, results, unique

from fomo_stream.kafka.delivery.base import Delivery


def numbers(messages: list[Any]) -> list[int]:
    return [result["n"] for result in results(messages)]


def test_scored_records_keep_key_headers_timestamp_partition_and_order(broker: Broker) -> None:
    topic = unique("sensors")
    broker.create_topic(topic, partitions=3, config={"retention.ms": "-1"})
    broker.produce(topic, readings(600), headers=[("trace", b"\x00\xff"), ("empty", None)], timestamp=1_700_000_000_000)
    with Running(make_settings(broker, topic)):
        outputs = broker.read(f"{topic}-scores", at_least=600)
    sources = {(message.partition(), message.offset()): message for message in broker.read(topic)}
    assert len(outputs) == 600
    positions = collections.defaultdict(list)
    for output, record in zip(outputs, results(outputs), strict=True):
        result = record.pop("fomo")
        source = sources[result["partition"], result["offset"]]
        assert record == results([source])[0]
        assert (output.key(), output.headers()) == (source.key(), source.headers())
        assert output.timestamp()[1] == source.timestamp()[1] == result["timestamp"]
        assert output.partition() == source.partition()
        assert result["topic"] == topic
        positions[output.partition()].append(result["offset"])
        if result["status"] == "warming_up":
            assert result["score"] is result["p_value"] is None
        else:
            assert 0 <= result["score"] <= 1
    assert all(offsets == sorted(offsets) for offsets in positions.values())
    assert {result["fomo"]["status"] for result in results(outputs)} >= {"warming_up", "ok"}


def test_an_obvious_outlier_is_flagged_and_scores_only_leaves_the_record_out(broker: Broker) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    odd = {"n": -1, "temperature": 95.0, "motor": {"rpm": 0.0}}
    broker.produce(topic, [*readings(500), odd], key="one")
    flags: dict[str, Any] = {"scores_only": True, "result_field": "verdict"}
    with Running(make_settings(broker, topic, **flags)):
        scored = broker.read(f"{topic}-scores", at_least=501)
    outputs = results(scored)
    assert set(outputs[-1]) == {"verdict"}
    assert outputs[-1]["verdict"]["outlier"]
    assert sum(output["verdict"]["outlier"] for output in outputs) < 60
    instead = make_settings(broker, topic, group=unique("other"), out="none", alerts=f"{topic}-alerts", **flags)
    with Running(instead):  # alerts alone
        wait_for(lambda: broker.committed(instead.group, topic) == 501, "all records to be committed")
    check_alerts(scored, broker.read(f"{topic}-alerts"), "verdict")
    assert not broker.partitions("none")


def logits(messages: list[Any]) -> dict[int, tuple[float, float]]:
    return {result["n"]: (result["fomo"]["logit"], result["fomo"]["p_value"]) for result in results(messages)}


def test_a_kill_neither_repeats_nor_loses_a_record_nor_changes_a_score(broker: Broker, tmp_path: Path) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    settings = make_settings(broker, topic, alerts=f"{topic}-alerts")
    broker.produce(topic, readings(1500))
    with command(tmp_path / "killed.log", settings) as killed:
        broker.read(f"{topic}-scores", at_least=100)
        killed.kill()
    with Running(settings):
        wait_for(lambda: broker.committed(settings.group, topic) == 1500, "all records to be committed", 90)
    outputs = broker.read(f"{topic}-scores", at_least=1500)  # a broker marks as committed one partition after the other
    assert set(numbers(outputs)) == set(range(1500))
    if not broker.is_kafka:
        return  # without transactions some are scored twice
    assert len(outputs) == 1500
    again = {"out": f"{topic}-again", "alerts": f"{topic}-alerts-again"}
    never_killed = make_settings(broker, topic, group=unique("other"), **again)
    with Running(never_killed):
        assert logits(broker.read(never_killed.out, at_least=1500, seconds=90)) == logits(outputs)
    alerts, same = (broker.read(name) for name in (f"{topic}-alerts", again["alerts"]))
    check_alerts(outputs, alerts)
    assert sorted(map(content_of, alerts)) == sorted(map(content_of, same))


def test_a_warm_start_survives_a_kill_and_ends_as_if_the_group_had_run_all_the_time(
    broker: Broker, tmp_path: Path
) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker does not know the times of its records")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=2, config={"retention.ms": "-1"})
    of_both = {"alerts": f"{topic}-alerts", "instance_id": "one"}
    settings = make_settings(broker, topic, **of_both)
    for partition in range(2):
        broker.produce(topic, readings(30), partition=partition, timestamp=1_700_000_000_000)  # too old
        broker.produce(topic, readings(700, start=30 + partition), partition=partition)
    warm = make_settings(broker, topic, **of_both, warm="1d")
    with command(tmp_path / "killed.log", warm) as killed:
        wait_for(lambda: broker.committed(settings.group, topic) > 60, "the first commit of the warm-up")
        killed.kill()
    with Running(settings) as running:  # without the flag: the group knows it
        wait_for(lambda: running.scores(0) and running.scores(1), "the end of the warm-up")
        assert broker.committed(settings.group, topic) == 1460
        assert broker.read(settings.out) == broker.read(f"{topic}-alerts") == broker.read(settings.dead_letters) == []
        for partition in range(2):
            broker.produce(topic, [{**one, "temperature": 60.0} for one in readings(5)], partition=partition)
            broker.produce(topic, readings(100, start=1000 + partition), partition=partition)
        outputs = broker.read(settings.out, at_least=210)
    before = [TopicPartition(topic, partition, 30) for partition in range(2)]
    for deleted in broker.admin.delete_records(before).values():
        deleted.result(20)
    again = {"out": f"{topic}-again", "alerts": f"{topic}-alerts-again"}
    always = make_settings(broker, topic, group=unique("other"), **again)
    with Running(always):
        wanted = [one for one in broker.read(always.out, at_least=1610) if offset_of(one) >= 730]
    assert sorted(map(content_of, outputs)) == sorted(map(content_of, wanted))
    sums = [one for one in broker.read(f"{topic}-alerts-again") if offset_of(one) >= 730]
    assert sorted(map(content_of, broker.read(f"{topic}-alerts"))) == sorted(map(content_of, sums))


def offset_of(message: Any) -> int:
    """The offset of a result, or of the last alert of an incident."""
    result = results([message])[0]["fomo"]
    return int(result["to"]["offset"] if result["status"] == "closed" else result["offset"])


def test_two_instances_share_the_partitions_and_agree_on_one_schema(broker: Broker) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    settings = make_settings(broker, topic, features=None)
    with Running(settings) as one, Running(settings) as two:
        both = (one, two)
        wait_for(lambda: all(running.service.ready for running in both), "both to be ready")
        wait_for(lambda: all(running.member.pipeline.tasks for running in both), "both to be at work")
        # What an instance sees first differs: each key, thus each partition, has a field of its own.
        records = [{**record, f"extra{i % 16}": record["temperature"]} for i, record in enumerate(readings(800))]
        broker.produce(topic, records)
        assert sorted(numbers(broker.read(f"{topic}-scores", at_least=800))) == list(range(800))
        assert one.member.pipeline.schema is not None
        assert one.member.pipeline.schema == two.member.pipeline.schema
        assert sum(len(running.member.pipeline.tasks) for running in both) == broker.partitions(topic)
    assert broker.committed(settings.group, topic) == 800


def test_a_partition_revoked_while_paused_is_read_again_when_it_is_assigned_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    settings = make_settings(broker, topic)

    def poll_until(condition: Callable[[], object], what: str) -> None:
        wait_for(lambda: (other.poll(0.1), condition())[1], what, 60)

    with Running(settings) as running:
        tasks = wait_for(lambda: running.service.ready and running.member.pipeline.tasks, "the service to be ready")
        with monkeypatch.context() as patch:
            patch.setattr(Delivery, "is_full", property(lambda _: True))
            wait_for(lambda: len(running.member.assignment.paused) == 4, "reading to pause")
            config = {**broker.config, **CLIENT, "partition.assignment.strategy": "cooperative-sticky"}
            other = Consumer({**config, "group.id": settings.group})
            other.subscribe([topic])
            poll_until(lambda: len(other.assignment()) == 2 and len(tasks) == 2, "another member to get its share")
        other.close()
        wait_for(lambda: len(tasks) == 4, "the partitions to come back", 60)
        for partition in range(4):
            broker.produce(topic, readings(50, start=50 * partition), partition=partition)
        assert sorted(numbers(broker.read(f"{topic}-scores", at_least=200))) == list(range(200))


def test_the_service_survives_a_deleted_topic_and_reads_the_new_one_from_its_beginning(
    broker: Broker, tmp_path: Path
) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker cannot delete topics")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=2)
    broker.produce(topic, readings(100))
    with Running(make_settings(broker, topic)) as running:
        broker.read(f"{topic}-scores", at_least=100)
        wait_for(lambda: running.service.ready, "the service to be ready")
        broker.delete_topic(topic)
        wait_for(lambda: not running.service.ready, "the service to notice")
        assert not running.service.not_live()
        broker.create_topic(topic, partitions=2)
        broker.produce(topic, readings(200, start=1000))
        outputs = broker.read(f"{topic}-scores", at_least=300)
        assert set(numbers(outputs)) == {*range(100), *range(1000, 1200)}
        wait_for(lambda: running.service.ready, "the service to be ready again")


@pytest.mark.slow
@pytest.mark.skipif(kafka_home() is None, reason="needs an Apache Kafka to kill (KAFKA_HOME)")
def test_no_record_is_lost_when_a_broker_crashes_and_restarts(tmp_path: Path) -> None:
    home = kafka_home()
    assert home is not None
    kafka = Kafka(home)
    try:
        topic = unique("sensors")
        kafka.create_topic(topic)
        kafka.produce(topic, readings(2000))
        # With a single broker, partitions have no leader for a while, and transactions may be lost (KAFKA-20734).
        settings = make_settings(kafka, topic, delivery="at-least-once")
        with Running(settings) as running:
            kafka.read(f"{topic}-scores", at_least=200)
            kafka.kill()
            wait_for(lambda: not running.service.ready, "the service to notice")
            kafka.start()
            kafka.produce(topic, readings(500, start=2000))
            wait_for(lambda: running.service.ready, "the service to be ready again", 60)
            wait_for(lambda: kafka.committed(settings.group, topic) == 2500, "everything to be committed", 60)
        assert set(numbers(kafka.read(f"{topic}-scores"))) == set(range(2500))
    finally:
        kafka.remove()
