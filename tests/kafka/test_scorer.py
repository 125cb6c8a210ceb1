"""The schema of a pipeline: records that cannot make it, views that it is too wide for, and how long to wait for it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import Recording, make_pipeline, record

from fomo_stream.kafka.member import SAMPLE_WAIT_S, SchemaSearch
from fomo_stream.limits import INFER_RECORDS
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.records.schema import Schema


def test_records_with_too_many_numbers_are_dead_letters_and_later_ones_make_the_schema() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery, known=False)
    wide = json.dumps({f"f{i}": random.random() for i in range(1001)}).encode()
    for offset in range(30):
        pipeline.receive(record(offset, value=wide), 0.0)
    assert pipeline.infer() is None
    reasons = {dict(output.headers)["fomo-reason"] for output in delivery.to("t-dead-letters")}
    assert reasons == {b"too_many_features"}
    assert len(delivery.outputs) == 30
    for offset in range(30, 60):
        pipeline.receive(record(offset), 0.0)
    assert pipeline.infer() == Schema(("x", "y"))


def test_a_view_that_becomes_too_wide_is_left_out_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    schema = Schema(tuple(f"f{i}" for i in range(19)))
    pipeline = make_pipeline(Recording(), known=False, model=shared_model(), lags=10)
    with caplog.at_level("WARNING"):
        pipeline.begin(schema)
    assert "view_left_out view=past columns=209 limit=200" in caplog.text


def searching() -> Callable[[int, float], bool]:
    """Whether a search ends its wait when so many records wait at this time."""
    pipeline: Any = SimpleNamespace(infer=lambda: None)
    looks: list[float] = []
    group: Any = SimpleNamespace(stored=lambda: looks.append(0.0))
    search = SchemaSearch(group, pipeline)

    def is_over(waiting: int, now: float) -> bool:
        pipeline.n_waiting = waiting
        before = len(looks)
        search.proceed(now)
        return len(looks) > before

    return is_over


@given(st.floats(0.001, 60))
def test_a_slow_topic_gets_time_for_a_sample_and_a_fast_one_is_not_kept_waiting(gap: float) -> None:
    is_over, waiting, now = searching(), 1, 0.0
    while not is_over(waiting, now):
        waiting += 1
        now += gap
    if waiting < 20:
        assert now >= 6 * SAMPLE_WAIT_S
    elif waiting < INFER_RECORDS:
        assert now >= min(6 * SAMPLE_WAIT_S, 19 * gap + SAMPLE_WAIT_S)
    assert now <= 6 * SAMPLE_WAIT_S + gap
    assert now <= 19 * gap + SAMPLE_WAIT_S + gap
