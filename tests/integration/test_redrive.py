"""Dead letters go back as the original records, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from brokers import Broker
from confluent_kafka import Producer
from services import Running, make_settings, unique

from fomo_stream.admin.redrive import BATCH_RECORDS, Summary, send_dead_letters
from fomo_stream.cli.main import main
from fomo_stream.errors import TopicError
from fomo_stream.kafka.broker import clients
from fomo_stream.settings.commands import RedriveSettings

TIME = 1_700_000_000_000


def dead_letter(source: str, value: bytes | None, reason: str | None = "not_json", **changes: Any) -> dict[str, Any]:
    """A letter as the service writes it, for a record of partition 1. changes: headers instead; None leaves one out."""
    headers = {
        "trace": "own",
        "fomo-reason": reason,
        "fomo-error": "the record is not JSON",
        "fomo-exception": "JSONDecodeError",
        "fomo-source-topic": source,
        "fomo-source-partition": "1",
        "fomo-source-offset": "7",
        "fomo-source-timestamp": str(TIME),
        **{f"fomo-{name.replace('_', '-')}": value for name, value in changes.items()},
    }
    return {
        "value": value,
        "key": b"k1",
        "headers": [(name, text.encode()) for name, text in headers.items() if text is not None],
        "timestamp": TIME,
    }


def write(broker: Broker, topic: str, letters: Sequence[dict[str, Any]]) -> None:
    """As the service does: in a transaction, where the broker has transactions."""
    name = {"transactional.id": unique("writer")} if broker.is_kafka else {}
    producer = Producer({**broker.config, **name})
    if name:
        producer.init_transactions(20)
        producer.begin_transaction()
    for letter in letters:
        producer.produce(topic, **letter)
    assert producer.flush(20) == 0
    if name:
        producer.commit_transaction(20)
    read(broker, topic)


def read(broker: Broker, topic: str) -> list[Any]:
    """All that was written: the broker answers a commit before readers see it in every partition."""
    if broker.is_kafka:
        broker.wait_for_transactions(topic)
    return broker.read(topic)


@pytest.fixture
def topics(broker: Broker) -> tuple[str, str]:
    """A source topic and one of dead letters."""
    source = unique("sensors")
    for topic in (source, f"{source}-dead-letters"):
        broker.create_topic(topic, 3, config={"retention.ms": "-1"})
    return source, f"{source}-dead-letters"


def delivery(broker: Broker) -> str:
    return "exactly-once" if broker.is_kafka else "at-least-once"


def run(broker: Broker, dead_letters: str, **flags: Any) -> Summary:
    values = {"bootstrap": broker.bootstrap, "dead_letters": dead_letters, "delivery": delivery(broker), **flags}
    return send_dead_letters(RedriveSettings(**values))


def values(broker: Broker, topic: str) -> list[bytes]:
    return sorted(message.value() for message in read(broker, topic))


def test_a_record_that_the_service_cannot_score_comes_back_to_it_until_the_limit(
    broker: Broker, topics: tuple[str, str]
) -> None:
    source, dead = topics
    original = {"value": b"{", "key": b"k1", "headers": [("trace", b"own")], "timestamp": TIME, "partition": 2}
    write(broker, source, [original])
    with Running(make_settings(broker, source)):
        for attempt in range(3):
            letter = broker.read(dead, at_least=attempt + 1)[-1]
            headers = dict(letter.headers())
            assert headers["fomo-reason"] == b"not_json"
            assert headers["fomo-exception"] == b"JSONDecodeError"
            assert headers.get("fomo-attempts") == (b"%d" % attempt if attempt else None)
            done = run(broker, dead, max_attempts=2)
            assert (done.sent["not_json"], done.left["at the limit"]) == ((1, 0) if attempt < 2 else (0, 1))
    records = read(broker, source)
    for number, record in enumerate(records):
        for part in ("value", "key", "partition", "timestamp"):
            assert getattr(record, part)() == getattr(records[0], part)()
        assert record.headers() == [("trace", b"own"), *([("fomo-attempts", b"%d" % number)] if number else [])]
    assert len(records) == 3


def test_each_is_sent_once_and_new_ones_by_the_next_run(broker: Broker, topics: tuple[str, str]) -> None:
    source, dead = topics
    many = BATCH_RECORDS * 5 // 2
    headers = dead_letter(source, b"")["headers"]
    write(broker, dead, [{"value": b"%d" % i, "headers": headers} for i in range(many)])
    assert run(broker, dead).sent.total() == many
    assert run(broker, dead).sent.total() == 0
    write(broker, dead, [{"value": b"new", "headers": headers}])
    assert run(broker, dead).sent.total() == 1
    assert Counter(message.value() for message in read(broker, source)) == Counter(
        [*(b"%d" % i for i in range(many)), b"new"]
    )


def test_letters_that_can_never_be_sent_are_counted_and_a_dry_run_changes_nothing(
    broker: Broker, topics: tuple[str, str]
) -> None:
    source, dead = topics
    cut = dead_letter(source, b"x", "too_large", truncated_from="9000")
    lost = dead_letter(source, b"y", source_topic=None, source_partition=None)
    write(broker, dead, [cut, lost, dead_letter(source, b"z"), dead_letter(source, b"moves", source_partition="40")])
    left = "2 (1 cut, 1 without source topic)"
    for _ in range(2):
        done = run(broker, dead, dry_run=True)
        assert str(done) == f"would send 2 dead letters of {dead} (2 not_json), leave {left}"
    assert str(run(broker, dead)) == f"sent 2 dead letters of {dead} (2 not_json), left {left}"
    assert str(run(broker, dead)) == f"sent 0 dead letters of {dead}, left 0"
    assert values(broker, source) == [b"moves", b"z"]
    other = unique("other")  # and another group starts from the beginning
    broker.create_topic(other, 3, config={"retention.ms": "-1"})
    assert run(broker, dead, group=unique("group"), to=other).sent.total() == 3
    partitions = {message.value(): message.partition() for message in read(broker, other)}
    assert partitions[b"z"] == 1
    assert partitions[b"moves"] == partitions[b"y"]  # by key


@pytest.mark.usefixtures("restored_logging")
def test_an_error_is_one_line(
    broker: Broker,
    topics: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(clients, "START_TIMEOUT_S", 1.0)
    dead = topics[1]
    write(broker, dead, [dead_letter("gone", b"a")])
    here = ["--bootstrap", broker.bootstrap]
    for arguments, code, words in (
        (["--dead-letters", dead, "--bootstrap", "127.0.0.1:1"], 7, "no broker answers at 127.0.0.1:1"),
        (["--dead-letters", dead, "--to", "no-such", *here], 8, "there is no topic no-such"),
        (["--dead-letters", dead, *here, f"--delivery={delivery(broker)}"], 8, "came from topic gone, which does not"),
        (["--dead-letters", dead, "--to", dead], 2, "is the topic of the dead letters itself"),
    ):
        assert main(["redrive", *arguments]) == code
        shown = capsys.readouterr().err
        assert words in shown
        assert shown.startswith("fomo-stream: ")
        assert shown.count("\n") == 1


def test_letters_that_topics_do_not_take_keep_no_other_from_being_sent(broker: Broker, topics: tuple[str, str]) -> None:
    """Each letter is sent once, and by the first run in which its topic takes it."""
    source, dead = topics
    gone, narrow = unique("gone"), unique("narrow")
    largest = 2000 if broker.is_kafka else 1 << 20  # the embedded broker takes everything
    broker.create_topic(narrow, 3, config={"max.message.bytes": str(largest), "retention.ms": "-1"})
    letters = []
    for number in range(10):
        letters += [dead_letter(source, b"%d" % number), dead_letter(gone, b"gone %d" % number, "not_utf8")]
        letters += [dead_letter(narrow, b"x" * (4000 if number % 4 == 3 else 10) + b"%d" % number)]
    write(broker, dead, letters)
    refused = 2 if broker.is_kafka else 0
    for sent in (20 - refused, 0):
        done = run(broker, dead)
        assert (done.sent.total(), done.left.total()) == (sent, 10 + refused)
        with pytest.raises(TopicError, match=rf"{10 + refused} dead letters could not be sent: {dead}\[\d\]@\d"):
            done.check()
    if refused:
        assert any(f"topic {narrow} does not take dead letter {dead}[" in one for one in done.named)
    broker.create_topic(gone, 3, config={"retention.ms": "-1"})
    assert run(broker, dead, reason="not_json").sent.total() == 0
    assert run(broker, dead).sent == Counter(not_utf8=10)
    if refused:
        broker.delete_topic(narrow)
        broker.create_topic(narrow, 3, config={"retention.ms": "-1"})
        assert run(broker, dead).sent == Counter(not_json=2)
        assert {len(value) for value in values(broker, narrow)} == {4001}
    run(broker, dead).check()
    assert values(broker, source) == [b"%d" % number for number in range(10)]
    assert values(broker, gone) == [b"gone %d" % number for number in range(10)]


def test_letters_with_odd_headers_are_sent_or_counted(broker: Broker, topics: tuple[str, str]) -> None:
    source, dead = topics
    names = ("fomo-source-topic", "fomo-source-partition", "fomo-source-timestamp", "fomo-reason", "fomo-attempts")
    odd = (None, b"", b"\xff", b"-1", b"9" * 17, b"9" * 400)
    plain = dead_letter(source, b"plain")
    letters = [{**plain, "headers": [*plain["headers"], (name, value)]} for name in names for value in odd]
    write(broker, dead, [*letters, {**plain, "value": None}, {**plain, "key": None}, {**plain, "headers": []}, plain])
    done = run(broker, dead, max_attempts=1000)
    assert done.sent.total() + done.left.total() == len(letters) + 4
    assert done.left["without source topic"] == 3
    assert done.sent.total() == len(read(broker, source)) >= 20
    assert run(broker, dead, max_attempts=1000).sent.total() == 0
