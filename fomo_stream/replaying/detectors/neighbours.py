"""`knn`: the distance to the nearest of the last records, a simple detector that is hard to beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fomo_stream.detector.config import STEP, DetectorConfig

Float = NDArray[np.float64]

NEAREST = 5
ROUNDING = 1e-12  # a smaller deviation, relative to the mean, is that of a constant column


class Neighbours:
    """The score of a row is its mean Euclidean distance to the 5 nearest of the `context_size` rows before it.

    Columns are z-scored: less the mean and divided by the standard deviation of the last `context_size` rows before
    the last step, where a step is every `STEP` rows; a constant column is not divided. Only the scaling waits for a
    step: each row is compared with all rows before it. No score before `min_context` rows. The scores do not depend on
    how rows are split over calls.
    """

    def __init__(self, n_features: int, config: DetectorConfig) -> None:
        self._size = config.context_size
        self._nearest = min(NEAREST, config.context_size)
        self._warm_up = max(config.min_context, self._nearest)
        self._records = 0  # before the last step
        self._window = np.empty((0, n_features))  # the last rows before the last step, in order, raw
        self._since = np.empty((0, n_features))  # rows since the last step
        self._mean, self._scale = np.zeros(n_features), np.ones(n_features)
        self._scaled = self._window

    def judge(self, rows: Float) -> Float:
        """The scores (n,) of the next rows (n, d), without missing values; NaN while warming up."""
        scores = np.empty(len(rows))
        start = 0
        while start < len(rows):
            part = rows[start : start + STEP - len(self._since)]
            scores[start : start + len(part)] = self._distances(part)
            self._since = np.concatenate([self._since, part])
            start += len(part)
            if len(self._since) == STEP:
                self._step()
        return scores

    def _distances(self, rows: Float) -> Float:
        """Of rows (n, d) that follow those since the last step; both together are a step at most."""
        place = len(self._since) + np.arange(len(rows))[:, None]  # of each row in the step
        before = self._records + place[:, 0]
        if before[-1] < self._warm_up:
            return np.full(len(rows), np.nan)
        step = (np.concatenate([self._since, rows]) - self._mean) / self._scale
        distance = cdist(step[len(self._since) :], np.concatenate([self._scaled, step]))
        old = len(self._window)
        column = np.arange(old + len(step))
        # a row sees the rows before it, at most `context_size` of them
        distance[(column >= old + place) | (column < old + place - self._size)] = np.inf
        nearest = np.sort(np.partition(distance, self._nearest - 1, axis=1)[:, : self._nearest], axis=1)
        return np.where(before < self._warm_up, np.nan, nearest.mean(axis=1))

    def _step(self) -> None:
        self._records += len(self._since)
        self._window = np.concatenate([self._window, self._since])[-self._size :]
        self._since = self._since[:0]
        self._mean, deviation = self._window.mean(axis=0), self._window.std(axis=0)
        self._scale = np.where(deviation > ROUNDING * np.abs(self._mean), deviation, 1.0)
        self._scaled = (self._window - self._mean) / self._scale
