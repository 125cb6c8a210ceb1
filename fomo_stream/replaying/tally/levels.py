"""Calibration: how many records have a p-value at most as large as each level."""

from __future__ import annotations

from typing import Any

import numpy as np

from fomo_stream.replaying.tally.spec import Arrays, Columns, Float, Int, TallySpec

LEVELS = np.geomspace(1e-4, 0.5, 25)


class Levels:
    """counts: (D, 2, 26) p-values between two levels, of all records and of labelled inliers."""

    def __init__(self, spec: TallySpec, counts: Int | None = None) -> None:
        shape = (len(spec.detectors), 2, len(LEVELS) + 1)
        self.counts: Int = np.zeros(shape, np.int64) if counts is None else counts

    def add(self, columns: Columns) -> None:
        """Count the p-values of a block."""
        n_cells = len(LEVELS) + 1
        for d, p in enumerate(columns.p_values):
            known = ~np.isnan(p)
            cells = np.searchsorted(LEVELS, p, side="left")
            self.counts[d, 0] += np.bincount(cells[known], minlength=n_cells)
            self.counts[d, 1] += np.bincount(cells[known & columns.is_inlier], minlength=n_cells)

    def merge(self, other: Levels) -> None:
        """Add the counts of another partition."""
        self.counts = self.counts + other.counts

    def report(self, d: int, has_labels: bool) -> dict[str, Any]:
        """Of detector d: at each level, the share of p-values that are at most as large."""
        return {
            "requested": LEVELS,
            "realised": _shares(self.counts[d, 0]),
            "of_inliers": _shares(self.counts[d, 1]) if has_labels else None,
        }

    def arrays(self) -> Arrays:
        """The counts, to be stored."""
        return {"counts": self.counts}

    @classmethod
    def from_arrays(cls, spec: TallySpec, arrays: Arrays) -> Levels:
        """As `arrays` gave them."""
        return cls(spec, arrays["counts"].copy())


def _shares(counts: Int) -> Float | None:
    total = counts.sum()
    return np.cumsum(counts)[:-1] / total if total else None
