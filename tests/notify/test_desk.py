"""What is told, to whom, and when."""

from __future__ import annotations

import pytest
from made_alerts import Simulated, TargetOf, alert, always, closed, event, heard, rate, silent, told

from fomo_stream.notify.delivery import Answer
from fomo_stream.notify.desk import Place

PEOPLE: TargetOf = ("people", always)
PROGRAMS: TargetOf = ("programs", always)


def test_an_incident_is_told_when_it_opens_and_when_it_ends() -> None:
    run = Simulated([PEOPLE, PROGRAMS])
    for offset, result in enumerate([alert(7), alert(8, 7), alert(9, 7), closed(7, 9, 3)]):
        run.read(event(result), offset)
    for messages in run.arrived:
        assert told(messages) == [("opened", "0-7"), ("closed", "0-7")]
        assert [one.alerts for one in messages] == [1, 3]
        assert messages[-1].first is not None
        assert messages[-1].first.offset == 7
    assert run.ledger.committable() == {0: 4}


def test_silences_and_rates_are_told_like_incidents() -> None:
    run = Simulated([PEOPLE, PROGRAMS], throttle=0.0)
    for offset, result in enumerate([silent(5), rate(6), heard(5, 600)]):
        run.read(event(result, None), offset)
    expected = [("opened", "0-5-key-silent"), ("opened", "0-6-partition-rate"), ("closed", "0-5-key-silent")]
    assert [told(messages) for messages in run.arrived] == [expected] * 2
    assert [one.event.about for one in run.arrived[0]] == ["silence", "rate", "silence"]
    assert [one.first.incident for one in run.desk.open.values()] == ["0-6-partition-rate"]


def test_an_incident_that_was_opened_earlier_is_never_opened_again() -> None:
    run = Simulated([PEOPLE, PROGRAMS])
    run.read(event(alert(9, 7)), 0)
    run.read(event(closed(7, 9, 3)), 1)
    assert [told(messages) for messages in run.arrived] == [[("updated", "0-7"), ("closed", "0-7")]] * 2


def test_what_was_told_before_the_start_is_known_and_not_told() -> None:
    run = Simulated([PEOPLE, PROGRAMS])
    for offset, result in enumerate([alert(1), closed(1, 1), alert(2, severity="critical"), alert(3, 2)]):
        run.desk.recall(event(result, "first key"), Place(0, offset), run.now)
    run.ledger.start(0, 4)
    assert [(one.first.incident, one.alerts) for one in run.desk.open.values()] == [("0-2", 2)]
    run.read(event(alert(5, 2)), 4)
    run.read(event(closed(2, 5, 3)), 5)
    (message,) = run.arrived[0]
    assert told([message]) == [("closed", "0-2")]
    assert message.event.key == "first key", "the key is a label in Alertmanager"
    assert message.first is not None
    assert message.first.severity == "critical"


def test_updates_come_at_most_so_often_and_only_with_news() -> None:
    run = Simulated([PEOPLE, PROGRAMS], update_every=600.0)
    run.read(event(alert(0)), 0)
    for offset in range(1, 20):
        run.wait(60.0)
        run.read(event(alert(offset, 0)), offset)
    run.wait(86_400.0)
    for messages in run.arrived:
        assert [(one.kind, one.alerts) for one in messages] == [("opened", 1), ("updated", 10), ("updated", 20)]
    assert run.ledger.committable() == {0: 20}


def test_without_updates_an_incident_is_told_twice() -> None:
    run = Simulated([PEOPLE], update_every=0.0)
    for offset in range(20):
        run.read(event(alert(offset, 0)), offset)
        run.wait(3600.0)
    run.read(event(closed(0, 19, 20)), 20)
    assert told(run.arrived[0]) == [("opened", "0-0"), ("closed", "0-0")]


def test_a_key_is_told_once_in_a_while_and_the_next_message_tells_of_those_held_back() -> None:
    run = Simulated([PEOPLE, PROGRAMS], throttle=300.0)
    for offset in (0, 1, 2):
        run.read(event(alert(offset)), offset)
        run.wait(60.0)
    run.read(event(alert(50), "pump-8"), 3)
    assert told(run.arrived[0]) == [("opened", "0-0"), ("opened", "0-50")]
    assert run.ledger.committable() == {0: 1}, "what is held back is not done"
    run.wait(120.0)
    assert told(run.arrived[0])[2:] == [("opened", "0-1"), ("opened", "0-2")]
    assert run.arrived[0][-1].kind == "several"
    assert run.ledger.committable() == {0: 4}
    run.read(event(alert(60)), 4)
    run.wait(299.0)
    assert len(run.arrived[0]) == 3
    assert told(run.arrived[1]) == [("opened", f"0-{offset}") for offset in (0, 1, 2, 50, 60)]


def test_an_incident_that_ends_while_it_is_held_back_is_told_once_as_ended() -> None:
    run = Simulated([PEOPLE, PROGRAMS])
    for offset, result in enumerate([alert(0), alert(1), closed(1, 1), closed(0, 0)]):
        run.read(event(result), offset)
    assert told(run.arrived[0]) == [("opened", "0-0"), ("closed", "0-0")]
    run.wait(300.0)
    assert told(run.arrived[0])[2:] == [("closed", "0-1")]
    assert told(run.arrived[1]) == [("opened", "0-0"), ("opened", "0-1"), ("closed", "0-1"), ("closed", "0-0")]
    assert run.ledger.committable() == {0: 4}


@pytest.mark.parametrize("most", [1, 10])
def test_many_at_once_become_one_message(most: int) -> None:
    run = Simulated([PEOPLE, PROGRAMS], most=most)
    for offset in range(100):
        run.read(event(alert(offset), f"pump-{offset}"), offset)
    assert [one.kind for one in run.arrived[0]] == ["opened"] * most
    run.wait(60.0)
    assert [one.kind for one in run.arrived[0]] == ["opened"] * most + ["several"]
    assert told(run.arrived[0]) == [("opened", f"0-{offset}") for offset in range(100)]
    assert told(run.arrived[1]) == told(run.arrived[0])
    assert run.ledger.committable() == {0: 100}


def test_a_storm_of_a_day_gives_people_so_many_messages_a_minute_and_bounded_memory() -> None:
    run = Simulated([PEOPLE], most=10)
    for offset in range(20_000):
        run.read(event(alert(offset), f"pump-{offset % 5000}"), 2 * offset)
        run.read(event(closed(offset, offset), f"pump-{offset % 5000}"), 2 * offset + 1)
        assert run.desk.held <= 1001
        run.wait(0.1)
    run.wait(600.0)
    assert len(run.arrived[0]) < 11 * (20_000 * 0.1 / 60 + 11)
    assert {incident for _, incident in told(run.arrived[0])} == {f"0-{offset}" for offset in range(20_000)}
    assert not run.desk.open
    assert run.ledger.committable() == {0: 40_000}


def test_at_the_end_all_that_is_held_back_can_be_told_at_once() -> None:
    run = Simulated([PEOPLE], most=1)
    for offset, key in enumerate(["a", "a", "b", "c"]):
        run.read(event(alert(offset), key), offset)
    notices = run.desk.flush(run.now)
    assert len(notices) == 1
    assert sorted(told([one.message for one in notices])) == [("opened", f"0-{offset}") for offset in (1, 2, 3)]
    assert run.desk.held == 0


def test_a_partition_that_is_taken_away_is_forgotten() -> None:
    down = Simulated([("people", lambda _now: Answer("again")), ("programs", lambda _now: Answer("again"))])
    for partition in (0, 1):
        for offset in (0, 1):
            down.read(event(alert(offset, topic=f"topic-{partition}")), offset, partition)
    down.ledger.forget(0)
    down.desk.forget(0)
    assert [one.first.topic for one in down.desk.open.values()] == ["topic-1"] * 2
    assert (down.desk.held, down.ledger.committable()) == (1, {1: 0})
    up = [(audience, always, box) for audience, _, box in down.boxes]
    down.boxes[:] = up
    down.wait(600.0)
    assert {one.event.topic for messages in down.arrived for one in messages} == {"topic-1"}
    assert down.ledger.committable() == {1: 2}


def test_an_opening_that_is_read_after_its_end_does_not_stay_open() -> None:
    run = Simulated([PROGRAMS])
    run.read(event(closed(0, 1, 2)), 0, partition=1)
    run.read(event(alert(0)), 0, partition=0)
    assert told(run.arrived[0]) == [("closed", "0-0"), ("opened", "0-0")]
    assert not run.desk.open
