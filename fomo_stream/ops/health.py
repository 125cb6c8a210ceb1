"""Health over HTTP: /livez says that the loop turns, /readyz that records are being scored, or why not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from fomo_stream.errors import ConfigError

# Either answer: the reasons why not, empty when all is well.
Check = Callable[[], list[str]]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect during an answer."""


class HealthServer:
    """Answers 200 or 503 with a JSON body on /livez and /readyz, in a thread of its own.

    >>> import urllib.request
    >>> with HealthServer(0, live=lambda: [], ready=lambda: []) as server:
    ...     urllib.request.urlopen(f"http://127.0.0.1:{server.port}/readyz").read()
    b'{"ok": true, "reasons": []}'
    """

    def __init__(self, port: int, live: Check, ready: Check) -> None:
        checks = {"/livez": live, "/readyz": ready}

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds for a request: a client that sends none must not hold a thread for ever

            def do_GET(self) -> None:
                check = checks.get(self.path.split("?", 1)[0])
                reasons = check() if check else ["unknown path; use /livez or /readyz"]
                body = json.dumps({"ok": not reasons, "reasons": reasons}).encode()
                self.send_response(404 if check is None else 503 if reasons else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Do not log probes; they come every few seconds."""

        try:
            self._server = _Server(("", port), Handler)
        except OSError as error:
            raise ConfigError(f"--health-port {port}: {error.strerror}; choose a free port") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="fomo-health", daemon=True)
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> HealthServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
