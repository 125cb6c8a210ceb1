"""Labels through the broker: they take effect once, also over restarts, and others become dead letters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from brokers import Broker, wait_for
from label_effects import effects_in
from services import Running, make_settings, readings, results, unique

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.service import Service
from fomo_stream.settings.service import ServiceSettings


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
        for effect in effects_in([(message.key(), message.value())]):
            for at, _, _ in effect["labels"]:
                found.setdefault((message.partition(), at), []).append(effect["input_offset"])
    return found


def wait_for_labels(broker: Broker, settings: ServiceSettings, count: int) -> None:
    feedback = settings.feedback or ""
    wait_for(lambda: broker.committed(settings.group, feedback) == count, f"{count} labels to be committed")


def test_each_label_takes_effect_once_also_over_a_restart_and_bad_ones_become_dead_letters(broker: Broker) -> None:
    settings = feedback_settings(broker)
    assert settings.feedback is not None
    broker.produce(settings.topic, readings(120), partition=2, key="one")
    bad = [b"\xff", {"offset": 3}, {"partition": 1, "offset": 3, "outlier": True}, None]
    with Running(settings) as running:
        outputs = broker.read(settings.out, at_least=120)
        broker.produce(settings.feedback, bad, partition=2)
        label(broker, settings, 2, range(10))
        sent_back = {**json.loads(outputs[60].value()), "outlier": True}
        broker.produce(settings.feedback, [sent_back, {"outlier": False}], partition=2, key="one")
        wait_for_labels(broker, settings, 16)
        assert running.service.ready
    label(broker, settings, 2, [115, 230])  # of the run before, and of a record that is not there yet: refused
    with Running(settings):
        letters = broker.read(settings.dead_letters, at_least=5)
        broker.produce(settings.topic, readings(20, start=120), partition=2)
        broker.read(settings.out, at_least=140)
        label(broker, settings, 2, [125])
        wait_for_labels(broker, settings, 19)
    values = [one if isinstance(one, bytes | None) else json.dumps(one).encode() for one in bad]
    assert [letter.value() for letter in letters[:4]] == values
    for letter in letters:
        headers = dict(letter.headers())
        assert headers["fomo-reason"] == b"bad_feedback"
        assert headers["fomo-source-topic"] == settings.feedback.encode()
    found = effects(broker, settings)
    assert {at for _, at in found} == {*range(4, 16), 16, 18}
    assert all(len(offsets) == 1 for offsets in found.values())


def test_labels_that_come_before_their_records_are_scored_wait_for_them(broker: Broker) -> None:
    settings = feedback_settings(broker)
    broker.produce(settings.topic, readings(400), partition=1)
    broker.create_topic(settings.feedback or "", partitions=4)
    label(broker, settings, 1, range(0, 400, 4))
    with Running(settings):
        wait_for_labels(broker, settings, 100)
    found = effects(broker, settings)
    assert len(found) == 100
    assert all(effect > 4 * at for (_, at), effects in found.items() for effect in effects)


def test_a_feedback_topic_of_another_size_is_refused(broker: Broker) -> None:
    if not broker.is_kafka:
        pytest.skip("on the embedded broker all topics have 4 partitions")
    settings = feedback_settings(broker)
    broker.create_topic(settings.feedback or "", partitions=3)
    with pytest.raises(BrokerError, match=r"has 3 partitions, topic sensors-\w+ has 4.*--alter --topic"):
        Service(settings).run()


def test_a_topic_that_grows_gets_scores_and_labels_for_its_new_partitions(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker cannot grow topics")
    caplog.set_level("INFO", logger="fomo_stream")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=2)
    broker.produce(topic, readings(30), partition=0)  # is skipped; partitions created later are read from their start
    settings = make_settings(broker, topic, feedback=f"{topic}-labels", start="latest")
    with Running(settings) as one, Running(settings) as two:
        both = (one, two)
        wait_for(lambda: all(running.service.ready for running in both), "both to be ready")
        wait_for(lambda: all(running.member.pipeline.tasks for running in both), "both to be at work")
        for partition in range(2):
            broker.produce(topic, readings(60), partition=partition)
        broker.read(settings.out, at_least=120)
        broker.grow_topic(topic, 5)
        why = f"the group has not assigned new partitions 2 to 4 of {topic} yet"
        wait_for(lambda: any(why in running.service.not_ready() for running in both), "the reason for not being ready")
        for partition in range(2, 5):
            broker.produce(topic, readings(60), partition=partition)
        outputs = results(broker.read(settings.out, at_least=300))
        places = {(partition, offset) for partition in range(1, 5) for offset in range(60)}
        places |= {(0, offset) for offset in range(30, 90)}
        assert sorted((r["fomo"]["partition"], r["fomo"]["offset"]) for r in outputs) == sorted(places)
        for smaller in (settings.out, settings.dead_letters):
            assert f"topic_smaller_than_input topic={smaller} partitions=2 input=5" in caplog.text
        label(broker, settings, 4, [55])
        wait_for(lambda: effects(broker, settings), "the label to take effect")
        wait_for(lambda: all(running.service.ready for running in both), "both to be ready again")
        assert {number for running in both for number in running.member.pipeline.tasks} == set(range(5))
