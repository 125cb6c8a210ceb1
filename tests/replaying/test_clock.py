"""Times of records never descend, and good times stay as they are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.replaying.partition import Clock

START, SECOND, DAY = 1_759_276_800_000, 1000, 86_400_000
NOW = START + 100 * DAY

stamps_of_records = st.lists(
    st.one_of(st.none(), st.integers(START, NOW), st.sampled_from([5, 0, -1, NOW + 1, 2**63 - 1, -(2**63)])),
    max_size=60,
)


@given(stamps_of_records, st.integers(0, 60))
def test_times_never_descend_and_stay_within_the_range(stamps: list[int | None], split: int) -> None:
    clock = Clock(NOW, START)
    parts = [clock.times(stamps[:split])[0], clock.times(stamps[split:])[0]]
    times = np.concatenate(parts).tolist()
    assert times == sorted(times)
    assert all(START <= time <= NOW for time in times)
    for at, stamp in enumerate(stamps):
        counts = stamp is not None and START <= stamp <= NOW
        if counts and stamp >= max((time for time in times[:at]), default=0):  # type: ignore[operator]
            assert times[at] == stamp


def test_a_time_outside_of_the_range_moves_no_other_record() -> None:
    good = [START + SECOND * at for at in range(9)]
    stamps: list[int | None] = [None, *good, NOW + 1, None, good[-1] + 5 * SECOND, 5]
    times, odd = Clock(NOW).times(stamps)
    assert times.tolist() == [good[0], *good, good[-1], good[-1], good[-1] + 5 * SECOND, good[-1] + 5 * SECOND]
    assert odd == 4
    assert Clock(NOW, START).times([None, 0])[0].tolist() == [START, START]
