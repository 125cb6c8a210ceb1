"""`fomo-stream notify` as users run it, against a real broker."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, free_ports, wait_for
from registries import Proxy
from services import unique

sys.path.append(str(Path(__file__).parents[1] / "notify"))

from made_alerts import alert, closed
from receivers import Receiver, Reply, Request, receiving

from fomo_stream.cli.parser import parse
from fomo_stream.errors import ConfigError
from fomo_stream.notify.service import rehearse
from fomo_stream.settings.notify import NotifySettings

MOST_MIB = 80
QUICK = ["--kafka.session.timeout.ms=6000", "--kafka.topic.metadata.refresh.interval.ms=1000"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> str:
    name = unique("alerts")
    broker.create_topic(name, 4)
    return name


def write(broker: Broker, topic: str, *results: dict[str, Any], keys: list[str] | None = None) -> None:
    """Records of a topic of alerts; those of an incident have the same key, and so the same partition."""
    names = keys or [str(one["incident"]) for one in results]
    broker.produce(topic, [{"flow": 9.0, "fomo": one} for one in results], names)


class Command:
    """The command in a process."""

    def __init__(self, broker: Broker, topic: str, *flags: str) -> None:
        bootstrap = ["--bootstrap", broker.bootstrap, "--alerts", topic, "--log-level", "info", *QUICK]
        self.port = free_ports(1)
        command = [
            sys.executable,
            "-m",
            "fomo_stream.cli",
            "notify",
            *bootstrap,
            "--health-port",
            str(self.port),
            *flags,
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def ready(self) -> None:
        wait_for(lambda: '"ok": true' in self.get("/readyz"), "notify to be ready")

    def stop(self) -> str:
        """Its log."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=40)
        assert self.process.returncode == 0, log
        return log

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def names(receiver: Receiver) -> list[str]:
    return [request.headers["Idempotency-Key"] for request in receiver.requests]


def test_incidents_are_told_through_outages_and_restarts(broker: Broker, topic: str, receiver: Receiver) -> None:
    group = f"{topic}-notify"
    first = Command(broker, topic, "--webhook", receiver.url)
    first.ready()
    write(broker, topic, alert(1), alert(2), closed(1, 5), alert(6, 2), {"status": "strange"} | alert(7, outlier=False))
    receiver.wait_for(lambda requests: len(requests) == 3)
    wait_for(lambda: broker.committed(group, topic) == 5, "the commit")
    assert 'fomo_notify_skipped_total{reason="unknown_status"} 1.0' in first.get("/metrics")
    assert f'fomo_notify_sent_total{{target="{receiver.url}"}} 3.0' in first.get("/metrics")

    receiver.answer = lambda _request: Reply(503)
    write(broker, topic, alert(10), closed(10, 11))
    receiver.wait_for(lambda requests: len(requests) >= 4)
    wait_for(lambda: "HTTP 503" in first.get("/readyz") or first.get("/readyz") == "", "the target to be in trouble")
    log = first.stop()
    assert "not_sent" in log
    assert broker.committed(group, topic) == 5, "what was not answered is not committed"

    receiver.answer = None
    seen = len(receiver.requests)
    second = Command(broker, topic, "--webhook", receiver.url)
    receiver.wait_for(lambda requests: len(requests) == seen + 2)
    assert names(receiver)[seen:] == ["sensors:0-10:opened", "sensors:0-10:closed"]
    write(broker, topic, closed(2, 6, 2))
    ended = receiver.wait_for(lambda requests: len(requests) == seen + 3)[-1].json
    assert (ended["kind"], ended["incident"], ended["began"]) == ("closed", "0-2", "2025-10-09T08:53:22Z")
    wait_for(lambda: broker.committed(group, topic) == 8, "the commit")
    second.stop()


def test_a_kill_after_an_answer_repeats_a_message_with_the_same_name(
    broker: Broker, topic: str, receiver: Receiver
) -> None:
    first = Command(broker, topic, "--webhook", receiver.url, "--start", "earliest")
    first.ready()

    def killing(request: Request) -> Reply:
        if request.json["kind"] == "closed":
            os.kill(first.process.pid, signal.SIGKILL)
        return Reply()

    receiver.answer = killing
    write(broker, topic, alert(1), alert(2), closed(1, 3), closed(2, 4))
    receiver.wait_for(lambda requests: any(one.json["kind"] == "closed" for one in requests))
    first.process.communicate()
    receiver.answer = None
    second = Command(broker, topic, "--webhook", receiver.url)
    expected = {f"sensors:0-{number}:{kind}" for number in (1, 2) for kind in ("opened", "closed")}
    receiver.wait_for(lambda requests: len(requests) > 4 and set(names(receiver)) == expected)
    second.stop()
    assert set(names(receiver)) == expected
    assert len(names(receiver)) > 4, "the one that was answered and not committed came again"


def test_what_comes_after_a_kill_of_one_that_was_ready_is_told(broker: Broker, topic: str, receiver: Receiver) -> None:
    write(broker, topic, alert(1))
    first = Command(broker, topic, "--webhook", receiver.url)
    first.ready()
    first.kill()
    write(broker, topic, alert(2))
    second = Command(broker, topic, "--webhook", receiver.url)
    receiver.wait_for(lambda requests: bool(requests))
    second.stop()
    assert names(receiver) == ["sensors:0-2:opened"]


def test_alerts_in_partitions_that_are_added_are_all_told(broker: Broker, receiver: Receiver, real_kafka: None) -> None:
    """Also those that come before the partition is assigned; those before the first start are not told."""
    topic = unique("alerts")
    broker.create_topic(topic, 1)
    write(broker, topic, alert(1))
    first = Command(broker, topic, "--webhook", receiver.url)
    first.ready()
    broker.grow_topic(topic, 3)
    write(broker, topic, *(alert(number) for number in range(10, 40)))
    receiver.wait_for(lambda requests: len(set(names(receiver))) == 30)
    first.kill()
    broker.grow_topic(topic, 5)
    write(broker, topic, *(alert(number) for number in range(50, 80)))  # while nobody reads
    second = Command(broker, topic, "--webhook", receiver.url)
    expected = {f"sensors:0-{number}:opened" for number in (*range(10, 40), *range(50, 80))}
    receiver.wait_for(lambda requests: set(names(receiver)) == expected)
    second.stop()


@pytest.mark.parametrize("before", [2, 12])
def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    broker: Broker, receiver: Receiver, real_kafka: None, before: int
) -> None:
    topic = unique("alerts")
    broker.create_topic(topic, 1)
    write(broker, topic, *map(alert, range(200, 200 + before)))  # before the first start, so they are not told
    command = Command(broker, topic, "--webhook", receiver.url)
    command.ready()
    write(broker, topic, *map(alert, range(before)))
    receiver.wait_for(lambda requests: len(requests) == before)
    wait_for(lambda: broker.committed(f"{topic}-notify", topic) == 2 * before, "the commit")
    broker.delete_topic(topic)
    broker.create_topic(topic, 1)
    write(broker, topic, *map(alert, range(100, 107)))
    expected = {f"sensors:0-{number}:opened" for number in (*range(before), *range(100, 107))}
    receiver.wait_for(lambda requests: set(names(receiver)) == expected)
    wait_for(lambda: broker.committed(f"{topic}-notify", topic) == 7, "the commit")
    command.stop()


def test_odd_records_stop_nothing(broker: Broker, topic: str, receiver: Receiver) -> None:
    odd = [alert(2, surprise=1 << 70), alert(3, timestamp=10**17), alert(4, key={"a": 1}), alert(5, reasons={"a": 1})]
    command = Command(broker, topic, "--webhook", receiver.url, "--start", "earliest")
    broker.produce(topic, [b"", b"\xff", b"[" * 100_000, b'{"fomo": NaN}'], ["k"] * 4)
    write(broker, topic, *odd, alert(9))
    receiver.wait_for(lambda requests: len(requests) == len(odd) + 1)
    wait_for(lambda: broker.committed(f"{topic}-notify", topic) == len(odd) + 5, "the commit")
    command.stop()
    assert set(names(receiver)) == {f"sensors:0-{number}:opened" for number in (2, 3, 4, 5, 9)}


def test_two_instances_share_the_work(broker: Broker, topic: str, receiver: Receiver) -> None:
    both = [Command(broker, topic, "--webhook", receiver.url) for _ in range(2)]
    for one in both:
        one.ready()
    write(broker, topic, *(alert(number) for number in range(100)))
    wait_for(lambda: len(set(names(receiver))) == 100, "all messages")
    both[0].stop()
    write(broker, topic, *(alert(number) for number in range(100, 200)))
    wait_for(lambda: len(set(names(receiver))) == 200, "all messages")
    both[1].stop()


def test_a_dry_run_prints_all_messages_and_commits_nothing(broker: Broker, topic: str) -> None:
    write(broker, topic, alert(1), closed(1, 5, 2), alert(2000), keys=["pump-7"] * 3)
    settings = parse(
        NotifySettings, ["--bootstrap", broker.bootstrap, "--alerts", topic, "--dry-run"], command="notify"
    )
    out = io.StringIO()
    rehearse(settings, out)
    titles = [line for line in out.getvalue().splitlines() if line and not line.startswith(" ")]
    assert titles == [
        "WARNING: outlier in sensors pump-7",
        "ENDED: outlier in sensors pump-7 after 4 s",
        "WARNING: outlier in sensors pump-7",
    ]
    assert broker.committed(settings.group, topic) == 0
    with pytest.raises(ConfigError, match="did you mean"):
        rehearse(settings.model_copy(update={"to": ("slak://x",)}), out)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc, which is Linux's")
def test_ten_thousand_open_incidents_take_little_memory_and_load_no_numerical_library(
    broker: Broker, topic: str, receiver: Receiver
) -> None:
    command = Command(broker, topic, "--webhook", receiver.url, "--start", "earliest")
    write(broker, topic, *map(alert, range(10_000)))
    receiver.wait_for(lambda requests: len(requests) == 10_000, 300)
    status = Path(f"/proc/{command.process.pid}/status").read_text()
    maps = Path(f"/proc/{command.process.pid}/maps").read_text()
    command.stop()
    highest = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    assert highest < MOST_MIB << 10
    assert not [name for name in ("numpy", "torch", "numba", "sklearn", "scipy") if f"/{name}" in maps]


def test_records_with_a_schema_are_read(
    broker: Broker, topic: str, receiver: Receiver, registry_url: str, real_kafka: None
) -> None:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from fastavro import parse_schema, schemaless_writer

    from fomo_stream.records.result_schema import RESULT, as_written

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
    with Proxy(registry_url) as proxy:
        flags = ["--webhook", receiver.url, "--registry", proxy.url, "--start", "earliest"]
        first = Command(broker, topic, *flags)
        first.ready()
        proxy.fail(503)
        broker.produce(topic, [*values, b'{"no": "schema"}'], ["pump-7"] * 3)
        wait_for(lambda: first.get("/readyz") == "", "the registry to be missed")
        first.stop()
        assert broker.committed(f"{topic}-notify", topic) == 0, "nothing is passed over"
        proxy.heal()
        second = Command(broker, topic, *flags)
        opened, ended = (one.json for one in receiver.wait_for(lambda requests: len(requests) == 2, 60))
        wait_for(lambda: broker.committed(f"{topic}-notify", topic) == 3, "the commit")
        second.stop()
    assert (opened["kind"], ended["kind"], ended["alerts"]) == ("opened", "closed", 2)
    assert (opened["key"], opened["reasons"][0]["value"], opened["reasons"][0]["low"]) == ("pump-7", 9.0, 2.0)
