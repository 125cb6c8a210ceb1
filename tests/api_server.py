"""The part of a Kubernetes API server that the chart's pre-stop script asks, and the script itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import SSLContext
from typing import Any

SCRIPT = Path(__file__).parents[1] / "deploy" / "chart" / "files" / "pre_stop.py"
TOKEN = "the-token"


class ApiServer:
    """Serves one StatefulSet, to those who have the token. found: None for an object that does not exist."""

    def __init__(self, path: str, found: dict[str, Any] | None) -> None:
        self.path = path
        self.found = found
        self.status = 200  # of the answer about the object
        self.silent = threading.Event()  # set: take requests, and answer none
        self.stopping = threading.Event()
        self.requests: list[str] = []
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, Any]]:
        """Status and body, after any wait."""
        self.requests.append(path)
        if self.silent.is_set():
            self.stopping.wait()
        if authorization != f"Bearer {TOKEN}":
            return 401, {"kind": "Status"}
        if path != self.path:
            return 403, {"kind": "Status"}
        return (404, {"kind": "Status"}) if self.found is None else (self.status, self.found)


def handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    """What answers the requests to `server`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, answer = server.answer(self.path, self.headers["Authorization"])
            body = json.dumps(answer).encode()
            with suppress(OSError):  # the script did not wait for the answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def api_server(found: dict[str, Any] | None, name: str, tls: SSLContext | None = None) -> Iterator[ApiServer]:
    """A server that has the StatefulSet `name` in the namespace `scoring`."""
    server = ApiServer(f"/apis/apps/v1/namespaces/scoring/statefulsets/{name}", found)
    if tls is not None:
        server.http.socket = tls.wrap_socket(server.http.socket, server_side=True)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.http.shutdown()
        server.http.server_close()
        thread.join()


def stateful_set(replicas: int, **metadata: str) -> dict[str, Any]:
    """A StatefulSet as the API server shows it, as far as the script looks at it."""
    return {"kind": "StatefulSet", "metadata": metadata, "spec": {"replicas": replicas}}


def pre_stop(folder: Path, pid: int, pod: str, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the script, as Kubernetes does in the pod, for another process than the first one."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(TOKEN)
    (folder / "namespace").write_text("scoring")
    words = [sys.executable, "-I", str(SCRIPT), f"--pid={pid}", f"--api={url}", f"--account={folder}", *options]
    environment = {**os.environ, "FOMO_INSTANCE_ID": pod, "HTTP_PROXY": "http://127.0.0.1:9"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
