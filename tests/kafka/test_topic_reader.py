"""Reading a topic to its end, or a range of it: all messages once and in order, or an error in time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from memory_broker import MemoryBroker, MemoryReader, message

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.bounds import Range as Past
from fomo_stream.kafka.bounds import gap_notes
from fomo_stream.kafka.broker.clients import range_now
from fomo_stream.kafka.broker.topic_reader import NoProgressError, Range, TopicReader, to_record
from fomo_stream.kafka.ranges import read_range
from fomo_stream.settings.service_settings import ServiceSettings

SETTINGS = ServiceSettings(topic="t")
FAILURE = KafkaError(KafkaError._TRANSPORT, "connection refused")

logs = st.lists(st.sets(st.integers(0, 12)), min_size=1, max_size=3)  # offsets that compaction has left, by partition
spans = st.tuples(st.integers(0, 13), st.none() | st.integers(0, 13))


def scripted(*script: Message) -> tuple[Any, list[MemoryReader]]:
    """A class of clients that first give these messages, then no more; and those that were made."""

    class Scripted(MemoryReader):
        def __init__(self, *_: Any) -> None:
            super().__init__(MemoryBroker())
            made.append(self)

        def assign(self, partitions: Any) -> None:
            self._messages = list(script)

    made: list[MemoryReader] = []
    return Scripted, made


def reading(client: Any, **options: Any) -> tuple[TopicReader, Any]:
    return TopicReader(SETTINGS, **options), patch("fomo_stream.kafka.broker.topic_reader.make_reader", client)


@given(logs, st.data())
def test_every_message_of_a_range_comes_once_in_order_and_no_other(kept: list[set[int]], data: st.DataObject) -> None:
    broker = MemoryBroker()
    ranges: dict[int, Range] = {}
    for number, offsets in enumerate(kept):
        broker.logs["t", number] = [message(("t", number), at, None, b"") for at in sorted(offsets)]
        broker.ends["t", number] = 13
        ranges[number] = data.draw(spans)
    reader, patched = reading(lambda *_: MemoryReader(broker))
    found = defaultdict(list)
    with patched:
        for one in reader.read("t", ranges, 10.0):
            found[one.partition()].append(one.offset())
    for number, (start, end) in ranges.items():
        assert found[number] == [at for at in sorted(kept[number]) if start <= at < (13 if end is None else end)]


def test_a_read_that_makes_no_progress_ends_and_the_next_one_has_another_client() -> None:
    client, made = scripted(message(("t", 0), 0, None, b"first"))
    reader, patched = reading(client)
    with patched:
        for count in (1, 2):
            messages = reader.read("t", {0: (0, None)}, 0.05)
            assert next(messages).value() == b"first"
            with pytest.raises(NoProgressError, match="no answer"):
                next(messages)
            assert len(made) == count


def test_the_time_that_the_caller_takes_is_not_counted() -> None:
    now, count = 0.0, 0
    reader, patched = reading(scripted(*(message(("t", 0), at, None, b"") for at in range(3)))[0])
    with patched, patch("fomo_stream.kafka.broker.topic_reader.time.monotonic", lambda: now):
        for _ in reader.read("t", {0: (0, 3)}, 10.0):
            now, count = now + 60.0, count + 1
    assert count == 3


NOWHERE = Message(topic=None, partition=7, error=FAILURE)  # it concerns no partition: its number means nothing
LOST = KafkaError(KafkaError._AUTO_OFFSET_RESET)  # a record is no longer retained


@pytest.mark.parametrize(
    ("first", "retry", "expected"),
    [
        (NOWHERE, False, KafkaException),
        (message(("t", 0), 0, None, None, error=FAILURE), False, KafkaException),
        (message(("t", 0), 0, None, None, error=FAILURE), True, NoProgressError),  # when the time is up
        (message(("t", 0), 0, None, None, error=LOST), True, KafkaException),
    ],
)
def test_an_error_is_raised_or_named_when_the_time_is_up(first: Message, retry: bool, expected: Any) -> None:
    reader, patched = reading(scripted(first)[0], on_lost="error")
    words = "_AUTO_OFFSET_RESET" if first.error() == LOST else "connection refused"
    with patched, pytest.raises(expected, match=words):
        list(reader.read("t", {0: (0, 5)}, 0.05 if expected is NoProgressError else 600.0, retry_errors=retry))


ALL = 1 << 30


class Flaky(MemoryReader):
    """A client that gives a few messages and then no more, and sometimes one that it gave before."""

    def __init__(self, broker: MemoryBroker, gives: int) -> None:
        super().__init__(broker)
        self._left = gives
        self._last: Message | None = None

    def poll(self, _seconds: float) -> Message | None:
        if self._left <= 0:
            return None
        self._left -= 1
        if self._left % 3 == 2 and self._last is not None:
            again, self._last = self._last, None
            return again
        self._last = super().poll(_seconds)
        return self._last


def flaky_clients(broker: MemoryBroker, gives: tuple[int, ...], patience_s: float = 600.0) -> Any:
    """gives: messages that each client gives, one client after the other; those after them give all."""
    opened: list[Flaky] = []

    def make(*_: Any) -> Flaky:
        opened.append(Flaky(broker, gives[len(opened)] if len(opened) < len(gives) else ALL))
        return opened[-1]

    return patch.multiple("fomo_stream.kafka.ranges", STALLED_S=0.0005, PATIENCE_S=patience_s), patch(
        "fomo_stream.kafka.broker.topic_reader.make_reader", make
    )


def log_of(offsets: set[int], end: int) -> MemoryBroker:
    broker = MemoryBroker()
    broker.logs["t", 0] = [message(("t", 0), at, b"k", b"%d" % at) for at in sorted(offsets)]
    broker.ends["t", 0] = end
    return broker


@given(st.sets(st.integers(0, 19)), st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(0, 6), max_size=6))
def test_every_record_comes_once_though_clients_fail(offsets: set[int], start: int, end: int, gives: list[int]) -> None:
    end = max(start, end)
    found = Past(0, start, end)
    patched, clients = flaky_clients(log_of(offsets, 20), tuple(gives))
    with patched, clients:
        records = list(read_range(SETTINGS, "t", found, start))
    wanted = [at for at in sorted(offsets) if start <= at < end]
    assert [record.offset for record in records] == wanted
    notes, missing = "".join(gap_notes("t", found.records, len(records))), found.records - len(wanted)
    assert notes.startswith(f"t: {missing} of {found.records} offsets have no record") == bool(missing)


def test_a_broker_that_stays_silent_is_reported() -> None:
    patched, clients = flaky_clients(log_of(set(range(9)), 9), (4,) + (0,) * 10_000, patience_s=0.01)
    seen = []
    with patched, clients, pytest.raises(BrokerError, match=r"t\[0\]@\d could not be read for 0.01 s"):
        seen += [record.offset for record in read_range(SETTINGS, "t", Past(0, 0, 9), 0)]
    assert not seen


class Moving(MemoryReader):
    """A client whose partition has no leader that answers for the first `moves` questions."""

    def __init__(self, moves: int, code: int) -> None:
        broker = MemoryBroker()
        broker.logs["t", 0] = [message(("t", 0), at, None, b"") for at in range(7)]
        broker.ends["t", 0] = 7
        super().__init__(broker)
        self.moves, self.code = moves, code

    def get_watermark_offsets(self, *args: Any, **options: Any) -> tuple[int, int]:
        self.moves -= 1
        if self.moves >= 0:
            raise KafkaException(KafkaError(self.code))
        return super().get_watermark_offsets(*args, **options)


def test_the_ends_of_a_partition_are_asked_again_while_its_leader_moves() -> None:
    assert range_now(Moving(2, KafkaError.NOT_LEADER_FOR_PARTITION), TopicPartition("t", 0), 60.0)[1] == 7
    with pytest.raises(KafkaException, match="NOT_LEADER"):
        range_now(Moving(10**9, KafkaError.NOT_LEADER_FOR_PARTITION), TopicPartition("t", 0), 0.2)
    refused = Moving(1, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="AUTHORIZATION"):
        range_now(refused, TopicPartition("t", 0), 60.0)
    assert refused.moves == 0  # asked once


def test_a_negative_timestamp_is_none() -> None:
    for given_time, expected in ((-1, None), (-62_135_596_800_000, None), (0, 0), (1 << 60, 1 << 60)):
        one = Message(topic="t", partition=0, offset=7, timestamp=(TIMESTAMP_CREATE_TIME, given_time))
        assert to_record(one).timestamp == expected
