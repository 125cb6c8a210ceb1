"""What is told: an incident when it opens, and when it ends; and how many messages a target gets."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_alerts import alert, closed, event, heard, silent

from fomo_stream.notify import policy
from fomo_stream.notify.messages import Message, message_of
from fomo_stream.notify.policy import HOUR_S, NotificationPolicy, RateLimit

OPENED, CLOSED = "opened", "closed"


@pytest.mark.parametrize(
    ("results", "told"),
    [
        ([alert(7), alert(8, 7), closed(7, 9, 3), alert(20)], [OPENED, None, CLOSED, OPENED]),
        ([silent(5), heard(5, 600)], [OPENED, CLOSED]),
        # opened before the first record that is read
        ([alert(9, 7), closed(7, 11, 3)], [None, CLOSED]),
        # the end is read first, from another partition
        ([closed(0, 2, 2), alert(0), alert(1, 0)], [CLOSED, None, None]),
        # read again, or of the same name as an earlier one
        ([alert(0), alert(0), closed(0, 1), closed(0, 1), alert(0)], [OPENED, OPENED, CLOSED, CLOSED, OPENED]),
    ],
)
def test_an_incident_is_told_when_it_opens_and_when_it_ends(results: list[dict[str, object]], told: list[str]) -> None:
    made = NotificationPolicy()
    assert [made.take(event(one, None)) for one in results] == told


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MAX_INCIDENTS", 100)
    made = NotificationPolicy()
    for offset in range(101):
        assert made.take(event(closed(offset, offset))) == CLOSED
    assert [made.take(event(alert(offset))) for offset in (0, 100)] == [OPENED, None], "only the last ones are known"


@cache
def message(number: int, severity: str = "warning") -> Message:
    return message_of("opened", event(alert(number, severity=severity), f"key-{number}"))


def held_in(one: Message) -> int:
    """How many messages this one says were held back."""
    return int(one.title.split()[1].replace(",", ""))


@pytest.mark.parametrize("per_hour", [1, 10])
def test_a_target_gets_so_many_messages_an_hour_and_then_one_that_says_how_many_were_held_back(per_hour: int) -> None:
    limit = RateLimit(per_hour, "http://status")
    for number in range(50):
        one = message(number, "critical" if number == 49 else "warning")
        assert limit.holds(one, 0.0) == (number >= per_hour)
        if number < per_hour:
            limit.sent(one, 0.0)
    assert limit.holds(message_of("closed", event(closed(0, 9))), HOUR_S - 1)
    assert limit.summary(HOUR_S - 1) is None
    assert limit.summary() == limit.summary(HOUR_S), "the end of the process is as good as that of the hour"
    summary = limit.summary(HOUR_S)
    assert summary is not None
    assert summary.title == f"CRITICAL: {51 - per_hour} messages held back: {50 - per_hour} opened, 1 ended"
    lines = summary.text.splitlines()
    assert lines[0] == f"- WARNING: outlier in sensors key-{per_hour}"
    assert lines[-2:] == [f"- and {31 - per_hour} more", "http://status"]
    assert limit.summary(HOUR_S + 5) == summary, "it stays until it is sent"
    limit.sent(summary, HOUR_S + 6)
    assert (limit.held, limit.summary()) == (0, None)
    assert limit.holds(message(99), HOUR_S + 7) == (per_hour == 1), "the summary counts, too"


@given(
    per_hour=st.sampled_from([0, 1, 3, 60]),
    steps=st.lists(st.tuples(st.integers(0, 400), st.floats(0, 2 * HOUR_S)), max_size=40),
)
def test_every_message_is_told_or_counted_and_no_hour_has_more(per_hour: int, steps: list[tuple[int, float]]) -> None:
    """steps: messages that come at once, and the seconds until the next ones."""
    limit, now, came, times, counted = RateLimit(per_hour), 0.0, 0, list[float](), 0
    for count, seconds in [*steps, (0, 2 * HOUR_S), (0, 0.0)]:
        if (summary := limit.summary(now)) is not None:
            counted += held_in(summary)
            limit.sent(summary, now)
            times.append(now)
        for number in range(count):
            if not limit.holds(one := message(number), now):
                limit.sent(one, now)
                times.append(now)
                counted += 1
        came, now = came + count, now + seconds
    assert counted == came
    for first, last in zip(times, times[per_hour:], strict=False) if per_hour else ():
        assert last >= first + HOUR_S  # the difference of the two is rounded
