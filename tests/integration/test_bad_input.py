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
    "invalid JSON": (b'{"temperature": 1', "not_json"),
    "empty": (b"", "not_json"),
    "deeply nested": (b"[" * 100_000, "not_json"),
    "array": (b"[1, 2]", "not_an_object"),
    "scalar": (b"42", "not_an_object"),
    "null": (b"null", "not_an_object"),
    "tombstone": (None, "tombstone"),
    "no features": (b'{"other": 1}', "no_features"),
    "only strings": (b'{"temperature": "hot", "motor": {"rpm": "fast"}}', "no_features"),
    "a name that no header can hold": (b'{"\\ud800": "x"}', "no_features"),
    "oversize": (b'{"temperature": 20, "blob": "' + b"x" * 10_000_000 + b'"}', "too_large"),
    "refused by the topic of outputs": (
        b'{"temperature": 20, "motor": {"rpm": 900}, "blob": "' + b"x" * 8000 + b'"}',
        "output_refused",
    ),
}


READABLE: dict[str, Any] = {
    "NaN and Infinity": b'{"temperature": NaN, "motor": {"rpm": 900}, "x": -Infinity}',
    "string for a number": {"temperature": "20", "motor": {"rpm": 900}},
    "1e308": {"temperature": 1e308, "motor": {"rpm": -1e308}},
    "missing field": {"temperature": 20},
    "extra field": {"temperature": 20, "motor": {"rpm": 900}, "more": {"a": [1, {"b": None}]}},
    "null field": {"temperature": None, "motor": {"rpm": 900}},
    "huge integer": b'{"temperature": 20, "motor": {"rpm": 900}, "big": 123456789012345678901234567890}',
    "lone surrogate": b'{"temperature": 20, "motor": {"rpm": 900}, "s": "\\ud800"}',
    "object for a number": {"temperature": {"deep": 1}, "motor": {"rpm": 900}},
}


@pytest.fixture(scope="module")
def answers(broker: Broker, real_kafka: None) -> tuple[list[Any], list[Any], list[Any]]:
    """Scores, dead letters and sources of one run over all of the above, key = name, between good records."""
    topic = unique("mixed")
    broker.create_topic(topic, config={"max.message.bytes": str(12 << 20)})
    broker.create_topic(f"{topic}-scores", config={"max.message.bytes": "4000"})
    bad = [value for value, _ in UNREADABLE.values()]
    names = ["good"] * len(GOOD)
    broker.produce(
        topic,
        [*GOOD, *bad, *READABLE.values(), *GOOD],
        keys=[*names, *UNREADABLE, *READABLE, *names],
        headers=[("trace", b"1")],
    )
    with Running(make_settings(broker, topic)) as running:
        scored = broker.read(f"{topic}-scores", at_least=2 * len(GOOD) + len(READABLE))
        dead = broker.read(f"{topic}-dead-letters", at_least=len(UNREADABLE))
        assert running.service.ready
    assert len(scored) == 2 * len(GOOD) + len(READABLE)
    assert broker.committed(running.settings.group, topic) == len(scored) + len(dead)
    return scored, dead, broker.read(topic)


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


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_record_becomes_a_dead_letter(answers: tuple[list[Any], list[Any], list[Any]], name: str) -> None:
    (letter,), (source,) = ([message for message in some if message.key() == name.encode()] for some in answers[1:])
    value, reason = UNREADABLE[name]
    headers = dict(letter.headers())
    assert headers["fomo-reason"] == reason.encode()
    assert headers["trace"] == b"1"
    assert headers["fomo-error"]
    assert headers["fomo-source-topic"] == source.topic().encode()
    assert int(headers["fomo-source-partition"]) == source.partition()
    assert int(headers["fomo-source-offset"]) == source.offset()
    assert int(headers["fomo-source-timestamp"]) == source.timestamp()[1] == letter.timestamp()[1]
    assert letter.value() == value


@pytest.mark.parametrize("name", READABLE)
def test_a_readable_record_is_passed_on(answers: tuple[list[Any], list[Any], list[Any]], name: str) -> None:
    (message,) = [message for message in answers[0] if message.key() == name.encode()]
    assert results([message])[0]["fomo"]["status"] in ("warming_up", "calibrating", "ok")
