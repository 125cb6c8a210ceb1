"""Where a partition resumes, for every combination of offsets and settings."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import BrokerError, DamagedStateError
from fomo_stream.partition.position import POSITION, InputOffsets, SavedPosition, decide_resume
from fomo_stream.settings.service_settings import ServiceSettings


def expected(
    found: InputOffsets, position: SavedPosition | None, flags: ServiceSettings
) -> tuple[int | None, int, bool]:
    """Offset to resume at (None: the user must decide), records learned before, whether the state is valid."""
    ids = {found.topic_id, position.topic_id} if position is not None else set()
    if position is not None and (
        ("" not in ids and len(ids) == 2)  # the broker says that it is another topic
        or (not found.topic_id and found.committed is None and position.offset > found.high)  # so it seems
    ):
        return found.low, 0, False
    learned = 0 if position is None else min(position.offset, found.high)
    if found.committed is not None:
        start = found.committed
    elif position is not None and flags.delivery == "exactly-once":
        start = learned
    else:
        start = found.low
    if start in range(found.low, found.high + 1):
        return start, learned, True
    choices = {"fail": None, "earliest": found.low, "latest": found.high}
    return choices[flags.on_lost_offset], learned, True


def test_every_combination_of_offsets_resumes_where_it_should() -> None:
    every_setting = [
        ServiceSettings(topic="t", delivery=delivery, on_lost_offset=lost)
        for delivery in ("exactly-once", "at-least-once")
        for lost in ("fail", "earliest", "latest")
    ]
    offsets = [None, 0, 1, 2, 3, 5]
    kept = [(low, high) for low in (0, 2) for high in (2, 3, 4)]
    ids = itertools.product(["", "A"], ["", "A", "B"])
    count = 0
    for (low, high), committed, at, (now, then), flags in itertools.product(
        kept, offsets, offsets, list(ids), every_setting
    ):
        position = None if at is None else SavedPosition(at, then)
        entries = {"detector/x": b"1"} | ({} if position is None else {POSITION: position.encode()})
        found = InputOffsets(low, high, committed, now)
        start, learned, is_of_use = expected(found, position, flags)
        if start is None:
            with pytest.raises(BrokerError, match=r"t\[0\] has offset .*, but the broker keeps"):
                decide_resume(found, entries, flags, "t[0]")
            continue
        restored, notes = decide_resume(found, entries, flags, "t[0]")
        assert (restored.start, restored.learned_until) == (start, learned), (found, position, flags)
        assert restored.entries == (entries if is_of_use else {})
        assert restored.stale == (frozenset() if is_of_use else frozenset(entries))
        agree = is_of_use and (position is None or learned == start)
        assert bool(notes) == (not agree or (committed is not None and committed != start))
        assert all("t[0]" in str(note) for note in notes)
        count += 1
    assert count > 4000


# --- positions


@given(
    st.builds(
        SavedPosition, st.integers(0, 2**63 - 1), *[st.text(max_size=30).filter(str.isprintable)] * 2, st.booleans()
    )
)
def test_a_position_survives_being_written(position: SavedPosition) -> None:
    assert SavedPosition.decode(position.encode()) == position


@pytest.mark.parametrize("value", [b"{", b"3", b"{}", b'{"offset": "x", "topic_id": ""}', b'{"offset": null}'])
def test_a_damaged_position_is_named(value: bytes) -> None:
    with pytest.raises(DamagedStateError, match="position"):
        SavedPosition.decode(value)
