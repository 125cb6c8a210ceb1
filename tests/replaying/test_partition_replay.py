"""The replay of a partition gives the results of the detector, bit for bit, however it is split."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_source import MemorySource, cheap_model, make_plan, quick_settings, sample

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.partition.first import first_detector
from fomo_stream.replaying import partition as module
from fomo_stream.replaying.blocks import Block
from fomo_stream.replaying.partition import OWN, Others, PartitionReplay
from fomo_stream.replaying.plan import Plan

ARRAYS = ("score", "remembered_logit", "logit", "by_view", "p_value", "outlier", "generation", "regime", "severity")


def make_replay(plan: Plan, others: Others | None = None) -> PartitionReplay:
    return PartitionReplay(plan, 0, first_detector(plan.settings, cheap_model(), plan.schema, None), others)


def replayed(plan: Plan, others: Others | None = None) -> list[Block]:
    return list(make_replay(plan, others).blocks(lambda: False))


def expected(plan: Plan) -> tuple[list[int], Results]:
    """Offsets and results of the scored records, by a plain detector."""
    found = [one for one in plan.source.read(0, lambda: False) if one.error is None and {"x", "y"} & set(one.fields)]
    detector = Detector(cheap_model(), 2, plan.settings.detector_config())
    rows = plan.schema.rows([one.fields for one in found])
    return [one.offset for one in found], detector.process(rows, [one.key for one in found])


def assert_same(one: Results, other: Results) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.status == other.status


@settings(max_examples=8)
@given(block=st.integers(1, 70), batch_size=st.integers(1, 40))
def test_results_are_those_of_the_detector(block: int, batch_size: int) -> None:
    made = quick_settings(batch_size=batch_size, lags=1)
    plan = make_plan(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        twin = first_detector(made, cheap_model(), plan.schema, None)
        blocks = replayed(plan, Others({"twin": twin}))
    offsets, results = expected(plan)
    assert max(map(len, blocks)) <= block
    assert np.concatenate([one.offsets for one in blocks]).tolist() == offsets
    assert_same(Results.concatenate([one.results for one in blocks]), results)
    for one in blocks:
        np.testing.assert_array_equal(one.judgements[OWN].score, one.results.remembered_logit)
        for name in ("score", "p_value", "alert"):
            np.testing.assert_array_equal(getattr(one.judgements["twin"], name), getattr(one.judgements[OWN], name))
        assert [sample(at).fields for at in one.offsets.tolist()] == one.fields
        assert [sample(at).label for at in one.offsets.tolist()] == one.labels.tolist()


def test_records_without_a_score_are_counted_by_reason() -> None:
    plan = make_plan()
    samples = list(plan.source.read(0, lambda: False))
    skipped: Counter[str] = Counter()
    for one in replayed(plan):
        skipped.update(one.skipped)
    malformed = sum(one.error is not None for one in samples)
    empty = sum(one.error is None and not {"x", "y"} & set(one.fields) for one in samples)
    assert min(malformed, empty) > 0
    assert skipped == {"not_json": malformed, "no_features": empty}


def test_a_source_of_malformed_records_only_is_counted() -> None:
    plan = make_plan(source=MemorySource(30, make=lambda offset, _: sample(offset)._replace(fields={})))
    (block,) = replayed(plan)
    assert len(block) == 0
    assert sum(block.skipped.values()) == 27
