"""The replay of a partition gives the results of the detector, bit for bit, however it is split."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_source import MemorySource, make_plan, quick_settings, sample
from pipelines import cheap_model

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.loading import first_detector
from fomo_stream.replaying import partition_run as module
from fomo_stream.replaying.blocks import Block
from fomo_stream.replaying.partition_run import OWN_DETECTOR, MonotonicTimes, PartitionReplay
from fomo_stream.replaying.plan import Plan


def replayed(plan: Plan, **variants: Detector) -> list[Block]:
    first = first_detector(plan.settings, cheap_model(), plan.schema, None)
    return list(PartitionReplay(plan, 0, first, variants).blocks(lambda: False))


def expected(plan: Plan) -> tuple[list[int], Results]:
    """Offsets and results of the scored records, by a plain detector."""
    found = [one for one in plan.source.read(0, lambda: False) if one.error is None and {"x", "y"} & set(one.fields)]
    detector = Detector(cheap_model(), 2, plan.settings.detector_config())
    rows = plan.schema.rows([one.fields for one in found])
    return [one.offset for one in found], detector.process(rows, [one.key for one in found])


@pytest.mark.parametrize(("block", "batch_size"), [(9, 4), (64, 40)])
def test_results_are_those_of_the_detector(block: int, batch_size: int) -> None:
    made = quick_settings(batch_size=batch_size, lags=1)
    plan = make_plan(made, MemorySource(130))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        twin = first_detector(made, cheap_model(), plan.schema, None)
        blocks = replayed(plan, twin=twin)
    offsets, results = expected(plan)
    assert max(map(len, blocks)) <= block
    assert np.concatenate([one.offsets for one in blocks]).tolist() == offsets
    found = Results.concatenate([one.results for one in blocks])
    for name in ("score", "remembered_logit", "logit", "by_view", "p_value", "outlier", "generation", "severity"):
        np.testing.assert_array_equal(getattr(found, name), getattr(results, name), err_msg=name)
    assert found.status == results.status
    samples = list(plan.source.read(0, lambda: False))
    malformed = sum(one.error is not None for one in samples)
    empty = sum(one.error is None and not {"x", "y"} & set(one.fields) for one in samples)
    assert min(malformed, empty) > 0
    skipped = sum((Counter(one.skipped) for one in blocks), Counter[str]())
    assert skipped == {"not_json": malformed, "no_features": empty}
    for one in blocks:
        np.testing.assert_array_equal(one.judgements[OWN_DETECTOR].score, one.results.score)
        for name in ("score", "alert"):
            np.testing.assert_array_equal(
                getattr(one.judgements["twin"], name), getattr(one.judgements[OWN_DETECTOR], name)
            )
        assert [(sample(at).fields, sample(at).label) for at in one.offsets.tolist()] == list(
            zip(one.fields, one.labels.tolist(), strict=True)
        )


# --- times ---------------------------------------------------------------------------------------------------

START, SECOND, DAY = 1_759_276_800_000, 1000, 86_400_000
NOW = START + 100 * DAY

stamps_of_records = st.lists(
    st.one_of(st.none(), st.integers(START, NOW), st.sampled_from([5, 0, -1, NOW + 1, 2**63 - 1, -(2**63)])),
    max_size=60,
)


@given(stamps_of_records, st.integers(0, 60))
def test_times_never_descend_and_stay_within_the_range(stamps: list[int | None], split: int) -> None:
    clock = MonotonicTimes(NOW, START)
    parts = [clock.times(stamps[:split])[0], clock.times(stamps[split:])[0]]
    times = np.concatenate(parts).tolist()
    assert times == sorted(times)
    assert all(START <= time <= NOW for time in times)
    for at, stamp in enumerate(stamps):
        if stamp is not None and START <= stamp <= NOW and stamp >= max(times[:at], default=0):
            assert times[at] == stamp


def test_a_time_outside_of_the_range_moves_no_other_record() -> None:
    good = [START + SECOND * at for at in range(9)]
    stamps: list[int | None] = [None, *good, NOW + 1, None, good[-1] + 5 * SECOND, 5]
    times, odd = MonotonicTimes(NOW).times(stamps)
    assert times.tolist() == [good[0], *good, good[-1], good[-1], good[-1] + 5 * SECOND, good[-1] + 5 * SECOND]
    assert odd == 4
    assert MonotonicTimes(NOW, START).times([None, 0])[0].tolist() == [START, START]
