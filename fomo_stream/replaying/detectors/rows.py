"""Rows without gaps, for detectors that know neither missing values nor categories, and `knn`, which is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fomo_stream.detector.config import STEP, DetectorConfig

Float = NDArray[np.float64]

LARGEST = 1e100  # values are cut to this size, so that their squares are finite
MAX_CATEGORIES = 10_000  # values counted in a column; later ones count as never seen before
NEAREST = 5
ROUNDING = 1e-12  # a smaller deviation, relative to the mean, is that of a constant column


class CompleteRows:
    """Fills rows in, from the rows before each: the result does not depend on how rows are split over calls.

    A missing value becomes the mean of the column so far (0 before its first value). A category becomes the share of
    earlier records with the same value.
    """

    def __init__(self, n_features: int, categorical: Sequence[int] = ()) -> None:
        self._total, self._count = np.zeros(n_features), np.zeros(n_features)
        self._categories: dict[int, dict[float, int]] = {column: {} for column in categorical}
        self._seen = dict.fromkeys(categorical, 0)

    def complete(self, rows: Float) -> Float:
        """The next rows (n, d) without gaps; NaN = missing."""
        rows = np.clip(rows, -LARGEST, LARGEST)
        for column in self._categories:
            rows[:, column] = self._shares(column, rows[:, column])
        known = ~np.isnan(rows)
        # cumsum adds one row after the other, so the same numbers come out of any split
        total = np.cumsum(np.vstack([self._total, np.where(known, rows, 0.0)]), axis=0)
        count = np.cumsum(np.vstack([self._count, known]), axis=0)
        self._total, self._count = total[-1], count[-1]
        mean = total[:-1] / np.maximum(count[:-1], 1.0)
        return np.where(known, rows, mean)

    def _shares(self, column: int, codes: Float) -> Float:
        counts, shares = self._categories[column], np.full(len(codes), np.nan)
        for i, code in enumerate(codes.tolist()):
            if code != code:
                continue
            shares[i] = counts.get(code, 0) / max(1, self._seen[column])
            self._seen[column] += 1
            if code in counts or len(counts) < MAX_CATEGORIES:
                counts[code] = counts.get(code, 0) + 1
        return shares


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
