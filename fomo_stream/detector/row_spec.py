"""The columns of the rows that a detector takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.step.follow import limit
from fomo_stream.errors import SchemaError

Float = NDArray[np.float64]


@dataclass(frozen=True)
class RowSpec:
    """The columns: d features, the record's place in each cycle, and with counters its time in seconds."""

    n_features: int
    categorical: tuple[int, ...] = ()  # columns that hold category codes
    counters: tuple[int, ...] = ()  # columns of fields that only grow; their growth counts
    n_cycles: int = 0

    @cached_property
    def numeric(self) -> NDArray[np.bool_]:
        """The mask (d,) of features that are not categories."""
        return ~np.isin(np.arange(self.n_features), self.categorical)

    @cached_property
    def widest(self) -> int:
        """Columns with places in cycles, and with counters also times."""
        return self.n_features + self.n_cycles + bool(self.counters)

    def checked(self, rows: Float) -> Float:
        """Rows (n, widest) within the model's limits, NaN where they are not finite; rows (n, d) have no times.

        With counters the times may be missing. Raises SchemaError for others.
        """
        rows, d = np.asarray(rows, dtype=np.float64), self.n_features
        if rows.ndim != 2 or not d + self.n_cycles * (rows.shape[1] > d) <= rows.shape[1] <= self.widest:
            raise SchemaError(f"the detector takes rows of {d} features, got an array of shape {rows.shape}")
        if rows.shape[1] == self.widest:
            complete = np.array(rows, order="C")
        else:
            complete = np.full((len(rows), self.widest), np.nan)
            complete[:, : rows.shape[1]] = rows
        limit(complete)
        return complete
