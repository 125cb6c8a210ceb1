"""The state topic: entries that were written are read again, and the partition resumes where they end.

The broker is one in memory, in which transactions can stay open for as long as a test needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from brokers import wait_for
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_broker import MemoryBroker, MemoryConsumer, MemoryReader, retriable

from fomo_stream.errors import BrokerError, FomoError, StateError
from fomo_stream.kafka.delivery.base import CommitOutcome
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce
from fomo_stream.kafka.restore import Restorer, to_output
from fomo_stream.kafka.topics.watch import TopicsAnswer
from fomo_stream.partition.partition import Waiting
from fomo_stream.partition.position import POSITION, Restored, SavedPosition
from fomo_stream.settings.service_settings import ServiceSettings

SETTINGS = ServiceSettings(topic="t", feedback="f", group="g")
STATE = SETTINGS.state_topic

TIMEOUT = retriable()


def task(number: int) -> Waiting:
    return Waiting(number, SETTINGS)


@contextmanager
def restorer(
    broker: MemoryBroker, flags: ServiceSettings = SETTINGS, wanted: Callable[[Any], bool] = lambda task: True
) -> Iterator[Restorer]:
    for topic in (flags.topic, flags.feedback, flags.state_topic):
        broker.partitions.setdefault(topic or "", 2)
    with broker.stands_in():
        watch: Any = broker  # it answers what a TopicWatch does
        one = Restorer(flags, watch, wanted)
        try:
            yield one
        finally:
            one.stop()


def taken(one: Restorer, count: int = 1) -> list[tuple[int, Restored]]:
    """The first `count` results, by partition."""
    results: list[tuple[Any, Restored]] = []

    def is_enough() -> bool:
        results.extend(one.take_results())
        return len(results) >= count

    wait_for(is_enough, "the results", every=0.001)
    return [(task.number, restored) for task, restored in results]


def waits(one: Restorer, condition: Callable[[], object]) -> None:
    """Nothing is restored before this holds."""

    def holds() -> object:
        assert one.take_results() == []
        return condition()

    wait_for(holds, "the condition", every=0.001)


def restored(broker: MemoryBroker, number: int = 0, flags: ServiceSettings = SETTINGS) -> Restored:
    with restorer(broker, flags) as one:
        one.request(task(number))
        return taken(one)[0][1]


def write(broker: MemoryBroker, entries: Mapping[str, bytes | None], number: int = 0) -> None:
    for name, value in entries.items():
        output = to_output(STATE, number, name, value)
        broker.append((output.topic, output.partition), output.key, output.value)


names = st.sampled_from(["detector/a", "detector/b", "labels", "series/series/00", "index/0"])
commits = st.lists(
    st.tuples(st.dictionaries(names, st.none() | st.binary(max_size=3)), st.booleans(), st.integers(0, 1)), max_size=8
)


@settings(max_examples=50)
@given(commits)
def test_the_entries_of_a_partition_are_the_last_ones_written_without_deleted_ones(what: Any) -> None:
    broker = MemoryBroker()
    wanted: dict[int, dict[str, bytes]] = {0: {}, 1: {}}
    for position, (entries, compacted, number) in enumerate(what, start=1):
        at = SavedPosition(position).encode()
        write(broker, {**entries, POSITION: at}, number)
        broker.append((STATE, number), b"other/%d" % position, b"1")  # of another program, or of the group
        broker.ends[STATE, number] += 1  # the marker of a commit
        broker.append(("t", number), None, b"")
        broker.offsets["t", number] = position
        wanted[number] |= {name: value for name, value in entries.items() if value is not None} | {POSITION: at}
        for name, value in entries.items():
            if value is None:
                wanted[number].pop(name, None)
        if compacted:
            broker.compact(STATE)
    broker.ends["t", 0] = broker.ends["t", 1] = 9
    with restorer(broker) as one:
        for number in (0, 1):
            one.request(task(number))
        restored = dict(taken(one, 2))
    assert {number: found.entries for number, found in restored.items()} == wanted


def test_a_state_of_a_later_version_is_refused() -> None:
    broker = MemoryBroker()
    write(broker, {"detector/a": b"1"})
    broker.append((STATE, 0), b"state/detector/b", b"\x02what we cannot know")
    with pytest.raises(StateError, match=r"`detector/b` of g-t-state\[0\]@1 has format 02, .* --reset-state") as error:
        restored(broker)
    assert error.value.exit_code == 6


def test_an_offset_that_is_not_retained_ends_the_instance_unless_a_setting_says_otherwise() -> None:
    broker = MemoryBroker()
    broker.begins["t", 0], broker.ends["t", 0], broker.offsets["t", 0] = 10, 20, 5
    with pytest.raises(BrokerError, match="keeps 10 to 20"):
        restored(broker)
    flags = SETTINGS.model_copy(update={"on_lost_offset": "latest"})
    assert restored(broker, flags=flags).start == 20


def half_marked(committed: int, *entries: dict[str, bytes | None]) -> MemoryBroker:
    """A broker on which the last of these entries are of a transaction that has not ended in the state topic yet."""
    broker = MemoryBroker()
    broker.ends["t", 0], broker.offsets["t", 0] = 10, committed
    for one in entries:
        broker.hidden[STATE, 0] = broker.ends[STATE, 0]
        write(broker, one)
    return broker


def at(position: int) -> dict[str, bytes | None]:
    return {POSITION: SavedPosition(position).encode()}


@pytest.mark.parametrize(
    ("committed", "last"),
    [
        (8, at(8)),  # a broker marks a transaction as committed in one partition after the other
        (4, {**at(4), "detector/x": b"labelled"}),  # it may hold labels alone
    ],
)
def test_entries_are_read_after_their_transaction_is_marked_as_committed_everywhere_and_one_that_hangs_is_logged(
    committed: int, last: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker = half_marked(committed, {**at(4), "detector/x": b"before"}, last)
    hanging = patch("fomo_stream.kafka.restore.HANGING_S", -46.0)  # as if a session had passed
    with hanging, restorer(broker) as one:
        one.request(task(0))
        waits(one, lambda: broker.waits >= 2 and "open_transaction" in caplog.text)
        broker.hidden.clear()
        ((_, found),) = taken(one)
    assert (found.start, found.learned_until) == (committed, committed)
    assert found.entries == {"detector/x": b"before", **last}


def test_stopping_does_not_wait_for_a_broker_that_does_not_answer() -> None:
    broker = MemoryBroker()
    answered, asked = Event(), Event()

    def hang(_reader: MemoryReader, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        asked.set()
        answered.wait(60)
        return partitions

    try:
        with (
            patch.object(MemoryReader, "committed", hang),
            patch("fomo_stream.kafka.restore.STOP_S", 0.1),
            restorer(broker) as one,
        ):
            one.request(task(0))
            waits(one, asked.is_set)
            began = time.monotonic()
            one.stop()
            assert time.monotonic() - began < 30
    finally:
        answered.set()


def test_any_error_while_restoring_reaches_the_service() -> None:
    with patch.object(MemoryReader, "committed", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        restored(MemoryBroker())


@pytest.mark.parametrize("commits", [True, False])
def test_a_partition_waits_until_the_transaction_of_its_last_owner_has_ended(commits: bool) -> None:
    broker = MemoryBroker()
    broker.ends["t", 0] = 10
    last = ExactlyOnce(partial(broker.producer, "last owner"), {})
    last.start(1.0)
    last.send(to_output(STATE, 0, POSITION, SavedPosition(4).encode()))
    broker.answers["commit_transaction"] = [TIMEOUT] * 1000
    member = MemoryConsumer(broker)
    assert last.commit([TopicPartition("t", 0, 4)], member, member.consumer_group_metadata()) is CommitOutcome.PENDING
    wait_for(lambda: broker.producers[-1].unstable, "the offsets in the transaction")
    with restorer(broker) as one:
        one.request(task(0))
        waits(one, lambda: broker.waits >= 2)
        if commits:
            broker.answers.clear()
            wait_for(lambda: last.proceed(1.0) is CommitOutcome.COMMITTED, "the commit")
        else:
            broker.expire("last owner")
        ((_, found),) = taken(one)
    assert (found.start, found.learned_until) == ((4, 4) if commits else (0, 0))


def test_a_new_partition_waits_for_its_partition_in_the_state_topic() -> None:
    broker = MemoryBroker()
    broker.partitions |= {"t": 3, STATE: 2}
    with restorer(broker) as one:
        one.request(task(2))
        waits(one, lambda: one.waits)
        assert one.waits == {2: f"topic {STATE} has no partition 2 yet"}
        broker.partitions[STATE] = 3
        ((_, found),) = taken(one)
        assert (found.start, one.waits) == (0, {})


@pytest.mark.parametrize(
    ("committed", "topic_id", "expected_start"),
    [(None, "F", 2), (5, "F", 5), (8, "", 8), (1, "F", 2), (9, "F", 2), (5, "another topic of this name", 2)],
)
def test_labels_resume_at_the_committed_offset_or_at_the_earliest_retained_one(
    committed: int | None, topic_id: str, expected_start: int
) -> None:
    broker = MemoryBroker()
    broker.begins["f", 0], broker.ends["f", 0] = 2, 8
    if committed is not None:
        broker.offsets["f", 0] = committed
    write(broker, {POSITION: SavedPosition(0, feedback_id="F").encode()})
    broker.topic_ids = {"f": topic_id} if topic_id else {}
    assert restored(broker).feedback_start == expected_start
    without = SETTINGS.model_copy(update={"feedback": None})
    assert restored(broker, flags=without).feedback_start == OFFSET_BEGINNING


def test_before_an_offset_counts_as_lost_the_broker_is_asked_whether_the_topic_was_created_again() -> None:
    class Outdated(MemoryBroker):
        """Its recent answer is of the old topic, until somebody asks again."""

        ids = "old"

        def poll(self) -> TopicsAnswer:
            self.ids = "new"
            return self.recent(0)

        def recent(self, _max_age_s: float) -> TopicsAnswer:
            return TopicsAnswer(self.partitions, {"t": self.ids})

    broker = Outdated()
    broker.offsets["t", 0] = 10  # the new topic is empty
    write(broker, {POSITION: SavedPosition(10, "old").encode(), "detector/x": b"learned"})
    found = restored(broker)
    assert (found.start, found.entries) == (0, {})


def test_a_partition_revoked_meanwhile_is_not_restored_and_its_errors_are_ignored() -> None:
    broker = MemoryBroker()
    broker.append((STATE, 0), b"state/x", b"\x02")
    held = {0, 1}
    with restorer(broker, wanted=lambda its: its.number in held) as one:
        one.request(task(0))
        one.request(task(1))
        assert one.take_results() == []
        held.discard(0)
        assert [number for number, _ in taken(one)] == [1]
        held.add(0)
        one.request(task(0))
        with pytest.raises(FomoError):
            taken(one)


def test_without_anything_to_restore_it_has_no_client() -> None:
    broker = MemoryBroker()
    write(broker, {"detector/x": b"learned"})
    readers: list[MemoryReader] = []

    def make(*_: Any) -> MemoryReader:
        readers.append(MemoryReader(broker))
        return readers[-1]

    with (
        restorer(broker) as one,
        patch("fomo_stream.kafka.broker.topic_reader.make_reader", make),
        patch("fomo_stream.kafka.restore.IDLE_S", 0.0),
    ):
        for count in (1, 2):  # the second time with a new client
            one.request(task(0))
            assert [restored.entries for _, restored in taken(one)] == [{"detector/x": b"learned"}]
            waits(one, lambda: readers[-1].closed)
            assert len(readers) == count


def test_a_partition_that_waits_does_not_delay_others() -> None:
    broker = MemoryBroker()
    with restorer(broker) as one:
        one.request(task(0), delay=60.0)
        one.request(task(1))
        assert [number for number, _ in taken(one)] == [1]
