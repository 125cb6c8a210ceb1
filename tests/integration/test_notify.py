"""`fomo-stream notify` against a real broker: as a process that is killed, and in this process."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from fastavro import parse_schema, schemaless_writer
from registries import Proxy
from services import CLIENT, Command, in_thread, unique

sys.path.append(str(Path(__file__).parents[1] / "notify"))

from made_alerts import alert, closed
from receivers import Receiver, Reply, Request, receiving

from fomo_stream.cli.parser import parse
from fomo_stream.errors import ConfigError
from fomo_stream.notify import follower, notifier, policy, targets
from fomo_stream.notify.notifier import Notifier, print_messages
from fomo_stream.records.result_schema import RESULT, as_written
from fomo_stream.settings.notify import NotifySettings

QUICK = [f"--kafka.{name}={value}" for name, value in CLIENT.items()]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> str:
    name = unique("alerts")
    broker.create_topic(name, 4)
    return name


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(policy, "MAX_WAIT_S", 0.05)
    monkeypatch.setattr(targets, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(notifier, "TOPIC_POLL_S", 0.3)
    monkeypatch.setattr(follower, "COMMIT_S", 0.2)


def write(broker: Broker, topic: str, *results: dict[str, Any], keys: list[str] | None = None) -> None:
    """Records of a topic of alerts; those of an incident have the same key, and so the same partition."""
    names = keys or [str(one["incident"]) for one in results]
    broker.produce(topic, [{"flow": 9.0, "fomo": one} for one in results], names)


def flags_of(broker: Broker, topic: str, *flags: str) -> list[str]:
    return ["--bootstrap", broker.bootstrap, "--alerts", topic, *QUICK, *flags]


@contextmanager
def telling(broker: Broker, topic: str, *flags: str) -> Iterator[Notifier]:
    """The service in this process, once it is ready. An error that ends it is raised at the end."""
    service = Notifier(parse(NotifySettings, flags_of(broker, topic, *flags), command="notify"))
    with in_thread(service) as errors:
        wait_for(lambda: errors or not service.not_ready(), "notify to be ready")
        yield service


def group_of(topic: str, receiver: Receiver) -> str:
    return f"{topic}-notify-{re.sub('[:/]+', '-', receiver.url)}"


def names(receiver: Receiver) -> list[str]:
    return [request.headers["Idempotency-Key"] for request in receiver.requests]


def opened(*numbers: int) -> set[str]:
    return {f"sensors:0-{number}:opened" for number in numbers}


BAD = [Reply(500), Reply(0), Reply(429), Reply(-1), Reply(502), Reply(408)]


def test_failures_of_every_kind_lose_nothing_and_keep_the_order(
    broker: Broker, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique("alerts")
    broker.create_topic(topic, 1)
    receiver.replies += [*BAD[:3], Reply(), *BAD[3:], Reply(400)]
    with telling(broker, topic, "--webhook", receiver.url.replace("//", "//me:TOKEN@") + "/TOKEN") as service:
        write(broker, topic, alert(7), alert(8, 7), {**alert(9), "outlier": False, "status": "strange"})
        write(broker, topic, closed(7, 9, 2), alert(20), closed(20, 21))
        wait_for(lambda: broker.committed(group_of(topic, receiver), topic) == 6, "the commit")
        metrics = service.metrics().decode()
    expected = [f"sensors:0-{which}" for which in ("7:opened", "7:closed", "20:opened", "20:closed")]
    assert list(dict.fromkeys(names(receiver))) == expected
    assert names(receiver) == sorted(names(receiver), key=expected.index), "each only after the one before was answered"
    counted = [f'{name}_total{{target="{receiver.url}"}}' for name in ("sent", "failed", "retried")]
    assert all(f"fomo_notify_{name} {n}.0" in metrics for name, n in zip(counted, (3, 1, 6), strict=True)), metrics
    assert f'fomo_notify_skipped_total{{reason="unknown_status",target="{receiver.url}"}} 1.0' in metrics
    assert f"message_refused target={receiver.url} message=sensors:0-7:closed" in caplog.text
    assert "target_trouble" in caplog.text
    assert "TOKEN" not in caplog.text
    assert "flow" not in caplog.text


def test_a_target_that_is_down_holds_up_no_other_and_gets_everything_when_it_is_back(
    broker: Broker, topic: str, receiver: Receiver
) -> None:
    with receiving() as down:
        down.answer = lambda _request: Reply(503)
        flags = ["--webhook", receiver.url, "--webhook", down.url, "--start", "earliest"]
        with telling(broker, topic, *flags) as service:
            write(broker, topic, *map(alert, range(100)))
            receiver.wait_for(lambda requests: set(names(receiver)) == opened(*range(100)))
            wait_for(lambda: broker.committed(group_of(topic, receiver), topic) == 100, "the commit")
            wait_for(lambda: service.not_ready() == [f"{down.url} is not told: HTTP 503"], "the trouble to be known")
            assert f'fomo_notify_oldest_unsent_seconds{{target="{receiver.url}"}} 0.0' in service.metrics().decode()
            assert f'fomo_notify_oldest_unsent_seconds{{target="{down.url}"}} 0.0' not in service.metrics().decode()
        assert broker.committed(group_of(topic, down), topic) == 0, "what was not answered is not committed"
        down.answer = None
        with telling(broker, topic, *flags):
            down.wait_for(lambda requests: set(names(down)) == opened(*range(100)))
            wait_for(lambda: broker.committed(group_of(topic, down), topic) == 100, "the commit")
    assert len(receiver.requests) == 100, "the first one was told once"


def test_people_get_a_limited_number_and_at_the_end_what_is_held_back(broker: Broker, receiver: Receiver) -> None:
    topic = unique("alerts")
    broker.create_topic(topic, 1)
    to, group = receiver.url.replace("http://", "json://"), f"{topic}-notify-json"
    with telling(broker, topic, "--to", to, "--per-hour", "1") as service:
        write(broker, topic, *map(alert, range(5)))
        wait_for(lambda: 'fomo_notify_held{target="json://"} 4.0' in service.metrics().decode(), "the rest")
        wait_for(lambda: broker.committed(group, topic) == 1, "the commit")
    titles = [one.json["title"] for one in receiver.requests]
    assert titles == ["WARNING: outlier in sensors 0-0", "WARNING: 4 messages held back: 4 opened, 0 ended"]
    assert broker.committed(group, topic) == 5


def test_while_what_was_held_back_cannot_be_told_the_group_keeps_its_member_and_no_record_is_lost(
    broker: Broker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may poll nothing for 6 s, else it would have to leave the group."""
    monkeypatch.setattr(policy, "HOUR_S", 0.5)
    caplog.set_level("INFO")
    topic = unique("alerts")
    broker.create_topic(topic, 1)
    tried = list[float]()

    def answer(request: Request) -> Reply:
        tried.extend([time.monotonic()] if "held back" in request.json["title"] else [])
        return Reply(503 if tried and tried[-1] < tried[0] + 8 else 200)

    receiver.answer = answer
    flags = ["--to", receiver.url.replace("http://", "json://"), "--per-hour", "1", "--kafka.max.poll.interval.ms=6000"]
    with telling(broker, topic, *flags):
        write(broker, topic, *map(alert, range(3)))
        receiver.wait_for(lambda requests: len(requests) > 3)  # the summary was tried twice
        write(broker, topic, *map(alert, range(3, 6)))
        wait_for(lambda: broker.committed(f"{topic}-notify-json", topic) == 6, "the commit")
    told = list(dict.fromkeys(one.json["title"] for one in receiver.requests))
    held = [int(title.split()[1]) for title in told if "held back" in title]
    assert sum(held) + len(told) - len(held) == 6
    assert caplog.text.count("assigned target") == 1


def test_what_a_killed_process_has_not_committed_is_told_again_with_the_same_name(
    broker: Broker, topic: str, receiver: Receiver, tmp_path: Path
) -> None:
    flags = "--webhook", receiver.url
    write(broker, topic, alert(1))
    with telling(broker, topic, *flags):
        pass
    write(broker, topic, alert(2))  # after the first start, and while nobody reads
    killed = Command(tmp_path / "killed", "notify", *flags_of(broker, topic, *flags))

    def killing(request: Request) -> Reply:
        if request.json["kind"] == "closed":
            os.kill(killed.process.pid, signal.SIGKILL)
        return Reply()

    receiver.answer = killing
    write(broker, topic, closed(2, 4))
    receiver.wait_for(lambda requests: len(requests) == 2)
    killed.process.wait(60)
    receiver.answer = None
    later = Command(tmp_path / "later", "notify", *flags_of(broker, topic, *flags))
    receiver.wait_for(lambda requests: len(requests) >= 3)
    wait_for(lambda: broker.committed(group_of(topic, receiver), topic) == 3, "the commit")
    assert later.terminate() == 0, later.text()
    assert set(names(receiver)) == {"sensors:0-2:opened", "sensors:0-2:closed"}
    assert names(receiver)[-1] == "sensors:0-2:closed", "the one that was answered and not committed came again"


def test_alerts_in_partitions_that_are_added_are_all_told(broker: Broker, receiver: Receiver, real_kafka: None) -> None:
    """Also those that come before the partition is assigned; those before the first start are not told."""
    topic = unique("alerts")
    broker.create_topic(topic, 1)
    write(broker, topic, alert(1))
    with telling(broker, topic, "--webhook", receiver.url):
        broker.grow_topic(topic, 3)
        write(broker, topic, *map(alert, range(10, 40)))
        receiver.wait_for(lambda requests: set(names(receiver)) == opened(*range(10, 40)))
    broker.grow_topic(topic, 5)
    write(broker, topic, *map(alert, range(50, 80)))  # while nobody reads
    with telling(broker, topic, "--webhook", receiver.url):
        expected = opened(*range(10, 40), *range(50, 80))
        receiver.wait_for(lambda requests: set(names(receiver)) == expected)


@pytest.mark.parametrize("before", [2, 12])
def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    broker: Broker, receiver: Receiver, real_kafka: None, before: int
) -> None:
    topic = unique("alerts")
    broker.create_topic(topic, 1)
    write(broker, topic, *map(alert, range(200, 200 + before)))  # before the first start, so they are not told
    with telling(broker, topic, "--webhook", receiver.url) as service:
        write(broker, topic, *map(alert, range(before)))
        wait_for(lambda: broker.committed(group_of(topic, receiver), topic) == 2 * before, "the commit")
        broker.delete_topic(topic)
        if before > 2:
            wait_for(lambda: "there is no topic" in str(service.not_ready()), "the missing topic to be told")
        broker.create_topic(topic, 1)
        write(broker, topic, *map(alert, range(100, 107)))
        receiver.wait_for(lambda requests: set(names(receiver)) == opened(*range(before), *range(100, 107)))
        wait_for(lambda: broker.committed(group_of(topic, receiver), topic) == 7, "the commit")


def test_two_instances_share_the_work(broker: Broker, topic: str, receiver: Receiver) -> None:
    with telling(broker, topic, "--webhook", receiver.url):
        with telling(broker, topic, "--webhook", receiver.url):
            write(broker, topic, *map(alert, range(100)))
            receiver.wait_for(lambda requests: set(names(receiver)) == opened(*range(100)))
        write(broker, topic, *map(alert, range(100, 200)))
        receiver.wait_for(lambda requests: set(names(receiver)) == opened(*range(200)))


def test_a_dry_run_prints_all_messages_and_commits_nothing(broker: Broker, topic: str) -> None:
    write(broker, topic, alert(1), closed(1, 5, 2), alert(2000), keys=["pump-7"] * 3)
    settings = parse(NotifySettings, flags_of(broker, topic, "--dry-run"), command="notify")
    out = io.StringIO()
    print_messages(settings, out)
    titles = [line for line in out.getvalue().splitlines() if line and not line.startswith(" ")]
    what = "outlier in sensors pump-7"
    assert titles == [f"WARNING: {what}", f"ENDED: {what} after 4 s", f"WARNING: {what}"]
    assert broker.committed(settings.group, topic) == 0
    with pytest.raises(ConfigError, match="did you mean"):
        print_messages(settings.model_copy(update={"to": ("slak://x",)}), out)


def test_records_with_a_schema_are_read(
    broker: Broker, topic: str, receiver: Receiver, registry_url: str, real_kafka: None
) -> None:
    fields = [{"name": "flow", "type": "double"}, {"name": "fomo", "type": ["null", RESULT]}]
    schema = {"type": "record", "name": "Reading", "fields": fields}
    client = SchemaRegistryClient({"url": registry_url})
    number = client.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO"))
    parsed = parse_schema(schema)
    values = []
    for result in (alert(7), closed(7, 9, 2)):
        body = io.BytesIO()
        schemaless_writer(body, parsed, {"flow": 9.0, "fomo": as_written(result)})
        values.append(b"\0" + number.to_bytes(4, "big") + body.getvalue())
    group = group_of(topic, receiver)
    with Proxy(registry_url) as proxy:
        flags = ["--webhook", receiver.url, "--registry", proxy.url, "--start", "earliest"]
        with telling(broker, topic, *flags) as service:
            proxy.fail(503)
            broker.produce(topic, [*values, b'{"no": "schema"}'], ["pump-7"] * 3)
            wait_for(service.not_ready, "the registry to be missed")
        assert broker.committed(group, topic) == 0, "nothing is passed over"
        proxy.heal()
        with telling(broker, topic, *flags):
            opening, ended = (one.json for one in receiver.wait_for(lambda requests: len(requests) == 2, 60))
            wait_for(lambda: broker.committed(group, topic) == 3, "the commit")
    assert (opening["kind"], ended["kind"], ended["alerts"]) == ("opened", "closed", 2)
    assert (opening["key"], opening["reasons"][0]["value"], opening["reasons"][0]["low"]) == ("pump-7", 9.0, 2.0)
