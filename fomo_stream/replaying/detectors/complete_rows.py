"""Rows as detectors need them that know neither missing values nor categories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

LARGEST = 1e100  # values are cut to this size, so that their squares are finite
MAX_CATEGORIES = 10_000  # values counted in a column; later ones count as never seen before


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
