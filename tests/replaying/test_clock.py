"""Times of records: a wrong timestamp moves no other record, and good times stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from blocks import block, tallied
from hypothesis import given
from hypothesis import strategies as st
from memory_source import MemorySource, cheap_model, make_plan, quick_settings, sample

from fomo_stream.partition.first import first_detector
from fomo_stream.replaying.blocks import Int, Sample
from fomo_stream.replaying.gathering import AROUND, Clock, Lookahead
from fomo_stream.replaying.partition import PartitionReplay

START, SECOND, DAY = 1_759_276_800_000, 1000, 86_400_000
NOW = START + 100 * DAY
Stamps = Sequence[int | None]


def timed(stamps: Stamps, size: int = 1024, begin: int = 0) -> tuple[Int, int]:
    """The times of all records in blocks of this size, and how many are odd."""
    clock = Clock(NOW, begin)
    parts = [
        clock.times(stamps[at : at + size], stamps[at + size : at + size + AROUND - 1])
        for at in range(0, len(stamps), size)
    ]
    return np.concatenate([times for times, _ in parts]), sum(odd for _, odd in parts)


@given(st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=90), st.integers(1, 100))
def test_times_in_order_stay_as_they_are(steps: list[int], size: int) -> None:
    stamps = (START + np.cumsum(steps)).tolist()
    times, odd = timed(stamps, size)
    assert times.tolist() == stamps
    assert odd == 0


@pytest.mark.parametrize("wrong", [START + 25 * DAY, NOW + DAY, 5 * SECOND, 1, 0, -1, None, 2**63 - 1, -(2**63)])
@given(
    places=st.sets(st.integers(0, 180), min_size=1, max_size=5),
    at_end=st.booleans(),
    size=st.sampled_from([40, 77, 300]),
)
def test_a_few_wrong_times_move_no_other_record(wrong: int | None, places: set[int], at_end: bool, size: int) -> None:
    good = [START + SECOND * i for i in range(200)]
    bad = places | ({199} if at_end else set())
    stamps: list[int | None] = [wrong if i in bad else time for i, time in enumerate(good)]
    times, odd = timed(stamps, size)
    others = [i for i in range(198) if i not in bad]  # the last but one has few after it to say that it is right
    assert times[others].tolist() == [good[i] for i in others]
    assert (np.abs(times - good) <= 6 * SECOND).all()
    assert odd == len(bad)


@pytest.mark.parametrize("size", [50, 1024])
def test_times_that_stay_ahead_are_believed(size: int) -> None:
    stamps = [START + SECOND * i + (25 * DAY if i >= 100 else 0) for i in range(200)]
    times, odd = timed(stamps, size)
    assert times.tolist() == stamps
    assert odd == 0


@given(st.integers(0, 2**32), st.integers(1, 400), st.sampled_from([0.0, 0.1, 0.3]))
def test_times_depend_little_on_blocks_and_never_descend(seed: int, size: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    stamps: list[int | None] = (START + np.cumsum(rng.exponential(SECOND, 300)).astype(int)).tolist()
    for i in np.flatnonzero(rng.random(300) < share)[:-1]:
        stamps[i] = [None, 0, START + int(rng.integers(60 * DAY)), NOW + 1][rng.integers(4)]
    times, _ = timed(stamps, size)
    whole, _ = timed(stamps, 1024)
    assert (np.diff(times) >= 0).all()
    assert times[:-1].tolist() == whole[:-1].tolist()


def test_devices_out_of_order_are_not_odd() -> None:
    rng = np.random.default_rng(3)
    true = START + SECOND * np.arange(3000)
    stamps = (true - rng.integers(0, 20 * SECOND, 3000)).tolist()
    times, odd = timed(stamps)
    assert odd == 0
    assert np.abs(times - true).max() < 40 * SECOND


def test_records_before_the_range_count_from_its_begin() -> None:
    times, odd = timed([None, START - DAY, START + SECOND], begin=START)
    assert times.tolist() == [START + SECOND] * 3
    assert odd == 2
    assert timed([None, 0], begin=START)[0].tolist() == [START, START]


def test_the_note_counts_them() -> None:
    (note,) = tallied([block(np.zeros(3), odd_times=1)], has_labels=False).report()["notes"]
    assert note.startswith("1 record had no time, or one that differs by more than a minute")


@given(st.lists(st.integers(0, 9), max_size=30))
def test_a_look_ahead_takes_nothing(looks: list[int]) -> None:
    samples = Lookahead(Sample(i, None, None, {}) for i in range(25))
    found: list[int] = []
    for n in looks:
        at = len(found)
        assert [one.offset for one in samples.upcoming(n)] == list(range(at, min(25, at + n)))
        found += [one.offset for one in [next(samples, None)] if one is not None]
    assert found + [one.offset for one in samples] == list(range(25))


def test_a_replay_looks_at_the_records_after_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last record of a block is a day ahead, the range is asked for by times."""
    monkeypatch.setattr("fomo_stream.replaying.partition.BLOCK", 10)

    def make(offset: int, partition: int) -> Sample:
        time = 5 if offset == 1 else START + SECOND * offset + DAY * (offset == 10)
        return sample(offset)._replace(timestamp=time, fields={"x": 1.0, "y": 2.0}, error=None)

    plan = make_plan(quick_settings(from_="2025-10-01"), MemorySource(90, make=make))
    plan = type(plan)(**{**plan.__dict__, "now_ms": NOW})
    replay = PartitionReplay(plan, 0, first_detector(plan.settings, cheap_model(), plan.schema, None))
    blocks = list(replay.blocks(lambda: False))
    times, offsets = (np.concatenate([getattr(one, name) for one in blocks]) for name in ("times", "offsets"))
    good = [int(offset) for offset in offsets if offset not in (1, 10)]
    assert times[np.isin(offsets, good)].tolist() == [START + SECOND * offset for offset in good]
    assert sum(one.odd_times for one in blocks) == 2
