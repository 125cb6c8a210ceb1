"""Reading a topic to its end: all messages up to there, once and in order, or an error in time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st
from memory_broker import MemoryBroker, MemoryReader, Message

from fomo_stream.kafka.broker.topic_reader import NoProgressError, Range, TopicReader
from fomo_stream.settings.service import ServiceSettings

SETTINGS = ServiceSettings(topic="t")
FAILURE = KafkaError(KafkaError._TRANSPORT, "connection refused")

logs = st.lists(st.sets(st.integers(0, 12)), min_size=1, max_size=3)  # offsets that compaction has left, by partition
spans = st.tuples(st.integers(0, 13), st.none() | st.integers(0, 13))


class Scripted(MemoryReader):
    """A client that first gives these messages, then no more."""

    script: tuple[Message, ...] = ()
    opened = 0

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        type(self).opened += 1

    def assign(self, partitions: Any) -> None:
        self._messages = list(self.script)


def reading(client: Any, **options: Any) -> tuple[TopicReader, Any]:
    return TopicReader(SETTINGS, **options), patch("fomo_stream.kafka.broker.topic_reader.make_reader", client)


@given(logs, st.data())
def test_every_message_of_a_range_comes_once_in_order_and_no_other(kept: list[set[int]], data: st.DataObject) -> None:
    broker = MemoryBroker()
    ranges: dict[int, Range] = {}
    for number, offsets in enumerate(kept):
        broker.logs["t", number] = [Message(("t", number), at, None, b"") for at in sorted(offsets)]
        broker.ends["t", number] = 13
        ranges[number] = data.draw(spans)
    reader, patched = reading(lambda *_: MemoryReader(broker))
    found = defaultdict(list)
    with patched:
        for message in reader.read("t", ranges, 10.0):
            found[message.partition()].append(message.offset())
    for number, (start, end) in ranges.items():
        assert found[number] == [at for at in sorted(kept[number]) if start <= at < (13 if end is None else end)]


def test_a_read_that_makes_no_progress_ends_and_the_next_one_has_another_client() -> None:
    class Silent(Scripted):
        script = (Message(("t", 0), 0, None, b"first"),)

    reader, patched = reading(lambda *_: Silent())
    with patched:
        for opened in (1, 2):
            messages = reader.read("t", {0: (0, None)}, 0.05)
            assert next(messages).value() == b"first"
            with pytest.raises(NoProgressError, match="no answer"):
                next(messages)
            assert Silent.opened == opened


def test_the_time_that_the_caller_takes_is_not_counted() -> None:
    class Three(Scripted):
        script = tuple(Message(("t", 0), at, None, b"") for at in range(3))

    now, count = 0.0, 0
    reader, patched = reading(lambda *_: Three())
    with patched, patch("fomo_stream.kafka.broker.topic_reader.time.monotonic", lambda: now):
        for _ in reader.read("t", {0: (0, 3)}, 10.0):
            now, count = now + 60.0, count + 1
    assert count == 3


class Nowhere(Message):
    """An error that concerns no partition: the client gives it no topic, and a partition that means nothing."""

    def topic(self) -> Any:
        return None


@pytest.mark.parametrize("number", [0, 3])
def test_an_error_that_concerns_no_partition_is_raised_whichever_is_read(number: int) -> None:
    class Failing(Scripted):
        script = (Nowhere(("", 0), 0, None, None, failure=FAILURE),)

    reader, patched = reading(lambda *_: Failing())
    with patched, pytest.raises(KafkaException, match="connection refused"):
        list(reader.read("t", {number: (0, 5)}, 0.05))


def test_an_error_is_raised_or_named_when_the_time_is_up() -> None:
    class Failing(Scripted):
        script = (Message(("t", 0), 0, None, None, failure=FAILURE),)

    reader, patched = reading(lambda *_: Failing())
    with patched:
        with pytest.raises(KafkaException, match="connection refused"):
            list(reader.read("t", {0: (0, 5)}, 10.0))
        with pytest.raises(NoProgressError, match="connection refused"):
            list(reader.read("t", {0: (0, 5)}, 0.05, retry_errors=True))


def test_an_error_that_passes_does_not_end_a_read_that_retries() -> None:
    class Recovering(Scripted):
        script = (
            Message(("t", 0), 0, None, None, failure=FAILURE),
            Message(("t", 0), 0, None, b"after it"),
            Message(("t", 0), 1, None, None, failure=KafkaError(KafkaError._PARTITION_EOF)),
        )

    reader, patched = reading(lambda *_: Recovering())
    with patched:
        assert [m.value() for m in reader.read("t", {0: (0, None)}, 10.0, retry_errors=True)] == [b"after it"]


def test_a_read_that_is_stopped_ends_at_once() -> None:
    class Silent(Scripted):
        pass

    reader, patched = reading(lambda *_: Silent(), is_stopped=lambda: True)
    with patched, pytest.raises(NoProgressError):
        list(reader.read("t", {0: (0, None)}, 600.0))


def test_a_record_that_is_no_longer_retained_ends_a_read_that_retries() -> None:
    class Losing(Scripted):
        script = (Message(("t", 0), 0, None, None, failure=KafkaError(KafkaError._AUTO_OFFSET_RESET)),)

    reader, patched = reading(lambda *_: Losing(), on_lost="error")
    with patched, pytest.raises(KafkaException):
        list(reader.read("t", {0: (0, 5)}, 600.0, retry_errors=True))
