"""A topic that grows while a group reads it: new partitions are scored, labelled, and waited for openly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from brokers import Broker, wait_for
from services import Running, make_settings, readings, results, unique
from test_labels import effects, label


@contextmanager
def watched(*running: Running) -> Iterator[set[str]]:
    """All reasons that the instances give for not being ready, as long as this lasts."""
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


def test_partitions_that_are_added_are_scored_and_labelled(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker cannot grow topics")
    caplog.set_level("INFO", logger="fomo_stream")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=2)
    # As users have it: no client is told to look at its topics more often than it does by itself.
    settings = make_settings(broker, topic, feedback=f"{topic}-labels", kafka={"session.timeout.ms": "6000"})
    with Running(settings) as one, Running(settings) as two:
        both = (one, two)
        wait_for(lambda: all(running.service.ready for running in both), "both to be ready", 60)
        wait_for(lambda: all(running.service._pipeline.tasks for running in both), "both to be at work", 60)
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
        assert f"new partitions 2 to 4 of {topic} not shared out by the group yet" in reasons
        for partition in range(2, 5):
            assert any(reason.startswith(f"{topic}[{partition}] waits to be restored: ") for reason in reasons), reasons
        for smaller in (settings.out, settings.dead_letters):
            assert f"topic_smaller_than_input topic={smaller} partitions=2 input=5" in caplog.text
        wait_for(lambda: broker.partitions(settings.feedback or "") == 5, "the feedback topic to grow")
        label(broker, settings, 4, [55])
        wait_for(lambda: effects(broker, settings), "the label to take effect")
        wait_for(lambda: all(running.service.ready for running in both), "both to be ready again", 60)
        assert {number for running in both for number in running.service._pipeline.tasks} == set(range(5))
    assert "aborted" not in caplog.text


def test_entries_about_labels_go_with_the_records_that_they_took_effect_before(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker cannot delete records")
    from confluent_kafka import TopicPartition

    from fomo_stream import topics

    monkeypatch.setattr(topics, "OFFSETS_EVERY", 1)
    topic = unique("sensors")
    broker.create_topic(topic, partitions=2)
    settings = make_settings(broker, topic, feedback=f"{topic}-labels")

    def kept() -> dict[int, list[int]]:
        """Input offsets of the entries, by partition."""
        found: dict[bytes, tuple[int, int] | None] = {}
        for message in broker.read(settings.state_topic):
            key = message.key() or b""
            if key.startswith(b"feedback/"):
                at = key.decode().split("/")
                found[key] = None if message.value() is None else (message.partition(), int(at[3]))
        entries = sorted(entry for entry in found.values() if entry is not None)
        return {number: [offset for one, offset in entries if one == number] for number in range(2)}

    def learn(start: int, partition: int) -> None:
        """Score 50 records, and have one of them labelled before the next ones come."""
        broker.produce(topic, readings(50, start=start), partition=partition)
        wait_for(lambda: committed_up_to(partition) == start + 50, "the records to be scored")
        before = len(kept()[partition])
        label(broker, settings, partition, [start])
        wait_for(lambda: len(kept()[partition]) == before + 1, "the label to take effect")

    def committed_up_to(partition: int) -> int:
        outputs = results(broker.read(settings.out))
        return 1 + max((r["fomo"]["offset"] for r in outputs if r["fomo"]["partition"] == partition), default=-1)

    def delete_before(offset: int) -> None:
        deleted = broker.admin.delete_records([TopicPartition(topic, 0, offset)])
        next(iter(deleted.values())).result(20)

    with Running(settings):
        for start in (0, 50, 100):
            learn(start, 0)
        learn(0, 1)
        assert kept() == {0: [50, 100, 150], 1: [50]}
        delete_before(100)  # the record at 100 is the first that is kept
        wait_for(lambda: kept() == {0: [100, 150], 1: [50]}, "the first entry to go")
    delete_before(101)  # while nobody looks
    with Running(settings) as running:
        wait_for(lambda: kept() == {0: [150], 1: [50]}, "the next entry to go")
        delete_before(150)  # all there are: the entry is about the record to come
        learn(150, 0)
        assert kept() == {0: [150, 200], 1: [50]}
        broker.delete_topic(topic)  # of the new one, records with lower offsets are kept
        wait_for(lambda: not running.service.ready, "the service to notice")
        broker.create_topic(topic, partitions=2)
        broker.produce(topic, readings(60, start=1000), partition=0)
        wait_for(lambda: results(broker.read(settings.out))[-1]["n"] == 1059, "the new records to be scored")
        label(broker, settings, 0, [5])
        wait_for(lambda: running.service._topics.seen.first_offsets == {0: 0, 1: 0}, "the new offsets to be seen")
        wait_for(lambda: kept() == {0: [60], 1: []}, "the old entries to go, and the new one to stay")


def test_labels_grow_with_an_input_that_grew_while_nobody_ran(broker: Broker) -> None:
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
