"""Use everything that is compiled for the first time."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.model.architecture import Model


def warm_up(model: Model) -> None:
    """Score and learn something of every kind, so that nothing is compiled or loaded later."""
    config = DetectorConfig(min_context=8, context_size=64, lags=1, cycles=((2, 1),), recent_every=32)
    steps = np.arange(96.0)
    rows = np.stack([steps % 7, steps, steps % 2, steps % 2, steps], axis=1)
    rows[50:60, 0] = np.nan
    rows[3, 0] = 1e30  # far from all others
    for categorical in ((), (2,)):
        detector = Detector(model, 3, config, categorical=categorical, counters=(1,))
        for start in range(0, len(rows), 24):
            part = rows[start : start + 24]
            keys = [("a", "b", None)[i % 3] for i in range(len(part))]
            detector.score_rows(part, keys)
            detector.process(part, keys)
        detector.score_independent(rows)
        detector.skip(rows, ["a"] * len(rows))
