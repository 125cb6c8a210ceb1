"""A short stream that has everything, and detectors for it: shared by the tests of the detector."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.generation import Generation
from fomo_stream.detector.results import Results
from fomo_stream.model.checkpoint import shared_model

SMALL = DetectorConfig(
    context_size=60,
    min_context=20,
    lag=8,
    calibration_size=100,
    feedback_memory=80,
    adapt_after=100,
    recent_every=96,
    alert_rate=0.05,
)


def detector(config: DetectorConfig = SMALL, n_features: int = 3) -> Detector:
    return Detector(shared_model(), n_features, config)


def stream(n: int, seed: int = 0, d: int = 3) -> np.ndarray:
    """Normal rows, one in twenty far off, some values missing; a lasting shift after 200."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * np.where(rng.random((n, 1)) < 0.05, 8, 1)
    rows[200:] += 9
    rows[rng.random((n, d)) < 0.02] = np.nan
    return rows


def keys_of(n: int, seed: int = 0) -> list[str | None]:
    """Keys that come again, and records without one."""
    return [None if key == 4 else str(key) for key in np.random.default_rng(seed).integers(0, 5, n)]


def same(a: Results, b: Results) -> bool:
    """Every field, bit for bit."""
    other = vars(b)
    arrays = {name: values for name, values in vars(a).items() if name not in ("status", "reasons")}
    equal = all(np.array_equal(v, other[n], equal_nan=v.dtype.kind == "f") for n, v in arrays.items())
    return equal and a.status == b.status and repr(a.reasons) == repr(b.reasons)  # NaN is not equal to itself


def pool_of(one: Detector) -> np.ndarray:
    """Ascending numbers of the records that may become context of the history."""
    return one._context.pool.numbers


def generation_of(one: Detector, view: str) -> Generation:
    """The generation of a view that scores the next record."""
    current = next(t.current for t in one._panel.timelines if t.view.name == view)
    assert current is not None
    return current.result()


def context_of(one: Detector, view: str) -> np.ndarray:
    """Numbers of the records in the present context of a view."""
    return generation_of(one, view).numbers
