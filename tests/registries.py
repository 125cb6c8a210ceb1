"""A schema registry for tests, and a proxy before it that fails on demand, as no real registry does.

`REGISTRY_HOME` holds an Apicurio Registry with `bin/registry-start PORT`, whose address has a path.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from brokers import free_ports, wait_for

Answer = tuple[int, bytes]  # status and body


def registry_home() -> Path | None:
    """Folder of the registry to use, if any."""
    home = os.environ.get("REGISTRY_HOME")
    return Path(home).resolve() if home else None


class Registry:
    """A registry of our own, in memory."""

    def __init__(self, home: Path) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, as it is closed in the end
        port = free_ports(1)
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        program = [str(home / "bin" / "registry-start"), str(port)]
        self._process = subprocess.Popen(program, stdout=self._log, stderr=self._log, start_new_session=True)

    def __enter__(self) -> Registry:
        try:
            wait_for(self._answers, "the registry to start", 120)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()

    def remove(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            self._log.seek(0)
            raise AssertionError(self._log.read()[-2000:].decode(errors="replace"))
        return answers(self.url)


def answers(url: str) -> bool:
    """Whether a registry is there."""
    try:
        with urlopen(f"{url}/subjects", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Proxy:
    """Passes requests on to a registry; its address has the same path. Each trouble lasts until `heal`."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._changed = threading.Condition()
        self._wants_login = ""  # the header Authorization that is wanted
        self._denied: re.Pattern[str] | None = None
        self._answer: Answer | None = None  # in place of the registry's
        self._hangs_up = False
        self._slow_s = 0.0
        self._troubles = 0  # that have been healed
        self.requests: list[tuple[str, str]] = []  # method and path
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}{self._upstream.path}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.heal()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def require_basic(self, user: str, password: str) -> None:
        self._wants_login = "Basic " + b64encode(f"{user}:{password}".encode()).decode()

    def require_bearer(self, token: str) -> None:
        self._wants_login = f"Bearer {token}"

    def deny(self, pattern: str) -> None:
        """Answer 403 to "METHOD /path" that match."""
        self._denied = re.compile(pattern)

    def fail(self, status: int) -> None:
        """Answer this to everything."""
        self._answer = status, json.dumps({"error_code": status, "message": "a failure on demand"}).encode()

    def garbage(self) -> None:
        """Answer what no registry says."""
        self._answer = 200, b"<html>a page</html>"

    def down(self) -> None:
        """Close every connection at once."""
        self._hangs_up = True

    def slow(self, seconds: float) -> None:
        """Wait so long before each answer, or until `heal`."""
        self._slow_s = seconds

    def heal(self) -> None:
        """End all troubles."""
        with self._changed:
            self._wants_login, self._denied, self._answer, self._hangs_up, self._slow_s = "", None, None, False, 0.0
            self._troubles += 1
            self._changed.notify_all()

    def wait_for(self, is_seen: Callable[[list[tuple[str, str]]], bool]) -> None:
        """Wait until the requests so far are as wanted."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_seen(self.requests), 60), self.requests

    def _reply(self, method: str, path: str, headers: Any, body: bytes) -> Answer | None:
        """None: the connection is closed without an answer."""
        with self._changed:
            self.requests.append((method, path))
            self._changed.notify_all()
            healed = self._troubles
            self._changed.wait_for(lambda: self._troubles > healed, self._slow_s)
        if self._hangs_up:
            return None
        if self._wants_login and headers.get("Authorization") != self._wants_login:
            return 401, b'{"error_code": 401, "message": "Unauthorized"}'
        if self._denied is not None and self._denied.match(f"{method} {path}"):
            return 403, b'{"error_code": 40301, "message": "Forbidden"}'
        return self._answer or self._passed_on(method, path, headers, body)

    def _passed_on(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self._upstream.hostname or "", self._upstream.port, timeout=60)
        own = {name: value for name, value in headers.items() if name.lower() in ("accept", "content-type")}
        connection.request(method, path, body or None, own)
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            connection.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = proxy._reply(self.command, self.path, self.headers, body)
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(answer[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            do_GET = do_POST = do_PUT = do_DELETE = _any  # noqa: N815, names of the base class

            def log_message(self, *_values: object) -> None:
                pass

        return Handler
