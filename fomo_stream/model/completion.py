"""Missing values: what the nearest rows of a context have.

A missing value is unknown. So a row is completed by the values that are likely, given its others: the middle ones of
the NEAREST rows of the context, by their distance in the values that the row has (k-nearest-neighbour imputation;
Troyanskaya et al. 2001), and of all that are as far as the last of these. Distances are in standard deviations of the
context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.quantile_map import SortedColumns

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

NEAREST = 5


def _spreads(rows: Float) -> Float:
    spreads: Float = rows.std(axis=0)
    return spreads


def _scale(spreads: Float) -> Float:
    """Standard deviations (d,), 1 where a column does not vary or is unknown."""
    return np.where(spreads > 0, spreads, 1.0)


@dataclass(frozen=True)
class Completion:
    """The rows of a context, by which others are completed."""

    rows: Float  # (n, d) raw units, without gaps but for features that no row has: NaN
    known: Bool  # (d,) the other features
    scale: Float  # (d,) that distances are divided by

    @classmethod
    def of(
        cls,
        rows: Float,
        fill: Callable[[Completion, Float, Bool], Float] | None = None,
        spreads: Callable[[Float], Float] = _spreads,
    ) -> Completion:
        """Complete the rows (n, d) of a context, NaN = missing, each by the others.

        fill: as the method; spreads: the standard deviations (d,) of columns (n, d).
        """
        missing = np.isnan(rows)
        if not missing.any():
            return cls(rows, np.ones(rows.shape[1], dtype=bool), _scale(spreads(rows)))
        has_values: Bool = ~np.all(missing, axis=0)
        gaps = missing & has_values
        if not gaps.any():
            return cls(rows, has_values, _scale(spreads(rows)))
        columns = SortedColumns.of(rows)
        middle = columns.values[np.arange(rows.shape[1]), np.maximum(columns.counts - 1, 0) // 2]
        rough = np.where(gaps, middle, rows)
        among = cls(rough, has_values, _scale(spreads(rough)))
        filled = among.fill(rows, gaps) if fill is None else fill(among, rows, gaps)
        return cls(filled, has_values, among.scale)

    def fill(self, rows: Float, lacking: Bool | None = None) -> Float:
        """Complete rows (q, d), NaN = missing; NaN stays for features that the context does not know.

        lacking: (n, d) values of the context that are known to none.
        """
        gaps = np.isnan(rows) & self.known
        at = np.flatnonzero(gaps.any(axis=1))
        if not len(at):
            return rows
        filled = np.array(rows)
        for i in at.tolist():
            filled[i, gaps[i]] = self._likely(rows[i], gaps[i], lacking)
        return filled

    def _likely(self, row: Float, gaps: Bool, lacking: Bool | None) -> Float:
        """The values of a row (d,) for its gaps (d,)."""
        present = self.known & ~np.isnan(row)
        distances = np.square((self.rows[:, present] - row[present]) / self.scale[present]).sum(axis=1)
        if lacking is not None:
            distances[lacking[:, gaps].any(axis=1)] = np.inf
        if not present.any():
            distances[:] = 0.0
        last = np.partition(distances, min(NEAREST, len(distances)) - 1)[min(NEAREST, len(distances)) - 1]
        near = distances <= (
            last if np.isfinite(last) or not np.isfinite(distances).any() else np.finfo(np.float64).max
        )
        values = np.sort(self.rows[near][:, gaps], axis=0)
        likely: Float = values[(len(values) - 1) // 2]
        return likely
