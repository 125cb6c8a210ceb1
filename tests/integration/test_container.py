"""The service as its container starts it: the image's command, environment and user, where nothing can be written."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, free_ports, wait_for
from container import IMAGE, Container, close_to_writers, contents, copy_kernels, environment, read_only_folder, run
from documents import ROOT
from services import CLIENT, readings, unique

TERMINATION_S = 30  # as deploy/README.md says: what an orchestrator should wait


def own_address() -> str:
    """An address of this machine that is not loopback; skips where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # for documentation only; nothing is sent
            address = str(probe.getsockname()[0])
        except OSError:
            address = socket.gethostbyname(socket.gethostname())
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return address


def get(url: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def answers(url: str) -> bool:
    try:
        return bool(get(url))
    except OSError:
        return False


@pytest.fixture
def kernels() -> Iterator[Path]:
    with read_only_folder() as folder:
        copy_kernels(folder, ROOT / "fomo_stream")
        close_to_writers(folder)
        yield folder


def settings_for(broker: Broker, topic: str, port: int) -> dict[str, str]:
    return {
        "FOMO_BOOTSTRAP": broker.bootstrap,
        "FOMO_TOPIC": topic,
        "FOMO_GROUP": f"group-{topic}",
        "FOMO_FEATURES": "temperature,motor.rpm",
        "FOMO_MIN_CONTEXT": "50",
        "FOMO_ALERT_RATE": "0.05",
        "FOMO_DELIVERY": "exactly-once" if broker.is_kafka else "at-least-once",
        "FOMO_HEALTH_PORT": str(port),
        **{f"FOMO_KAFKA_{name.replace('.', '_').upper()}": value for name, value in CLIENT.items()},
    }


def test_the_image_starts_serves_and_stops_as_a_container(broker: Broker, kernels: Path) -> None:
    topic, port, marker = unique("sensors"), free_ports(), "marker-of-a-value"
    base = f"http://{own_address()}:{port}"
    given = environment(kernels, **settings_for(broker, topic, port))
    before = contents(kernels)
    with Container(given) as container:

        def ready() -> bool:
            assert container.process.poll() is None, container.log
            return answers(f"{base}/readyz") and get(f"{base}/readyz")[0] == 200

        wait_for(lambda: container.process.poll() is not None or answers(f"{base}/livez"), "an answer", 60)
        assert container.process.poll() is None, container.log
        if broker.is_kafka:  # it started first, and waits for the topic
            assert get(f"{base}/livez")[0] == 200
            status, _, body = get(f"{base}/readyz")
            assert (status, json.loads(body)["ok"]) == (503, False)
        assert run(IMAGE.healthcheck, given).returncode == 0

        broker.create_topic(topic)
        wait_for(ready, "the service to be ready", 60)
        broker.produce(topic, [{**record, "site": marker} for record in readings(400)])
        assert len(broker.read(f"{topic}-scores", at_least=400)) == 400

        status, kind, metrics = get(f"{base}/metrics")
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        wait_for(lambda: value(get(f"{base}/metrics")[2], "fomo_records_total") == 400, "the metric of records")
        assert value(metrics, "fomo_ready") == 1
        status, kind, page = get(f"{base}/")
        assert (status, kind.split(";")[0]) == (200, "text/html")
        status, _, data = get(f"{base}/status.json")
        assert status == 200
        assert json.loads(data)
        assert marker not in metrics + page + data

        container.process.terminate()
        assert container.process.wait(TERMINATION_S) == 0, container.log
    assert broker.committed(f"group-{topic}", topic) == 400
    assert "compiling_kernels" not in container.log
    assert contents(kernels) == before


def value(exposition: str, name: str) -> Any:
    """The value of a metric without labels."""
    (line,) = [line for line in exposition.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])
