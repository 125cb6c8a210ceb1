"""One value, however far, does not blind its column: alerts on a stream with marks of missing values in it."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.model.checkpoint import shared_model

ODD = {600: 8.0, 700: 20.0}


def stream(seed: int, at: Any, value: float) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    load = rng.normal(50, 5, 800)
    rows = np.column_stack([load, 0.4 * load + rng.normal(0, 1, 800), rng.normal(20, 1, 800)])
    rows[list(ODD), 2] += list(ODD.values())
    rows[at, 2] = value
    return rows


@pytest.mark.parametrize(
    ("at", "value"), [([50], 1020.0), ([400], 3.4e38), (np.arange(20, 800, 9), 65535.0)], ids=["near", "late", "many"]
)
def test_outliers_of_a_column_with_far_values_are_flagged_and_no_others(at: Any, value: Any) -> None:
    found = Detector(shared_model(), 3).process(stream(0, at, value))
    others = np.setdiff1d(np.flatnonzero(found.outlier), at)
    assert set(ODD) <= set(others.tolist())
    assert len(others) <= len(ODD) + 3
    logits = np.delete(found.logit, at)
    logits = logits[~np.isnan(logits)]
    assert all((logits > found.logit[i]).sum() < 4 for i in ODD)


@pytest.mark.parametrize("views", [("trimmed", "all"), DetectorConfig().views])
def test_a_far_value_in_rows_without_movement_ends_nothing(views: Any) -> None:
    width = 2 if len(views) == 2 else 120  # too many for movement
    rows = np.random.default_rng(2).normal(size=(300, width))
    rows[20, 1] = -9999.0
    found = Detector(shared_model(), width, DetectorConfig(views=views)).process(rows)
    assert np.isfinite(found.logit[200:]).all()
