"""A topic that grows while a group reads it: new partitions are scored, labelled, and reported while unassigned."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from brokers import Broker, wait_for
from confluent_kafka import TopicPartition
from services import Running, make_settings, readings, results, unique
from test_labels import effects, label

from fomo_stream.kafka.topics import watch as topics


@contextmanager
def watched(*running: Running) -> Iterator[set[str]]:
    """All reasons that the instances give for not being ready in this context."""
    reasons: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            for one in running:
                reasons.update(one.service.not_ready())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield reasons
    finally:
        ended.set()
        thread.join()


def test_added_partitions_are_scored_and_labelled(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker cannot grow topics")
    caplog.set_level("INFO", logger="fomo_stream")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=2)
    # As users have it: with the default interval of metadata requests.
    settings = make_settings(broker, topic, feedback=f"{topic}-labels", kafka={"session.timeout.ms": "6000"})
    with Running(settings) as one, Running(settings) as two:
        both = (one, two)
        wait_for(lambda: all(running.service.ready for running in both), "both to be ready", 60)
        wait_for(
            lambda: all(running.member.pipeline.tasks for running in both),
            "both to be at work",
            60,
        )
        for partition in range(2):
            broker.produce(topic, readings(60), partition=partition)
        broker.read(settings.out, at_least=120)
        with watched(*both) as reasons:
            broker.grow_topic(topic, 5)
            for partition in range(2, 5):
                broker.produce(topic, readings(60), partition=partition)
            outputs = results(broker.read(settings.out, at_least=300))
        assert {(r["fomo"]["partition"], r["fomo"]["offset"]) for r in outputs} == {
            (partition, offset) for partition in range(5) for offset in range(60)
        }
        assert f"the group has not assigned new partitions 2 to 4 of {topic} yet" in reasons
        for partition in range(2, 5):
            assert any(reason.startswith(f"{topic}[{partition}] waits to be restored: ") for reason in reasons), reasons
        for smaller in (settings.out, settings.dead_letters):
            assert f"topic_smaller_than_input topic={smaller} partitions=2 input=5" in caplog.text
        wait_for(lambda: broker.partitions(settings.feedback or "") == 5, "the feedback topic to grow")
        label(broker, settings, 4, [55])
        wait_for(lambda: effects(broker, settings), "the label to take effect")
        wait_for(lambda: all(running.service.ready for running in both), "both to be ready again", 60)
        assert {number for running in both for number in running.member.pipeline.tasks} == set(range(5))
    assert "aborted" not in caplog.text


class Labelled:
    """An input of two partitions, records in it, and entries about labels on them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topic = unique("sensors")
        broker.create_topic(self.topic, partitions=2)
        self.settings = make_settings(broker, self.topic, feedback=f"{self.topic}-labels")

    def kept(self) -> dict[int, list[int]]:
        """Input offsets of the entries, by partition."""
        found: dict[bytes, tuple[int, int] | None] = {}
        for message in self.broker.read(self.settings.state_topic):
            key = message.key() or b""
            if key.startswith(b"feedback/"):
                at = key.decode().split("/")
                found[key] = None if message.value() is None else (message.partition(), int(at[3]))
        entries = sorted(entry for entry in found.values() if entry is not None)
        return {number: [offset for one, offset in entries if one == number] for number in range(2)}

    def learn(self, partition: int, start: int, offset: int) -> None:
        """Score 50 records, the first one at `offset`, and label that one before the next records come."""
        self.broker.produce(self.topic, readings(50, start=start), partition=partition)
        wait_for(lambda: self._is_scored(partition, start + 49), "the records to be scored")
        before = self.kept()[partition]
        label(self.broker, self.settings, partition, [offset])
        wait_for(lambda: set(self.kept()[partition]) - set(before), "the label to take effect")

    def _is_scored(self, partition: int, n: int) -> bool:
        outputs = results(self.broker.read(self.settings.out))
        return any((output["fomo"]["partition"], output["n"]) == (partition, n) for output in outputs)

    def delete_before(self, offset: int) -> None:
        deleted = self.broker.admin.delete_records([TopicPartition(self.topic, 0, offset)])
        next(iter(deleted.values())).result(20)


@pytest.fixture
def labelled(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Labelled:
    if not broker.is_kafka:
        pytest.skip("the embedded broker cannot delete records or topics")
    monkeypatch.setattr(topics, "OFFSETS_EVERY", 1)
    return Labelled(broker)


def test_label_entries_are_deleted_when_their_input_records_are(labelled: Labelled) -> None:
    with Running(labelled.settings):
        for start in (0, 50, 100):
            labelled.learn(0, start, start)
        labelled.learn(1, 0, 0)
        assert labelled.kept() == {0: [50, 100, 150], 1: [50]}
        labelled.delete_before(100)  # the record at 100 is the first one retained
        wait_for(lambda: labelled.kept() == {0: [100, 150], 1: [50]}, "the first entry to go")
    labelled.delete_before(101)  # while no instance runs
    with Running(labelled.settings):
        wait_for(lambda: labelled.kept() == {0: [150], 1: [50]}, "the next entry to go")
        labelled.delete_before(150)  # all records: the entry is about the next one
        labelled.learn(0, 150, 150)
        assert labelled.kept() == {0: [150, 200], 1: [50]}


def test_label_entries_are_deleted_with_their_input_topic_and_no_record_of_the_new_one_is_scored_twice(
    labelled: Labelled,
) -> None:
    broker, topic = labelled.broker, labelled.topic
    with Running(labelled.settings) as running:
        for partition in range(2):
            labelled.learn(partition, 0, 0)
        labelled.delete_before(50)
        wait_for(lambda: running.member.topics.seen.first_offsets == {0: 50, 1: 0}, "the offsets to be seen")
        broker.delete_topic(topic)
        wait_for(lambda: not running.service.ready, "the service to notice")
        broker.create_topic(topic, partitions=2)
        labelled.learn(0, 1000, 5)
        wait_for(lambda: running.member.topics.seen.first_offsets == {0: 0, 1: 0}, "the new offsets to be seen")
        wait_for(lambda: labelled.kept() == {0: [50], 1: []}, "the old entries to go, and the new one to stay")
        labelled.learn(0, 1050, 55)
    scored = [output["n"] for output in results(broker.read(labelled.settings.out))]
    assert sorted(scored) == sorted([*range(50), *range(50), *range(1000, 1100)])


def test_the_feedback_topic_follows_an_input_that_grew_while_no_instance_ran(broker: Broker) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker cannot grow topics")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=1)
    settings = make_settings(broker, topic, feedback=f"{topic}-labels")
    with Running(settings) as running:
        wait_for(lambda: running.service.ready, "the service to be ready")
    broker.grow_topic(topic, 2)
    broker.produce(topic, readings(60), partition=1)
    with Running(settings):
        broker.read(settings.out, at_least=60)
        label(broker, settings, 1, [55])
        wait_for(lambda: effects(broker, settings), "the label to take effect")
