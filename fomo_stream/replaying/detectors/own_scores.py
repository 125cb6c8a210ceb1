"""P-values and alerts of a detector from its own earlier scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.alerts import is_calibrated, p_values
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.replaying.blocks import Judgement

Float = NDArray[np.float64]


class OwnScores:
    """Compares each score with the last `window_size` scores before the last step (split conformal).

    A step is every `STEP` records, as in our own detector. So a result does not depend on how records are split over
    calls. A record is an alert if its p-value is at most the alert rate, once there are enough scores for that.
    """

    def __init__(self, config: DetectorConfig) -> None:
        self._alert_rate = config.alert_rate
        self._size = config.window_size
        self._recent = np.empty(0)  # the window, in order of time
        self._ascending = np.empty(0)  # the same scores, ascending
        self._since: list[Float] = []  # scores since the last step
        self._records = 0  # since the last step, with those without a score

    def judge(self, scores: Float) -> Judgement:
        """The judgements of the next n records from their scores (n,); NaN: no score, which no window keeps."""
        p, alert = np.full(len(scores), np.nan), np.zeros(len(scores), dtype=bool)
        start = 0
        while start < len(scores):
            part = slice(start, start + STEP - self._records)
            found = scores[part]
            has_score = ~np.isnan(found)
            p[part] = np.where(has_score, p_values(found, self._ascending), np.nan)
            if is_calibrated(len(self._ascending), self._alert_rate):
                alert[part] = p[part] <= self._alert_rate
            self._since.append(found[has_score])
            self._records += len(found)
            start += len(found)
            if self._records == STEP:
                self._step()
        return Judgement(scores, p, alert)

    def _step(self) -> None:
        """The scores since the last step join the window, and the oldest leave it."""
        new = np.concatenate(self._since)
        every = np.concatenate([self._recent, new])
        too_many = max(0, len(every) - self._size)
        gone, self._recent = every[:too_many], every[too_many:]
        joined = np.sort(new)
        self._ascending = np.insert(self._ascending, np.searchsorted(self._ascending, joined), joined)
        gone = np.sort(gone)  # equal scores leave one by one
        places = np.searchsorted(self._ascending, gone) + np.arange(len(gone)) - np.searchsorted(gone, gone)
        self._ascending = np.delete(self._ascending, places)
        self._since, self._records = [], 0
