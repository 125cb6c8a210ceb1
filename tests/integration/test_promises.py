"""The promises about records: they are scored in order, each exactly once, even if instances or brokers stop.

On a broker without transactions: at least once.
"""

from __future__ import annotations

import collections
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from label_effects import effects_in
from services import (
    Running,
    changed,
    command,
    content_of,
    make_settings,
    readings,
    results,
    sensors,
    unique,
)

from fomo_stream.kafka import member
from fomo_stream.kafka.pipeline import Pipeline


def numbers(messages: list[Any]) -> list[int]:
    return [result["n"] for result in results(messages)]


ODD_KEYS: list[Any] = [None, b"", b"k" * 900_000, bytes(range(256)), b"\xff\xfe\xfa", b"a\x00b", "müsli ✓".encode()]


def test_scored_records_keep_key_headers_timestamp_partition_and_order(broker: Broker) -> None:
    topic = unique("sensors")
    broker.create_topic(topic, partitions=3, config={"retention.ms": "-1"})
    traceparent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = [("trace", b"\x00\xff"), ("empty", None), ("traceparent", traceparent), ("tracestate", b"a=1,b=2")]
    keys = [*itertools.islice(itertools.cycle("abcdefgh"), 360 - len(ODD_KEYS)), *ODD_KEYS]
    broker.produce(topic, readings(360), keys, headers=headers, timestamp=1_700_000_000_000)
    with Running(make_settings(broker, topic)):
        outputs = broker.read(f"{topic}-scores", at_least=360)
    sources = {(message.partition(), message.offset()): message for message in broker.read(topic)}
    assert len(outputs) == 360
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


def test_a_kill_neither_repeats_nor_loses_a_record_nor_changes_a_score(broker: Broker, tmp_path: Path) -> None:
    settings = sensors(broker, partitions=2, alerts=unique("alerts"), lags=1, categorical="site", instance_id="a")
    records = readings(400)
    records[250] |= {"temperature": 95.0, "motor": {"rpm": 0.0}}
    broker.produce(settings.topic, records, keys=(f"k{n % 2}" for n in range(400)))
    with command(tmp_path / "killed.log", settings) as killed:
        broker.read(settings.out, at_least=50)
        killed.kill()
    broker.produce(settings.topic, readings(200, start=400, seed=1))
    with Running(settings):
        wait_for(lambda: broker.committed(settings.group, settings.topic) == 600, "all records to be committed", 90)
    outputs = broker.read(settings.out, at_least=600)  # a broker marks as committed one partition after the other
    assert set(numbers(outputs)) == set(range(600))
    if not broker.is_kafka:
        return  # without transactions some are scored twice
    never_killed = changed(settings, group=unique("other"), out=unique("again"), alerts=unique("alerts"))
    with Running(never_killed):
        same = broker.read(never_killed.out, at_least=600)
        wait_for(lambda: broker.committed(never_killed.group, settings.topic) == 600, "all records to be committed")
    assert sorted(map(content_of, outputs)) == sorted(map(content_of, same))
    alerts, same_alerts = (broker.read(one.alerts or "") for one in (settings, never_killed))
    assert alerts
    assert sorted(map(content_of, alerts)) == sorted(map(content_of, same_alerts))


@pytest.mark.usefixtures("real_kafka")
def test_a_warm_start_survives_a_restart_and_ends_as_if_the_group_had_run_all_the_time(broker: Broker) -> None:
    settings = sensors(broker, partitions=2, config={"retention.ms": "-1"}, alerts=unique("alerts"), instance_id="one")
    topic = settings.topic
    for partition in range(2):
        broker.produce(topic, readings(30), partition=partition, timestamp=1_700_000_000_000)  # too old
        broker.produce(topic, readings(300, start=30 + partition), partition=partition)
    with Running(changed(settings, warm="1d")):
        wait_for(lambda: broker.committed(settings.group, topic) > 60, "the first commit of the warm-up", every=0.01)
    with Running(settings) as running:  # without the flag: the group knows it
        wait_for(lambda: running.scores(0) and running.scores(1), "the end of the warm-up")
        wait_for(lambda: broker.committed(settings.group, topic) == 660, "its last commit")
        assert [broker.read(output) for output in settings.outputs] == [[], [], []]
        for partition in range(2):
            broker.produce(topic, [{**one, "temperature": 60.0} for one in readings(5)], partition=partition)
            broker.produce(topic, readings(50, start=1000 + partition), partition=partition)
        outputs = broker.read(settings.out, at_least=110)
    broker.delete_records({(topic, partition): 30 for partition in range(2)})
    always = changed(settings, group=unique("other"), out=unique("again"), alerts=unique("alerts"))
    with Running(always):
        wanted = [one for one in broker.read(always.out, at_least=710) if offset_of(one) >= 330]
    assert sorted(map(content_of, outputs)) == sorted(map(content_of, wanted))
    sums = [one for one in broker.read(always.alerts or "") if offset_of(one) >= 330]
    assert sorted(map(content_of, broker.read(settings.alerts or ""))) == sorted(map(content_of, sums))


def offset_of(message: Any) -> int:
    """The offset of a result, or of the last alert of an incident."""
    result = results([message])[0]["fomo"]
    return int(result["to"]["offset"] if result["status"] == "closed" else result["offset"])


def labels(offsets: Iterable[int]) -> list[dict[str, Any]]:
    return [{"offset": offset, "outlier": True} for offset in offsets]


def test_each_label_takes_effect_once_also_over_a_restart_and_bad_ones_become_dead_letters(broker: Broker) -> None:
    settings = sensors(broker, partitions=4, feedback=(feedback := unique("labels")))
    broker.produce(settings.topic, readings(120), partition=2, key="one")
    bad = [b"\xff", {"offset": 3}, {"partition": 1, "offset": 3, "outlier": True}, None]
    with Running(settings) as running:
        outputs = broker.read(settings.out, at_least=120)
        broker.produce(feedback, bad, partition=2)
        broker.produce(feedback, labels(range(10)), partition=2)
        sent_back = {**json.loads(outputs[60].value()), "outlier": True}
        broker.produce(feedback, [sent_back, {"outlier": False}], partition=2, key="one")
        wait_for(lambda: broker.committed(settings.group, feedback) == 16, "the labels to be committed")
        assert running.service.ready
    broker.produce(feedback, labels([115, 230]), partition=2)  # the second: no such record yet
    with Running(settings):
        letters = broker.read(settings.dead_letters, at_least=5)
        broker.produce(settings.topic, readings(20, start=120), partition=2)
        broker.read(settings.out, at_least=140)
        broker.produce(feedback, labels([125]), partition=2)
        wait_for(lambda: broker.committed(settings.group, feedback) == 19, "the labels to be committed")
    values = [one if isinstance(one, bytes | None) else json.dumps(one).encode() for one in bad]
    assert [letter.value() for letter in letters[:4]] == values
    for letter in letters:
        headers = dict(letter.headers())
        assert headers["fomo-reason"] == b"bad_feedback"
        assert headers["fomo-source-topic"] == feedback.encode()
    found = effects_in((message.key(), message.value()) for message in broker.read(settings.state_topic))
    assert sorted(at for effect in found for at, _, _ in effect["labels"]) == [*range(4, 16), 16, 18]


def test_two_instances_share_the_partitions_agree_on_one_schema_and_follow_a_topic_that_grows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "SAMPLE_WAIT_S", 0.5)
    settings = sensors(broker, partitions=4, features=None, feedback=unique("labels"), start="latest")
    broker.produce(settings.topic, readings(10, start=-10))  # are skipped
    with Running(settings) as one, Running(settings) as two:
        both = (one, two)
        wait_for(lambda: all(running.service.ready for running in both), "both to be ready")
        wait_for(lambda: all(running.member.pipeline.partitions for running in both), "both to be at work")
        # What an instance sees first differs: each key, thus each partition, has a field of its own.
        records = [{**record, f"extra{i % 16}": record["temperature"]} for i, record in enumerate(readings(320))]
        broker.produce(settings.topic, records)
        assert sorted(numbers(broker.read(settings.out, at_least=320))) == list(range(320))
        assert one.member.pipeline.schema is not None
        assert one.member.pipeline.schema == two.member.pipeline.schema
        if broker.is_kafka:
            broker.grow_topic(settings.topic, 6)
            for partition in (4, 5):
                broker.produce(settings.topic, readings(20, start=320 + 20 * (partition - 4)), partition=partition)
            assert sorted(numbers(broker.read(settings.out, at_least=360))) == list(range(360))
            broker.produce(settings.feedback or "", [{"offset": 15, "outlier": True}], partition=5)
            wait_for(lambda: broker.committed(settings.group, settings.feedback or "") == 1, "the label to be heeded")
            wait_for(lambda: all(running.service.ready for running in both), "both to be ready again")
        assert sum(len(running.member.pipeline.partitions) for running in both) == broker.partitions(settings.topic)


@pytest.mark.usefixtures("real_kafka")
def test_the_service_survives_a_deleted_topic_and_reads_the_new_one_from_its_beginning(
    broker: Broker, tmp_path: Path
) -> None:
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
        every = {*range(100), *range(1000, 1200)}
        wait_for(lambda: set(numbers(broker.read(f"{topic}-scores"))) == every, "the records of the new topic")
        wait_for(lambda: running.service.ready, "the service to be ready again")
        assert len(broker.read(f"{topic}-scores")) == len(every)  # each once: it read nothing of it at an old offset


@pytest.mark.usefixtures("real_kafka")
def test_a_service_that_is_stopped_scores_and_commits_the_records_read_and_leaves_the_group(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pipeline, "score_due", lambda *_: None)  # only the end can score
    settings = sensors(broker, partitions=4, instance_id="one", batch_size=4096)
    with Running(settings) as running:
        wait_for(lambda: running.service.ready, "the service to be ready")
        broker.produce(settings.topic, readings(100))
        wait_for(lambda: running.member.pipeline.n_waiting == 100, "all records to be read")
    assert broker.members(settings.group) == {}
    assert broker.committed(settings.group, settings.topic) == 100
    assert len(broker.read(settings.out, at_least=100)) == 100
