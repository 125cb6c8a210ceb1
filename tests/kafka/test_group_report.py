"""The report of `fomo-stream group` as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.admin.group import Agreed, as_text
from fomo_stream.admin.group_description import GroupDescription, MemberDescription, PartitionDescription
from fomo_stream.admin.state_size import StateSize
from fomo_stream.kafka.group.agreement import CHANGEABLE_SETTINGS, STATE_SETTINGS, Difference
from fomo_stream.settings.commands import GroupSettings

SETTINGS = GroupSettings(topic="t", group="g")
NAMES = (*STATE_SETTINGS, *CHANGEABLE_SETTINGS)
offsets = st.none() | st.integers(0, 10**9)
partitions = st.lists(
    st.builds(
        PartitionDescription,
        number=st.just(0),
        committed=offsets,
        end=offsets,
        state=st.none() | st.builds(StateSize, *[st.integers(0, 10**9)] * 4),
        state_written=st.none() | st.floats(0, 2000),
    ),
    min_size=1,
    max_size=12,
)


def agreed(*differing: str, given: bool = True) -> Agreed:
    differences = tuple(Difference(name, "a", "b") for name in differing)
    return Agreed(("x", "y"), dict.fromkeys(NAMES, "a"), differences, dict.fromkeys(differing, given))


@given(partitions)
def test_every_partition_has_a_line_and_the_last_has_the_total(found: list[PartitionDescription]) -> None:
    numbered = tuple(PartitionDescription(i, *list(vars(one).values())[1:]) for i, one in enumerate(found))
    member = MemberDescription("m-12345678", None, "c", "h", tuple(range(0, len(numbered), 2)))
    text = as_text(SETTINGS, GroupDescription("stable", (member,), numbered), agreed(), now=1000.0)
    rows = text.split("\n\n")[-1].splitlines()
    assert [row.split()[0] for row in rows] == ["partition", *map(str, range(len(numbered))), "all"]
    owners = [row.split()[1] for row in rows[1:-1]]
    assert owners == [("12345678", "-")[i % 2] for i in range(len(numbered))]
    assert int(rows[-1].split()[1]) == sum(one.lag or 0 for one in numbered)
    assert all(one.lag is None or one.lag >= 0 for one in numbered)


def test_a_setting_that_differs_is_shown_beside_the_groups() -> None:
    empty = GroupDescription("empty", (), (PartitionDescription(0),))
    text = as_text(SETTINGS, empty, agreed("out", given=False), now=0.0)
    assert "no members" in text
    assert [line.split() for line in text.splitlines() if line.startswith("out ")] == [["out", "a", "b", "(default)"]]
    assert "1 setting differs here" in text
    assert "change them otherwise" in text
    assert "would be refused (seed)" in as_text(SETTINGS, empty, agreed("out", "seed"), now=0.0)
    assert "agree with the group's" in as_text(SETTINGS, empty, agreed(), now=0.0)


def test_a_group_that_has_not_agreed_yet_is_no_error() -> None:
    nothing = Agreed(None, {}, (), {})
    text = as_text(SETTINGS, GroupDescription("empty", (), (PartitionDescription(0),)), nothing, now=0.0)
    assert "agreed on nothing yet" in text
