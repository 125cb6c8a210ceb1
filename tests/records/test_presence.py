"""Features that go away, become text, or come back, and new fields: each told once."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.records.presence import Presence


def told(presence: Presence, rows: np.ndarray, sizes: list[int]) -> list[tuple[int, int, bool]]:
    """What is told in micro-batches of these sizes, again and again: after how many records, of which column, what."""
    found, at, batch = [], 0, 0
    while at < len(rows):
        part = rows[at : at + sizes[batch % len(sizes)]]
        at, batch = at + len(part), batch + 1
        some = ~np.isnan(part).all(axis=1)
        for column in presence.follow(part[some], int((~some).sum())).tolist():
            found.append((at, column, bool(presence.gone[column])))
    return found


@given(st.lists(st.integers(1, 64), min_size=1, max_size=5))
def test_a_feature_that_goes_away_and_comes_back_is_told_once_each(sizes: list[int]) -> None:
    rows = np.ones((1400, 3))
    rows[300:600, 1] = np.nan  # one feature
    rows[800:1100] = np.nan  # all
    found = told(Presence(), rows, sizes)
    for column, expected in ((0, [900, 1101]), (1, [400, 601, 900, 1101]), (2, [900, 1101])):
        own = [(at, is_gone) for at, one, is_gone in found if one == column]
        assert [is_gone for _, is_gone in own] == [True, False] * (len(expected) // 2)
        assert all(when <= at < when + 150 for (at, _), when in zip(own, expected, strict=True))


@pytest.mark.parametrize("share", [0.05, 0.9])
def test_a_feature_that_few_records_have_is_not_told(share: float) -> None:
    rng = np.random.default_rng(1)
    rows = np.where(rng.random((50_000, 4)) < share, 1.0, np.nan)
    assert told(Presence(), rows, [64]) == []
    later = np.concatenate([rows, np.where(np.arange(4) == 2, np.nan, np.ones((10_000, 4)))])
    [(at, column, is_gone)] = told(Presence(), later, [64])
    assert (column, is_gone) == (2, True)
    assert 0.5 < (at - 50_000) * share / 100 < 2


def test_a_feature_that_never_had_a_value_is_told_late() -> None:
    rows = np.ones((5000, 2))
    rows[:, 0] = np.nan
    [(at, column, _)] = told(Presence(), rows, [10])
    assert (at, column) == (2000, 0)


def test_a_new_field_is_told_once_if_it_stays() -> None:
    presence, rng = Presence(), random.Random(1)
    base: dict[str, Any] = {"flow": 1.0, "site": "x", "motor": {"rpm": 3}}
    presence.learn([base])
    for _ in range(100):
        assert presence.new_fields({**base, f"odd{rng.random()}": 1.0, "note": "text", "seen": True}, 20) == []
    renamed = {"flow_m3h": 1.0, "motor": {"speed": 3}}
    found = [presence.new_fields(renamed, 20) for _ in range(100)]
    assert [one for one in found if one] == [["flow_m3h", "motor.speed"]]


def test_absurdly_many_names_cost_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fomo_stream.records.presence.MAX_KNOWN_NAMES", 1000)
    presence = Presence()
    tracemalloc.start()
    presence.learn({f"n{at}_{i}": 1 for i in range(500)} for at in range(60))
    for at in range(60):
        presence.new_fields({f"m{at}_{i}": 1 for i in range(500)}, 1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2 << 20  # all 60,000 names would take three times as much
