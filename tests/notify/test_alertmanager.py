"""A real Alertmanager: an incident fires, and is resolved at its end."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from brokers import free_ports, wait_for
from made_alerts import alert, closed, event
from receivers import Receiver, receiving
from tools import needed

from fomo_stream.cli.parser import parse
from fomo_stream.notify.messages import message_of
from fomo_stream.notify.targets import Answer, targets_of
from fomo_stream.settings.notify import NotifySettings


@pytest.fixture
def webhook() -> Iterator[Receiver]:
    """Where Alertmanager sends its notifications."""
    with receiving() as made:
        yield made


@pytest.fixture
def alertmanager(tmp_path: Path, webhook: Receiver) -> Iterator[str]:
    program = needed("prometheus-alertmanager", "prometheus-alertmanager")
    config: dict[str, Any] = {
        "route": {"receiver": "test", "group_wait": "0s", "group_interval": "1s", "group_by": ["incident"]},
        "receivers": [{"name": "test", "webhook_configs": [{"url": webhook.url}]}],
    }
    (tmp_path / "config.yml").write_text(json.dumps(config))
    port = free_ports(1)
    command = [program, f"--config.file={tmp_path / 'config.yml'}", f"--storage.path={tmp_path / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            try:
                return bool(urllib.request.urlopen(f"{url}/-/ready", timeout=1).status == 200)
            except OSError:
                return False

        try:
            wait_for(answers, "Alertmanager to start")
            yield url
        finally:
            process.terminate()


def known(url: str) -> list[dict[str, Any]]:
    """The alerts that Alertmanager holds to be active."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts?active=true", timeout=5) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def test_an_incident_fires_and_is_resolved(alertmanager: str, webhook: Receiver) -> None:
    flags = ["--alerts", "alerts", "--alertmanager", f"{alertmanager}/", "--status-url", "http://status.example.com"]
    (target,) = targets_of(parse(NotifySettings, flags, command="notify"))
    assert target.send(message_of("opened", event(alert(7)))) == Answer("sent")
    assert target.send(message_of("opened", event(alert(70)))) == Answer("sent")
    (fired, _) = webhook.wait_for(lambda requests: len(requests) == 2)
    active = next(one for one in known(alertmanager) if one["labels"]["incident"] == "0-7")
    place = {"alertname": "FomoOutlier", "topic": "sensors", "partition": "0", "key": "pump-7"}
    assert active["labels"] == {**place, "severity": "warning", "incident": "0-7"}
    assert set(active["annotations"]) == {"summary", "description"}
    assert active["annotations"]["summary"] == "WARNING: outlier in sensors pump-7"
    assert (active["startsAt"], active["generatorURL"]) == ("2025-10-09T08:53:27.000Z", "http://status.example.com")
    ends = datetime.fromisoformat(active["endsAt"]).timestamp()
    assert abs(ends - time.time() - 7 * 86_400) < 3600

    assert target.send(message_of("closed", event(closed(7, 9, 3, severity="critical"), None))) == Answer("sent")
    resolved = webhook.wait_for(lambda requests: len(requests) == 3)[-1]
    assert [one.json["status"] for one in (fired, resolved)] == ["firing", "resolved"]
    assert resolved.json["alerts"][0]["labels"] == active["labels"]
    assert [one["labels"]["incident"] for one in known(alertmanager)] == ["0-70"]
