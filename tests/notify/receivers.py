"""Servers that receive messages: HTTP in a thread of the test, with answers that a test chooses; and certificates."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


class Request(NamedTuple):
    path: str
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Reply(NamedTuple):
    """An answer. Of status 0 the connection is reset, and of status -1 nothing comes."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass
class Receiver:
    """What has arrived, and what is answered: by default the replies in their order, then 200."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    released: threading.Event = field(default_factory=threading.Event)  # ends slow answers
    answer: Callable[[Request], Reply] | None = None
    firing: Callable[[Request], Reply] = lambda _request: Reply(body=b"[]")  # to questions for what fires

    def taken(self, request: Request) -> Reply:
        with self.changed:
            self.requests.append(request)
            reply = self.replies.pop(0) if self.replies else Reply()
            if self.answer is not None:
                reply = self.answer(request)
            self.changed.notify_all()
        return reply

    def wait_for(self, condition: Callable[[list[Request]], Any], seconds: float = 30.0) -> list[Request]:
        """The requests so far, once this holds of them."""
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.requests), seconds), self.requests[-3:]
            return list(self.requests)


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._reply(receiver.taken(Request(self.path, self.headers, body)))

        def do_GET(self) -> None:
            self._reply(receiver.firing(Request(self.path, self.headers, b"")))

        def _reply(self, reply: Reply) -> None:
            if reply.status == 0:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # resets
                self.connection.close()
                return
            if reply.status < 0:
                receiver.released.wait()
                return
            self.send_response(reply.status)
            for name, value in (*reply.headers, ("Content-Length", str(len(reply.body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None:
            """No line for each request."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that does not trust the certificate."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    receiver.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def certificate(folder: Path, name: str = "127.0.0.1") -> Path:
    """A file with a certificate that signs itself, and its key."""
    path = folder / f"{name}.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    names = f"{'IP' if name[0].isdigit() else 'DNS'}:{name}"
    about = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"]
    about += ["-addext", "keyUsage=keyCertSign,digitalSignature"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(path)]
    subprocess.run(["openssl", "req", "-x509", "-nodes", *kind, *about, *files], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (folder / "key.pem").read_bytes())
    return path


def server_context(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
