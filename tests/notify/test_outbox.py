"""Whatever targets answer, every incident's opening and end arrive in order, and no offset is committed too early."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from made_alerts import Simulated, alert, always, closed, event, told

from fomo_stream.notify.delivery import FIRST_WAIT_S, LONGEST_WAIT_S, LONGEST_WISH_S, MOST_KEPT, Answer, Outbox
from fomo_stream.notify.desk import Message, Place

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
    throttle=st.sampled_from([0.0, 300.0]),
    most=st.integers(1, 10),
)
def test_whatever_targets_answer_everything_arrives_in_order_and_no_offset_is_committed_early(
    steps: list[tuple[int, int, float]], scripts: list[list[Answer]], throttle: float, most: int
) -> None:
    """steps: a key, what happens to it (0: nothing, but a record is read), and the time until the next one."""
    targets: list[Iterator[Answer]] = [iter(script) for script in scripts]
    run = Simulated(
        [
            ("people", lambda _now: next(targets[0], Answer("sent"))),
            ("programs", lambda _now: next(targets[1], Answer("sent"))),
        ],
        throttle=throttle,
        most=most,
    )
    open_incidents: dict[int, int] = {}
    said: dict[int, list[tuple[str, str]]] = {}  # by offset: what it has to lead to
    for offset, (key, action, seconds) in enumerate(steps):
        result = None
        if action and key not in open_incidents:
            open_incidents[key] = offset
            result, said[offset] = alert(offset), [("opened", f"0-{offset}")]
        elif action == 1:
            result = alert(offset, open_incidents[key])
        elif action == 2:
            first = open_incidents.pop(key)
            result, said[offset] = closed(first, offset), [("closed", f"0-{first}")]
        run.read(None if result is None else event(result, f"key-{key}"), offset)
        check_committable(run, said)
        run.wait(seconds)
        check_committable(run, said)
    run.wait(10_000.0)
    for messages in run.answered:
        got = told(messages)
        for first in (offset for offset, expected in said.items() if expected[0][0] == "opened"):
            kinds = [kind for kind, incident in got if incident == f"0-{first}" and kind != "updated"]
            wanted = [kind for one in said.values() for kind, incident in one if incident == f"0-{first}"]
            assert kinds in (wanted, wanted[1:] or wanted), "in order; or at once, with its end"
    assert run.ledger.committable() == ({0: len(steps)} if steps else {})


def check_committable(run: Simulated, said: dict[int, list[tuple[str, str]]]) -> None:
    """Of everything before the committable offset, every target has answered the message."""
    before = run.ledger.committable()[0]
    for messages in run.answered:
        got = set(told(messages))
        for offset, expected in said.items():
            for kind, incident in expected:
                assert offset >= before or (kind, incident) in got or ("closed", incident) in got


def test_an_outage_of_an_hour_delays_messages_and_loses_none() -> None:
    run = Simulated([("programs", lambda now: AGAIN if 100 <= now < 3700 else Answer("sent")), ("programs", always)])
    for offset in range(200):
        run.read(event(alert(offset), f"key-{offset}"), 2 * offset)
        run.wait(10.0)
        run.read(event(closed(offset, offset), f"key-{offset}"), 2 * offset + 1)
        if run.now > 200:
            assert run.ledger.committable()[0] <= 21, "nothing is committed before it was sent"
    run.wait(3700.0 + LONGEST_WAIT_S - run.now)
    expected = [(kind, f"0-{offset}") for offset in range(200) for kind in ("opened", "closed")]
    assert [told(messages) for messages in run.arrived] == [expected, expected]
    assert run.ledger.committable() == {0: 400}
    assert 60 <= run.boxes[0][2].retried <= 80, "tried about once a minute"


def test_a_message_that_is_refused_for_good_keeps_no_other_from_arriving() -> None:
    script = iter([Answer("sent"), REFUSED, Answer("sent")])
    run = Simulated([("programs", lambda _now: next(script))])
    for offset in range(3):
        run.read(event(alert(offset), f"key-{offset}"), offset)
    assert told(run.arrived[0]) == [("opened", "0-0"), ("opened", "0-2")]
    box = run.boxes[0][2]
    assert (box.sent, box.refused, run.ledger.committable()) == (2, 1, {0: 3})


def waits(script: list[Answer], luck: float = 1.0) -> list[float]:
    """Seconds between the tries of one message."""
    box, opened = Outbox(lambda: luck), event(alert(0))
    box.add(Message("opened", opened, opened, 1), (), 0.0)
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
    run = Simulated([("programs", always), ("programs", lambda now: AGAIN if now < 9_000 else Answer("sent"))])
    many = 2 * MOST_KEPT
    for offset in range(many):
        run.read(event(alert(offset), f"key-{offset}"), 2 * offset)
        run.read(None, 2 * offset + 1)
        run.wait(0.5)
        if offset % 100 == 0:
            assert run.ledger.committable()[0] >= 2 * (offset - MOST_KEPT), "what is given up keeps no offset"
    down = run.boxes[1][2]
    assert (len(down), down.refused, down.sent) == (MOST_KEPT, many - MOST_KEPT, 0)
    assert down.retried < 100, "tried about once a minute, however many come"
    run.wait(10_000.0)
    assert told(run.arrived[0]) == [("opened", f"0-{offset}") for offset in range(many)]
    assert told(run.arrived[1]) == [("opened", f"0-{offset}") for offset in range(many - MOST_KEPT, many)]
    assert run.ledger.committable() == {0: 2 * many}


def test_records_that_give_no_message_take_no_memory_while_one_waits() -> None:
    run = Simulated([("programs", always), ("people", lambda _now: AGAIN)])
    run.read(event(alert(0)), 0)
    for offset in range(1, 20_000):
        run.read(event(alert(offset, 0)), offset)
        if offset % 1000 == 0:
            assert run.ledger.committable() == {0: 0}
    tracked = [one for one in gc.get_objects() if isinstance(one, Place)]
    assert len(tracked) < 2_000


def test_the_age_of_the_oldest_message_is_known() -> None:
    run = Simulated([("programs", lambda _now: AGAIN)])
    run.read(event(alert(0)), 0)
    run.wait(90.0)
    run.read(event(alert(1), "other"), 1)
    box = run.boxes[0][2]
    assert (len(box), box.oldest(run.now), box.trouble) == (2, 90.0, "HTTP 503")
    assert Outbox(lambda: 1.0).oldest(5.0) == 0.0
