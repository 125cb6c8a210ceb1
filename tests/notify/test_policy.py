"""What is told: an incident when it opens, and when it ends."""

from __future__ import annotations

from made_alerts import Simulated, alert, always, closed, event, heard, rate, silent, told

from fomo_stream.notify import policy
from fomo_stream.notify.policy import Policy


def test_an_incident_is_told_when_it_opens_and_when_it_ends() -> None:
    run = Simulated(always)
    for offset, result in enumerate([alert(7), alert(8, 7), alert(9, 7), closed(7, 9, 3), alert(20)]):
        run.read(event(result), offset)
    assert told(run.arrived[0]) == [("opened", "0-7"), ("closed", "0-7"), ("opened", "0-20")]
    assert run.committable() == 5


def test_silences_and_rates_are_told_like_incidents() -> None:
    run = Simulated(always)
    for offset, result in enumerate([silent(5), rate(6), heard(5, 600)]):
        run.read(event(result, None), offset)
    expected = [("opened", "0-5-key-silent"), ("opened", "0-6-partition-rate"), ("closed", "0-5-key-silent")]
    assert told(run.arrived[0]) == expected


def test_an_incident_that_opened_before_the_first_record_is_told_at_its_end() -> None:
    run = Simulated(always)
    for offset, result in enumerate([alert(9, 7), alert(10, 3), alert(11, 7), closed(7, 11, 3)]):
        run.read(event(result), offset)
    assert told(run.arrived[0]) == [("closed", "0-7")]


def test_where_the_first_alert_is_missing_the_second_one_opens() -> None:
    run = Simulated(always)
    for offset, result in enumerate([alert(1), alert(9, 7), alert(10, 7), closed(7, 10, 3), alert(11, 7)]):
        run.read(event(result), offset)
    assert told(run.arrived[0]) == [("opened", "0-1"), ("opened", "0-7"), ("closed", "0-7")]


def test_after_a_partition_was_taken_away_what_began_meanwhile_is_told_by_others() -> None:
    made = Policy()
    assert made.take(event(alert(1))) == "opened"
    made.begin_again()
    assert made.take(event(alert(9, 7))) is None
    assert made.take(event(alert(12, 11))) == "opened"


def test_an_opening_that_is_read_after_its_end_is_not_told() -> None:
    """They may be in two partitions."""
    run = Simulated(always)
    run.read(event(closed(0, 2, 2)), 0, partition=1)
    for offset, result in enumerate([alert(0), alert(1, 0), alert(2, 0)]):
        run.read(event(result), offset)
    assert told(run.arrived[0]) == [("closed", "0-0")]


def test_an_opening_is_told_again_where_it_is_read_again_or_has_the_name_of_an_earlier_one() -> None:
    run = Simulated(always)
    for offset, result in enumerate([alert(0), alert(0), closed(0, 1), alert(0), closed(0, 1)]):
        run.read(event(result), offset)
    assert [kind for kind, _ in told(run.arrived[0])] == ["opened", "opened", "closed", "opened", "closed"]


def test_memory_is_bounded() -> None:
    made = Policy()
    for offset in range(policy.MOST_KNOWN + 100):
        made.take(event(alert(offset)))
    assert len(made._known) == policy.MOST_KNOWN
