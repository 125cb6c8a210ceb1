"""Ranges of past records on a broker: the offsets that bounds mean, and what is read of them."""

from __future__ import annotations

from typing import Any

import pytest
from brokers import Broker
from confluent_kafka import Producer
from services import unique

from fomo_stream.errors import FomoError, LostOffsetError
from fomo_stream.kafka.bounds import Range, gap_notes
from fomo_stream.kafka.ranges import read_range, resolve_ranges
from fomo_stream.settings.replay import ReplaySettings

BEGAN = 1_759_276_800_000  # 2025-10-01T00:00Z
HOUR = 3_600_000
NOW = BEGAN + 48 * HOUR


pytestmark = pytest.mark.usefixtures("real_kafka")


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """Two partitions with 10 records each, one an hour; the first 3 of partition 1 are deleted."""
    topic = unique("past")
    broker.create_topic(topic, 2, {"retention.ms": "-1"})
    for number in range(2):
        hours = [b"%d" % hour for hour in range(10)]
        broker.produce(topic, hours, timestamps=range(BEGAN, NOW, HOUR), partition=number)
    broker.delete_records({(topic, 1): 3})
    return topic


def settings_of(broker: Broker, topic: str, **changes: Any) -> ReplaySettings:
    return ReplaySettings(**{"bootstrap": broker.bootstrap, "topic": topic, "group": unique("group"), **changes})


def spans(broker: Broker, topic: str, from_: str = "", to: str = "", last: str = "") -> tuple[list[Any], list[str]]:
    found, notes = resolve_ranges(settings_of(broker, topic), from_, to, last, NOW)
    return [(one.start, one.end) for one in found], notes


def refusal(broker: Broker, topic: str, from_: str = "", to: str = "", last: str = "") -> str:
    with pytest.raises(FomoError) as caught:
        resolve_ranges(settings_of(broker, topic), from_, to, last, NOW)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bounds_are_offsets_times_or_durations(broker: Broker, topic: str) -> None:
    assert spans(broker, topic) == ([(0, 10), (3, 10)], [])
    assert spans(broker, topic, "5", "7") == ([(5, 7), (5, 7)], [])
    assert spans(broker, topic, "0:4,1:6", "0:5,1:6") == ([(4, 5), (6, 6)], [])
    assert spans(broker, topic, "2025-10-01T04:00Z", "2025-10-01T08:00+02:00") == ([(4, 6), (4, 6)], [])
    assert spans(broker, topic, "2025-10-01T04:30", "2025-10-01 09:00:00.001") == ([(5, 10), (5, 10)], [])
    assert spans(broker, topic, last="41h") == ([(7, 10), (7, 10)], [])
    assert spans(broker, topic, last="44h", to="8") == ([(4, 8), (4, 8)], [])


def test_a_start_before_retention_is_moved_and_noted(broker: Broker, topic: str) -> None:
    before = f"is before the first retained record of {topic}[1]: records were deleted, so the range starts after them."
    assert spans(broker, topic, "1") == ([(1, 10), (3, 10)], [f"--from 1 {before}"])
    assert spans(broker, topic, "2025-10-01") == ([(0, 10), (3, 10)], [f"--from 2025-10-01 {before}"])
    found, (note,) = spans(broker, topic, "0:2")
    assert found == [(2, 10), (3, 10)]
    assert f"does not name {topic}[1]" in note


def test_ranges_without_records_are_refused(broker: Broker, topic: str) -> None:
    for bounds, words in (
        ({"from_": "2025-10-01T10:00"}, "no records in the range --from 2025-10-01T10:00; the topic has records"),
        ({"from_": "1:2", "to": "0:0,1:3"}, ", by partition at offsets 0 to 9, 3 to 9"),
        ({"last": "60s"}, "there are no records in the range --last 60s"),
        ({"from_": "0:11"}, "--from 0:11 is beyond the end of the topic; the topic has"),
        ({"to": "2:5"}, "has no partition 2; it has 2, numbered from 0"),
    ):
        assert words in refusal(broker, topic, **bounds)
    empty = unique("past")
    broker.create_topic(empty, 1)
    assert refusal(broker, empty).startswith(f"topic {empty} has no records")
    assert refusal(broker, unique("none")).startswith("there is no topic none-")


def test_open_and_aborted_transactions_are_left_out(broker: Broker) -> None:
    topic = unique("past")
    broker.create_topic(topic, 1)
    producer = Producer({**broker.config, "transactional.id": topic})
    producer.init_transactions(20)
    for name in (b"kept", b"aborted", b"open"):
        producer.begin_transaction()
        for _ in range(4):
            producer.produce(topic, name, partition=0)
        assert producer.flush(20) == 0
        if name == b"kept":
            producer.commit_transaction(20)
        elif name == b"aborted":
            producer.abort_transaction(20)
    settings = settings_of(broker, topic)
    (found,), notes = resolve_ranges(settings, "", "", "", NOW)
    assert (found.start, found.end) == (0, 10)
    assert notes == [
        f"{topic}[0] has an open transaction: the range ends before it, at offset 10, and leaves 4 offsets out."
    ]
    records = list(read_range(settings, topic, found, 0))
    assert [record.value for record in records] == [b"kept"] * 4
    assert "6 of 10 offsets have no record" in gap_notes(topic, found.records, len(records))[0]
    producer.abort_transaction(20)


def test_a_range_is_read_from_any_offset_and_commits_nothing(broker: Broker, topic: str) -> None:
    settings = settings_of(broker, topic)
    found, _ = resolve_ranges(settings, "", "", "", NOW)
    for start in (3, 8, 10):
        records = list(read_range(settings, topic, found[1], start))
        assert [(one.offset, one.value) for one in records] == [(at, b"%d" % at) for at in range(start, 10)]
    listed = broker.admin.list_consumer_groups().result().valid
    assert settings.group not in [group.group_id for group in listed]
    with pytest.raises(LostOffsetError, match=r"no longer has past-\w+\[1\]@1: it was deleted"):
        list(read_range(settings, topic, Range(1, 1, 10), 1))


def test_a_topic_created_again_is_not_read_on(broker: Broker) -> None:
    topic = unique("past")
    broker.create_topic(topic, 1)
    broker.produce(topic, [b""] * 5)
    settings = settings_of(broker, topic)
    (found,), _ = resolve_ranges(settings, "", "", "", NOW)
    reading = read_range(settings, topic, found, 0)
    next(reading)
    broker.delete_topic(topic)
    broker.create_topic(topic, 1)
    broker.produce(topic, [b""] * 5)
    with pytest.raises(LostOffsetError, match="was deleted or created again"):
        list(reading)
    with pytest.raises(LostOffsetError, match="was deleted or created again"):
        next(iter(read_range(settings, topic, found, 3)))
