"""The pre-stop script of the chart, with an API server and a process to tell about its end."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer, api_server, pre_stop, stateful_set
from brokers import wait_for
from charts import plain

POD = "fomo-2"

# Says `ready`, then waits for its end. Says `left` on SIGUSR1. Its log is standard error, as that of the service.
PROCESS = """
import os, signal, sys
def say(word):
    os.write(2, word + b"\\n")  # at once, because the script writes there too
signal.signal(signal.SIGUSR1, lambda *_: say(b"left"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
say(b"ready")
while True:
    signal.pause()
"""


class Process:
    """A process that notes SIGUSR1."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with open(log, "ab") as output:
            self.popen = subprocess.Popen([sys.executable, "-c", PROCESS], stderr=output)
        wait_for(lambda: "ready" in self.log.read_text(), "the process to start")

    def end(self) -> str:
        """Stop it; all that it and the script wrote."""
        self.popen.terminate()
        assert self.popen.wait(60) == 0
        return self.log.read_text()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path / "log")
    yield process
    process.popen.kill()
    process.popen.wait()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server(stateful_set(3), "fomo") as server:
        yield server


def run(process: Process, server: ApiServer, folder: Path, *options: str, scheme: str = "http") -> str:
    """Run the script, then stop the process: everything in its log."""
    url = f"{scheme}://127.0.0.1:{server.http.server_port}"
    done = pre_stop(folder / "account", process.popen.pid, POD, url, *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return process.end()


@pytest.mark.parametrize(
    ("found", "leaves"),
    [
        (stateful_set(3), False),  # a rolling restart, or the drain of a node
        (stateful_set(9), False),
        (stateful_set(2), True),  # a scale-in by one
        (stateful_set(0), True),
        (stateful_set(3, deletionTimestamp="2025-01-01T00:00:00Z"), True),
        (None, True),
        ({"metadata": {}, "spec": {"replicas": 1, "ordinals": {"start": 2}}}, False),
        ({"metadata": {}, "spec": {"replicas": 1, "ordinals": {"start": 1}}}, True),
    ],
)
def test_an_instance_leaves_only_when_its_pod_does_not_come_back(
    found: dict[str, Any] | None, leaves: bool, process: Process, server: ApiServer, tmp_path: Path
) -> None:
    server.found = found
    log = run(process, server, tmp_path)
    assert ("left" in log.splitlines()) == leaves
    assert f"pre_stop pod={POD} leaves={str(leaves).lower()} reason=" in log
    assert server.requests == ["/apis/apps/v1/namespaces/scoring/statefulsets/fomo"]


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_an_answer_that_says_nothing_changes_nothing(
    status: int, process: Process, server: ApiServer, tmp_path: Path
) -> None:
    server.found, server.status = stateful_set(0), status
    log = run(process, server, tmp_path)
    assert "left" not in log.splitlines()
    assert f"not known, so it stays a member: HTTPError: HTTP Error {status}" in log


def test_an_answer_that_is_no_stateful_set_changes_nothing(process: Process, server: ApiServer, tmp_path: Path) -> None:
    server.found = {"kind": "Status"}
    log = run(process, server, tmp_path)
    assert "left" not in log.splitlines()
    assert "not known" in log


def test_a_server_that_does_not_answer_changes_nothing(process: Process, server: ApiServer, tmp_path: Path) -> None:
    server.found = stateful_set(0)
    server.silent.set()
    log = run(process, server, tmp_path, "--timeout=0.5")
    assert server.requests
    assert "left" not in log.splitlines()
    assert "leaves=false" in log


def test_a_server_that_is_not_there_changes_nothing(process: Process, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert pre_stop(tmp_path / "account", process.popen.pid, POD, url).returncode == 0
    assert "leaves=false" in process.end()


@pytest.mark.parametrize("pod", ["", "fomo", "fomo-x"])
def test_a_pod_without_a_number_changes_nothing(pod: str, process: Process, server: ApiServer, tmp_path: Path) -> None:
    server.found = None
    url = f"http://127.0.0.1:{server.http.server_port}"
    assert pre_stop(tmp_path / "account", process.popen.pid, pod, url).returncode == 0
    assert "left" not in process.end().splitlines()


def test_a_process_that_is_gone_is_no_error(process: Process, server: ApiServer, tmp_path: Path) -> None:
    process.end()
    server.found = None
    url = f"http://127.0.0.1:{server.http.server_port}"
    done = pre_stop(tmp_path / "account", process.popen.pid, POD, url)
    assert done.returncode == 0
    assert "ProcessLookupError" in done.stderr


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """The folder of a service account with the certificate of a server at 127.0.0.1, and its key `key.pem`."""
    folder = tmp_path / "account"
    folder.mkdir()
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.crt")]
    subprocess.run(words, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("is_trusted", [True, False])
def test_the_certificate_of_the_server_is_checked(
    is_trusted: bool, process: Process, authority: Path, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "ca.crt", authority / "key.pem")
    if not is_trusted:
        bundle = Path(ssl.get_default_verify_paths().openssl_cafile)
        (authority / "ca.crt").write_text(bundle.read_text() if bundle.exists() else "")
    with api_server(stateful_set(2), "fomo", context) as server:
        log = run(process, server, tmp_path, scheme="https")
    assert ("left" in log.splitlines()) == is_trusted
    assert bool(server.requests) == is_trusted


def test_the_script_takes_the_options_of_the_chart(process: Process, server: ApiServer, tmp_path: Path) -> None:
    words = plain("default").container["lifecycle"]["preStop"]["exec"]["command"]
    assert words[:2] == ["python", "-I"]
    assert "leaves=false" in run(process, server, tmp_path, *words[3:])
