"""Serves probes, metrics and the status page on one HTTP port. Nothing can be changed through it.

A browser does not let other sites read the answers. But a site can point its own name to 127.0.0.1 (DNS rebinding). So
a server that only this machine can reach refuses requests for any name but `localhost`. Where other machines can reach
it, their names for it are not known: there the network has to be restricted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from ipaddress import ip_address
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fomo_stream.errors import ConfigError
from fomo_stream.logs import kv, raised_at

log = logging.getLogger(__name__)

Answer = tuple[HTTPStatus, str, bytes]  # status, Content-Type, body

MAX_CONNECTIONS = 32  # at the same time
MAX_REQUEST_BYTES = 16 << 10  # of a request
MAX_FIELDS = 10  # of a query
MAX_MADE = 8  # answers that are kept
FRESH_S = 1.0  # metrics and status are made once in this time, because making them takes time from scoring

JSON = "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus
PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/status.css": ("status.css", "text/css; charset=utf-8"),
    "/status.js": ("status.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class Endpoints:
    """The functions that make the answers. Threads of the server call them, so they must not block."""

    live: Callable[[], list[str]]  # reasons to restart the process; empty when all is well
    ready: Callable[[], list[str]]  # reasons why records are not being scored
    metrics: Callable[[], bytes]  # in the text format of Prometheus
    status: Callable[[str], bytes | None] | None = None  # data of the page as JSON, of a topic, or of all: ""


class HttpServer(ThreadingTCPServer):
    """Answers GET and HEAD, each connection in a thread. When there are too many connections, it closes the oldest.

    host: an address of this machine, or its name; `0.0.0.0` and `::` are all addresses. port: 0 takes a free one.
    patience_s: timeout of the whole request. Raises ConfigError when it cannot listen there.

    >>> import urllib.request
    >>> endpoints = Endpoints(live=lambda: [], ready=lambda: [], metrics=lambda: b"", status=lambda: b"{}")
    >>> with HttpServer("127.0.0.1", 0, endpoints) as server:
    ...     urllib.request.urlopen(f"http://127.0.0.1:{server.port}/readyz").read()
    b'{"ok": true, "reasons": []}'
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, endpoints: Endpoints, patience_s: float = 10.0) -> None:
        try:
            self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            super().__init__(address, _Handler)  # type: ignore[arg-type]  # IPv6 addresses have four parts
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "unknown host"
            raise ConfigError(
                f"cannot serve at --http-host {host}, --health-port {port}: {reason}",
                "use a free port above 1023, and the host 127.0.0.1 for this machine alone, or 0.0.0.0 (with IPv6: ::)",
            ) from None
        self.endpoints, self.patience_s = endpoints, patience_s
        self.port = int(self.server_address[1])
        self.is_local = ip_address(str(self.server_address[0])).is_loopback
        self._open: dict[Any, None] = {}  # connections, oldest first
        self._lock, self._making = threading.Lock(), threading.Lock()
        made = lru_cache(maxsize=MAX_MADE)(lambda make, words, _period: make(*words))
        self._made: Callable[[Callable[..., Any], tuple[str, ...], float], Any] = made
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="fomo-http", daemon=True)

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def fresh(self, make: Callable[..., Any], *words: str) -> Any:
        """Return the result of `make(*words)`, which is called once in FRESH_S seconds."""
        with self._making:
            return self._made(make, words, time.monotonic() // FRESH_S)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, so that a client that sends nothing does not block others."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread notices, and closes it
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has disconnected, or was too slow."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fomo-stream", ""
    server: HttpServer

    def handle(self) -> None:
        """Answer one request, which is read to the blank line after its headers, or until it is too long."""
        head, deadline = b"", time.monotonic() + self.server.patience_s
        while len(head) <= MAX_REQUEST_BYTES and b"\n\r\n" not in head and b"\n\n" not in head:
            self.connection.settimeout(max(deadline - time.monotonic(), 0.001))
            part = self.connection.recv(MAX_REQUEST_BYTES)
            if not part:
                break
            head += part
        self.connection.settimeout(self.server.patience_s)
        self.rfile = BytesIO(head)
        if len(head) > MAX_REQUEST_BYTES:
            self.requestline = self.command = ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self.handle_one_request()

    def do_GET(self) -> None:
        """Answer a request."""
        if self.server.is_local and not _is_address(self.headers.get("Host", "localhost")):
            reason = "this server is for this machine: ask for an address or localhost; see --http-host"
            self._send(*_json_answer([reason], HTTPStatus.FORBIDDEN))
            return
        path, _, query = self.path.partition("?")
        try:
            answer = self._answer(path, parse_qs(query, max_num_fields=MAX_FIELDS).get("topic", [""])[0])
        except Exception as error:  # a defect of this program; probes must go on
            # The message is not logged, because it could hold contents of a record.
            log.error(kv("http_failed", path=path, error=type(error).__name__, at=raised_at(error)))
            answer = _json_answer(["this failed; see the log"], HTTPStatus.INTERNAL_SERVER_ERROR)
        self._send(*answer)

    do_HEAD = do_GET  # noqa: N815 (http.server asks for this name)

    def send_error(self, code: int, message: str | None = None, _explain: str | None = None) -> None:
        """Refuse an invalid request, or a method other than GET and HEAD."""
        self.request_version = self.protocol_version  # else headers would be left out
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._send(*_json_answer(["use GET or HEAD"], HTTPStatus.METHOD_NOT_ALLOWED), {"Allow": "GET, HEAD"})
        else:  # without the message, which repeats the request
            self._send(*_json_answer([HTTPStatus(code).phrase], HTTPStatus(code)))

    def log_message(self, *_: object) -> None:
        """Log nothing for a request."""

    def _answer(self, path: str, topic: str) -> Answer:
        endpoints = self.server.endpoints
        if path in PAGE and endpoints.status is not None:
            name, kind = PAGE[path]
            return HTTPStatus.OK, kind, (Path(__file__).with_name("page") / name).read_bytes()
        if path == "/status.json" and endpoints.status is not None:
            body = self.server.fresh(endpoints.status, topic)
            return (
                _json_answer(["unknown topic"], HTTPStatus.NOT_FOUND) if body is None else (HTTPStatus.OK, JSON, body)
            )
        if path == "/metrics":
            return HTTPStatus.OK, METRICS, self.server.fresh(endpoints.metrics)
        if path in ("/livez", "/readyz"):
            reasons = endpoints.live() if path == "/livez" else endpoints.ready()
            return _json_answer(reasons, HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK)
        pages = "" if endpoints.status is None else ", / or /status.json"
        return _json_answer([f"unknown path; use /livez, /readyz, /metrics{pages}"], HTTPStatus.NOT_FOUND)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        content = {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in {**content, **HEADERS, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _json_answer(reasons: list[str], status: HTTPStatus) -> Answer:
    return status, JSON, json.dumps({"ok": not reasons, "reasons": reasons}).encode()


def _is_address(host: str) -> bool:
    """Return whether a Host header is an IP address or `localhost`: no site can have such a name."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name != "localhost" and not name.endswith(".localhost"):
            ip_address(name)
    except ValueError:
        return False
    return True
