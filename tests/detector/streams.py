"""A short stream that has everything, and detectors for it: shared by the tests of the detector."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.model.checkpoint import shared_model

SMALL = DetectorConfig(
    context_size=60, min_context=20, lag=8, calibration_size=100, feedback_memory=80, adapt_after=100, alert_rate=0.05
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


def same(a: Results, b: Results) -> bool:
    arrays = ("score", "logit", "p_value", "outlier", "generation", "regime", "severity")
    equal = all(np.array_equal(getattr(a, n), getattr(b, n), equal_nan=n in arrays[:3]) for n in arrays)
    return equal and a.status == b.status


def pool_of(one: Detector) -> np.ndarray:
    """Ascending numbers of the records that may become context."""
    return one._state.context.pool.numbers
