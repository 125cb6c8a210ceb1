"""Whether a replay equals the live output of a group: never claimed wrongly, and claimed in the usual cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_source import MemorySource, make_plan, quick_settings
from replays import CtrlC, cheap_checkpoint, outcomes_of

from fomo_stream.kafka.recorded import Learned
from fomo_stream.replaying import partition
from fomo_stream.replaying.live import _where_it_began
from fomo_stream.replaying.one_partition import Detectors
from fomo_stream.replaying.partition import PartitionReplay
from fomo_stream.replaying.plan import LiveGroup, Plan

OFFSETS = 12
places = st.integers(0, OFFSETS)


@given(st.sets(st.integers(0, OFFSETS - 1)) | st.just(set(range(OFFSETS))), places, places, places, places)
def test_a_finding_is_true(usable: set[int], began: int, position: int, start: int, end: int) -> None:
    """usable: offsets with a record that can be scored."""
    position, end = max(began, position), max(start, end)

    def learned(first: int, stop: int) -> set[int]:
        return {at for at in usable if first <= at < stop}

    group = Learned(position, len(learned(began, position)))
    until = min(position, end)
    finding = _where_it_began(group, start, end, len(learned(start, until)))
    is_same = position >= start and learned(began, until) == learned(start, until)
    assert is_same or finding != "equal"
    assert not is_same or finding in ("equal", "unknown")
    is_usual = position <= end or (start == 0 and usable >= set(range(end, position)))
    if is_usual and position >= start and learned(began, position) == learned(start, position):
        assert finding == "equal"


def test_nothing_is_known_about_a_partition_without_a_state() -> None:
    assert _where_it_began(None, 0, 9, 9) == _where_it_began(Learned(9, 9), 0, 9, None) == "unknown"


def with_group(plan: Plan, position: int) -> Plan:
    """The same plan with a group that is at this offset."""
    return replace(plan, live=LiveGroup({0: Learned(position, 0)}, is_same=True))


def test_the_records_before_the_position_of_the_group_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "BLOCK", 20)
    checkpoint = cheap_checkpoint(tmp_path)
    plan = make_plan(quick_settings(model=checkpoint), MemorySource(120))
    blocks = PartitionReplay(plan, 0, Detectors(plan).first).blocks(lambda: False)
    offsets = np.concatenate([block.offsets for block in blocks])
    for position in (0, 37, 90, 120, 500):
        (outcome,) = outcomes_of(with_group(plan, position))
        assert outcome.learned == (offsets < position).sum()
    for before, after, is_known in ((90, 90, True), (10, 10, True), (90, 100, True), (10, 20, False)):
        settings = quick_settings(model=checkpoint, resume=tmp_path / f"{before}-{after}")
        assert settings.resume is not None
        settings.resume.mkdir()
        plan = make_plan(settings, MemorySource(120))
        (stopped,) = outcomes_of(with_group(plan, before), CtrlC(2))
        assert 20 < stopped.position < 90
        (outcome,) = outcomes_of(with_group(plan, after))
        assert outcome.learned == ((offsets < after).sum() if is_known else None)
