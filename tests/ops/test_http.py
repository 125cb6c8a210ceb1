"""The HTTP server: its answers, what it refuses, and clients that are slow, silent or many."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from brokers import wait_for

from fomo_stream.errors import ConfigError
from fomo_stream.ops import http
from fomo_stream.ops.http import MAX_CONNECTIONS, MAX_REQUEST_BYTES, Endpoints, HttpServer

LARGE = b"x" * (8 << 20)  # more than the buffers of a connection hold


class Told:
    """Sources whose answers a test chooses."""

    def __init__(self) -> None:
        self.live: list[str] = []
        self.ready: list[str] = []
        self.metrics: Callable[[], bytes] = lambda: b"fomo_ready 1.0\n"
        self.status = b'{"rate": 3}'

    def sources(self) -> Endpoints:
        return Endpoints(lambda: self.live, lambda: self.ready, lambda: self.metrics(), lambda topic: self.status)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def server(told: Told) -> Iterator[HttpServer]:
    with HttpServer("127.0.0.1", 0, told.sources()) as server:
        yield server


def ask(
    server: HttpServer, path: str, method: str = "GET", address: str = "127.0.0.1", **given: Any
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection(address, server.port, timeout=20)
    try:
        connection.request(method, path, **given)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def send(server: HttpServer, request: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client.sendall(request)
    return client


def everything(client: socket.socket) -> bytes:
    with client:
        parts = []
        while part := client.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)


@pytest.fixture
def connections() -> Callable[[], list[threading.Thread]]:
    """The threads of connections that began during this test: other servers of this process may have some, too."""
    before = set(threading.enumerate())
    return lambda: [new for new in set(threading.enumerate()) - before if "process_request" in new.name]


# --- answers


def test_probes_say_yes_or_why_not(server: HttpServer, told: Told) -> None:
    for path, reasons in (("/livez", told.live), ("/readyz", told.ready)):
        answer, body = ask(server, path)
        assert (answer.status, json.loads(body)) == (200, {"ok": True, "reasons": []})
        reasons.append("sensors[3] waits to be restored")
        answer, body = ask(server, path + "?verbose")
        assert (answer.status, json.loads(body)) == (503, {"ok": False, "reasons": ["sensors[3] waits to be restored"]})
        reasons.clear()


KINDS = {
    "/": ("text/html; charset=utf-8", b"<!doctype html>"),
    "/status.css": ("text/css; charset=utf-8", b"/* The status page"),
    "/status.js": ("text/javascript; charset=utf-8", b'"use strict'),
    "/status.json": ("application/json", b'{"rate": 3}'),
    "/metrics": ("text/plain; version=0.0.4; charset=utf-8", b"fomo_ready 1.0\n"),
    "/livez": ("application/json", b'{"ok": true'),
    "/nothing": ("application/json", b'{"ok": false'),
}


@pytest.mark.parametrize("path", KINDS)
def test_every_answer_can_be_asked_for_without_its_body_and_forbids_what_the_page_does_not_need(
    server: HttpServer, path: str
) -> None:
    answer, body = ask(server, path)
    head, nothing = ask(server, path, "HEAD")
    assert (answer.headers["Content-Type"], body[: len(KINDS[path][1])]) == KINDS[path]
    assert (nothing, head.status) == (b"", answer.status)
    assert {**dict(head.headers), "Date": ""} == {**dict(answer.headers), "Date": ""}
    named = ("Content-Length", "Cache-Control", "X-Content-Type-Options", "Referrer-Policy")
    assert [answer.headers[name] for name in named] == [str(len(body)), "no-store", "nosniff", "no-referrer"]
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /../status.json HTTP/1.1\r\n\r\n", 404),
        (b"POST /status.json HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /livez HTTP/2.0\r\n\r\n", 505),
        (b"\xff\x00 \xfe\r\n\r\n", 400),
        (b"GET /livez HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (MAX_REQUEST_BYTES // 6), 431),
        (b"GET /" + b"x" * MAX_REQUEST_BYTES, 431),
        (b"GET /livez HTTP/1.1\r\nX: " + b"x" * (MAX_REQUEST_BYTES - 100) + b"\r\n\r\n", 200),
    ],
)
def test_whatever_is_asked_for_nothing_changes_and_an_answer_repeats_nothing_of_it(
    server: HttpServer, request_: bytes, status: int
) -> None:
    answer = everything(send(server, request_))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert (b"Allow: GET, HEAD" in answer) == (status == 405)
    assert (b"use /livez, /readyz, /metrics, / or /status.json" in answer) == (status == 404)
    assert b"xxx" not in answer
    assert ask(server, "/livez")[0].status == 200


def test_a_defect_is_logged_without_contents_of_records_and_the_others_are_answered(
    server: HttpServer, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bytes:
        raise ValueError("marker")

    told.metrics = fail
    with caplog.at_level(logging.ERROR):
        answer, body = ask(server, "/metrics")
    assert answer.status == 500
    assert b"marker" not in body
    assert [record.message.split(" at=")[0] for record in caplog.records] == [
        "http_failed path=/metrics error=ValueError"
    ]
    assert "marker" not in caplog.text
    assert ask(server, "/livez")[0].status == 200


# --- clients that do not behave


def test_silent_and_slow_clients_do_not_keep_others_from_an_answer(
    told: Told, connections: Callable[[], list[threading.Thread]]
) -> None:
    told.status = LARGE
    with HttpServer("127.0.0.1", 0, told.sources()) as server, ExitStack() as clients:
        for request in (b"", b"GET /", b"GET /status.json HTTP/1.1\r\n\r\n"):  # the last ones do not read
            for _ in range(MAX_CONNECTIONS):
                clients.enter_context(send(server, request))
        for path in ("/livez", "/metrics", "/"):
            assert ask(server, path)[0].status == 200
        wait_for(lambda: len(connections()) <= MAX_CONNECTIONS, "the threads of closed connections to end")


def test_a_client_that_sends_a_byte_at_a_time_is_disconnected(told: Told) -> None:
    with HttpServer("127.0.0.1", 0, told.sources(), 0.3) as server, send(server, b"GET / HTTP/1.1\r\nX: ") as client:
        client.settimeout(0.05)
        for _ in range(200):
            client.sendall(b"x")
            try:
                assert client.recv(1) == b"", "it is disconnected without an answer"
                break
            except TimeoutError:
                continue
        else:
            raise AssertionError("a client may send for ever")


def test_metrics_and_status_are_made_once_a_second_however_often_they_are_asked_for(
    server: HttpServer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    told.metrics = lambda: made.append("metrics") or b"%d" % len(made)  # type: ignore[func-returns-value]  # append gives None
    monkeypatch.setattr(http, "FRESH_S", 1e9)
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(server, "/metrics")[1])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (made, answers) == (["metrics"], [b"1"] * 20)
    before, told.status = ask(server, "/status.json")[1], b'{"rate": 4}'
    assert ask(server, "/status.json")[1] == before
    monkeypatch.setattr(http, "FRESH_S", 1e-9)
    assert (ask(server, "/metrics")[1], ask(server, "/status.json")[1]) == (b"2", b'{"rate": 4}')


@pytest.mark.parametrize("request_", [b"", b"GET /livez HTTP/1.1\r\n", b"GET /status.json HTTP/1.1\r\n\r\n"])
def test_a_client_that_stops_is_disconnected(
    told: Told,
    connections: Callable[[], list[threading.Thread]],
    caplog: pytest.LogCaptureFixture,
    request_: bytes,
) -> None:
    told.status = LARGE
    with HttpServer("127.0.0.1", 0, told.sources(), 0.1) as server, send(server, request_) as client:
        if b"json" in request_:
            assert client.recv(1) == b"H"  # and then no more
            wait_for(lambda: not connections(), "the server to stop writing")
            assert len(everything(client)) < len(LARGE)
        else:
            assert client.recv(1) == b""
        assert ask(server, "/livez")[0].status == 200
    assert not caplog.records  # it is no defect of the server


# --- addresses


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["127.0.0.1:8080", "[::1]:8080", "192.168.1.4", "LOCALHOST:1", "page.localhost"], 200),
        (["evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", ""], 403),
    ],
)
def test_another_site_that_points_to_this_machine_reads_nothing(
    server: HttpServer, hosts: list[str], status: int
) -> None:
    for host in hosts:
        answer, body = ask(server, "/status.json", headers={"Host": host})
        assert answer.status == status, host
        assert status == 200 or (b"rate" not in body and b"localhost" in body)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_two_colons_are_all_addresses_of_both_kinds(told: Told) -> None:
    with HttpServer("::", 0, told.sources()) as server:
        for address in ("127.0.0.1", "::1"):
            assert ask(server, "/livez", address=address, headers={"Host": "fomo.svc:8080"})[0].status == 200
    with HttpServer("::1", 0, told.sources()) as server:
        assert ask(server, "/livez", address="::1")[0].status == 200
        assert ask(server, "/livez", address="::1", headers={"Host": "evil.example"})[0].status == 403


def test_a_port_in_use_and_a_wrong_host_are_refused_by_their_flags(server: HttpServer, told: Told) -> None:
    with pytest.raises(ConfigError, match=rf"--health-port {server.port}: Address already in use; use a free port"):
        HttpServer("127.0.0.1", server.port, told.sources())
    for host in ("192.0.2.1", "no-such-host.invalid", "a" * 300, "[::1]"):
        with pytest.raises(ConfigError, match=r"--http-host .*, --health-port 0: .*; use .* the host 127"):
            HttpServer(host, 0, told.sources())
