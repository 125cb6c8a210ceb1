"""Whatever targets answer, every incident's opening and end arrive in order, and no offset is committed too early."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_alerts import Simulated, alert, always, closed, event, told

from fomo_stream.notify.delivery import FIRST_WAIT_S, LONGEST_WAIT_S, LONGEST_WISH_S, MOST_KEPT, Answer, Outbox
from fomo_stream.notify.messages import Message, message_of

AGAIN, REFUSED = Answer("again", "HTTP 503"), Answer("refused", "HTTP 404")
answers = st.one_of(
    st.just(Answer("sent")),
    st.just(AGAIN),
    st.just(REFUSED),
    st.builds(Answer, st.just("again"), after=st.floats(0, 90)),
)
steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.floats(0, 200)), max_size=40)


@given(
    steps=steps,
    scripts=st.lists(st.lists(answers, max_size=30), min_size=2, max_size=2),
    per_hour=st.sampled_from([0, 1, 3]),
)
def test_whatever_targets_answer_everything_arrives_in_order_and_no_offset_is_committed_early(
    steps: list[tuple[int, int, float]], scripts: list[list[Answer]], per_hour: int
) -> None:
    """steps: a key, what happens to it (0: nothing, but a record is read), and the time until the next one."""
    targets: list[Iterator[Answer]] = [iter(script) for script in scripts]
    run = Simulated(*(lambda _now, one=one: next(one, Answer("sent")) for one in targets), per_hour=per_hour)
    open_incidents: dict[int, int] = {}
    said: dict[int, tuple[str, str]] = {}  # by offset: what it has to lead to
    for offset, (key, action, seconds) in enumerate(steps):
        result = None
        if action and key not in open_incidents:
            open_incidents[key] = offset
            result, said[offset] = alert(offset), ("opened", f"0-{offset}")
        elif action == 1:
            result = alert(offset, open_incidents[key])
        elif action == 2:
            first = open_incidents.pop(key)
            result, said[offset] = closed(first, offset), ("closed", f"0-{first}")
        run.read(None if result is None else event(result, f"key-{key}"), offset)
        check_committable(run, said)
        run.wait(seconds)
        check_committable(run, said)
    run.wait(50_000.0)
    for messages in run.answered:
        got = told(messages)
        single = [one for one in got if one[0] != "held"]
        assert single == [one for one in said.values() if one in single], "in their order, each once"
        assert len(single) + held(messages) == len(said)
    assert not steps or run.committable() == len(steps)


def check_committable(run: Simulated, said: dict[int, tuple[str, str]]) -> None:
    """Of everything before the committable offset, every target has answered the message."""
    before = run.committable()
    for messages in run.answered:
        assert len(messages) - len([1 for one in messages if one.kind == "held"]) + held(messages) >= len(
            [offset for offset in said if offset < before]
        )


def held(messages: list[Message]) -> int:
    """How many messages these say were held back."""
    return sum(int(one.title.split()[1].replace(",", "")) for one in messages if one.kind == "held")


@pytest.mark.parametrize("limit", [1, 10])
def test_a_target_gets_so_many_messages_an_hour_and_then_one_that_says_how_many_were_held_back(limit: int) -> None:
    run = Simulated(always, per_hour=limit)
    for offset in range(50):
        run.read(event(alert(offset, severity="critical" if offset == 49 else "warning"), f"key-{offset}"), offset)
    assert told(run.arrived[0]) == [("opened", f"0-{offset}") for offset in range(limit)]
    assert run.committable() == limit, "what is held back is not done"
    run.read(event(closed(0, 9)), 50)
    run.wait(3599.0)
    assert len(run.arrived[0]) == limit
    run.wait(1.0)
    message = run.arrived[0][-1]
    assert message.title == f"CRITICAL: {51 - limit} messages held back: {50 - limit} opened, 1 ended"
    lines = message.text.splitlines()
    assert lines[0] == f"- WARNING: outlier in sensors key-{limit}"
    assert lines[-1] == f"- and {31 - limit} more"
    assert run.committable() == 51


def test_a_storm_of_a_day_gives_so_many_messages_an_hour_and_bounded_memory() -> None:
    run = Simulated(always, per_hour=60)
    for offset in range(20_000):
        run.read(event(alert(offset), f"key-{offset}"), offset)
        run.wait(4.0)
    run.wait(3600.0)
    assert len(run.arrived[0]) <= 60 * 24
    assert len(told(run.arrived[0])) - told(run.arrived[0]).count(("held", "")) + held(run.arrived[0]) == 20_000
    assert run.committable() == 20_000


def test_at_the_end_what_is_held_back_can_be_told_at_once() -> None:
    run = Simulated(always, per_hour=1)
    for offset in range(4):
        run.read(event(alert(offset)), offset)
    run.boxes[0][1].flush(run.now)
    run.send()
    assert [one.kind for one in run.arrived[0]] == ["opened", "held"]
    assert (held(run.arrived[0]), run.boxes[0][1].held) == (3, 0)


def test_a_partition_that_is_taken_away_is_forgotten() -> None:
    up = False
    run = Simulated(lambda _now: Answer("sent") if up else AGAIN, per_hour=3)
    for partition in (0, 1):
        for offset in (0, 1, 2):
            run.read(event(alert(offset, topic=f"topic-{partition}")), offset, partition)
    run.boxes[0][1].forget(0)
    up = True
    run.wait(8000.0)
    assert [one.kind for one in run.arrived[0]] == ["held"]
    run.read(event(alert(9)), 9, 1)
    assert run.committable(1) == 10


def test_an_outage_of_an_hour_delays_messages_and_loses_none() -> None:
    run = Simulated(lambda now: AGAIN if 100 <= now < 3700 else Answer("sent"), always)
    for offset in range(200):
        run.read(event(alert(offset), f"key-{offset}"), 2 * offset)
        run.wait(10.0)
        run.read(event(closed(offset, offset), f"key-{offset}"), 2 * offset + 1)
        if run.now > 200:
            assert run.committable() <= 21, "nothing is committed before it was sent"
    run.wait(3700.0 + LONGEST_WAIT_S - run.now)
    expected = [(kind, f"0-{offset}") for offset in range(200) for kind in ("opened", "closed")]
    assert [told(messages) for messages in run.arrived] == [expected, expected]
    assert run.committable() == 400
    assert 60 <= run.boxes[0][1].retried <= 80, "tried about once a minute"


def test_a_message_that_is_refused_for_good_keeps_no_other_from_arriving() -> None:
    script = iter([Answer("sent"), REFUSED, Answer("sent")])
    run = Simulated(lambda _now: next(script))
    for offset in range(3):
        run.read(event(alert(offset), f"key-{offset}"), offset)
    assert told(run.arrived[0]) == [("opened", "0-0"), ("opened", "0-2")]
    box = run.boxes[0][1]
    assert (box.sent, box.refused, run.committable()) == (2, 1, 3)


def waits(script: list[Answer], luck: float = 1.0) -> list[float]:
    """Seconds between the tries of one message."""
    box = Outbox(0, lambda: luck)
    box.add(message_of("opened", event(alert(0))), 0, 0, 0.0)
    times = [0.0]
    for answer in script:
        job = box.next(times[-1])
        assert job is not None
        box.answered(job, answer, times[-1])
        assert box.next(times[-1]) is None
        times.append(box.due)
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_waits_double_up_to_a_minute_with_jitter_and_a_target_may_ask_for_more() -> None:
    assert waits([AGAIN] * 9) == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert waits([AGAIN] * 3, luck=0.0) == [FIRST_WAIT_S / 2, 1, 2]
    assert waits([Answer("again", after=30.0), AGAIN]) == [30, 2]
    assert waits([Answer("again", after=1e9)]) == [LONGEST_WISH_S]


def test_of_a_target_that_is_down_the_oldest_messages_are_given_up_and_the_newest_wait() -> None:
    run = Simulated(always, lambda now: AGAIN if now < 9_000 else Answer("sent"))
    many = 2 * MOST_KEPT
    for offset in range(many):
        run.read(event(alert(offset), f"key-{offset}"), 2 * offset)
        run.read(None, 2 * offset + 1)
        run.wait(0.5)
        if offset % 100 == 0:
            assert run.committable() >= 2 * (offset - MOST_KEPT), "what is given up keeps no offset"
    down = run.boxes[1][1]
    assert (len(down), down.refused, down.sent) == (MOST_KEPT, many - MOST_KEPT, 0)
    assert down.retried < 100, "tried about once a minute, however many come"
    run.wait(10_000.0)
    assert told(run.arrived[0]) == [("opened", f"0-{offset}") for offset in range(many)]
    assert told(run.arrived[1]) == [("opened", f"0-{offset}") for offset in range(many - MOST_KEPT, many)]
    assert run.committable() == 2 * many


def test_the_age_of_the_oldest_message_is_known() -> None:
    run = Simulated(lambda _now: AGAIN)
    run.read(event(alert(0)), 0)
    run.wait(90.0)
    run.read(event(alert(1), "other"), 1)
    box = run.boxes[0][1]
    assert (len(box), box.oldest(run.now), box.trouble) == (2, 90.0, "HTTP 503")
    assert Outbox(0, lambda: 1.0).oldest(5.0) == 0.0
