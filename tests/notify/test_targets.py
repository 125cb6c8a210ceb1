"""Webhooks, Alertmanager and apprise, against real servers; and mistakes in settings, which show no secret."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_alerts import alert, closed, event, silent
from receivers import Receiver, Reply, certificate, receiving, server_context

from fomo_stream.cli.parser import parse
from fomo_stream.errors import ConfigError
from fomo_stream.notify.delivery import Answer
from fomo_stream.notify.desk import Message, Open
from fomo_stream.notify.events import key_text
from fomo_stream.notify.messages import Template
from fomo_stream.notify.targets import LASTS_S, Target, targets_of
from fomo_stream.settings.notify import NotifySettings

NOW = 1_800_000_000.0
OPENED = Message("opened", event(alert(7)), event(alert(7)), 1)
CLOSED = Message("closed", event(closed(7, 9, 3)), event(alert(7)), 3)


def settings(*flags: object) -> NotifySettings:
    return parse(NotifySettings, ["--alerts", "alerts", *map(str, flags)], command="notify")


def targets(*flags: object) -> list[Target]:
    made = settings(*flags)
    return targets_of(made, Template(made.template, made.status_url), lambda: NOW)


def target(*flags: object) -> Target:
    (made,) = targets(*flags)
    return made


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


# --- webhooks


def test_a_webhook_gets_a_signed_message_that_it_can_verify_and_recognise(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("Hush!\n")
    made = target("--webhook", f"{receiver.url}/hook?a=1", "--webhook-secret-file", tmp_path / "secret")
    assert made.send(OPENED) == Answer("sent")
    assert made.send(OPENED) == Answer("sent")
    first, again = receiver.requests
    assert first.path == "/hook?a=1"
    assert first.headers["Idempotency-Key"] == again.headers["Idempotency-Key"] == "sensors:0-7:opened:1"
    signed = dict(part.split("=") for part in first.headers["Fomo-Signature"].split(","))
    expected = hmac.new(b"Hush!", f"{signed['t']}.".encode() + first.body, hashlib.sha256).hexdigest()
    assert signed == {"t": str(int(NOW)), "v1": expected}
    said = first.json
    assert (said["kind"], said["incident"], said["severity"], said["key"]) == ("opened", "0-7", "warning", "pump-7")
    assert (said["reasons"][0]["value"], said["reasons"][0]["expected"]) == (9.0, 3.1)
    assert said["explanation"] in said["text"]


def test_the_secret_may_come_by_the_environment_and_without_one_nothing_is_signed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert target("--webhook", receiver.url).send(CLOSED) == Answer("sent")
    monkeypatch.setenv("FOMO_WEBHOOK_SECRET", "Hush!")
    assert target("--webhook", receiver.url).send(CLOSED) == Answer("sent")
    assert ["Fomo-Signature" in one.headers for one in receiver.requests] == [False, True]


def test_user_and_password_of_an_address_are_sent_as_a_login(receiver: Receiver) -> None:
    made = target("--webhook", receiver.url.replace("//", "//me:p%40ss@"))
    assert made.send(OPENED) == Answer("sent")
    assert receiver.requests[0].headers["Authorization"] == "Basic bWU6cEBzcw=="
    assert "me" not in made.name.replace("fomo", "")


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (Reply(204), Answer("sent")),
        (Reply(500), Answer("again", "HTTP 500")),
        (Reply(503, (("Retry-After", "17"),)), Answer("again", "HTTP 503", 17.0)),
        (Reply(429, (("Retry-After", "soon"),)), Answer("again", "HTTP 429")),
        (Reply(408), Answer("again", "HTTP 408")),
        (Reply(425), Answer("again", "HTTP 425")),
        (Reply(400), Answer("refused", "HTTP 400")),
        (Reply(410), Answer("refused", "HTTP 410")),
        (Reply(307, (("Location", "/other"),)), Answer("refused", "HTTP 307, and redirects are not followed")),
        (Reply(0), Answer("again", "Connection reset by peer")),
    ],
    ids=lambda value: str(getattr(value, "status", "")),
)
def test_answers_say_whether_to_try_again(receiver: Receiver, reply: Reply, answer: Answer) -> None:
    receiver.replies.append(reply)
    assert target("--webhook", receiver.url).send(OPENED) == answer
    assert len(receiver.requests) == 1


def test_retry_after_may_be_a_date(receiver: Receiver) -> None:
    moment = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 120))
    receiver.replies.append(Reply(503, (("Retry-After", moment),)))
    assert 100 < target("--webhook", receiver.url).send(OPENED).after <= 120


@pytest.mark.parametrize("slow", [60.0, 0.05], ids=["silent", "a byte at a time"])
def test_a_slow_server_is_given_up_in_time(receiver: Receiver, slow: float) -> None:
    receiver.replies.append(Reply(slow=slow))
    began = time.monotonic()
    answer = target("--webhook", receiver.url, "--target-timeout", "0.3s").send(OPENED)
    assert answer == Answer("again", "no answer for 0.3 s")
    assert time.monotonic() - began < 5


def test_nobody_there_is_tried_again() -> None:
    with receiving() as gone:
        pass
    assert target("--webhook", gone.url).send(OPENED) == Answer("again", "Connection refused")
    assert target("--webhook", "http://no-such-host.invalid").send(OPENED).kind == "again"


def test_certificates_are_verified_and_an_authority_can_be_added(tmp_path: Path) -> None:
    authority, made, key = certificate(tmp_path, "authority")
    right, *_ = certificate(tmp_path, signer=(made, key))
    wrong_name, *_ = certificate(tmp_path, "other.example.com", signer=(made, key))
    unsigned = certificate(tmp_path, signer=certificate(tmp_path, "stranger")[1:])[0]
    for file, expected in ((right, "sent"), (wrong_name, "again"), (unsigned, "again")):
        with receiving(server_context(file)) as server:
            answer = target("--webhook", server.url, "--target-ca", authority).send(OPENED)
            assert answer.kind == expected, file
            assert len(server.requests) == (expected == "sent")
            if expected == "again":
                assert "certificate is not trusted" in answer.why
    with receiving(server_context(right)) as server:
        assert "certificate is not trusted" in target("--webhook", server.url).send(OPENED).why


# --- Alertmanager


def test_alertmanager_is_told_of_opening_and_end_with_the_same_labels(receiver: Receiver) -> None:
    made = target("--alertmanager", f"{receiver.url}/prefix/", "--status-url", "http://status.example.com")
    assert [made.send(OPENED), made.send(CLOSED)] == [Answer("sent")] * 2
    assert {one.path for one in receiver.requests} == {"/prefix/api/v2/alerts"}
    (firing,), (resolved,) = (one.json for one in receiver.requests)
    assert firing["labels"] == resolved["labels"]
    assert firing["labels"] == {
        "alertname": "FomoOutlier",
        "topic": "sensors",
        "partition": "0",
        "key": "pump-7",
        "severity": "warning",
        "incident": "0-7",
    }
    assert firing["startsAt"] == resolved["startsAt"] == "2025-10-09T08:53:27.000Z"
    assert (firing["endsAt"], resolved["endsAt"]) == ("2027-01-15T08:10:00.000Z", "2027-01-15T08:00:00.000Z")
    assert LASTS_S == 600
    assert firing["generatorURL"] == "http://status.example.com"
    assert set(firing["annotations"]) == {"summary", "description"}


def test_alertmanager_is_told_again_of_what_is_open(receiver: Receiver) -> None:
    made = target("--alertmanager", receiver.url)
    incidents = [Open(0, event(silent(n)), event(silent(n)), 1, 0.0) for n in range(1100)]
    assert made.refresh(incidents) == Answer("sent")
    assert [len(one.json) for one in receiver.requests] == [500, 500, 100]
    assert receiver.requests[0].json[0]["labels"]["alertname"] == "FomoSilence"
    receiver.replies.append(Reply(500))
    answer = made.refresh(incidents)
    assert answer is not None
    assert answer.kind == "again"
    assert target("--webhook", receiver.url).refresh(incidents) is None


def test_an_end_of_what_is_not_known_ends_each_severity(receiver: Receiver) -> None:
    target("--alertmanager", receiver.url).send(CLOSED._replace(first=None))
    assert [one["labels"]["severity"] for one in receiver.requests[0].json] == ["warning", "critical"]


def test_a_time_of_a_record_in_the_future_does_not_begin_after_its_end(receiver: Receiver) -> None:
    late = event(alert(7, timestamp=9_000_000_000_000))
    target("--alertmanager", receiver.url).send(Message("closed", late, late, 1))
    (told,) = receiver.requests[0].json
    assert told["startsAt"] == told["endsAt"]


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


@pytest.mark.parametrize(("status", "kind"), [(404, "refused"), (503, "again"), (0, "again")])
def test_the_status_behind_apprise_says_whether_to_try_again(receiver: Receiver, status: int, kind: str) -> None:
    receiver.replies.append(Reply(status))
    assert target("--to", to(receiver)).send(OPENED).kind == kind


# --- settings


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--webhook", "htps://TOKEN@host/TOKEN"], ["--webhook htps://", "did you mean https?"]),
        (["--webhook", "slack://TOKEN/x"], ["did you mean --to?"]),
        (["--webhook", "TOKEN"], ["without scheme"]),
        (["--webhook", "http://host:TOKEN/"], ["not a URL"]),
        (["--webhook", "https:///TOKEN"], ["names no host"]),
        (["--alertmanager", "http://alert..manager/TOKEN"], ["names no host"]),
        (["--alertmanager", "ftp://TOKEN"], ["--alertmanager ftp://"]),
        (["--to", "slak://TOKEN/x"], ["--to slak://", "did you mean slack?"]),
        (["--to", "slack://TOKEN"], ["parts of the address are missing"]),
        (["--to", "TOKEN"], ["begins with a scheme"]),
        (["--to", "https://host/TOKEN"], ["did you mean --webhook?"]),
        (["--webhook-secret", "TOKEN", "--to", "json://host"], ["no --webhook"]),
        (
            ["--webhook", "http://h", "--webhook-secret-file", "nothing"],
            ["--webhook-secret-file nothing: cannot be read"],
        ),
        (["--targets-file", "nothing"], ["--targets-file nothing: cannot be read"]),
        (["--webhook", "http://h", "--target-ca", "nothing"], ["--target-ca nothing: cannot be read"]),
        (["--webhook", "http://h", "--template", "defalt"], ["no such file or template; did you mean default?"]),
        (["--webhook", "http://h", "--throttle", "5"], ["--throttle 5", "90s, 30m, 12h, 7d or 2w; 0 for none"]),
        ([], ["give at least one target"]),
        (["--webhook", "http://h", "--webhook-secret", "TOKEN", "--webhook-secret-file", "f"], ["leave one out"]),
        (["--webhok", "http://TOKEN"], ["there is no flag --webhok; did you mean --webhook?"]),
    ],
)
def test_mistakes_are_refused_at_the_start_and_show_no_secret(
    flags: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as raised:
        targets(*flags)
    assert all(word in str(raised.value) for word in words), raised.value
    assert "TOKEN" not in str(raised.value)


def test_a_file_may_name_the_targets(receiver: Receiver, tmp_path: Path) -> None:
    path = tmp_path / "targets"
    path.write_text(f"# ours\n\nwebhook {receiver.url}/a\nalertmanager {receiver.url}\n{to(receiver)}\n")
    made = targets("--targets-file", path, "--webhook", f"{receiver.url}/b")
    host = receiver.url.removeprefix("http://")
    assert [one.name for one in made] == [f"http://{host}", f"http://{host}#2", f"http://{host}#3", f"json://{HOST}"]
    path.write_text("webhok http://TOKEN\n")
    with pytest.raises(ConfigError, match=r"targets line 1: .* did you mean webhook\?"):
        targets("--targets-file", path)
    path.write_text("\n")
    with pytest.raises(ConfigError, match="it names no target"):
        targets("--targets-file", path)


HOST = "127.0.0.1"


def test_addresses_may_come_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOMO_WEBHOOK", "http://a/x,y http://b")
    monkeypatch.setenv("FOMO_ALERTS", "alerts")
    made = parse(NotifySettings, [], command="notify")
    assert made.webhook == ("http://a/x,y", "http://b")
    assert (made.group, made.update_every, made.throttle) == ("alerts-notify", 1800.0, 300.0)
    assert "http://a" not in repr(made)


def test_without_the_library_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    with pytest.raises(ConfigError, match=r"pip install 'fomo-stream\[notify\]'"):
        target("--to", "json://host")


def test_nothing_is_lost_of_a_long_name(receiver: Receiver) -> None:
    odd: dict[str, Any] = alert(7, topic="häfen\n" + "x" * 500)
    made = event(odd, key_text("Pumpe\u2028\x00" * 100))
    assert target("--webhook", receiver.url).send(Message("opened", made, made, 1)) == Answer("sent")
    assert target("--alertmanager", receiver.url).send(Message("opened", made, made, 1)) == Answer("sent")
    assert receiver.requests[0].json["topic"].startswith("häfen ")
    assert len(receiver.requests[0].json["key"]) == 200
