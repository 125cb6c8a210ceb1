"""Labels through the broker: they take effect, are read once, and follow their partition."""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from confluent_kafka import Consumer
from services import CLIENT, Running, command, make_settings, readings, results, unique

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.service import Service
from fomo_stream.settings.service import ServiceSettings

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from fault_bench import count_differences, effects_of
from fault_streams import FEATURES, reading


def feedback_settings(broker: Broker, **changes: Any) -> ServiceSettings:
    """Settings of a service whose input topic exists and whose feedback topic does not."""
    topic = unique("sensors")
    broker.create_topic(topic, partitions=4)
    return make_settings(broker, topic, feedback=f"{topic}-feedback", **changes)


def label(broker: Broker, settings: ServiceSettings, partition: int, offsets: Any, outlier: bool = True) -> None:
    """Produce labels on these records, in the partition where they are."""
    assert settings.feedback is not None
    labels = [{"partition": partition, "offset": offset, "outlier": outlier} for offset in offsets]
    broker.produce(settings.feedback, labels, partition=partition)


def effects(broker: Broker, settings: ServiceSettings) -> dict[tuple[int, int], list[int]]:
    """The input offsets at which each label took effect, by its partition and offset."""
    found: dict[tuple[int, int], list[int]] = {}
    for message in broker.read(settings.state_topic):
        kind, *place = (message.key() or b"").decode().split("/")
        if kind == "feedback":
            assert place[:2] == [settings.feedback, str(message.partition())]
            effect = json.loads(message.value())
            for at, _, _ in effect["labels"]:
                found.setdefault((message.partition(), at), []).append(effect["input_offset"])
    return found


def committed(broker: Broker, settings: ServiceSettings) -> int:
    assert settings.feedback is not None
    return broker.committed(settings.group, settings.feedback)


def test_labels_on_scored_records_take_them_out_of_the_context(broker: Broker) -> None:
    settings = feedback_settings(broker, min_context=100, context_size=300, batch_size=16)
    odd = {"temperature": 60.0, "motor": {"rpm": 300.0}}
    first = [{**record, **odd} if i % 5 == 0 else record for i, record in enumerate(readings(100))]
    for partition in (0, 1):  # in both, a fifth of the first context is odd; in one, it is labelled
        broker.produce(settings.topic, first, partition=partition)
    with Running(settings) as running:
        broker.read(settings.out, at_least=200)
        label(broker, settings, 0, range(0, 100, 5))
        wait_for(lambda: committed(broker, settings) == 20, "the labels to be committed")
        # Until the next generation takes effect, a fixed number of records later.
        more = [*readings(700, seed=1), {"n": -1, **odd}]
        for partition in (0, 1):
            broker.produce(settings.topic, more, partition=partition)
        outputs = results(broker.read(settings.out, at_least=200 + 2 * len(more)))
        assert running.service.ready
    verdict = {output["fomo"]["partition"]: output["fomo"] for output in outputs if output["n"] == -1}
    assert verdict[0]["outlier"]
    assert verdict[0]["severity"] in ("warning", "critical")
    assert verdict[0]["logit"] > verdict[1]["logit"]
    assert set(effects(broker, settings)) == {(0, at) for at in range(20)}


def test_an_output_sent_back_with_a_verdict_is_a_label(broker: Broker) -> None:
    settings = feedback_settings(broker)
    assert settings.feedback is not None
    broker.produce(settings.topic, readings(100), key="one")
    with Running(settings):
        outputs = broker.read(settings.out, at_least=100)
        verdicts = [{**json.loads(output.value()), "outlier": True} for output in outputs[60:63]]
        (partition,) = {output.partition() for output in outputs}
        broker.produce(settings.feedback, verdicts, key="one", partition=partition)
        broker.produce(settings.feedback, [{"outlier": False}], key="one", partition=partition)
        wait_for(lambda: committed(broker, settings) == 4, "the labels to be committed")
    labels: list[tuple[int, bool]] = []
    for message in broker.read(settings.state_topic, at_least=2):
        if (message.key() or b"").startswith(b"feedback/"):
            labels += [(offset, outlier) for _, offset, outlier in json.loads(message.value())["labels"]]
    assert labels == [(60, True), (61, True), (62, True), (99, False)]


def test_after_a_restart_labels_resume_where_they_stopped(broker: Broker) -> None:
    settings = feedback_settings(broker)
    broker.produce(settings.topic, readings(200), partition=2)
    with Running(settings):
        broker.read(settings.out, at_least=200)
        label(broker, settings, 2, range(10))
        wait_for(lambda: len(effects(broker, settings)) == 10, "the labels to take effect")
    assert committed(broker, settings) == 10
    label(broker, settings, 2, [195, 230])  # of the run before, and of a record that is not there yet: refused
    with Running(settings):
        assert len(broker.read(settings.dead_letters, at_least=1)) == 1
        broker.produce(settings.topic, readings(100, start=200), partition=2)
        broker.read(settings.out, at_least=300)
        label(broker, settings, 2, [250])
        wait_for(lambda: committed(broker, settings) == 13, "all labels to be committed")
    assert {(place, len(at)) for place, at in effects(broker, settings).items()} == {
        *(((2, at), 1) for at in range(11)),
        ((2, 12), 1),
    }


def test_labels_read_before_their_records_wait_for_them(broker: Broker) -> None:
    settings = feedback_settings(broker)
    broker.produce(settings.topic, readings(400), partition=1)
    broker.create_topic(settings.feedback or "", partitions=4)
    label(broker, settings, 1, range(0, 400, 4))
    with Running(settings):
        wait_for(lambda: committed(broker, settings) == 100, "the labels to be committed")
    found = effects(broker, settings)
    assert len(found) == 100
    assert all(effect > 4 * at for (_, at), effects in found.items() for effect in effects)


def test_bad_feedback_becomes_a_dead_letter_and_the_service_continues(broker: Broker) -> None:
    settings = feedback_settings(broker)
    assert settings.feedback is not None
    broker.produce(settings.topic, readings(100), partition=0)
    with Running(settings) as running:
        broker.read(settings.out, at_least=100)
        bad = [b"\xff", {"offset": 3}, {"partition": 1, "offset": 3, "outlier": True}, None]
        broker.produce(settings.feedback, bad, partition=0)
        label(broker, settings, 0, [3])
        letters = broker.read(settings.dead_letters, at_least=4)
        wait_for(lambda: committed(broker, settings) == 5, "everything to be committed")
        assert running.service.ready
    assert [letter.value() for letter in letters] == [
        b if isinstance(b, bytes | None) else json.dumps(b).encode() for b in bad
    ]
    for letter in letters:
        headers = dict(letter.headers())
        assert headers["fomo-reason"] == b"bad_feedback"
        assert headers["fomo-source-topic"] == settings.feedback.encode()
    assert broker.committed(settings.group, settings.topic) == 100
    assert set(effects(broker, settings)) == {(0, 4)}


def test_feedback_follows_its_partition_to_another_instance(broker: Broker, tmp_path: Path) -> None:
    settings = feedback_settings(broker)
    partitions = range(4)

    def step(start: int, at: int) -> None:
        """Records and labels on the last of them, in every partition; all labels have to take effect."""
        for partition in partitions:
            broker.produce(settings.topic, readings(60, start=start), partition=partition)
        broker.read(settings.out, at_least=4 * (start + 60))
        for partition in partitions:
            label(broker, settings, partition, range(start + 50, start + 60))
        wait_for(lambda: committed(broker, settings) == 4 * (at + 10), "the labels to be committed", 60)
        assert set(effects(broker, settings)) == {(partition, i) for partition in partitions for i in range(at + 10)}

    with command(tmp_path / "a.log", settings) as a:
        a.wait_for_log("assigned")
        step(0, 0)
        with command(tmp_path / "b.log", settings) as b:
            b.wait_for_log("assigned")
            step(60, 10)
            shares = [set(numbers_in_log(running.text(), "feedback topic=")) for running in (a, b)]
            assert shares[1] == set(numbers_in_log(b.text(), " assigned "))
            assert 0 < len(shares[1]) < 4
            b.kill()
        step(120, 20)  # after the session timeout the first instance has all partitions again
        assert a.terminate() == 0


def numbers_in_log(text: str, event: str) -> list[int]:
    """Partitions in the lines about an event."""
    return [
        int(word.removeprefix("partition="))
        for line in text.splitlines()
        if event in line
        for word in line.split()
        if word.startswith("partition=")
    ]


def test_instances_without_feedback_can_be_in_the_same_group(broker: Broker) -> None:
    settings = feedback_settings(broker)
    config = {**broker.config, **CLIENT, "partition.assignment.strategy": "cooperative-sticky"}
    with Running(settings) as running:
        wait_for(lambda: running.service.ready, "the service to be ready")
        other = Consumer({**config, "group.id": settings.group})
        other.subscribe([settings.topic])
        tasks = running.member.pipeline.tasks
        wait_for(
            lambda: (other.poll(0.1), len(other.assignment()) == len(tasks) == 2)[1],
            "the other member to get its share",
        )
        ours = {(place.topic, place.partition) for place in running.member._consumer.assignment()}
        assert ours == {(topic, number) for number in tasks for topic in (settings.topic, settings.feedback)}
        assert {place.topic for place in other.assignment()} == {settings.topic}
        other.close()
        wait_for(lambda: len(tasks) == 4, "the partitions to come back")
        assert len(running.member._consumer.assignment()) == 8


def test_a_feedback_topic_of_another_size_is_refused(broker: Broker) -> None:
    if not broker.is_kafka:
        pytest.skip("on the embedded broker all topics have 4 partitions")
    settings = feedback_settings(broker)
    broker.create_topic(settings.feedback or "", partitions=3)
    with pytest.raises(BrokerError, match=r"has 3 partitions, topic sensors-\w+ has 4.*--alter --topic"):
        Service(settings).run()


def test_a_recreated_feedback_topic_is_read_from_its_beginning(broker: Broker) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker cannot delete topics")
    settings = feedback_settings(broker)
    assert settings.feedback is not None
    broker.produce(settings.topic, readings(100), partition=0)
    with Running(settings) as running:
        broker.read(settings.out, at_least=100)
        label(broker, settings, 0, range(60, 65))
        wait_for(lambda: committed(broker, settings) == 5, "the labels to be committed")
        broker.delete_topic(settings.feedback)
        wait_for(lambda: settings.feedback not in running.member.topics.seen.partitions, "the service to notice")
        assert running.service.ready
        broker.create_topic(settings.feedback, partitions=4)
        label(broker, settings, 0, range(70, 77))
        wait_for(lambda: committed(broker, settings) == 7, "the new labels to be committed")


def test_a_labelled_run_equals_a_replay_of_its_records_and_label_entries(broker: Broker) -> None:
    settings = feedback_settings(broker, features=",".join(FEATURES), min_context=50, context_size=200)
    rng = random.Random(0)
    produced = 0
    with Running(settings):
        for _ in range(12):
            broker.produce(settings.topic, map(reading, range(produced, produced + 100)), partition=produced % 2)
            produced += 100
            outputs = results(broker.read(settings.out, at_least=produced - 50))  # so that labels and records mix
            for output in rng.sample(outputs, 10):
                label(broker, settings, output["fomo"]["partition"], [output["fomo"]["offset"]], rng.random() < 0.5)
        wait_for(lambda: committed(broker, settings) == 120, "the labels to be committed")
        records = results(broker.read(settings.out, at_least=produced))
    source, when = broker.read(settings.topic), effects_of(broker, settings)
    assert count_differences(source, records, when, settings) == 0
    assert count_differences(source, records, defaultdict(dict), settings) > 100  # without labels
