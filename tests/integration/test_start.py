"""Starting: mistakes end at once with one clear line; the schema and health are the group's and the operator's."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import socketserver
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import Broker, free_ports, wait_for
from services import Command, Running, make_settings, readings, unique

from fomo_stream.errors import BrokerError, ConfigError, SchemaError
from fomo_stream.kafka.broker import clients
from fomo_stream.kafka.broker.clients import make_producer
from fomo_stream.kafka.group.schema import KIND, GroupSchema
from fomo_stream.kafka.service import Service
from fomo_stream.model.zero_shot import ModelConfig, ZeroShotModel
from fomo_stream.records.schema import Schema


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--topic", "t", "--bootstrap", "127.0.0.1:1"], 7, "no broker answers at 127.0.0.1:1"),
        (["--topic", "no-such-topic", "--bootstrap", "BROKER"], 8, "--create --topic no-such-topic"),
        (["--topic", "t", "--model", "no-such-model"], 4, "no model named 'no-such-model'"),
        (["--topic", "t", "--model", "DAMAGED"], 4, "damaged.safetensors"),
    ],
)
def test_a_start_that_cannot_succeed_ends_and_says_what_to_do(
    broker: Broker, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00 truncated")
    names = {"BROKER": broker.bootstrap, "DAMAGED": str(damaged)}
    running = Command(tmp_path / "log", *(names.get(argument, argument) for argument in arguments))
    assert running.process.wait(60) == code, running.text()
    assert words in running.text()
    assert "Traceback" not in running.text()
    (line,) = (line for line in running.text().splitlines() if "compiling_kernels" not in line)
    assert line.startswith("fomo-stream: ")  # without lines of the Kafka client before it


class Relay:
    """A broker's address that begins to answer when this is entered: passes every byte on to the broker."""

    def __init__(self, port: int, broker: Broker) -> None:
        host, _, number = broker.bootstrap.rpartition(":")

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection((host, int(number))) as target:
                    sides = {self.request: target, target: self.request}
                    while True:
                        for side in select.select(list(sides), [], [])[0]:
                            data = side.recv(65536)
                            if not data:
                                return
                            sides[side].sendall(data)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.mark.parametrize("order", ["broker first", "service first"])
def test_an_instance_that_waits_starts_when_its_topic_is_there(
    broker: Broker, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "START_TIMEOUT_S", 1.0)
    if not broker.is_kafka:
        pytest.skip("the embedded broker creates a topic when it is asked about it")
    topic = unique("sensors")
    port = free_ports()
    bootstrap = broker.bootstrap if order == "broker first" else f"127.0.0.1:{port}"
    running = Running(make_settings(broker, topic, wait=True, bootstrap=bootstrap))
    why = f"there is no topic {topic}" if order == "broker first" else f"no broker answers at 127.0.0.1:{port}"
    with running, ExitStack() as stack:
        wait_for(lambda: why in "".join(running.service.not_ready()), "the reason for waiting")
        assert running.service.not_ready()[0].startswith("the service is waiting: ")
        assert running.service.snapshot().state == "waiting"
        assert running.service.not_live() == []
        broker.create_topic(topic)
        if order == "service first":
            stack.enter_context(Relay(port, broker))
        wait_for(lambda: running.service.ready, "the service to be ready")
        broker.produce(topic, readings(60))
        assert len(broker.read(f"{topic}-scores", at_least=60)) == 60


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells which signals a process handles")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_is_not_lost_while_the_process_is_still_loading(tmp_path: Path, number: int, code: int) -> None:
    running = Command(tmp_path / "log", "--topic", "t", "--bootstrap", "127.0.0.1:1", "--wait")

    def handled() -> int:
        status = Path(f"/proc/{running.process.pid}/status").read_text()
        return int(re.search(r"SigCgt:\s+(\w+)", status)[1], 16)  # type: ignore[index]

    # Python itself handles SIGINT from the beginning; the handler of SIGTERM is the last one that the service sets.
    wait_for(lambda: handled() >> (signal.SIGTERM - 1) & 1, "the handlers")
    running.process.send_signal(number)
    assert running.process.wait(60) == code, running.text()
    assert "stopping signal=" in running.text()
    assert "Traceback" not in running.text()


def test_an_instance_that_waits_can_be_stopped(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "START_TIMEOUT_S", 1.0)
    running = Running(make_settings(broker, "t", wait=True, bootstrap="127.0.0.1:1"))
    with running:
        wait_for(lambda: running.service.snapshot().state == "waiting", "the service to wait")


def test_an_instance_does_not_wait_for_a_mistake_to_go_away(broker: Broker) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    with Running(make_settings(broker, topic)) as first:
        wait_for(lambda: first.scores(0), "the partition")
        with pytest.raises(ConfigError, match="choose another --group"):
            Service(make_settings(broker, topic, wait=True, out=f"{topic}-other")).run()


def test_the_earliest_proposal_is_the_schema_of_all_who_propose_at_once(broker: Broker) -> None:
    topic = unique("sensors")
    settings = make_settings(broker, topic)
    broker.create_topic(settings.state_topic, config={"cleanup.policy": "compact"})
    together = threading.Barrier(4)

    def propose(number: int) -> Schema:
        together.wait()
        return GroupSchema(settings).agree(Schema((f"feature{number}",)))

    with ThreadPoolExecutor(4) as pool:
        agreed = set(pool.map(propose, range(4)))
    assert len(agreed) == 1
    assert GroupSchema(settings).stored() in agreed


def test_other_keys_in_the_state_topic_are_ignored(broker: Broker) -> None:
    settings = make_settings(broker, unique("sensors"))
    broker.create_topic(settings.state_topic, config={"cleanup.policy": "compact"})
    producer = make_producer(settings)
    for key, names in ((b"other", ["x"]), (KIND + b"1", ["a", "b"]), (KIND + b"2", ["c"])):
        producer.produce(settings.state_topic, key=key, value=json.dumps({"features": names}), partition=0)
    assert producer.flush(20) == 0
    assert GroupSchema(settings).stored() == Schema(("a", "b"))


def test_features_that_differ_from_the_groups_are_refused(broker: Broker) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    with Running(make_settings(broker, topic)) as running:
        wait_for(lambda: running.service.ready, "the service to be ready")
    other = Running(make_settings(broker, topic, features="temperature"))
    with pytest.raises(ConfigError, match="choose another --group"), other:
        wait_for(lambda: not other._thread.is_alive(), "the service to refuse")


@pytest.mark.parametrize(
    "content",
    [{"features": ["a"], "categorical": ["b"]}, {"features": ["a"], "categorical": "a"}, {"categorical": []}, 3],
)
def test_an_unreadable_stored_schema_is_an_error_that_says_so(broker: Broker, content: object) -> None:
    settings = make_settings(broker, unique("sensors"))
    broker.create_topic(settings.state_topic, config={"cleanup.policy": "compact"})
    producer = make_producer(settings)
    producer.produce(settings.state_topic, key=KIND + b"1", value=json.dumps(content), partition=0)
    assert producer.flush(20) == 0
    with pytest.raises(BrokerError, match="not readable"):
        GroupSchema(settings).stored()


def test_too_many_features_are_refused_before_the_group_is_bound_to_them(broker: Broker) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    narrow = ZeroShotModel(ModelConfig(raw_features=1, layers=1, width=8, heads=2, feed_forward=16, routers=4))
    settings = make_settings(broker, topic)
    running = Running(settings, narrow.eval())
    with pytest.raises(SchemaError, match="takes up to 1 features"), running:
        wait_for(lambda: not running._thread.is_alive(), "the service to refuse")
    assert GroupSchema(settings).stored() is None


def test_health_says_ready_or_why_not(broker: Broker) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    broker.produce(topic, readings(10))
    port = free_ports()

    def ask(path: str) -> tuple[int, list[str]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                return answer.status, json.loads(answer.read())["reasons"]
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["reasons"]
        except urllib.error.URLError:
            return 0, []

    with Running(make_settings(broker, topic, health_port=port)):
        wait_for(lambda: ask("readyz") == (200, []), "the service to be ready")
        assert ask("livez") == (200, [])
        assert ask("other")[0] == 404
    assert ask("livez")[0] == 0


def test_a_seed_context_that_is_too_small_is_refused_before_the_group_is_bound(broker: Broker, tmp_path: Path) -> None:
    topic = unique("sensors")
    broker.create_topic(topic)
    seed = tmp_path / "normal.csv"
    seed.write_text("temperature,motor.rpm\n1,2\n3,4\n5,6\n")
    settings = make_settings(broker, topic, seed_context=seed)
    with pytest.raises(SchemaError, match="has 3 usable rows; at least 4 are needed"):
        Service(settings).run()
    assert GroupSchema(settings).stored() is None


def test_an_output_topic_that_is_deleted_makes_it_not_ready(broker: Broker) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker cannot delete topics")
    topic = unique("sensors")
    broker.create_topic(topic)
    with Running(make_settings(broker, topic)) as running:
        wait_for(lambda: running.service.ready, "the service to be ready")
        broker.admin.delete_topics([f"{topic}-scores"])[f"{topic}-scores"].result()
        wait_for(lambda: not running.service.ready, "the service to notice")
        assert running.service.not_ready() == [f"topic {topic}-scores does not exist any more"]
        broker.create_topic(f"{topic}-scores")
        wait_for(lambda: running.service.ready, "the service to be ready again")
