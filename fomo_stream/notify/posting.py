"""Posts JSON over HTTP, for targets that are programs, and says what the answer means."""

from __future__ import annotations

import base64
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, unquote

from fomo_stream import __version__
from fomo_stream.notify.delivery import Answer

PATIENCE = 3  # a whole exchange may take so many times the timeout: a server may send a byte at a time
LOOK_S = 0.5  # between two looks at exchanges that take too long
AGAIN = (408, 425, 429)  # statuses below 500 after which it is tried again


class Poster:
    """Posts JSON. It follows no redirect, which could take a secret to another host, and reads no body.

    timeout: seconds. Several threads may use it.
    """

    def __init__(self, context: ssl.SSLContext, timeout: float) -> None:
        self._context, self._timeout = context, timeout
        self._ends: dict[http.client.HTTPConnection, float] = {}  # until when each may be open
        self._lock = threading.Lock()
        self._watch: threading.Thread | None = None

    def post(self, url: SplitResult, body: bytes, headers: dict[str, str]) -> Answer:
        """Raises nothing that a network or a server can cause."""
        more = {"Content-Type": "application/json", "User-Agent": f"fomo-stream/{__version__}", **headers}
        if url.username is not None:
            pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
            more["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        end = time.monotonic() + PATIENCE * self._timeout
        try:
            with self._connected(url, end) as connection:
                connection.request("POST", path, body, more)
                response = connection.getresponse()
                return answer_of(response.status, response.headers.get("Retry-After", ""))
        except ssl.SSLCertVerificationError as error:
            return Answer("again", f"its certificate is not trusted: {error.verify_message}")
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= end:
                return Answer("again", f"no answer for {self._timeout:g} s")
            return Answer("again", getattr(error, "strerror", None) or type(error).__name__)

    @contextmanager
    def _connected(self, url: SplitResult, end: float) -> Iterator[http.client.HTTPConnection]:
        """A connection, which is broken at its end at the latest."""
        host = url.hostname or ""
        connection = http.client.HTTPConnection(host, url.port, timeout=self._timeout)
        if url.scheme == "https":
            connection = http.client.HTTPSConnection(host, url.port, timeout=self._timeout, context=self._context)
        with self._lock:
            self._ends[connection] = end
            if self._watch is None:
                self._watch = threading.Thread(target=self._break_late, name="fomo-notify-watch", daemon=True)
                self._watch.start()
        try:
            yield connection
        finally:
            with self._lock:
                del self._ends[connection]
            connection.close()

    def _break_late(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                for connection, end in self._ends.items():
                    if time.monotonic() >= end:
                        with suppress(OSError, AttributeError):  # it has no socket yet, or none any more
                            connection.sock.shutdown(socket.SHUT_RDWR)


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
