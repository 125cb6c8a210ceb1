"""Webhooks, Alertmanager and apprise, against real servers; and mistakes in settings, which show no secret."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import free_ports
from made_alerts import alert, closed, event
from receivers import Receiver, Reply, certificate, receiving, server_context

from fomo_stream.cli.parser import parse
from fomo_stream.errors import ConfigError
from fomo_stream.notify import targets as module
from fomo_stream.notify.messages import message_of
from fomo_stream.notify.notifier import Notifier
from fomo_stream.notify.targets import Answer, Target, targets_of
from fomo_stream.settings.notify import NotifySettings

NOW = 1_800_000_000.0
OPENED = message_of("opened", event(alert(7)))
CLOSED = message_of("closed", event(closed(7, 9, 3)))


def settings(*flags: object) -> NotifySettings:
    return parse(NotifySettings, ["--alerts", "alerts", *map(str, flags)], command="notify")


def targets(*flags: object) -> list[Target]:
    return targets_of(settings(*flags), lambda: NOW)


def target(*flags: object) -> Target:
    (made,) = targets(*flags)
    return made


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


# --- webhooks


@pytest.mark.parametrize("rest", [b"Content-Length: 10\r\n\r\nab", b"Transfer-Encoding: chunked\r\n\r\n2\r\nab"])
def test_a_message_that_was_taken_is_sent_whatever_the_rest_of_the_answer(rest: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + rest)

        thread = threading.Thread(target=serve)
        thread.start()
        assert target("--webhook", f"http://127.0.0.1:{server.getsockname()[1]}").send(OPENED) == Answer("sent")
        thread.join()


def test_targets_at_one_host_keep_their_names_whatever_stands_beside_them() -> None:
    both = [one.name for one in targets("--webhook", "http://gw/a", "--webhook", "http://gw/b")]
    turned = [one.name for one in targets("--webhook", "http://gw/b", "--webhook", "http://gw/a")]
    assert both == turned[::-1]
    assert len({*both}) == 2
    apart = [one.name for one in targets("--webhook", "http://gw/a", "--webhook", "http://other")]
    assert apart == ["http://gw", "http://other"]


def test_two_targets_never_share_a_consumer_group() -> None:
    with pytest.raises(ConfigError, match="two targets would share the consumer group alerts-notify-http-gw-2"):
        Notifier(settings("--webhook", "http://gw:2/a", "--webhook", "http://gw-2/b"))


def test_a_webhook_gets_a_message_that_it_can_recognise(receiver: Receiver) -> None:
    made = target("--webhook", receiver.url.replace("//", "//me:p%40ss@") + "/hook?a=1")
    assert made.name == receiver.url
    assert [made.send(OPENED), made.send(OPENED)] == [Answer("sent")] * 2
    first, again = receiver.requests
    assert (first.path, first.headers["Authorization"]) == ("/hook?a=1", "Basic bWU6cEBzcw==")
    assert first.headers["Idempotency-Key"] == again.headers["Idempotency-Key"] == "sensors:0-7:opened"
    said = first.json
    assert (said["id"], said["kind"], said["incident"]) == ("sensors:0-7:opened", "opened", "0-7")
    assert (said["severity"], said["key"], said["link"]) == ("warning", "pump-7", None)
    assert (said["reasons"][0]["value"], said["reasons"][0]["expected"]) == (9.0, 3.1)
    assert said["explanation"] in said["text"]


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (Reply(204), Answer("sent")),
        (Reply(500), Answer("again", "HTTP 500")),
        (Reply(-1), Answer("again", "no answer for 0.5 s")),
        *((Reply(status), Answer("again", f"HTTP {status}")) for status in (408, 425, 429)),
        (Reply(400), Answer("refused", "HTTP 400")),
        (Reply(307, (("Location", "/other"),)), Answer("refused", "HTTP 307, and redirects are not followed")),
        (Reply(0), Answer("again", "Connection reset by peer")),
    ],
    ids=lambda value: str(getattr(value, "status", "")),
)
def test_answers_say_whether_to_try_again(
    receiver: Receiver, reply: Reply, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    receiver.replies.append(reply)
    assert target("--webhook", receiver.url).send(OPENED) == answer
    assert len(receiver.requests) == 1


def test_nobody_there_is_tried_again() -> None:
    nobody = target("--webhook", f"http://127.0.0.1:{free_ports(1)}")
    assert nobody.send(OPENED) == Answer("again", "Connection refused")
    assert target("--webhook", "http://no-such-host.invalid").send(OPENED).kind == "again"


def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment can name other authorities, as for every program that uses OpenSSL."""
    right, wrong_name = certificate(tmp_path), certificate(tmp_path, "other.example.com")
    for file, trusted, expected in ((right, right, "sent"), (wrong_name, wrong_name, "again"), (right, None, "again")):
        with receiving(server_context(file)) as server, monkeypatch.context() as patch:
            if trusted is not None:
                patch.setenv("SSL_CERT_FILE", str(trusted))
            answer = target("--webhook", server.url).send(OPENED)
            assert answer.kind == expected, file
            assert len(server.requests) == (expected == "sent")
            assert ("certificate is not trusted" in answer.why) == (expected == "again")


# --- Alertmanager


@pytest.mark.parametrize(("status", "body"), [(200, b"[]"), (200, b"no"), (200, b'[{"labels": 1}]'), (405, b"[]")])
def test_an_end_of_what_does_not_fire_ends_each_severity(receiver: Receiver, status: int, body: bytes) -> None:
    """And it waits until Alertmanager says what fires."""
    made = target("--alertmanager", receiver.url)
    receiver.firing = lambda _request: Reply(503)
    assert made.send(CLOSED) == Answer("again", "HTTP 503")
    assert not receiver.requests
    receiver.firing = lambda _request: Reply(status, body=body)
    assert made.send(CLOSED) == Answer("sent")
    assert [one["labels"]["severity"] for one in receiver.requests[0].json] == ["warning", "critical"]


def test_an_alert_about_a_record_of_the_future_begins_now(receiver: Receiver) -> None:
    late = event(alert(7, timestamp=9_000_000_000_000))
    target("--alertmanager", receiver.url).send(message_of("opened", late))
    (told,) = receiver.requests[0].json
    assert told["startsAt"] == "2027-01-15T08:00:00.000Z"


# --- people


def to(receiver: Receiver) -> str:
    return receiver.url.replace("http://", "json://") + "/path"


def test_people_are_told_by_apprise(receiver: Receiver) -> None:
    made = target("--to", to(receiver))
    assert (made.send(OPENED), made.send(CLOSED)) == (Answer("sent"), Answer("sent"))
    opened, ended = (one.json for one in receiver.requests)
    assert opened["title"] == "WARNING: outlier in sensors pump-7"
    assert "flow is 9, usually 3 (2 to 4)" in opened["message"]
    assert (opened["type"], ended["type"]) == ("warning", "success")


@pytest.mark.parametrize(("status", "kind"), [(404, "refused"), (503, "again")])
def test_the_status_behind_apprise_says_whether_to_try_again(receiver: Receiver, status: int, kind: str) -> None:
    receiver.replies.append(Reply(status))
    assert target("--to", to(receiver)).send(OPENED).kind == kind


# --- settings


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--webhook", "htps://TOKEN@host/TOKEN"], ["--webhook htps://", "did you mean https?"]),
        (["--webhook", "slack://TOKEN/x"], ["did you mean --to?"]),
        (["--webhook", "http://host:TOKEN/"], ["--webhook http://...: it is not an address of HTTP with a host"]),
        (["--webhook", "https:///TOKEN"], ["with a host"]),
        (["--alertmanager", "http://alert..manager/TOKEN"], ["--alertmanager http://", "with a host"]),
        (["--to", "slak://TOKEN/x"], ["--to slak://", "did you mean slack?"]),
        (["--to", "slack://TOKEN"], ["parts of it are missing"]),
        (["--to", "https://host/TOKEN"], ["did you mean --webhook?"]),
        ([], ["give at least one target"]),
        (["--webhok", "http://TOKEN"], ["there is no flag --webhok; did you mean --webhook?"]),
        (["--webhook", "http://h", "--throttle", "5m"], ["--throttle: it is gone; --per-hour of notify limits"]),
    ],
)
def test_mistakes_are_refused_at_the_start_and_show_no_secret(flags: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        targets(*flags)
    assert all(word in str(raised.value) for word in words), raised.value
    assert "TOKEN" not in str(raised.value)


def test_addresses_may_come_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOMO_WEBHOOK", "http://a/x,y http://b")
    monkeypatch.setenv("FOMO_ALERTS", "alerts")
    made = parse(NotifySettings, [], command="notify")
    assert made.webhook == ("http://a/x,y", "http://b")
    assert (made.group, made.per_hour) == ("alerts-notify", 60)
    assert "http://a" not in repr(made)


def test_without_the_library_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    with pytest.raises(ConfigError, match=r"pip install 'fomo-stream\[notify\]'"):
        target("--to", "json://host")
