"""The report of `fomo-stream group` as text."""

from __future__ import annotations

from fomo_stream.admin.group import Agreed, GroupDescription, MemberDescription, PartitionDescription, as_text
from fomo_stream.kafka.group.agreement import CHANGEABLE_SETTINGS, STATE_SETTINGS, Difference
from fomo_stream.settings.commands import GroupSettings

SETTINGS = GroupSettings(topic="t", group="g")
EMPTY = GroupDescription("empty", (), (PartitionDescription(0),))


def agreed(*differing: str, given: bool = True) -> Agreed:
    settings = dict.fromkeys((*STATE_SETTINGS, *CHANGEABLE_SETTINGS), "a")
    differences = tuple(Difference(name, "a", "b") for name in differing)
    return Agreed(("x", "y"), settings, differences, dict.fromkeys(differing, given))


def test_every_partition_has_a_line_and_the_last_has_the_total() -> None:
    partitions = (PartitionDescription(0, 3, 10, 7, 990.0), PartitionDescription(1), PartitionDescription(2, 5, 6, 1))
    group = GroupDescription("stable", (MemberDescription("one", "c", "h", (0, 2)),), partitions)
    text = as_text(SETTINGS, group, agreed(), now=1000.0)
    rows = [line.split() for line in text.split("\n\n")[-1].splitlines()[1:]]
    assert rows == [
        ["0", "one", "3", "10", "7", "10", "s", "ago"],
        ["1", "-", "-", "-", "-", "-"],
        ["2", "one", "5", "6", "1", "-"],
        ["all", "8"],
    ]
    assert ["one", "c", "h", "8", "0,", "2"] in [line.split() for line in text.splitlines()]


def test_a_setting_that_differs_is_shown_beside_the_groups() -> None:
    text = as_text(SETTINGS, EMPTY, agreed("out", given=False), now=0.0)
    assert "0 members" in text
    assert [line.split() for line in text.splitlines() if line.startswith("out ")] == [["out", "a", "b", "(default)"]]
    assert "1 setting of an instance here would be different" in text
    assert "change them otherwise" in text
    assert "would be refused (seed)" in as_text(SETTINGS, EMPTY, agreed("out", "seed"), now=0.0)
    assert "agree with the group's" in as_text(SETTINGS, EMPTY, agreed(), now=0.0)


def test_a_group_that_has_not_agreed_yet_is_no_error() -> None:
    assert "agreed on nothing yet" in as_text(SETTINGS, EMPTY, Agreed(None, {}, (), {}), now=0.0)
