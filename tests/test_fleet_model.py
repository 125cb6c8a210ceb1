"""The model of a fleet: its formulas agree with a simulation event by event, and its fits find what they should."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent / "benchmarks"))

from fleet_model import (
    HEARTBEAT_S,
    SESSION_S,
    Constants,
    Fleet,
    disk_bytes,
    fit_line,
    join_s,
    leave_s,
    load,
    restore_s,
    simulate,
)

MODEL = Constants(
    round_s=0.1,
    restore_s=0.02,
    restore_s_per_byte=1e-8,
    encode_s=0.05,
    live_bytes=2e6,
    written_bytes=500.0,
    output_bytes=600.0,
    commit_s=0.05,
    requests=10.0,
    requests_per_partition=5.0,
)
FLEETS = st.builds(Fleet, st.integers(1, 100), st.integers(1, 1000), st.floats(0.1, 5000))


@pytest.mark.parametrize("rate", [2.0, 20.0, 1000.0])
def test_the_load_is_that_of_a_simulation_event_by_event(rate: float) -> None:
    fleet, seconds = Fleet(3, 12, rate), 50.0
    rng = np.random.default_rng(0)
    commits, touched = 0, 0
    for _ in range(fleet.instances):
        counts = rng.poisson(rate * MODEL.commit_s, size=(round(seconds / MODEL.commit_s), fleet.share))
        commits += int((counts.sum(axis=1) > 0).sum())
        touched += int((counts > 0).sum())
    found = load(MODEL, fleet)
    assert found["transactions"] == pytest.approx(commits / seconds, rel=0.03)
    assert found["markers"] == pytest.approx((2 * touched + commits) / seconds, rel=0.03)
    assert found["requests"] == pytest.approx((10 * commits + 5 * touched) / seconds, rel=0.03)
    assert found["bytes"] == pytest.approx(12 * rate * 1100)


def test_the_rebalances_are_those_of_a_simulation_heartbeat_by_heartbeat() -> None:
    leaves, joins = [], []
    for event in np.linspace(0, HEARTBEAT_S, 1000, endpoint=False):
        beat = HEARTBEAT_S  # of all members, since the last rebalance ended at 0
        first = beat + MODEL.round_s  # the first round is over; from then on the newcomer counts its own interval
        leaves.append(first - event)
        joins.append(first + HEARTBEAT_S + MODEL.round_s - event)
    assert leave_s(MODEL) == pytest.approx(float(np.mean(leaves)), rel=0.01)
    assert join_s(MODEL) == pytest.approx(float(np.mean(joins)), rel=0.01)


@given(FLEETS)
def test_more_partitions_take_longer_and_more_instances_are_quicker(fleet: Fleet) -> None:
    found = simulate(MODEL, fleet)
    larger = simulate(MODEL, replace(fleet, partitions=fleet.partitions + fleet.instances))
    for name in ("all start", "one joins", "state in use", "state on disk", "bytes"):
        assert larger[name] > found[name]
    wider = simulate(MODEL, replace(fleet, instances=fleet.instances + 1))
    for name in ("all start", "one joins"):
        assert wider[name] <= found[name]
    assert found["one dies"] - found["one leaves"] == pytest.approx(SESSION_S)
    assert found["state on disk"] >= found["state in use"]
    assert found["restore one"] == pytest.approx(restore_s(MODEL, 1, disk_bytes(MODEL, fleet)))


@given(FLEETS, st.integers(1, 50), st.integers(1, 50))
def test_restores_are_one_after_the_other(fleet: Fleet, one: int, other: int) -> None:
    size = disk_bytes(MODEL, fleet)
    together = restore_s(MODEL, one + other, size)
    assert together == pytest.approx(restore_s(MODEL, one, size) + restore_s(MODEL, other, size))


@given(st.floats(0, 10), st.floats(0, 10), st.lists(st.floats(0, 100), min_size=2, max_size=10))
def test_a_line_is_found(intercept: float, slope: float, at: list[float]) -> None:
    found = fit_line([(x, intercept + slope * x) for x in at])
    for x in at:
        assert found[0] + found[1] * x == pytest.approx(intercept + slope * x, rel=1e-6, abs=1e-4)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=10))
def test_a_time_is_never_below_zero(points: list[tuple[float, float]]) -> None:
    assert min(fit_line(points)) >= 0
