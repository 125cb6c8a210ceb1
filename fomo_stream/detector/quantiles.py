"""The quantile transform of a reservoir, fitted as rows come and go."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.quantile_map import ascending

Float = NDArray[np.float64]


class Quantiles:
    """The values of each of d columns of a changing set of rows, ascending: their empirical quantiles.

    Rows that come and go are merged when the columns are read: it costs less to merge many together.
    """

    def __init__(self, rows: Float) -> None:
        """rows: (n, d), NaN = missing."""
        self._columns = [ascending(column) for column in rows.T]
        self._come: list[Float] = []
        self._gone: list[Float] = []

    def add(self, rows: Float) -> None:
        """Add rows (n, d)."""
        self._come.append(rows.copy())

    def remove(self, rows: Float) -> None:
        """Remove rows (n, d) that were added."""
        self._gone.append(rows.copy())

    @property
    def columns(self) -> tuple[Float, ...]:
        """The known values of each of d columns, ascending."""
        if self._come or self._gone:
            come, gone = (np.vstack([*rows, np.empty((0, len(self._columns)))]) for rows in (self._come, self._gone))
            self._columns = [_merged(*parts) for parts in zip(self._columns, come.T, gone.T, strict=True)]
            self._come, self._gone = [], []
        return tuple(self._columns)


def _merged(values: Float, come: Float, gone: Float) -> Float:
    """Ascending values (n,) with others (m,) and without some of all of them (k,)."""
    come, gone = ascending(come), ascending(gone)
    joined = np.insert(values, np.searchsorted(values, come), come)
    # each of several equal ones has a place of its own
    places = np.searchsorted(joined, gone) + np.arange(len(gone)) - np.searchsorted(gone, gone)
    return np.delete(joined, places)
