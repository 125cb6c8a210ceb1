"""Exchanges JSON over HTTP with targets that are programs, and says what the answer means."""

from __future__ import annotations

import base64
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from urllib.parse import SplitResult, unquote

from fomo_stream import __version__
from fomo_stream.notify.delivery import Answer

PATIENCE = 3  # a whole exchange may take so many times the timeout: a server may send a byte at a time
LARGEST = 1 << 20  # bytes of an answer that are read
AGAIN = (408, 425, 429)  # statuses below 500 after which it is tried again


class Poster:
    """Exchanges JSON. It follows no redirect, which could take a secret to another host.

    timeout: seconds. Several threads may use it.
    """

    def __init__(self, context: ssl.SSLContext, timeout: float) -> None:
        self._context, self._timeout = context, timeout

    def exchange(
        self, url: SplitResult, body: bytes | None = None, more: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Answer, bytes]:
        """POST a body, or GET, and what the server says, cut after LARGEST; to a POST only the status is read.

        Raises nothing that a network or a server can cause.
        """
        headers = {"Content-Type": "application/json", "User-Agent": f"fomo-stream/{__version__}", **more}
        if url.username is not None:
            pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        path, host = (url.path or "/") + (f"?{url.query}" if url.query else ""), url.hostname or ""
        end = time.monotonic() + PATIENCE * self._timeout
        try:
            connection = http.client.HTTPConnection(host, url.port, timeout=self._timeout)
            if url.scheme == "https":
                connection = http.client.HTTPSConnection(host, url.port, timeout=self._timeout, context=self._context)
            with closing(connection), _broken_at(connection, end) as sockets:
                connection.connect()
                sockets.append(connection.sock)
                connection.request("GET" if body is None else "POST", path, body, headers)
                response = connection.getresponse()
                answer = answer_of(response.status, response.headers.get("Retry-After", ""))
                said = response.read(LARGEST) if body is None else b""
                if body is None and response.length and len(said) < LARGEST:
                    raise http.client.IncompleteRead(said)
                return answer, said
        except ssl.SSLCertVerificationError as error:
            return Answer("again", f"its certificate is not trusted: {error.verify_message}"), b""
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= end:
                return Answer("again", f"no answer for {self._timeout:g} s"), b""
            return Answer("again", getattr(error, "strerror", None) or type(error).__name__), b""


@contextmanager
def _broken_at(connection: http.client.HTTPConnection, end: float) -> Iterator[list[socket.socket]]:
    """At this time the connection is broken, whatever it does. Yields a list of its sockets, which it may give away."""
    sockets: list[socket.socket] = []

    def break_it() -> None:
        for one in (connection.sock, *sockets):
            with suppress(OSError, AttributeError):  # it has no socket yet, or none any more
                one.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, end - time.monotonic()), break_it)
    timer.daemon = True
    timer.start()
    try:
        yield sockets
    finally:
        timer.cancel()


def answer_of(status: int, after: str = "") -> Answer:
    """What a status of HTTP means; 0: there was none. after: the header Retry-After."""
    why = f"HTTP {status}" if status else "it was not sent"
    if 200 <= status < 300:
        return Answer("sent")
    if status < 200 or status >= 500 or status in AGAIN:
        return Answer("again", why, _seconds(after))
    return Answer("refused", f"{why}, and redirects are not followed" if status < 400 else why)


def _seconds(after: str) -> float:
    """The value of Retry-After: seconds, or a date. 0: none that can be read."""
    if re.fullmatch(r"\d{1,9}", after.strip(), re.ASCII):
        return float(after)
    try:
        return max(0.0, (parsedate_to_datetime(after) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
