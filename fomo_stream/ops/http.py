"""HTTP: probes, metrics and the status page on one port. Nothing can be changed through it.

One thread answers everybody from an event loop. A client that sends nothing, or that does not read its answer, holds a
connection but no thread. When there are too many connections the oldest is closed, so a probe is always answered.

A browser lets no other site read the answers. But a site can give its own name the address 127.0.0.1 (DNS rebinding).
So a server that only this machine can reach answers no request for another name than `localhost`. Where others can
reach it, the names that they use are not known: there the network has to be restricted.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

from fomo_stream.errors import ConfigError
from fomo_stream.logs import Throttle, kv, place_of
from fomo_stream.ops.metrics import CONTENT_TYPE

log = logging.getLogger(__name__)

CONNECTIONS = 32  # open at the same time
PATIENCE_S = 10.0  # from the beginning of a connection to its end
MAX_REQUEST = 16 << 10  # bytes of a request line with its headers

JSON = "application/json"
PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/status.css": ("status.css", "text/css; charset=utf-8"),
    "/status.js": ("status.js", "text/javascript; charset=utf-8"),
}
HEADERS = (
    "Cache-Control: no-store",
    "Connection: close",
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy: same-origin",
    "Referrer-Policy: no-referrer",
    "X-Content-Type-Options: nosniff",
)


@dataclass(frozen=True)
class Sources:
    """Where the answers come from. They are called from the thread of the server, and must not block."""

    live: Callable[[], list[str]]  # reasons to restart the process; empty when all is well
    ready: Callable[[], list[str]]  # reasons why records are not being scored
    metrics: Callable[[], bytes]  # in the text format of Prometheus
    status: Callable[[], bytes]  # data of the page, as JSON


class Answer(NamedTuple):
    """The answer to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes
    more: tuple[str, ...] = ()  # headers


class HttpServer:
    """Answers GET and HEAD in a thread of its own.

    host: an address of this machine or a name of one; `0.0.0.0` and `::` are all addresses. port: 0 takes a free one.
    Raises ConfigError when it cannot listen there.

    >>> import urllib.request
    >>> sources = Sources(live=lambda: [], ready=lambda: [], metrics=lambda: b"", status=lambda: b"{}")
    >>> with HttpServer("127.0.0.1", 0, sources) as server:
    ...     urllib.request.urlopen(f"http://127.0.0.1:{server.port}/readyz").read()
    b'{"ok": true, "reasons": []}'
    """

    def __init__(self, host: str, port: int, sources: Sources) -> None:
        folder = Path(__file__).with_name("page")
        self._pages = {path: (kind, (folder / name).read_bytes()) for path, (name, kind) in PAGE.items()}
        self._sources = sources
        self._sockets = _listen(host, port)
        self.port = int(self._sockets[0].getsockname()[1])
        self._is_local = all(_is_loopback(found) for found in self._sockets)
        self._open: dict[asyncio.Task[None], None] = {}  # connections, oldest first
        self._throttle = Throttle()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="fomo-http", daemon=True)

    def __enter__(self) -> HttpServer:
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    # --- connections --------------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        servers = [await asyncio.start_server(self._serve, sock=sock, limit=MAX_REQUEST) for sock in self._sockets]
        await self._stopping.wait()
        for server in servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        self._open[task] = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(await self._read_and_answer(reader))
                writer.write_eof()
                # The connection is closed when the client has closed its side. Closed earlier, with bytes that are not
                # read yet, the client could lose the answer.
                while await reader.read(MAX_REQUEST):
                    pass
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            pass  # a client that waits too long, or disconnects
        finally:
            writer.transport.abort()
            self._open.pop(task, None)

    async def _read_and_answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            status, reason = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"at most {MAX_REQUEST} bytes of headers"
            return _encode(_refusal(status, reason), has_body=True)
        line, *headers = head.decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            return _encode(_refusal(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request"), has_body=True)
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
        return _encode(self._answer(method, target, fields.get("host")), method != "HEAD")

    # --- answers ------------------------------------------------------------------------------------------

    def _answer(self, method: str, target: str, host: str | None) -> Answer:
        if self._is_local and host is not None and not _is_address(host):
            reason = "this server is for this machine: ask for an address or localhost; see --http-host"
            return _refusal(HTTPStatus.FORBIDDEN, reason)
        if method not in ("GET", "HEAD"):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or HEAD", "Allow: GET, HEAD")
        path = target.split("?", 1)[0]
        try:
            return self._content(path)
        except Exception as error:  # a defect of this program; probes must go on
            if self._throttle.allow(path) is not None:  # not its message, which could hold contents of a record
                log.error(kv("http_failed", path=path, error=type(error).__name__, at=place_of(error)))
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "this failed; see the log")

    def _content(self, path: str) -> Answer:
        sources = self._sources
        if path in self._pages:
            return Answer(HTTPStatus.OK, *self._pages[path])
        if path == "/status.json":
            return Answer(HTTPStatus.OK, JSON, sources.status())
        if path == "/metrics":
            return Answer(HTTPStatus.OK, CONTENT_TYPE, sources.metrics())
        if path in ("/livez", "/readyz"):
            reasons = sources.live() if path == "/livez" else sources.ready()
            return _check(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, reasons)
        reason = "unknown path; use /livez, /readyz, /metrics, / or /status.json"
        return _refusal(HTTPStatus.NOT_FOUND, reason)


def _check(status: HTTPStatus, reasons: list[str], *more: str) -> Answer:
    return Answer(status, JSON, json.dumps({"ok": not reasons, "reasons": reasons}).encode(), more)


def _refusal(status: HTTPStatus, reason: str, *more: str) -> Answer:
    return _check(status, [reason], *more)


def _encode(answer: Answer, has_body: bool) -> bytes:
    lines = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        *HEADERS,
        *answer.more,
    )
    return "\r\n".join((*lines, "", "")).encode("ascii") + (answer.body if has_body else b"")


def _is_address(host: str) -> bool:
    """Whether a Host header is an IP address or `localhost`: no other site can have such a name."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name != "localhost" and not name.endswith(".localhost"):
            ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(sock: socket.socket) -> bool:
    return ip_address(sock.getsockname()[0]).is_loopback


def _listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of `host` that this machine has. Raises ConfigError if there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _wrong_host(host, "there is no such host") from None
    sockets: list[socket.socket] = []
    for family, *_, address in dict.fromkeys(found):
        at = (str(address[0]), sockets[0].getsockname()[1] if sockets else port)
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        try:
            sockets.append(socket.create_server(at, family=family, backlog=CONNECTIONS, dualstack_ipv6=both))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # a name such as localhost may have an IPv6 address that this machine has not
            for sock in sockets:
                sock.close()
            advice = "choose a port above 1023" if error.errno == errno.EACCES else "choose a free port"
            raise ConfigError(f"--health-port {port}: {os.strerror(error.errno or 0)}; {advice}") from None
    if not sockets:
        raise _wrong_host(host, "it is no address of this machine")
    return sockets


def _wrong_host(host: str, reason: str) -> ConfigError:
    return ConfigError(
        f"--http-host {host}: {reason}; use 127.0.0.1 for this machine alone, or 0.0.0.0 (with IPv6: ::) for all"
    )
