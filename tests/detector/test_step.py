"""The compiled step with what a kernel must not trust: sizes of values, places, lengths, kinds of arrays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.errors import SchemaError
from fomo_stream.model.checkpoint import shared_model

Float = NDArray[np.float64]
KEYS = [f"k{i % 5}" for i in range(400)]


def rows(n: int = 400) -> Float:
    rng = np.random.default_rng(0)
    found: Float = rng.normal(size=(n, 2)) + 20.0
    found[300:310, 0] += 9.0
    return found


def detector(cycles: tuple[tuple[int, int], ...] = ()) -> Detector:
    return Detector(shared_model(), 2, DetectorConfig(min_context=100, context_size=200, cycles=cycles))


@pytest.mark.parametrize(("unit", "keys"), [(2.0**-80, KEYS), (2.0**70, None)], ids=["small", "large"])
def test_the_unit_of_measurement_changes_nothing(unit: float, keys: list[str] | None) -> None:
    """Also where the squares of values have no place in 32 bits. A rank in a context may change by one."""
    usual, other = (detector().process(rows() * factor, keys) for factor in (1.0, unit))
    np.testing.assert_allclose(other.by_view, usual.by_view, rtol=0, atol=0.1)
    np.testing.assert_allclose(other.by_key, usual.by_key, rtol=0, atol=0.1)


def test_a_place_outside_of_the_cycle_is_unknown() -> None:
    hours, some = np.arange(400.0) / 4 % 24, np.arange(400) % 7 == 3
    unknown, *found = (
        detector(((24, 1),)).process(np.column_stack([rows(), np.where(some, place, hours)]))
        for place in (np.nan, 24.0, 1e30, -1.0, np.inf)
    )
    for one in found:
        np.testing.assert_array_equal(one.logit, unknown.logit)


@pytest.mark.parametrize("n", [0, 401])
def test_there_is_a_key_for_each_row(n: int) -> None:
    one = detector()
    calls: list[Callable[[Float, list[str]], object]] = [one.process, one.score_rows, one.skip, one.explain]
    for call in [*calls, one.seed_context, one.score_independent]:
        with pytest.raises(SchemaError, match=f"400 rows with {n} keys; give one for each row"):
            call(rows(), ["k"] * n)
    assert one.records == 0


def test_arrays_of_all_kinds_are_read() -> None:
    given = rows()
    read_only = given.copy()
    read_only.flags.writeable = False
    expected = detector().process(given).logit
    wide = np.zeros((400, 5))
    wide[:, ::4] = given
    for one in (read_only, np.asfortranarray(given), given.astype(">f8"), wide[:, ::4], given[::-1][::-1]):
        np.testing.assert_array_equal(detector().process(one).logit, expected)


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import json
import numpy as np
from fomo_stream import Detector, DetectorConfig, load_model
rows = np.array(json.loads(sys.argv[1]))
config = DetectorConfig(min_context=20, context_size=30, views=("fast",))
detector = Detector(load_model("fomo", "cpu", "torch"), 2, config)
detector.process(rows[:0])
print(json.dumps(detector.process(rows, sys.argv[2:]).remembered_logit[20:].tolist()))
"""


def test_without_compiled_kernels_results_are_the_same() -> None:
    config, n = DetectorConfig(min_context=20, context_size=30, views=("fast",)), 100
    expected = Detector(shared_model("fomo", "cpu", "torch"), 2, config).process(rows()[:n], KEYS[:n])
    script = [sys.executable, "-W", "ignore", "-c", WITHOUT_NUMBA, json.dumps(rows()[:n].tolist()), *KEYS[:n]]
    found = json.loads(subprocess.run(script, check=True, capture_output=True, text=True).stdout)
    np.testing.assert_allclose(found, expected.remembered_logit[20:], rtol=0, atol=1e-6)
