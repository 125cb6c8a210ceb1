"""Every record becomes a score or a dead letter with its reason; none is lost, and the service continues."""

from __future__ import annotations

from typing import Any

import pytest
from brokers import Broker
from confluent_kafka import Producer
from services import Running, make_settings, readings, results, sensors, unique

GOOD = readings(120)
UNREADABLE: dict[str, tuple[Any, str]] = {
    "invalid UTF-8": (b'{"temperature": "\xff"}', "not_utf8"),
    "deeply nested": (b"[" * 100_000, "not_json"),
    "array": (b"[1, 2]", "not_an_object"),
    "tombstone": (None, "tombstone"),
    "a name that no header can hold": (b'{"\\ud800": "x"}', "no_features"),
    "oversize": (b'{"temperature": 20, "blob": "' + b"x" * 10_000_000 + b'"}', "too_large"),
    "refused by the topic of outputs": (b'{"temperature": 20, "blob": "' + b"x" * 8000 + b'"}', "output_refused"),
}
READABLE: dict[str, Any] = {
    "NaN and Infinity": b'{"temperature": NaN, "motor": {"rpm": 900}, "x": -Infinity}',
    "string for a number": {"temperature": "20", "motor": {"rpm": 900}},
    "1e308": {"temperature": 1e308, "motor": {"rpm": -1e308}},
    "lone surrogate": b'{"temperature": 20, "motor": {"rpm": 900}, "s": "\\ud800"}',
    "object for a number": {"temperature": {"deep": 1}, "motor": {"rpm": 900}},
}


def test_each_record_is_passed_on_or_becomes_a_dead_letter(broker: Broker, real_kafka: None) -> None:
    """The key of each odd record is its name; good ones are before and after them."""
    topic = unique("mixed")
    broker.create_topic(topic, config={"max.message.bytes": str(12 << 20)})
    broker.create_topic(f"{topic}-scores", config={"max.message.bytes": "4000"})
    odd = [*(value for value, _ in UNREADABLE.values()), *READABLE.values()]
    keys = ["good"] * len(GOOD)
    keys = [*keys, *UNREADABLE, *READABLE, *keys]
    broker.produce(topic, [*GOOD, *odd, *GOOD], keys=keys, headers=[("trace", b"1")])
    with Running(make_settings(broker, topic)) as running:
        scored = broker.read(f"{topic}-scores", at_least=2 * len(GOOD) + len(READABLE))
        dead = broker.read(f"{topic}-dead-letters", at_least=len(UNREADABLE))
        assert running.service.ready
    assert broker.committed(running.settings.group, topic) == len(scored) + len(dead)
    assert sorted(one.key().decode() for one in scored) == sorted([*["good"] * 2 * len(GOOD), *READABLE])
    assert {one["fomo"]["status"] for one in results(scored)} <= {"warming_up", "calibrating", "ok"}
    sources = {one.key().decode(): one for one in broker.read(topic)}
    assert sorted(one.key().decode() for one in dead) == sorted(UNREADABLE)
    for letter in dead:
        name = letter.key().decode()
        source, headers = sources[name], dict(letter.headers())
        value, reason = UNREADABLE[name]
        assert letter.value() == value
        assert (headers["fomo-reason"], headers["trace"]) == (reason.encode(), b"1")
        assert headers["fomo-error"]
        assert headers["fomo-source-topic"] == source.topic().encode()
        place = int(headers["fomo-source-partition"]), int(headers["fomo-source-offset"])
        assert place == (source.partition(), source.offset())
        assert int(headers["fomo-source-timestamp"]) == source.timestamp()[1] == letter.timestamp()[1]


@pytest.mark.slow
def test_a_small_batch_that_is_decompressed_to_much_does_not_stop_those_behind_it(
    broker: Broker, real_kafka: None
) -> None:
    settings = sensors(broker)
    broker.produce(settings.topic, GOOD)
    producer = Producer({**broker.config, "compression.type": "zstd", "message.max.bytes": 1_000_000_000})
    producer.produce(settings.topic, b" " * (150 << 20))  # a few KB in the topic
    assert producer.flush(60) == 0
    broker.produce(settings.topic, GOOD)
    with Running(settings):
        broker.read(f"{settings.topic}-scores", at_least=2 * len(GOOD))
        (letter,) = broker.read(f"{settings.topic}-dead-letters", at_least=1)
    assert dict(letter.headers())["fomo-reason"] == b"too_large"
    assert int(dict(letter.headers())["fomo-truncated-from"]) == 150 << 20
