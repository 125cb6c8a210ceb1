"""Results from logits: scores and p-values against recent records, and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.calibration import AlertThreshold, p_values, scores_among
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.history import History
from fomo_stream.detector.results import Results, Scores

Float = NDArray[np.float64]


class Alerts:
    """Compares records with the window of those before the last step, and follows the share of alerts.

    A step is every `STEP` records. Between two steps the window and the threshold stay the same, so that a result does
    not depend on how records are split over calls.

    p-values refer to the logits that the newest contexts give to the records of the window. These contexts have learned
    them, so a burst of outliers does not hide the next one; but where a stream moves, new records seem rarer than they
    are, for which the threshold makes up. Scores have no threshold that adapts. They refer to the larger one of that
    logit and of the one that a record had when it came, before it was learned. So ordinary records of a moving stream
    have ordinary scores, and a score is never more than a step above 1 - p_value.
    """

    def __init__(self, config: DetectorConfig) -> None:
        self.stepped = 0  # number of records at the last step
        self.threshold = AlertThreshold(config.alert_rate, config.window_size)
        self._size = config.window_size
        self._count = 0  # outliers since the last step
        self._windows: tuple[Float, Float] | None = None  # see `History.windows`; None: to be taken from it

    def judge(self, scores: Scores, remembered: Float, regime: int, history: History) -> Results:
        """Results of records from their scores and their remembered logits (n,)."""
        if self._windows is None:
            self._windows = history.windows(self._size, self.stepped)
        newest, larger = self._windows
        p, score = p_values(remembered, newest), scores_among(remembered, larger)
        return Results.of(scores, remembered, score, p, regime, len(newest), self.threshold)

    def count(self, results: Results) -> None:
        """Note the outliers among records that are learned now."""
        self._count += int(results.outlier.sum())

    def step(self, records: int) -> None:
        """Adapt the threshold to the outliers since the last step; `records` is the number of the next record."""
        self.threshold.update(self._count, records - self.stepped)
        self.begin(records)

    def begin(self, records: int) -> None:
        """Start a new step without adapting the threshold."""
        self._count, self.stepped, self._windows = 0, records, None

    def refresh(self) -> None:
        """Build the windows again: logits in the history have changed."""
        self._windows = None

    def copy(self) -> Alerts:
        """Independent alerts in the same state."""
        twin = copy(self)
        twin.threshold = copy(self.threshold)
        return twin

    def counters(self) -> dict[str, Any]:
        """The state, as plain numbers."""
        return {"stepped": self.stepped, "alerts": self._count, "log_factor": self.threshold.log_factor}

    def recover(self, counters: Mapping[str, Any]) -> None:
        """Take the state from `counters`."""
        self.stepped, self._count, self._windows = counters["stepped"], counters["alerts"], None
        self.threshold.log_factor = counters["log_factor"]
