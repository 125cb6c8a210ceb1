"""Values that stand still: against a plain count, and as alerts of a detector."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Cause
from fomo_stream.detector.series import Series
from fomo_stream.model.checkpoint import shared_model

Float = NDArray[np.float64]


def plain(values: Float, keys: Sequence[str | None]) -> list[list[int]]:
    """What `Batch.still` says of records (n, d), counted one value after the other."""
    d = values.shape[1]
    known, equal, ended = [0] * d, [0] * d, [list[int]() for _ in range(d)]
    last: dict[str | None, list[float]] = defaultdict(lambda: [math.nan] * d)
    run: dict[str | None, list[int]] = defaultdict(lambda: [0] * d)
    found = []
    for row, key in zip(values.tolist(), keys, strict=True):
        still = [0] * d
        for j, value in enumerate(row):
            if math.isnan(value):
                continue
            is_equal = value == last[key][j]
            if is_equal:
                run[key][j] += 1
                length, share = run[key][j], (equal[j] + 1) / (known[j] + 2)
                half = 2 ** int(math.log2(length // 2)) if length > 1 else 1
                if length >= 5 and known[j] >= 500 and share < 0.1 and -length * math.log(share) > 20:
                    still[j] = length if sum(one >= half for one in ended[j]) <= 1 else 0
            elif run[key][j]:
                ended[j].append(run[key][j])
                run[key][j] = 0
            last[key][j] = value
            known[j], equal[j] = known[j] + 1, equal[j] + is_equal
        found.append(still)
    return found


def sensors(seed: int, n: int = 1500) -> tuple[Float, list[str | None]]:
    """Records of three keys or none whose features repeat more or less often, stand still at times, and have gaps."""
    rng = np.random.default_rng(seed)
    values = np.column_stack([rng.normal(size=n), rng.integers(0, 30, n), rng.integers(0, 4, n)]).astype(np.float64)
    keys: list[str | None] = [None] * n if seed % 2 else list(rng.choice(["a", "b", "c"], n))
    for start in rng.integers(n // 3, n, 6).tolist():
        values[start : start + int(rng.integers(8, 60)), int(rng.integers(3))] = 7.0
    values[rng.random(values.shape) < 0.02] = np.nan
    return values, keys


@pytest.mark.parametrize("seed", range(2))
def test_a_plain_count_finds_the_same(seed: int) -> None:
    values, keys = sensors(seed)
    expected = np.array(plain(values, keys))
    assert (expected > 0).any(), "the example is too easy: nothing stands still"
    one, parts, start = Series(3), [], 0
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(values), 20)).tolist()
    for stop in [*cuts, len(values)]:
        asked = one.peek(values[start:stop], keys[start:stop]).still
        parts.append(one.follow(values[start:stop], keys[start:stop]).still)
        assert np.array_equal(asked, parts[-1])
        if start in cuts[::5]:  # go on from the state that was written
            entries = {name: value for name, value in one.copy().changes().items() if value is not None}
            one = Series(3)
            one.recover(entries)
        start = stop
    assert np.array_equal(np.concatenate(parts), expected)


def test_categories_do_not_stand_still() -> None:
    values = np.random.default_rng(0).normal(size=(900, 2))
    values[700:760] = 1.0
    still = Series(2, categorical=(1,)).follow(values).still
    assert still[705:760, 0].any()
    assert not still[:, 1].any()


def test_a_sensor_that_stands_still_is_an_outlier_with_its_reason() -> None:
    rows = np.random.default_rng(3).normal(size=(1500, 3))
    rows[1200:1240, 1] = rows[1199, 1]
    found = {}
    for still in ("alert", "ignore"):
        results = Detector(shared_model(), 3, DetectorConfig(stuck_values=still, explain="alerts")).process(rows)
        found[still] = results.outlier[1200:1240]
        of_fault = [each or () for each in results.reasons[1200:1240]]
        is_named = [
            (Cause.STILL, 1, i) in [(one.cause, one.feature, one.before) for one in each]
            for i, each in enumerate(of_fault, start=1)
        ]
        assert any(is_named) == (still == "alert")
    assert found["alert"][8:].all()
    assert found["ignore"].mean() < 0.5
