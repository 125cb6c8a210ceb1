"""Messages through real threads to real servers: failures of every kind lose nothing and keep the order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import wait_for
from made_alerts import alert, closed, event
from receivers import Receiver, Reply, receiving

from fomo_stream.cli.parser import parse
from fomo_stream.notify import delivery
from fomo_stream.notify.messenger import Messenger
from fomo_stream.notify.targets import targets_of
from fomo_stream.settings.notify import NotifySettings


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(delivery, "LONGEST_WAIT_S", 0.05)


def messenger_to(*flags: str) -> Messenger:
    settings = parse(NotifySettings, ["--alerts", "alerts", *flags], command="notify")
    return Messenger(settings, targets_of(settings, time.time))


BAD = [Reply(500), Reply(0), Reply(429, (("Retry-After", "0"),)), Reply(slow=60.0), Reply(502), Reply(408)]


def test_failures_of_every_kind_lose_nothing_and_keep_the_order(receiver: Receiver) -> None:
    receiver.replies += [*BAD, Reply(), *BAD, Reply(400)]
    with messenger_to("--webhook", receiver.url, "--target-timeout", "0.2s") as made:
        made.start(0, 0)
        for offset, result in enumerate([alert(7), closed(7, 9, 2), alert(20), closed(20, 21)]):
            made.take(event(result), 0, offset)
        assert made.finish(30.0)
        assert made.committable() == {0: 4}
        (health,) = made.health()
    assert (health.sent, health.refused, health.retried, health.waiting) == (3, 1, 12, 0)
    names = [request.headers["Idempotency-Key"] for request in receiver.requests]
    expected = [f"sensors:0-{which}" for which in ("7:opened", "7:closed", "20:opened", "20:closed")]
    assert list(dict.fromkeys(names)) == expected
    assert names == sorted(names, key=expected.index), "each only after the one before it was answered"


def test_a_target_that_is_down_does_not_hold_up_another(receiver: Receiver) -> None:
    with receiving() as gone:
        pass
    with messenger_to("--webhook", receiver.url, "--webhook", gone.url) as made:
        made.start(0, 0)
        for offset in range(20):
            made.take(event(alert(offset), f"key-{offset}"), 0, offset)
        receiver.wait_for(lambda requests: len(requests) == 20)
        wait_for(lambda: made.health()[0].waiting == 0, "the first target")
        first, second = made.health()
        assert (first.sent, second.sent, second.waiting) == (20, 0, 20)
        assert second.trouble == "Connection refused"
        assert second.oldest_s > 0
        assert made.committable() == {0: 0}
        assert not made.finish(0.1)


def test_too_many_waiting_messages_are_reported_until_few_are_left(receiver: Receiver) -> None:
    receiver.answer = lambda _request: Reply(503)
    with messenger_to("--webhook", receiver.url) as made:
        for offset in range(delivery.MOST_WAITING):
            made.take(event(alert(offset), f"key-{offset}"), 0, offset)
        assert not made.is_full
        made.take(event(alert(9999)), 0, 9999)
        assert made.is_full
        receiver.answer = None
        wait_for(lambda: made.health()[0].waiting < delivery.MOST_WAITING - 50, "messages to leave")
        assert made.is_full or made.health()[0].waiting <= delivery.FEW_WAITING
        wait_for(lambda: made.health()[0].waiting <= delivery.FEW_WAITING, "messages to leave")
        assert not made.is_full


def test_a_target_that_asks_for_an_hour_keeps_no_other_from_its_messages(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MOST_KEPT", 700)
    many = 1000
    with receiving() as down, messenger_to("--webhook", receiver.url, "--webhook", down.url) as made:
        down.answer = lambda _request: Reply(503, (("Retry-After", "3600"),))
        made.start(0, 0)
        for offset in range(many):
            made.take(event(alert(offset), f"key-{offset}"), 0, offset)
            wait_for(lambda: not made.is_full, "reading to go on")
        receiver.wait_for(lambda requests: len(requests) == many)
        wait_for(lambda: made.health()[0].waiting == 0, "the last answer")
        healthy, sick = made.health()
        assert (healthy.sent, healthy.refused) == (many, 0)
        assert (sick.sent, sick.refused, sick.waiting) == (0, many - 700, 700)
        assert made.committable() == {0: many - 700}
        assert len(down.requests) == 1
    assert f"message_given_up target={down.url} message=sensors:0-0:opened" in caplog.text


def test_while_all_targets_are_down_nothing_more_is_read_and_nothing_given_up(receiver: Receiver) -> None:
    receiver.answer = lambda _request: Reply(503)
    with messenger_to("--webhook", receiver.url, "--webhook", f"{receiver.url}/other") as made:
        for offset in range(delivery.MOST_WAITING + 1):
            made.take(event(alert(offset), f"key-{offset}"), 0, offset)
        wait_for(lambda: all(one.trouble for one in made.health()), "both to be tried")
        assert made.is_full
        assert [one.refused for one in made.health()] == [0, 0]


def test_people_get_a_limited_number_and_at_the_end_what_is_held_back(receiver: Receiver) -> None:
    to = receiver.url.replace("http://", "json://")
    with messenger_to("--to", to, "--webhook", receiver.url, "--per-hour", "1") as made:
        made.start(0, 0)
        for offset in range(5):
            made.take(event(alert(offset)), 0, offset)
        receiver.wait_for(lambda requests: len(requests) == 6)
        assert made.committable()[0] <= 1
        assert made.finish(30.0)
        assert made.committable() == {0: 5}
    titles = [one.json["title"] for one in receiver.requests if "message" in one.json]
    assert titles == ["WARNING: outlier in sensors pump-7", "WARNING: 4 messages held back: 4 opened, 0 ended"]


def test_the_log_has_no_secret_and_no_content(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    receiver.replies += [Reply(500), Reply(403)]
    address = receiver.url.replace("//", "//user:TOKEN@") + "/TOKEN?key=TOKEN"
    with caplog.at_level(logging.DEBUG), messenger_to("--webhook", address, "--webhook-secret", "TOKEN") as made:
        made.take(event(alert(7)), 0, 0)
        assert made.finish(30.0)
    assert "target_trouble" in caplog.text
    assert f"message_refused target={receiver.url} message=sensors:0-7:opened" in caplog.text
    assert "TOKEN" not in caplog.text
    assert "flow" not in caplog.text
