"""Results from logits: scores and p-values against recent records, and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.calibration import (
    AlertThreshold,
    ScoreScale,
    is_calibrated,
    most_above,
    own_p_values,
    p_values,
    scores_among,
)
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
    are, for which the threshold makes up. Scores refer to the larger one of that logit and of the one that a record had
    when it came, before it was learned, and are scaled. So ordinary records of a moving stream have ordinary scores,
    and the outliers are the records with a score above 1 - alert_rate.
    """

    def __init__(self, config: DetectorConfig) -> None:
        self.stepped = 0  # number of records at the last step
        self.threshold = AlertThreshold(config.alert_rate, config.window_size)
        self._scale = ScoreScale(config.alert_rate, config.window_size)
        self._size = config.window_size
        self._count = self._high = 0  # outliers, and high scores, since the last step
        # see `History.windows`, with the score of the larger logits above which records are outliers
        self._windows: tuple[Float, Float, float | None] | None = None  # None: to be taken from the history

    def judge(self, scores: Scores, remembered: Float, regime: int, history: History) -> Results:
        """Results of records from their scores and their remembered logits (n,)."""
        if self._windows is None:
            newest, larger = history.windows(self._size, self.stepped)
            self._windows = newest, larger, self._cut(newest, len(newest), larger)
        newest, larger, cut = self._windows
        p, score = p_values(remembered, newest), self._scale.scaled(scores_among(remembered, larger), cut)
        return Results.of(scores, remembered, score, p, regime, len(newest), self.threshold)

    def judge_first(self, scores: Scores, remembered: Float, regime: int) -> Results:
        """Results of the first records (n,), each compared with the others."""
        n, ordered = len(remembered), np.sort(remembered)
        p, cut = own_p_values(remembered), self._cut(ordered[:-1], n, ordered)
        return Results.of(
            scores, remembered, self._scale.scaled(scores_among(remembered, ordered), cut), p, regime, n, self.threshold
        )

    def _cut(self, reference: Float, n_reference: int, window: Float) -> float | None:
        """The score among `window` above which records are outliers, if their p-values are among `reference`.

        Both ascending. None if no p-value can be as small as the alert rate.
        """
        if not is_calibrated(n_reference, self.threshold.alert_rate):
            return None
        m, above = len(reference), most_above(self.threshold.value, len(reference))
        if above < 0 or above >= m:
            return 1.0 if above < 0 else 0.0
        return float(scores_among(reference[[m - 1 - above]], window)[0])

    def count(self, results: Results) -> None:
        """Note the outliers and the high scores among records that are learned now."""
        self._count += int(results.outlier.sum())
        self._high += int((results.score > 1.0 - ScoreScale.SHARE).sum())

    def step(self, records: int) -> None:
        """Adapt to the outliers and the high scores since the last step; `records`: number of the next record."""
        self.threshold.update(self._count, records - self.stepped)
        self._scale.update(self._high, records - self.stepped)
        self.begin(records)

    def begin(self, records: int) -> None:
        """Start a new step without adapting."""
        self._count, self._high, self.stepped, self._windows = 0, 0, records, None

    def refresh(self) -> None:
        """Build the windows again: logits in the history have changed."""
        self._windows = None

    def copy(self) -> Alerts:
        """Independent alerts in the same state."""
        twin = copy(self)
        twin.threshold, twin._scale = copy(self.threshold), copy(self._scale)
        return twin

    def counters(self) -> dict[str, Any]:
        """The state, as plain numbers."""
        counters = {"stepped": self.stepped, "alerts": self._count, "log_factor": self.threshold.log_factor}
        return counters | {"high": self._high, "share": self._scale.share}

    def recover(self, counters: Mapping[str, Any]) -> None:
        """Take the state from `counters`."""
        self.stepped, self._count, self._windows = counters["stepped"], counters["alerts"], None
        self.threshold.log_factor = counters["log_factor"]
        self._high, self._scale.share = counters["high"], counters["share"]
