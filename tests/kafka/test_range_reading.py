"""Reading a range while the broker fails: every record once and in order, or one sentence."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_broker import MemoryBroker, MemoryReader, Message

from fomo_stream.errors import BrokerError, LostOffsetError
from fomo_stream.kafka.ranges import Range, gap_note, read_range
from fomo_stream.settings.service import ServiceSettings

SETTINGS = ServiceSettings(topic="t")
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


def reading(broker: MemoryBroker, gives: tuple[int, ...], patience_s: float = 600.0) -> Any:
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
    broker.logs["t", 0] = [Message(("t", 0), at, b"k", b"%d" % at) for at in sorted(offsets)]
    broker.ends["t", 0] = end
    return broker


@given(st.sets(st.integers(0, 19)), st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(0, 6), max_size=6))
def test_every_record_comes_once_though_clients_fail(offsets: set[int], start: int, end: int, gives: list[int]) -> None:
    end = max(start, end)
    found = Range(0, start, end)
    patched, clients = reading(log_of(offsets, 20), tuple(gives))
    with patched, clients:
        records = list(read_range(SETTINGS, "t", found, start))
    wanted = [at for at in sorted(offsets) if start <= at < end]
    assert [record.offset for record in records] == wanted
    note = gap_note("t", found.records, len(records))
    missing = found.records - len(wanted)
    assert note == "" if not missing else note.startswith(f"t: {missing} of {found.records} offsets have no record")


def test_a_broker_that_stays_silent_is_reported() -> None:
    patched, clients = reading(log_of(set(range(9)), 9), (4,) + (0,) * 10_000, patience_s=0.01)
    seen = []
    with patched, clients, pytest.raises(BrokerError, match=r"t\[0\]@\d could not be read for 0.01 s"):
        seen += [record.offset for record in read_range(SETTINGS, "t", Range(0, 0, 9), 0)]
    assert not seen


def test_a_partition_that_got_shorter_is_reported() -> None:
    patched, clients = reading(log_of(set(range(5)), 5), ())
    with patched, clients, pytest.raises(LostOffsetError, match=r"t\[0\] ends at offset 5 now, before .* \(9\)"):
        list(read_range(SETTINGS, "t", Range(0, 0, 9), 0))


def test_a_read_that_is_stopped_while_the_broker_is_silent_ends() -> None:
    patched, clients = reading(log_of(set(range(9)), 9), (4,) + (0,) * 10_000)
    looks = iter(range(1000))
    with patched, clients:
        assert len(list(read_range(SETTINGS, "t", Range(0, 0, 9), 0, lambda: next(looks) > 100))) <= 9
